"""A broker in the test's own process: started, stopped, killed, paused, moved on in time, and gone without a trace."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.runtime.files import SystemLock
from kbroker.runtime.node import Node
from kbroker.testing import UsageError, _folder, _thread, broker
from protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.processes import Client, within
from tests.requests import fetch, fetched, produce, produced


class Left(NamedTuple):
    """What this process has of descriptors, threads, and folders in memory."""

    descriptors: int
    threads: set[threading.Thread]
    folders: set[str]

    def assert_no_more_soon(self) -> None:
        """A client that another test has left still opens and closes connections: what leaks stays."""
        for _ in within(10):
            now = left()
            if now.descriptors <= self.descriptors and now.threads <= self.threads and now.folders <= self.folders:
                return
        raise AssertionError((self, left()))


def left() -> Left:
    gc.collect()
    folders = {each for each in os.listdir("/dev/shm") if each.startswith(f"kbroker-testing-{os.getpid()}-")}
    return Left(len(os.listdir("/proc/self/fd")), set(threading.enumerate()), folders)


def make_topic(client: Client, name: str = "t") -> None:
    answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 8)
    assert answer.topics[0].error_code in (0, 5)
    for _ in within(10):
        if not client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 8).topics[0].error_code:
            return
    raise AssertionError(f"{name} has no leader")


def values(client: Client) -> int:
    """How many bytes of records topic t has."""
    part = fetched(client.ask(fetch(), 11))[0]
    return len(part.records or b"")


def test_it_serves_clients_at_its_bootstrap_address() -> None:
    with broker() as b:
        host, _, port = b.bootstrap.partition(":")
        assert (host, Client(int(port)).ask(ApiVersionsRequest(), 0).error_code) == ("127.0.0.1", 0)


def test_ten_in_one_process_leave_nothing() -> None:
    with broker() as b:
        Client(b.port).close()
    before = left()
    for _ in range(10):
        with broker() as b:
            client = Client(b.port)
            make_topic(client)
            client.ask(produce(b"x"), 8)
            client.close()
    before.assert_no_more_soon()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_acknowledged_is_there_after_a_start_on_the_same_port(end: str) -> None:
    with broker() as b:
        client, port = Client(b.port), b.port
        make_topic(client)
        assert produced(client.ask(produce(b"x", acks=-1), 8)).error_code == 0
        before = values(client)
        getattr(b, end)()
        b.start()
        assert (b.port, values(Client(port))) == (port, before)


def test_a_kill_breaks_connections_without_an_answer() -> None:
    with broker() as b:
        client = Client(b.port)
        client.ask(ApiVersionsRequest(), 0)
        b.kill()
        assert client.socket.recv(1) == b""


def test_a_stop_leaves_the_mark_of_a_clean_one_and_a_kill_does_not(tmp_path: Path) -> None:
    with broker(data=tmp_path) as b:
        mark = b.data / ".kafka_cleanshutdown"
        b.kill()
        after_kill = mark.exists()
        b.start().stop()
        assert (after_kill, mark.exists()) == (False, True)


def test_a_folder_that_was_given_stays(tmp_path: Path) -> None:
    with broker(data=tmp_path / "new") as b:
        make_topic(Client(b.port))
    assert (tmp_path / "new" / "data" / "t-0").is_dir()


def test_its_port_is_refused_but_kept_while_it_is_stopped() -> None:
    with broker() as b:
        port = b.port
        b.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_a_paused_broker_answers_when_it_goes_on() -> None:
    with broker() as b:
        client = Client(b.port)
        b.pause()
        client.send(ApiVersionsRequest(), 0)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.socket.recv(1, socket.MSG_PEEK)
        b.resume()
        client.socket.settimeout(10)
        assert client.receive()


def test_a_paused_broker_can_be_killed() -> None:
    with broker() as b:
        b.pause()
        b.kill()
        assert not b.is_running


def test_settings_are_kafkas_with_underscores() -> None:
    with broker(num_partitions=3) as b:
        client = Client(b.port)
        make_topic(client)
        answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 8)
        assert len(answer.topics[0].partitions) == 3


def test_a_members_session_ends_when_the_test_moves_time() -> None:
    with broker() as b:
        client = Client(b.port)
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        for _ in within(10):
            if not client.ask(FindCoordinatorRequest(key="g"), 2).error_code and not client.ask(join, 3).error_code:
                break
        ask = DescribeGroupsRequest(groups=["g"])
        members = [len(client.ask(ask, 3).groups[0].members)]
        b.advance(seconds=7)
        members.append(len(client.ask(ask, 3).groups[0].members))
        assert members == [1, 0]


def test_time_that_was_moved_removes_old_segments_from_the_disk() -> None:
    with broker(log_segment_bytes=200, log_retention_hours=1) as b:
        client = Client(b.port)
        make_topic(client)
        for _ in range(3):
            client.ask(produce(b"x" * 100), 8)
        before = len(list((b.data / "t-0").glob("*.log")))
        b.advance(hours=2)
        assert (before, len(list((b.data / "t-0").glob("*.log")))) == (3, 1)


# -- one line for each mistake


def told(error: pytest.ExceptionInfo[UsageError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_setting_that_there_is_not_names_the_one_meant() -> None:
    with pytest.raises(UsageError) as error:
        broker(num_partition=3)
    assert told(error) == "there is no setting 'num.partition'; did you mean num.partitions?"


def test_a_bad_value_says_what_is_allowed() -> None:
    with pytest.raises(UsageError, match=r"num\.partitions.*allowed") as error:
        broker(num_partitions="three").start()
    told(error)


def test_a_taken_port_says_to_leave_it_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="leave `port` out") as error:
        broker(port=taken.getsockname()[1]).start()
    told(error)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_says_to_leave_it_out(port: int) -> None:
    with pytest.raises(UsageError, match="leave `port` out") as error:
        broker(port=port)
    told(error)


@pytest.mark.parametrize("key", ["broker_id", "node_id"])
def test_an_id_that_is_no_number_says_what_is_allowed(key: str) -> None:
    with pytest.raises(UsageError, match=r"\.id=one: allowed: a whole number"):
        broker(**{key: "one"})


def test_a_file_for_a_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = left()
    with pytest.raises(UsageError, match=r"data=.*/file: File exists; name another folder") as error:
        broker(data=tmp_path / "file").start()
    before.assert_no_more_soon()
    told(error)


def test_a_folder_with_a_comma_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data=.*/a,b: log\.dirs takes a comma for .*; name another") as e:
        broker(data=tmp_path / "a,b").start()
    assert not list(tmp_path.iterdir())
    told(e)


def test_a_setting_with_a_word_of_its_own_says_the_word() -> None:
    with pytest.raises(UsageError, match="write `port=` or `data=` instead"):
        broker(listeners="PLAINTEXT://:9092")


def test_after_its_end_it_says_that_it_was_closed() -> None:
    with broker() as b:
        pass
    with pytest.raises(UsageError, match="was closed: use it inside its `with` block") as error:
        b.bootstrap  # noqa: B018
    told(error)


def test_before_its_start_it_says_to_start_it() -> None:
    with pytest.raises(UsageError, match=r"call start\(\) first"):
        broker().bootstrap  # noqa: B018


def test_a_second_start_is_refused() -> None:
    with broker() as b, pytest.raises(UsageError, match="runs already"):
        b.start()


def test_time_does_not_go_back() -> None:
    with broker() as b, pytest.raises(UsageError, match="only forwards"):
        b.advance(seconds=-1)


def test_a_start_that_fails_leaves_nothing() -> None:
    before = left()
    with pytest.raises(UsageError):
        broker(num_partitions="three").start()
    before.assert_no_more_soon()


def no_descriptor(*_: object) -> object:
    raise OSError(errno.EMFILE, "Too many open files")


def interrupted(*_: object) -> object:
    raise KeyboardInterrupt


def test_a_start_that_finds_no_descriptor_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    monkeypatch.setattr(_thread, "START_S", 0.1)
    monkeypatch.setattr(_thread, "Loop", no_descriptor)
    with pytest.raises(UsageError, match=r"the broker cannot start: .*Too many open files") as error:
        broker().start()
    before.assert_no_more_soon()
    told(error)


def test_a_start_that_takes_too_long_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    monkeypatch.setattr(_thread, "START_S", 0.01)
    monkeypatch.setattr(Node, "ready", False)
    with pytest.raises(UsageError, match=r"the broker cannot start: broker 1 does not serve after 0\.01 s") as error:
        broker().start()
    before.assert_no_more_soon()
    told(error)


def test_a_start_that_is_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    monkeypatch.setattr(_thread.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker().start()
    before.assert_no_more_soon()


def test_a_folder_that_another_process_is_just_making_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(SystemLock):
        """Somebody else makes a folder, too, after this one's lock file is there and before it is locked."""

        def __init__(self, path: str) -> None:
            Path(path).touch()
            with monkeypatch.context() as others:
                others.setattr(_folder, "SystemLock", SystemLock)
                _folder.Folder().close()
            super().__init__(path)

    monkeypatch.setattr(_folder, "MEMORY", tmp_path)
    monkeypatch.setattr(_folder, "SystemLock", Interrupted)
    made = _folder.Folder()
    assert list(tmp_path.iterdir()) == [made.path]
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_left_by_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.testing._folder.MEMORY", tmp_path)
    orphan = tmp_path / "kbroker-testing-orphan"
    orphan.mkdir()
    (orphan / ".lock").touch()
    with broker(), broker():
        assert (orphan.exists(), len(list(tmp_path.iterdir()))) == (False, 2)
    assert not list(tmp_path.iterdir())
