"""Commands that a signal ends: what they had to do last is done. And members that wait for their group say so."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys

import pytest
from kafka import KafkaConsumer

from tests.cli.asking import Ask

PATIENCE_S = 60


def begun(bootstrap: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kbroker", *words, "-b", bootstrap]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def first_line_of(*running: subprocess.Popen[bytes]) -> bytes:
    """The line that one of them is the first to say on standard error."""
    with selectors.DefaultSelector() as selector:
        for each in running:
            assert each.stderr is not None
            selector.register(each.stderr, selectors.EVENT_READ, each.stderr)
        ((key, _), *_) = selector.select(PATIENCE_S)
        line: bytes = key.data.readline()
        return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_member_leaves_its_group(ask: Ask, bootstrap: str, number: signal.Signals) -> None:
    topic = f"left-{number.name}"
    ask("produce", "-t", topic, stdin=b"1\n")
    with begun(bootstrap, "consume", topic, "-G", topic, "-o", "beginning") as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"1\n"
        member.send_signal(number)
        _, complaints = member.communicate(timeout=PATIENCE_S)
    assert (member.returncode, complaints.strip()) == (128 + number, b"")
    (group,) = json.loads(ask("groups", "--describe", "--group", topic, "--state", "--json")[1])
    assert (group["state"], group["members"]) == ("Empty", 0)
    assert ask("consume", topic, "-G", topic, "-e")[:2] == (0, "")  # what it had read is committed


def test_what_was_read_is_sent(ask: Ask, bootstrap: str) -> None:
    ask("topics", "--create", "--topic", "typed-in")
    with begun(bootstrap, "produce", "-t", "typed-in", "-X", "linger.ms=30000") as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"1\n2\n" * 50_000)  # more than a pipe holds, and is read at once: the first are handed over
        writer.stdin.flush()
        writer.send_signal(signal.SIGTERM)
        writer.wait(PATIENCE_S)
    assert writer.returncode == 128 + signal.SIGTERM
    assert ask("consume", "typed-in", "-o", "beginning", "-c", "2")[1] == "1\n2\n"


def test_a_signal_that_is_ignored_ends_nothing(ask: Ask, bootstrap: str) -> None:
    ask("produce", "-t", "nohup", stdin=b"1\n")
    command = f"trap '' HUP; exec {sys.executable} -m kbroker consume nohup -o beginning -b {bootstrap}"
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"1\n"
        follower.send_signal(signal.SIGHUP)
        ask("produce", "-t", "nohup", stdin=b"2\n")
        assert follower.stdout.readline() == b"2\n"
        follower.terminate()


def test_a_member_that_waits_for_others_says_so(ask: Ask, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("produce", "-t", "held", stdin=b"1\n")
    other = KafkaConsumer("held", bootstrap_servers=bootstrap, group_id="held", enable_auto_commit=False)
    while not other.assignment():
        other.poll(100)
    told: list[str] = []

    def complain(line: str) -> None:
        told.append(line)
        other.close()

    monkeypatch.setattr("kbroker.cli._reader.WAIT_S", 0.05)
    monkeypatch.setattr("kbroker.cli._reader.complain", complain)
    assert ask("consume", "held", "-G", "held", "-o", "beginning", "-c", "1")[:2] == (0, "1\n")
    (line,) = told
    assert line.startswith("waiting for group held to give this member partitions: ")


def test_a_member_without_a_partition_is_told(ask: Ask, bootstrap: str) -> None:
    ask("produce", "-t", "crowded", stdin=b"1\n")
    with begun(bootstrap, "consume", "crowded", "-G", "crowded", "-o", "beginning") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"1\n"
        with begun(bootstrap, "consume", "crowded", "-G", "crowded") as second:
            said = first_line_of(first, second)  # of whichever the assignor leaves out
            assert said == b"kbroker: group crowded has no partition for this member: others have all of them\n"
            second.terminate()
        first.terminate()
