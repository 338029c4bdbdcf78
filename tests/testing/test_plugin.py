"""The pytest plugin, by pytest in pytest: each test here writes some tests, runs them, and looks at how they went."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kbroker.testing._broker
import kbroker.testing._cluster  # noqa: F401  # a run inside of this process forgets what it is the first to import
from protocol.messages.handshake import ApiVersionsRequest
from tests.processes import Client

pytestmark = pytest.mark.slow

STARTS = int(os.environ.get("KBROKER_STARTS", "15"))  # 1000 takes five minutes


def run(
    pytester: pytest.Pytester, source: str, *arguments: str, ini: str = "", apart: bool = False
) -> pytest.RunResult:
    """apart: in a process of its own, which takes a second longer: where imports or workers are what is asked about."""
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(source)
    start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    return start("-p", "no:cacheprovider", *arguments)


def test_a_test_has_a_broker_by_asking_for_one(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(kafka_broker):
            assert kafka_broker.produce("orders", b"x") == [0]
        """,
    )
    result.assert_outcomes(passed=1)


def test_tests_share_a_broker_and_find_it_empty(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        ports = set()
        def look(b):
            ports.add(b.port)
            assert (b.topics(), list(b.faults), b.requests()) == ({}, [], [])
            b.faults.on("Fetch").drop()
            b.disk.slow(ms=1)
            b.create_topic("orders")
        def test_one(kafka_broker): look(kafka_broker)
        def test_two(kafka_broker): look(kafka_broker)
        def test_three(kafka_broker):
            look(kafka_broker)
            assert len(ports) == 1
        """,
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("harm", ["stop", "kill", "pause", "close"])
def test_a_broker_that_a_test_has_ended_runs_for_the_next(pytester: pytest.Pytester, harm: str) -> None:
    result = run(
        pytester,
        f"""
        def test_one(kafka_broker): kafka_broker.{harm}()
        def test_two(kafka_broker): kafka_broker.create_topic("orders")
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_test_that_cannot_clean_up_leaves_an_empty_broker_to_the_next(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.fixture
        def shop(kafka_broker):
            yield
            raise RuntimeError("a client that cannot be closed")
        def test_one(kafka_broker, shop):
            kafka_broker.create_topic("orders")
            kafka_broker.faults.on("Fetch").drop()
        def test_two(kafka_broker): assert (kafka_broker.topics(), list(kafka_broker.faults)) == ({}, [])
        """,
    )
    result.assert_outcomes(passed=2, errors=1)


@pytest.mark.parametrize("fixture", ["kafka_broker", "kafka_cluster"])
def test_time_that_a_test_moved_does_not_age_the_records_of_the_next(pytester: pytest.Pytester, fixture: str) -> None:
    result = run(
        pytester,
        f"""
        def test_one({fixture}): {fixture}.advance(days=8)
        def test_two({fixture}):
            {fixture}.produce("orders", b"a book")
            {fixture}.advance(minutes=10)
            assert len({fixture}.records("orders")) == 1
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_broker_of_its_own_for_each_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        seen = []
        def test_one(kafka_broker): seen.append(kafka_broker)
        def test_two(kafka_broker): assert kafka_broker not in seen
        """,
        ini="kafka_scope = function",
    )
    result.assert_outcomes(passed=2)


def test_settings_are_lines_of_server_properties(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(kafka_broker):
            kafka_broker.produce("orders", b"x", partition=2)
            assert kafka_broker.topics() == {"orders": 3}
        """,
        ini="kafka_settings =\n    num.partitions=3\n",
    )
    result.assert_outcomes(passed=1)


def test_what_is_not_to_be_reset_stays(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_one(kafka_broker): kafka_broker.create_topic("orders")
        def test_two(kafka_broker): assert kafka_broker.topics() == {"orders": 1}
        """,
        ini="kafka_reset = false",
    )
    result.assert_outcomes(passed=2)


def test_a_topic_is_called_after_its_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.mark.parametrize("n", [1, 2])
        def test_orders(kafka_topic, kafka_broker, n):
            assert kafka_topic == f"test_orders-{n}"
            assert kafka_broker.topics() == {kafka_topic: 1}
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_failing_test_shows_what_the_broker_saw(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from kafka import KafkaProducer
        def test_it(kafka_broker):
            kafka_broker.faults.on("Produce", topic="orders").fail("NOT_LEADER_OR_FOLLOWER").once()
            producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap, client_id="shop")
            producer.send("orders", b"a book", key=b"k").get(10)
            producer.close()
            assert False
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- kafka -*",
            "<broker 1, running, 127.0.0.1:*>",
            "1 topics",
            "  orders: 1 partitions, 1 records",
            "    0@0 b'k': b'a book'",
            "0 groups",
            "  on('Produce', topic='orders').fail(NOT_LEADER_OR_FOLLOWER) met 1",
            "the last * requests to broker 1:",
            "*Produce v* of 'shop' (orders) -> NOT_LEADER_OR_FOLLOWER [[]fail(NOT_LEADER_OR_FOLLOWER)[]]",
            "*Produce v* of 'shop' (orders)",
        ]
    )


def test_a_failing_test_without_a_broker_shows_nothing(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(): assert False")
    result.stdout.no_fnmatch_line("*kafka*")


def test_a_failing_test_shows_a_broker_that_was_stopped(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(kafka_broker):
            kafka_broker.stop()
            assert False
        """,
    )
    result.stdout.fnmatch_lines(["<broker 1, not running, *>"])


def test_a_test_class_of_unittest_takes_it_by_a_fixture_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import unittest
        import pytest
        class TestOrders(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _kafka(self, kafka_broker):
                self.kafka = kafka_broker
            def test_it(self):
                self.assertEqual(self.kafka.produce("orders", b"x"), [0])
        """,
    )
    result.assert_outcomes(passed=1)


def test_unittest_alone_takes_the_context_manager(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text("""
import unittest
from kbroker.testing import broker
class TestOrders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kafka = cls.enterClassContext(broker())
    def test_it(self):
        self.assertEqual(self.kafka.produce("orders", b"x"), [0])
""")
    ended = subprocess.run([sys.executable, "-m", "unittest"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr.strip().splitlines()[-1]) == (0, "OK")


def test_asyncio_has_the_loop_to_itself(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import asyncio
        def test_it(kafka_broker):
            async def connect():
                reader, writer = await asyncio.open_connection("127.0.0.1", kafka_broker.port)
                writer.close()
                return True
            assert asyncio.run(connect())
        """,
    )
    result.assert_outcomes(passed=1)


def test_nothing_is_imported_before_a_test_asks(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys
        def test_it():
            loaded = {name for name in sys.modules if name.startswith(("kbroker", "protocol"))}
            assert loaded == {"kbroker", "kbroker.testing", "kbroker.testing.plugin"}
        """,
        apart=True,
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "told"),
    [
        ("kafka_scope = sesion", "kafka_scope = sesion: allowed: session, package, module, class, function"),
        ("kafka_settings = num.partitions", "kafka_settings: 'num.partitions': write name=value"),
        ("kafka_brokers = three", "kafka_brokers = three: allowed: a whole number"),
        ("kafka_reset = maybe", "kafka_reset: invalid truth value 'maybe'; allowed: true, false"),
    ],
)
def test_a_bad_setting_ends_the_run_in_one_line(pytester: pytest.Pytester, ini: str, told: str) -> None:
    result = run(pytester, "def test_it(): pass", ini=ini, apart=True)
    assert (result.ret, result.stdout.str(), result.stderr.str().splitlines()) == (4, "", [f"ERROR: {told}"])


@pytest.mark.parametrize(
    ("fixture", "ini", "told"),
    [
        ("kafka_broker", "kafka_settings = num.partition=3", "did you mean num.partitions?"),
        ("kafka_broker", "kafka_settings = num.partitions=x", "num.partitions=x"),
        ("kafka_cluster", "kafka_brokers = 0", "write cluster(3)"),
    ],
)
def test_a_broker_that_cannot_be_is_said_without_a_traceback(
    pytester: pytest.Pytester, fixture: str, ini: str, told: str
) -> None:
    said = run(pytester, f"def test_it({fixture}): pass", ini=ini).stdout.str()
    assert told in said
    assert ".py:" not in said.partition("short test summary")[0]


FAILING_CALLS = {
    'kafka_broker.assert_lag("billing", 0)': "UsageError: there is no group 'billing'",
    'kafka_broker.wait_for_records("orders", 1, timeout=0)': "AssertionError: topic orders has 0 records",
    'kafka_broker.faults.on("Prodce")': "UsageError: there is no API 'Prodce'; did you mean Produce?",
    'kafka_broker.create_topic("a/b")': "UsageError: cannot make topic 'a/b'",
    "kafka_broker.advance(ms=-1)": "UsageError: time goes only forwards",
    "kafka_broker.stop(); kafka_broker.topics()": "UsageError: no broker answers",
    'kafka_broker.wait_for_group("billing")': "UsageError: say what to wait for",
    'kafka_broker.produce("orders", 5)': 'UsageError: 5 is no value: write b"..." or "..."',
    'kafka_broker.create_topic("bills", partitions="3")': "EncodeError: topics[0].num_partitions: '3' is not int32",
    'kafka_broker.advance(hours="2")': "TypeError: can only concatenate str",
    "kafka_broker.faults.on(0)": "AttributeError: 'int' object has no attribute 'casefold'",
}


@pytest.mark.parametrize("trace", ["long", "short", "native"])
def test_a_call_that_fails_ends_at_the_line_that_called(pytester: pytest.Pytester, trace: str) -> None:
    tests = [
        f"def test_{number}(kafka_broker):\n    kafka_broker.create_topic('orders')\n    {call}"
        for number, call in enumerate(FAILING_CALLS)
    ]
    result = run(pytester, "\n".join(tests), f"--tb={trace}")
    result.assert_outcomes(failed=len(FAILING_CALLS))
    said = result.stdout.str()
    assert [told for told in FAILING_CALLS.values() if told not in said] == []
    assert re.findall(r"^.*[/\\](?:testing|faults|usage|protocol)\b.*$", said, re.MULTILINE) == []


def test_all_of_a_call_that_fails_is_there_for_who_asks(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(kafka_broker): kafka_broker.advance(ms=-1)", "--full-trace")
    assert "_clock.py" in result.stdout.str()


def test_a_failure_of_the_test_s_own_is_shown_whole(pytester: pytest.Pytester) -> None:
    source = """
        def look(found): assert found == ["orders"]
        def test_it(kafka_broker): look(list(kafka_broker.topics()))
        """
    assert "assert [] == ['orders']" in run(pytester, source).stdout.str()


# -- for other languages


def start(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-m", "kbroker.testing", *arguments]

    def heed_interrupts() -> None:  # which a shell has its background processes ignore, this one perhaps
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_a_process_tells_its_address_and_ends_with_its_input() -> None:
    process, said = start()
    port = int(said["bootstrap"].rpartition(":")[2])
    answer = Client(port).ask(ApiVersionsRequest(), 0).error_code
    process.communicate(timeout=30)
    assert (answer, process.returncode) == (0, 0)


def test_a_process_without_an_input_ends_as_if_that_had_ended() -> None:
    command = [sys.executable, "-m", "kbroker.testing"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, preexec_fn=lambda: os.close(0))
    assert (ended.returncode, "Traceback" in ended.stderr, "bootstrap" in ended.stdout) == (0, False, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_end_leaves_nothing(number: int) -> None:
    process, _ = start()
    process.send_signal(number)
    process.wait(30)
    assert process.stdin is not None
    process.stdin.close()
    assert not [each for each in os.listdir("/dev/shm") if each.startswith(f"kbroker-testing-{process.pid}-")]


def test_a_process_takes_faults_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\non = "ApiVersions"\nfail = "UNSUPPORTED_VERSION"\n')
    process, said = start("--faults", str(file))
    answer = Client(int(said["bootstrap"].rpartition(":")[2])).ask(ApiVersionsRequest(), 0)
    process.communicate(timeout=30)
    assert answer.error_code == 35


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "x"], "--set x: write --set key=value"),
        (["--set", "num.partition=3"], "did you mean num.partitions?"),
        (["--faults", "/nowhere"], "No such file or directory: '/nowhere'"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kbroker.testing", *arguments]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr.count("\n"), told in ended.stderr) == (1, 1, True)


# ---- many


def test_workers_at_once_have_brokers_of_their_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.parametrize("number", range(16))
        def test_it(kafka_broker, kafka_topic, number):
            kafka_broker.produce(kafka_topic, b"%d" % number)
            assert [each.value for each in kafka_broker.records(kafka_topic)] == [b"%d" % number]
        """,
        "-n",
        "3",
        apart=True,
    )
    result.assert_outcomes(passed=16)


@pytest.mark.timeout(max(900, 3 * STARTS))  # on a machine that does much else, too
def test_many_brokers_start_as_processes_and_are_gone() -> None:
    """Eight at a time, each answers a request; none is left behind."""

    def start(number: int) -> int:
        command = [sys.executable, "-m", "kbroker.testing"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["bootstrap"].rpartition(":")[2])
            assert Client(port).ask(ApiVersionsRequest(), 0).error_code == 0
            process.stdin.close()
            assert process.wait(30) == 0
        return number

    with ThreadPoolExecutor(8) as pool:
        assert sum(1 for _ in pool.map(start, range(STARTS))) == STARTS
