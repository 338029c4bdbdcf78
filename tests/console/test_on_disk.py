"""A search reads the log of its own broker from the disk, and by Fetch whatever is not there as it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kbroker.console import messages as module
from kbroker.console.app import Console, Options
from kbroker.console.cluster import Cluster, ConsoleError
from kbroker.console.looks import Looks
from kbroker.console.messages import messages
from kbroker.console.notes import Notes
from kbroker.console.on_disk import READ_BYTES
from kbroker.console.values import Values
from kbroker.faults import Faults
from kbroker.security.client import ClientSecurity
from kbroker.testing import Broker, broker
from tests.console.pages import Running

VALUES = Values()
SEGMENT_BYTES = 4 * READ_BYTES
COUNT = 60


class Within:
    """In the place of the socket to the broker: asked on its own thread. asked: how often. change: an answer."""

    def __init__(self, running: Broker) -> None:
        self._running = running
        self.asked = 0
        self.change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda found: found

    def ask(self, what: str, **given: Any) -> Any:
        self.asked += 1
        question = {"ask": what, "with": given}
        found = self._running.call(lambda node: Looks(node, Notes(node.broker.clock), Faults()).reply_to(question))
        if "error" in found:
            raise ConsoleError(found["error"])
        return self.change(found["answer"]) if found["answer"] else None


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    """Topic t: two partitions, segments of 1 MB, batches of a few bytes and of more than is read at a time."""
    with broker() as made:
        made.create_topic("t", partitions=2, segment_bytes=SEGMENT_BYTES)
        for number in range(COUNT):
            value = b"v%d " % number + b"x" * (READ_BYTES + number if number % 5 == 0 else number)
            made.produce("t", value, key=b"k%d" % number, partition=number % 2)
        yield made


@pytest.fixture
def within(running: Broker) -> Within:
    return Within(running)


@pytest.fixture(scope="module")
def cluster(running: Broker) -> Cluster:
    return Cluster([("127.0.0.1", running.port)], ClientSecurity())


def found(cluster: Cluster, within: Any, **given: Any) -> list[str]:
    answer = messages(cluster, VALUES, "t", inside=within, **given)
    assert answer["complete"]
    return [each["key"]["text"] for each in answer["records"]]


def sent_bytes(running: Broker) -> int:
    return running.call(lambda node: node.server.bytes_out)


@pytest.mark.parametrize("start", ["oldest", "newest"])
def test_every_record_is_found_and_the_broker_sends_few(
    running: Broker, cluster: Cluster, within: Within, start: str
) -> None:
    before = sent_bytes(running)
    everything = sorted(f"k{number}" for number in range(COUNT))
    assert sorted(found(cluster, None, start=start, value="v", limit=500)) == everything
    by_fetch = sent_bytes(running) - before
    before = sent_bytes(running)
    assert sorted(found(cluster, within, start=start, value="v", limit=500)) == everything
    assert sent_bytes(running) - before < by_fetch / 2
    assert within.asked >= 2


def test_one_is_found_in_each_segment(cluster: Cluster, within: Within) -> None:
    for number in range(COUNT):
        assert found(cluster, within, key=f"k{number}") == [f"k{number}"]


def test_a_page_without_a_filter_is_fetched(cluster: Cluster, within: Within) -> None:
    assert len(found(cluster, within, limit=500)) == COUNT
    assert within.asked == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda told: None,
        lambda told: told | {"path": f"{told['path']}.deleted"},
        lambda told: told | {"position": told["position"] + 7},
        lambda told: told | {"position": told["position"] + (1 << 40)},
        lambda told: told | {"size": 10},
        lambda told: told | {"path": str(Path(told["path"]).parent)},
    ],
    ids=["elsewhere", "removed", "compacted", "cut back", "torn", "folder"],
)
def test_what_is_not_as_it_was_told_is_fetched(cluster: Cluster, within: Within, change: Any) -> None:
    within.change = change
    everything = found(cluster, within, start="oldest", value="v", limit=500)
    assert sorted(everything) == sorted(f"k{number}" for number in range(COUNT))
    assert within.asked > 0


def test_another_segment_in_its_place_is_not_taken(running: Broker, cluster: Cluster, within: Within) -> None:
    """A file that was put there meanwhile: its batches are sound, and are not those that were asked for."""
    first = min(running.data.glob("**/t-0/*.log"))
    within.change = lambda told: told | {"path": str(first), "position": 0}
    everything = found(cluster, within, start="oldest", value="v", limit=500)
    assert sorted(everything) == sorted(f"k{number}" for number in range(COUNT))


def test_a_search_that_gets_no_processor_is_done_again_with_a_share(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARVED_S", 0.0)
    monkeypatch.setattr(module, "STARVED_SHARE", 1e9)
    starved = Options([("127.0.0.1", running.port)], ClientSecurity(), ("127.0.0.1",), gives_way=True)
    with Running(Console(starved)) as pages:
        assert [each["key"]["text"] for each in pages.api("/messages", topic="t", key="k7")["records"]] == ["k7"]
    with ThreadPoolExecutor(1, initializer=module.gives_way) as pool, pytest.raises(module.StarvedError):
        pool.submit(messages, Cluster(starved.bootstrap, starved.security), VALUES, "t", key="k7").result()
