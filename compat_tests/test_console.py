"""The console in a real browser: ten tasks of testers, operators and learners, each in at most three clicks.

    pytest compat_tests/test_console.py --pictures docs/console     and keep a picture of each

Also what a browser alone can tell: nothing that a client has written runs, axe-core finds no fault, ten thousand topics
scroll. Needs Debian's chromium and chromium-driver; axe-core comes from npm into a folder outside of the tree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.apache import NEWEST
from compat_tests.brokers import place_of
from compat_tests.environments import unavailable
from compat_tests.test_streams import NAME, PARTITIONS, SOURCE, TOPIC
from compat_tests.test_streams_groups import instances
from compat_tests.waiting import eventually
from kbroker.console.app import Console, Options
from kbroker.console.screens import SCREENS
from kbroker.security.client import ClientSecurity
from tests.console.browser import MISSING, Browser, is_there
from tests.console.conftest import EVIL
from tests.console.pages import Running
from tests.console.test_screens import ARGUMENTS
from tests.processes import BrokerProcess

AXE = "axe-core@4.10.3"
MILLION = 1_000_000
MOST_CLICKS = 3
MOST_PICTURE_BYTES = 150_000
PAGES = (
    "/",
    "/topics",
    "/topic?name=orders",
    "/messages?topic=orders",
    "/message?topic=orders&partition=0&offset=1",
    "/producers?topic=orders",
    "/groups",
    "/group?name=billing",
    "/transactions",
    "/settings",
    "/log-directories",
    "/access",
    "/wire",
    "/wire/waits",
    "/wire/faults",
    "/wire/partition?topic=orders&partition=0",
    "/wire/segment?topic=orders&partition=0&base_offset=0&offset=500",
    "/wire/group?name=billing",
)


class Shop:
    """A broker with its console, and clients of it. address: of the broker; url: of the console."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        settings = {
            "console_listener": f"127.0.0.1:{port}",
            "offsets_topic_num_partitions": "1",
            "transaction_state_log_num_partitions": "1",
            "group_initial_rebalance_delay_ms": "0",
            "log_index_interval_bytes": "1000",
        }
        self.broker = BrokerProcess(folder, **settings)
        self.url = f"http://127.0.0.1:{port}"

    @property
    def address(self) -> str:
        """bootstrap.servers."""
        return f"127.0.0.1:{self.broker.port}"

    def producer(self, **settings: Any) -> Producer:
        """A stock client."""
        return Producer({"bootstrap.servers": self.address, "client.id": "shop", "linger.ms": 50, **settings})

    def consumer(self, **settings: Any) -> Consumer:
        """Likewise, of group billing unless told otherwise."""
        given = {"group.id": "billing", "client.id": "biller", "auto.offset.reset": "earliest", **settings}
        return Consumer({"bootstrap.servers": self.address, "enable.auto.commit": False, **given})

    def make(self, settings: dict[str, str] | None = None, **topics: int) -> None:
        """Topics, with so many partitions and these settings."""
        admin = AdminClient({"bootstrap.servers": self.address})
        wanted = [NewTopic(name, count, 1, config=settings or {}) for name, count in topics.items()]
        for made in admin.create_topics(wanted).values():
            made.result(30)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if not is_there():
        unavailable(MISSING)
    made = Shop(tmp_path_factory.mktemp("console"))
    with made.broker:
        made.make({"segment.bytes": "40000"}, orders=3)
        made.make(payments=1, evil=1)
        producer = made.producer()
        for number in range(3000):
            order = {"id": number, "item": {"name": f"book {number}"}, "price": number / 2}
            headers = {"source": "web"}
            producer.produce("orders", json.dumps(order).encode(), f"customer-{number}".encode(), headers=headers)
            if number % 100 == 0:
                producer.flush(30)  # so that there are many batches, and entries of an index
        producer.produce("evil", EVIL.encode(), EVIL.encode(), headers={EVIL: EVIL.encode()})
        producer.flush(30)
        consumer = made.consumer()
        consumer.subscribe(["orders"])
        assert len(consumer.consume(500, 20)) == 500
        consumer.commit(asynchronous=False)
        consumer.close()
        yield made


@pytest.fixture(scope="module")
def window(shop: Shop) -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, shop: Shop) -> Browser:
    window.open(shop.url)
    return window


@pytest.fixture
def done(browser: Browser, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """To be called at a task's end, with the name of its picture."""
    folder = request.config.getoption("--pictures")

    def check(name: str) -> None:
        assert browser.clicks <= MOST_CLICKS, browser.clicks
        assert browser.errors() == []
        if folder:
            path = Path(folder) / f"{name}.png"
            browser.picture(path)
            assert path.stat().st_size <= MOST_PICTURE_BYTES

    return check


def test_1_find_a_message_by_its_key_among_a_million(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    shop.make(million=2)
    producer = shop.producer(**{"queue.buffering.max.messages": 2 * MILLION})
    for number in range(MILLION):
        producer.produce("million", b'{"id": %d, "text": "%s"}' % (number, b"x" * 60), b"key-%d" % number)
    assert producer.flush(120) == 0
    browser.open(f"{shop.url}/topics?fresh=true")  # what a console knows of topics counts for five seconds
    browser.click("=Topics")
    browser.click("a[aria-label='Messages of million']")
    browser.find("input[name=key]").type("key-271828")
    browser.click("=Search")
    browser.see('"id": 271828')
    browser.see("1 record.")
    done("find")


def test_2_follow_a_topic(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Topics")
    browser.click("a[aria-label='Messages of payments']")
    browser.click("=Live tail")
    browser.see("It follows payments from now on")
    producer = shop.producer()
    for number in range(5):
        producer.produce("payments", b"payment %d" % number, b"p")
    producer.flush(10)
    browser.see("payment 4", "#tail")
    done("tail")


def test_3_see_why_a_group_lags(browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Groups")
    browser.click("=billing")
    browser.see("no client reads for it now")
    browser.see("records wait for a member")
    done("lag")


def test_4_reset_a_group_to_yesterday(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Groups")
    browser.click("=billing")
    browser.see("Nothing is changed yet.", "#reset")
    browser.see("go to some time ago (1d)", "#reset")
    browser.run("document.querySelector('#reset').scrollIntoView()")
    shown = browser.find("#reset")
    assert "Records read again" in shown.text
    done("reset")
    browser.click("=Reset the offsets")
    browser.see("Reset offsets: done.", "#said")
    browser.see("3,000", "#lag")
    assert browser.clicks <= MOST_CLICKS


def test_5_make_a_compacted_topic(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Topics")
    browser.click("=Create a topic")
    browser.find("#create input[name=name]").type("customers")
    browser.run("document.querySelector('#create select[name=cleanup_policy]').value = 'compact'")
    browser.click("=Create")
    browser.see("Create a topic: done.", "#said")
    browser.see("customers")
    done("create")
    browser.open(f"{shop.url}/topic?name=customers")
    browser.see("compact (default delete)")


def test_6_produce_a_record_with_headers(browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Topics")
    browser.click("a[aria-label='Produce to payments']")
    browser.find("#produce input[name=key]").type("alice")
    browser.find("#produce textarea[name=value]").type('{"paid": true}')
    browser.find("#produce textarea[name=headers]").type("source: by hand\ntrace: 7")
    browser.click("#produce form button")
    browser.see("Produce: done.", "#produced")
    browser.run("document.querySelector('#produced').scrollIntoView({block: 'end'})")
    done("produce")
    browser.open(browser.run("return location.href"))
    browser.see("source=by hand")
    browser.see("trace=7")


def test_7_arm_a_fault_and_see_the_client_try_again(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Wire")
    browser.click("=Faults")
    browser.find("input[name=topic]").type("payments")
    browser.click("=Arm")
    browser.see("waits for requests")
    delivered: list[KafkaError | None] = []
    producer = shop.producer(**{"retry.backoff.ms": 50})
    producer.produce("payments", b"again", callback=lambda error, message: delivered.append(error))
    producer.flush(10)
    assert delivered == [None]
    browser.see("used up")
    rows = browser.until(
        lambda: [row for row in _rows(browser, "Requests of clients that faults have met") if "Produce" in row][:2],
        "no request is shown",
    )
    assert "answered" in rows[0]
    assert "NOT_LEADER_OR_FOLLOWER" in rows[1]
    browser.run("document.querySelector('form.panel').scrollIntoView()")
    done("fault")
    browser.click("=Take all away")
    browser.see("None.", "[aria-label='Armed faults']")


def _rows(browser: Browser, label: str) -> list[str]:
    found: list[str] = browser.run(
        "return [...document.querySelectorAll(`[aria-label='${arguments[0]}'] tbody tr`)].map((row) => row.innerText)",
        label,
    )
    return found


def test_8_see_which_request_waits_and_for_what(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    consumer = shop.consumer(**{"fetch.wait.max.ms": 5000, "client.id": "patient", "group.id": "patients"})
    consumer.assign([TopicPartition("payments", 0, OFFSET_BEGINNING)])
    while consumer.poll(1.0) is not None:
        pass
    browser.click("=Wire")
    browser.click("=What waits")
    browser.see("purgatory: records in payments-0")
    browser.see("patient")
    done("waits")
    consumer.close()


def test_9_abort_a_hanging_transaction(shop: Shop, browser: Browser, done: Callable[[str], None]) -> None:
    producer = shop.producer(**{"transactional.id": "checkout", "client.id": "till"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("payments", b"never ended")
    producer.flush(10)
    browser.click("=Transactions")
    browser.see("checkout")
    browser.see("Ongoing")
    done("transaction")
    browser.click("button[aria-label='Abort checkout']")
    browser.see("Abort a transaction: done.", "#said")
    browser.see("None.")
    assert browser.clicks <= MOST_CLICKS


def test_10_see_the_index_of_a_segment(browser: Browser, done: Callable[[str], None]) -> None:
    browser.click("=Topics")
    browser.click("=orders")
    browser.click("a[aria-label='Segments of partition 0']")
    browser.see("Index of the active segment")
    browser.until(lambda: browser.run("return document.querySelectorAll('svg.drawn').length") == 2, "nothing is drawn")
    browser.run("document.querySelector('h2').scrollIntoView()")
    done("segments")


@pytest.mark.java
@pytest.mark.timeout(600)
def test_a_streams_group_has_members_with_tasks(
    shop: Shop, browser: Browser, done: Callable[[str], None], tmp_path: Path
) -> None:
    """Kafka Streams with group.protocol=streams: a word count, which has two subtopologies."""
    shop.make(**{SOURCE: PARTITIONS, TOPIC: 1})
    producer = shop.producer()
    with instances(shop.address, tmp_path, 2) as both:
        eventually(both.all_run, within_s=60)
        for number in range(200):
            producer.produce(SOURCE, b"oak elm %d" % number, partition=number % PARTITIONS)
        producer.flush(10)
        browser.click("=Groups")
        browser.click(f"={NAME}")
        browser.see("Every partition is read to its end.")
        tasks = set()
        for row in _rows(browser, "Members"):
            tasks |= set(re.findall(r"\b[01]_[0-9]\b", row))
        assert tasks == {f"{subtopology}_{number}" for subtopology in (0, 1) for number in range(PARTITIONS)}
        assert any(SOURCE in row for row in _rows(browser, "Partitions of the group"))
        browser.run("document.querySelector('[aria-label=Members]').scrollIntoView()")
        done("streams")
        browser.click("=See its rebalances as a sequence")
        browser.see("StreamsGroupHeartbeat")


@pytest.mark.parametrize(
    "path", ["/messages?topic=evil", "/message?topic=evil&partition=0&offset=0", "/groups", "/wire", "/wire/waits"]
)
def test_nothing_that_a_client_has_written_runs(shop: Shop, browser: Browser, path: str) -> None:
    hostile = shop.consumer(**{"client.id": EVIL, "group.id": EVIL})
    hostile.subscribe(["evil"])
    if hostile.consume(1, 3):
        hostile.commit(asynchronous=False)
    browser.errors()
    browser.open(f"{shop.url}{path}")
    browser.see("alert(1)", "body")
    assert browser.errors() == []
    assert browser.run("return document.querySelectorAll('img, script:not([src=\"/static/console.js\"])').length") == 0
    hostile.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The checker of accessibility."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kbroker"
    path = cache / f"{AXE}.js"
    if not path.exists():
        if shutil.which("npm") is None:
            unavailable("no npm here to fetch axe-core by")
        cache.mkdir(parents=True, exist_ok=True)
        named = subprocess.run(["npm", "pack", "--silent", AXE], cwd=cache, capture_output=True, text=True, check=False)
        if named.returncode:
            unavailable(f"npm has no axe-core for us: {named.stderr.strip()[-200:]}")
        packed = cache / named.stdout.strip()
        with tarfile.open(packed) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            path.write_bytes(member.read())
        packed.unlink()
    return path.read_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_fault(shop: Shop, axe: str, dark: bool) -> None:
    found: list[str] = []
    with Browser(dark=dark) as browser:
        for page in PAGES[::3] if dark else PAGES:
            browser.open(f"{shop.url}{page}")
            browser.run(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
            browser.open(f"{shop.url}{page}")
            browser.run("for (const each of document.querySelectorAll('[data-open]')) each.click()")
            browser.run(axe + "; window.axe = axe")
            report = browser.run_async("const done = arguments[arguments.length - 1]; axe.run().then(done)")
            for each in report["violations"]:
                nodes = [node["html"][:200] for node in each["nodes"][:2]]
                found.append(f"{page}: {each['id']}: {each['help']}: {nodes}")
    assert found == []


def test_a_narrow_screen_scrolls_in_no_direction_but_down(shop: Shop) -> None:
    with Browser(width=500, height=800) as browser:
        for page in PAGES:
            browser.open(f"{shop.url}{page}")
            wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], (page, wide)


def test_it_goes_by_keys(shop: Shop, browser: Browser) -> None:
    def press(key: str) -> None:
        browser.run("document.activeElement.blur()")
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        browser.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    press("g")
    press("t")
    browser.see("Topics", "h1")
    press("/")
    assert browser.run("return document.activeElement.name") == "search"
    press("?")
    browser.see("to the search field", "dialog")


def test_ten_thousand_topics_scroll(shop: Shop) -> None:
    admin = AdminClient({"bootstrap.servers": shop.address})
    for first in range(0, 10_000, 1000):
        names = [NewTopic(f"many-{number:05}", 1, 1) for number in range(first, first + 1000)]
        for made in admin.create_topics(names, request_timeout=60).values():
            made.result(60)
    pause = threading.Event()
    with Browser() as browser:
        browser.open(f"{shop.url}/topics?search=many-&fresh=true")
        browser.see("10,000 of")
        for wanted in (100, 300, 600, 1000):
            for _ in range(200):
                browser.run("scrollTo(0, document.body.scrollHeight)")
                if browser.run("return document.querySelectorAll('tbody tr').length") >= wanted:
                    break
                pause.wait(0.05)
            assert browser.run("return document.querySelectorAll('tbody tr').length") >= wanted


@pytest.mark.java
@pytest.mark.parametrize("release", [f"apache-{NEWEST}", "apache-3.9.1"])
def test_apaches_cluster_has_every_screen(release: str, tmp_path: Path) -> None:
    """Asked by the same functions that make the pages; what needs the broker itself is not offered."""
    settings = {"offsets.topic.replication.factor": "1", "group.initial.rebalance.delay.ms": "0"}
    with place_of(release, tmp_path, settings) as place:
        options = Options([(place.host, place.port)], ClientSecurity(), ("127.0.0.1",))
        with Running(Console(options)) as pages:
            assert pages.change("/topics/create", name="orders", partitions=2, replicas=1).status == 200
            for number in range(10):
                sent = pages.change(
                    "/messages/produce", topic="orders", key=f"k{number}", value=f'{{"id": {number}}}', headers="a: b"
                )
                assert sent.status == 200, sent.text
            assert [each["key"]["text"] for each in pages.api("/messages", topic="orders", key="k7")["records"]] == [
                "k7"
            ]
            assert len(pages.api("/messages", topic="orders")["records"]) == 10
            answer = pages.change("/groups/reset", group="billing", topic="orders", how="earliest")
            assert answer.status == 200, answer.text
            assert pages.api("/group", name="billing")["lag"] == 10
            settings_of = {each["name"]: each for each in pages.api("/topic", name="orders")["settings"]}
            assert settings_of["cleanup.policy"]["documentation"]
            for screen in SCREENS:
                if not screen.changes:
                    page = pages.get(screen.path, **ARGUMENTS.get(screen.path, {}))
                    assert page.status == 200, (screen.path, page.text[-500:])
            assert 'href="/wire"' not in pages.get("/").text
            assert pages.change("/topics/delete", name="orders", typed="orders").status == 200
