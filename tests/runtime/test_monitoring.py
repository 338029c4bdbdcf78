"""/metrics and /health: what is told, to whom, and that nobody else waits for it."""

from __future__ import annotations

import errno
import json
import re
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from kbroker.api.figures import GROUP_STATES
from kbroker.cli import run
from kbroker.groups import classic_group, modern
from kbroker.groups.group import GroupType
from kbroker.runtime.loop import Loop
from kbroker.runtime.metrics import LINES_PER_PART, exposition
from kbroker.runtime.monitoring import HEAD_BYTES, MOST_VISITORS, Monitoring
from kbroker.testing import Broker, broker
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.api.test_groups import GROUP, commit, join, sync
from tests.requests import fetch, produce
from tests.world import World

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-zA-Z_]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')


class Numbers:
    """Of a server that nobody connects to."""

    accepted = refused = bytes_in = bytes_out = 0
    failed_handshakes = {("SSL", "peer"): 1}  # noqa: RUF012

    def connections(self) -> dict[str, int]:
        return {}


def told(world: World) -> dict[str, float]:
    """Every sample of the page by its name and labels as written; the page is as the format wants it."""
    return samples(b"".join(exposition(world.core, Numbers())).decode())  # type: ignore[arg-type]


def samples(page: str) -> dict[str, float]:
    found: dict[str, float] = {}
    family = ""
    for line in page.splitlines():
        if line.startswith("# "):
            family = line.split(" ")[2]
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert match[1].startswith(family), (family, line)
        name = line.rpartition(" ")[0]
        assert name not in found, name
        found[name] = float(match[3])
    return found


@pytest.fixture
def world() -> World:
    world = World(offsets_topic_num_partitions="1")
    world.create("t", partitions=2)
    return world


def test_every_name_is_in_the_docs(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = re.findall(r"`([a-z_]{5,})[`{]", page)
    ends = tuple(re.findall(r"`\.\.\.(_[a-z_]+)", page))
    families = re.findall(r"^# TYPE (\w+)", b"".join(exposition(world.core, Numbers())).decode(), re.MULTILINE)  # type: ignore[arg-type]
    assert len(families) > 40
    untold = [name for name in families if name not in names and not name.endswith(ends)]
    assert [name for name in untold if "_numgroups" not in name] == []  # "and the other states"


def test_what_operators_are_told_to_watch_is_there(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    named = set(re.findall(r"`((?:kafka|kbroker|process)_\w+)`", page))
    families = re.findall(r"^# TYPE (\w+)", b"".join(exposition(world.core, Numbers())).decode(), re.MULTILINE)  # type: ignore[arg-type]
    assert len(named) > 5
    assert named - set(families) == set()


def test_requests_are_told_by_api(world: World) -> None:
    client = world.client()
    for _ in range(3):
        client.ask(produce(b"v"), 9)
    assert told(world)['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 3


def test_errors_are_told_by_api_and_code(world: World) -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="no")], allow_auto_topic_creation=False)
    world.client().ask(asked, 8)
    name = 'kafka_network_requestmetrics_errors_total{request="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"}'
    assert told(world)[name] == 1


def test_how_long_requests_waited_is_a_histogram(world: World) -> None:
    client = world.client()
    client.ask(produce(b"v"), 9)
    client.ask(fetch(), 12)
    client.send(fetch(1, max_wait_ms=500), 12)
    world.advance(601)
    found = told(world)
    stem = "kafka_network_requestmetrics_totaltimems"
    waits = {key: value for key, value in found.items() if key.startswith(stem) and "Fetch" in key}
    assert waits[f'{stem}_bucket{{request="Fetch",le="0"}}'] == 1
    assert waits[f'{stem}_bucket{{request="Fetch",le="1023"}}'] == 2
    assert waits[f'{stem}_count{{request="Fetch"}}'] == waits[f'{stem}_bucket{{request="Fetch",le="+Inf"}}'] == 2
    assert 500 <= waits[f'{stem}_sum{{request="Fetch"}}'] <= 601


def test_a_parked_fetch_is_in_the_purgatory(world: World) -> None:
    world.client().send(fetch(0, max_wait_ms=500), 12)
    assert told(world)['kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}'] == 1


def test_replicas_and_their_logs_are_told(world: World) -> None:
    world.client().ask(produce(b"v", index=1), 9)
    found = told(world)
    assert found["kafka_server_replicamanager_partitioncount"] == 2
    assert found["kafka_server_replicamanager_leadercount"] == 2
    assert found["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert found['kafka_log_log_logendoffset{topic="t",partition="1"}'] == 1
    assert found['kafka_log_log_size{topic="t",partition="0"}'] == 0
    assert found["kafka_controller_kafkacontroller_globalpartitioncount"] == 2


def test_a_log_directory_that_failed_is_told() -> None:
    world = World(("/a", "/b"))
    world.create("t", partitions=2)
    world.broker.disk_failed(OSError(5, "broken", "/b"))
    world.settle()
    found = told(world)
    assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert found['kafka_log_logmanager_logdirectoryoffline{logDirectory="/b"}'] == 1
    assert found["kafka_server_replicamanager_offlinereplicacount"] == 1
    assert world.core.health().told["status"] == "degraded"


def test_lag_is_told_by_group_and_partition(world: World) -> None:
    client = world.client()
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    world.advance(10)
    for _ in range(5):
        client.ask(produce(b"v"), 9)
    joined = join(world, client)
    sync(client, joined)
    assert commit(client, 2, joined=joined) == 0
    found = told(world)
    where = f'{{consumergroup="{GROUP}",topic="t",partition="0"}}'
    assert found[f"kafka_consumergroup_current_offset{where}"] == 2
    assert found[f"kafka_consumergroup_lag{where}"] == 3
    assert found[f'kafka_consumergroup_members{{consumergroup="{GROUP}"}}'] == 1
    assert found["kafka_coordinator_group_groupmetadatamanager_numgroupsstable"] == 1


def test_groups_are_told_by_kind_and_state(world: World) -> None:
    client = world.client()
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    world.advance(10)
    sync(client, join(world, client))
    shard = world.broker.groups.runtime.shards[0]
    for group_type, count in ((GroupType.CONSUMER, 2), (GroupType.SHARE, 3), (GroupType.STREAMS, 4)):
        for at in range(count):
            shard._make(group_type, f"{group_type.value} {at}")
    found = told(world)
    stem = "kafka_server_group_coordinator_metrics"
    totals = {kind: found[f'{stem}_group_count{{protocol="{kind}"}}'] for kind in GROUP_STATES}
    assert totals == {"classic": 1, "consumer": 2, "share": 3, "streams": 4}
    assert found[f'{stem}_classic_group_count{{state="Stable"}}'] == 1
    assert found[f'{stem}_classic_group_count{{state="Empty"}}'] == 0
    empty = [found[f'{stem}_{kind}_group_count{{state="Empty"}}'] for kind in ("consumer", "share", "streams")]
    assert empty == [2, 3, 4]
    assert found[f'{stem}_streams_group_count{{state="NotReady"}}'] == 0
    assert f'{stem}_share_group_count{{state="Assigning"}}' not in found
    older = "kafka_coordinator_group_groupmetadatamanager_numgroups"  # these count classic groups
    assert (found[older], found[f"{older}empty"]) == (1, 0)


@pytest.mark.parametrize("kind", list(GroupType))
def test_every_state_of_a_kind_is_counted(kind: GroupType) -> None:
    states = {each.value for each in (classic_group.State if kind is GroupType.CLASSIC else modern.State)}
    own = {GroupType.CONSUMER: {"NotReady"}, GroupType.SHARE: {"NotReady", "Assigning", "Reconciling"}}
    assert set(GROUP_STATES[kind.value]) == states - own.get(kind, set())


def test_the_cleaner_is_told(world: World) -> None:
    figures = world.broker.logs.cleaner.figures
    figures.read_bytes, figures.written_bytes, figures.map_share, figures.took_ms = 400, 100, 0.5, 2500
    figures.dirtiest_ratio, figures.overdue_ms, figures.swept_ms = 0.75, 60_000, world.clock.wall_ms() - 300
    found = told(world)
    stem = "kafka_log_logcleaner"
    assert found[f"{stem}_cleaner_recopy_percent"] == 25
    assert found[f"{stem}_max_buffer_utilization_percent"] == 50
    assert found[f"{stem}_max_clean_time_secs"] == 2.5
    assert found[f"{stem}_max_compaction_delay_secs"] == 60
    assert found[f"{stem}manager_max_dirty_percent"] == 75
    assert found[f"{stem}manager_time_since_last_run_ms"] == 300
    assert found[f'{stem}manager_uncleanable_partitions_count{{logDirectory="/a"}}'] == 0
    assert found[f'{stem}manager_uncleanable_bytes{{logDirectory="/a"}}'] == 0


def test_a_name_with_quotes_stays_one_label(world: World) -> None:
    client = world.client()
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    world.advance(10)
    odd = 'a"b\\c\nd'
    world.broker.groups.runtime.shards[0]._make(GroupType.CLASSIC, odd)
    assert told(world)['kafka_consumergroup_members{consumergroup="a\\"b\\\\c\\nd"}'] == 0


def test_a_page_of_many_partitions_comes_in_parts(world: World) -> None:
    world.create("many", partitions=3 * LINES_PER_PART)
    parts = list(exposition(world.core, Numbers()))  # type: ignore[arg-type]
    assert len(parts) > 10
    assert max(part.count(b"\n") for part in parts) < LINES_PER_PART + 100


# ---- over HTTP


@pytest.fixture
def monitored() -> Iterator[Broker]:
    with broker(settings={"kbroker.metrics.listener": "127.0.0.1:0"}) as running:
        yield running


def metrics_port(running: Broker) -> int:
    assert running._node is not None
    return running._node.metrics_port


def get(running: Broker, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", metrics_port(running), timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


@contextmanager
def visited(world: World) -> Iterator[tuple[Callable[[], None], Callable[[], socket.socket]]]:
    """The listener on a loop of the test's: a turn of it, and a connection to it."""
    loop, listening = Loop(), socket.create_server(("127.0.0.1", 0))
    monitoring = Monitoring(loop, world.core, Numbers(), listening)  # type: ignore[arg-type]
    yield lambda: loop.turn(wait=False), lambda: socket.create_connection(listening.getsockname(), timeout=30)
    monitoring.close()
    loop.close()


def read_all(client: socket.socket, turn: Callable[[], None]) -> bytes:
    """Until the other side says that this is all."""
    found = bytearray()
    while True:
        turn()
        if select.select([client], [], [], 0)[0]:
            data = client.recv(1 << 16)
            if not data:
                return bytes(found)
            found += data


def test_a_scraper_gets_the_page(monitored: Broker) -> None:
    monitored.produce("orders", b"one")
    status, kind, page = get(monitored, "/metrics?name=all")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = samples(page)
    assert found['kafka_log_log_logendoffset{topic="orders",partition="0"}'] == 1
    assert found["kafka_server_socket_server_metrics_incoming_byte_total"] > 0


def test_a_probe_hears_that_it_is_well(monitored: Broker) -> None:
    status, kind, text = get(monitored, "/health")
    told: dict[str, Any] = json.loads(text)
    assert (status, kind, told["status"], told["broker_id"]) == (200, "application/json", "ok", 1)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405), ("HEAD", "/metrics", 200)]
)
def test_what_is_asked_wrongly_is_told_so(monitored: Broker, method: str, path: str, status: int) -> None:
    assert get(monitored, path, method)[0] == status


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\n\n", b"x" * 20_000, b"\r\n\r\n"])
def test_what_is_no_http_ends_the_connection(monitored: Broker, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", metrics_port(monitored)), timeout=30) as client:
        client.sendall(sent)
        try:
            while client.recv(65536):
                pass
        except ConnectionResetError:
            pass
    assert get(monitored, "/health")[0] == 200


def test_who_does_not_read_holds_up_nobody(monitored: Broker) -> None:
    port = metrics_port(monitored)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
    for each in silent:
        each.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert get(monitored, "/health")[0] == 200
    for each in silent:
        each.close()


@pytest.mark.parametrize("sent", [b"", b"GET /metr", b"GET /health HTTP/1.1\r\n\r\n"], ids=["nothing", "a part", "all"])
def test_a_probe_is_not_shut_out_by_those_who_came_before(monitored: Broker, sent: bytes) -> None:
    with ExitStack() as stay:
        for _ in range(2 * MOST_VISITORS):
            client = stay.enter_context(socket.create_connection(("127.0.0.1", metrics_port(monitored))))
            client.sendall(sent)
        assert get(monitored, "/health")[0] == 200


@pytest.mark.slow
def test_who_is_being_answered_stays_where_others_are_silent(world: World) -> None:
    world.create("many", partitions=10_000)  # more than a socket's buffer takes
    with visited(world) as (turn, connect), ExitStack() as stay:
        reader = stay.enter_context(connect())
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        turn()
        for _ in range(2 * MOST_VISITORS):
            stay.enter_context(connect())
            turn()
        assert read_all(reader, turn).splitlines()[-1] == last_line(world)


def last_line(world: World) -> bytes:
    return b"".join(exposition(world.core, Numbers())).splitlines()[-1]  # type: ignore[arg-type]


@pytest.mark.parametrize("behind", [b"x", b"x" * 3 * HEAD_BYTES])
def test_bytes_behind_a_request_take_nothing_from_its_answer(world: World, behind: bytes) -> None:
    with visited(world) as (turn, connect), connect() as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" + behind)
        for _ in range(50):
            turn()  # until all is sent, and the broker would have hung up
        head, _, page = read_all(client, turn).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert page.splitlines()[-1] == last_line(world)


def test_out_of_descriptors_the_listener_rests_and_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts: list[int] = []

    def accept(self: socket.socket) -> Any:
        accepts.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    loop, listening = Loop(), socket.create_server(("127.0.0.1", 0))
    monitoring = Monitoring(loop, world.core, Numbers(), listening)  # type: ignore[arg-type]
    with socket.create_connection(listening.getsockname()) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        client.setblocking(False)
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", accept)
            loop.run_until(lambda: accepts)
            for _ in range(50):
                loop.turn(wait=False)
        loop.run_until(lambda: select.select([client], [], [], 0)[0])
        answer = client.recv(12)
    monitoring.close()
    loop.close()
    assert (len(accepts), answer) == (1, b"HTTP/1.1 200")


def test_a_port_that_is_taken_is_told_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}", f"kbroker.metrics.listener={address}"]
        code = run(["start", *(word for each in settings for word in ("--override", each))])
    line = capsys.readouterr().err.splitlines()[-1]
    told = f"kbroker: cannot listen on kbroker.metrics.listener={address}: Address already in use; another port: "
    assert code == 1
    assert line.startswith(told)
