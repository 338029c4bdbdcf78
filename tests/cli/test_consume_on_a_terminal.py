"""`kbroker consume` on a terminal of 80 columns: what it writes there, to the byte."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator

import pytest

from kbroker.testing import Broker, broker

ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
PATIENCE_S = 60
Run = Callable[..., str]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with broker() as b:
        b.produce("orders", b'{"item": "a book", "price": 12.5}', key=b"alice", headers={"source": b"web"})
        b.produce("orders", b"\x1b]0;owned\x07 \x1b[31mred", key=b"mallory")
        b.produce("orders", b"long " * 40)
        yield b


@pytest.fixture
def on_terminal(kafka: Broker) -> Run:
    def run(*words: str, **environment: str) -> str:
        """All that the command wrote to its terminal until it ended by itself."""
        ours, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "kbroker", "consume", "-b", kafka.bootstrap, "-o", "beginning", "-e", *words]
        plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        child = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, env={**plain, "TERM": "xterm-256color", **environment}
        )
        os.close(its)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:  # nobody has the other end any more
            pass
        finally:
            os.close(ours)
        assert child.wait(PATIENCE_S) == 0, written
        return written.decode()

    return run


def test_records_are_coloured_lines_over_what_there_was_in_all(on_terminal: Run) -> None:
    written = on_terminal("-t", "orders")
    lines = [ESCAPE.sub("", line).lstrip("\r") for line in written.split("\r\n")]
    assert re.search(
        r"0:0    \d\d:\d\d:\d\d\.\d{3}  alice  {\"item\": \"a book\", \"price\": 12\.5}  source=web$", lines[1]
    )
    assert any(line.startswith("    long long") for line in lines)
    assert re.search(r"^3 records in [\d.]+ s$", lines[-2])
    assert "\x1b[1;33malice" in written
    assert "\x1b[2K" in written  # the live line was taken away


def test_what_a_producer_wrote_is_not_obeyed(on_terminal: Run) -> None:
    for form in ((), ("-f", "%s\\n"), ("-J",), ("-D", ";")):
        written = on_terminal("-t", "orders", *form)
        assert "\x07" not in written
        assert "\x1b[31m" not in written
        assert "\x1b]0" not in written


def test_no_colours_where_none_are_wanted(on_terminal: Run) -> None:
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_terminal("-t", "orders", NO_COLOR="1"))


def test_no_live_line_if_it_is_to_be_quiet(on_terminal: Run) -> None:
    assert "records in" not in on_terminal("-t", "orders", "-q")
