"""Apache's own Java classes as a judge of bytes, one process per release.

Owns the set-up (jars by Maven and our two source files by javac, both once, into `.cache/judges/<release>/`) and the
conversation over a pipe; what is on it is written in `java/Judge.java`. Called by the tests and by scripts/wire. Never
touches the messages themselves: a tree in, bytes out, and back (`trees.py` makes the trees).
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.judges.trees import CHANGED_UNTIL_STABLE

NEWEST = "4.4.0"
RELEASES = ("3.9.1", NEWEST)
_SOURCES = Path(__file__).parent / "java"
_CACHE = Path(__file__).parents[2] / ".cache" / "judges"
KEY_TYPES = range(128)
_BATCH = 400  # cases a call: keeps one call's JSON in the megabytes

Json = Any


class NoJavaError(RuntimeError):
    """There is no Java, no Maven, or no way to the jars: the judge cannot be asked."""


def missing() -> str | None:
    """What of Java is not on this machine, or None if the judge can be asked."""
    absent = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


class Judge:
    """One release of Apache's classes, running."""

    def __init__(self, release: str) -> None:
        home = prepare(release)
        self.release = release
        self._fields: dict[str, Json] = {}
        command = [
            "java",
            "-XX:+UseSerialGC",
            "-Xss2m",
            "-Xmx768m",
            "-cp",
            f"{home / 'classes'}:{home / 'lib'}/*",
            "Judge",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """End the process; it leaves when its input closes."""
        self._process.communicate()

    @functools.cached_property
    def has(self) -> Json:
        """What this release has: {"apis": [...], "messages": {name: [first, last]}, "errors": [...]}."""
        return self._ask({"command": "list"})

    def versions(self, message: str) -> range:
        """The versions of a message that this release can read and write; empty if it has none that can judge."""
        if self.release != NEWEST and message in CHANGED_UNTIL_STABLE:
            return range(0)
        first, last = self.has["messages"].get(message, (0, -1))
        return KEY_TYPES if self._has_its_type_beside(message) else range(first, last + 1)

    def _has_its_type_beside(self, message: str) -> bool:
        """Whether it is a key of stored records of Kafka 4: here its type is its version, there that is always 0."""
        return message.endswith("Key") and self.has["messages"].get(message) == [0, 0]

    def _there(self, message: str, version: int) -> int:
        return 0 if self._has_its_type_beside(message) else version

    def fields(self, message: str) -> Json:
        """Names of a message's fields, of all versions: {name: None, or the same of the struct it holds}."""
        if message not in self._fields:
            self._fields[message] = self._ask({"command": "fields", "name": message})
        return self._fields[message]

    def encode(self, cases: Sequence[tuple[str, int, Json]]) -> list[bytes | str]:
        """Bytes of (message, version, tree) each; a str is the reason why there are none."""
        asked = [{"name": name, "version": self._there(name, version), "value": tree} for name, version, tree in cases]
        return [_bytes_or_error(answer) for answer in self.ask("encode", asked)]

    def decode(self, cases: Sequence[tuple[str, int, bytes]]) -> list[tuple[Json, int] | str]:
        """The tree of (message, version, bytes) each, and how many bytes were left; a str is the reason why not."""
        asked = [
            {"name": name, "version": self._there(name, version), "bytes": data.hex()} for name, version, data in cases
        ]
        return [a["error"] if "error" in a else (a["value"], a["left"]) for a in self.ask("decode", asked)]

    def build(self, descriptions: Sequence[Json]) -> list[bytes | str]:
        """Record batches of the descriptions (fields: see RecordJudge.build)."""
        return [_bytes_or_error(answer) for answer in self.ask("build", descriptions)]

    def parse(self, sets: Sequence[bytes]) -> list[Json]:
        """What these sets of record batches hold, and whether they are valid (fields: see RecordJudge.describe)."""
        return list(self.ask("parse", [{"bytes": data.hex()} for data in sets]))

    def down_convert(self, stretches: Sequence[tuple[bytes, int, int]]) -> list[bytes | str]:
        """These (bytes of a log, magic, first offset) as messages of format `magic`; a str is the reason why not."""
        asked = [{"bytes": data.hex(), "magic": magic, "first_offset": first} for data, magic, first in stretches]
        return [_bytes_or_error(answer) for answer in self.ask("down", asked)]

    def ask(self, command: str, cases: Sequence[Json]) -> Iterator[Json]:
        """The answer to each case, in order."""
        for start in range(0, len(cases), _BATCH):
            yield from self._ask({"command": command, "cases": cases[start : start + _BATCH]})

    def _ask(self, request: Json) -> Json:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        data = json.dumps(request).encode()
        stdin.write(struct.pack(">I", len(data)) + data)
        stdin.flush()
        head = stdout.read(4)
        if len(head) < 4:
            raise RuntimeError(f"the Java judge {self.release} ended with {self._process.wait()}")
        (length,) = struct.unpack(">I", head)
        return json.loads(stdout.read(length))


def _bytes_or_error(answer: Json) -> bytes | str:
    return bytes.fromhex(answer["bytes"]) if "bytes" in answer else str(answer.get("error", answer.get("unsupported")))


@functools.cache
def judge(release: str) -> Judge:
    """The running judge of a release, started at most once in this process."""
    started = Judge(release)
    atexit.register(started.close)
    return started


def require(release: str) -> Judge:
    """The running judge, for a test: skips it, visibly, where there is no Java; under CI=true that is a failure."""
    try:
        return judge(release)
    except NoJavaError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the Java judge is missing: {reason}")
        pytest.skip(f"no Java judge here: {reason}")


def prepare(release: str) -> Path:
    """The folder with `lib` and `classes` of a release, made if it is not there. Raises NoJavaError."""
    if reason := missing():
        raise NoJavaError(reason)
    home = _CACHE / release
    with _locked(home):
        _fetch_jars(release, home)
        _compile(release, home)
    return home


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        yield


def _fetch_jars(release: str, home: Path) -> None:
    pom = _SOURCES / "pom.xml"
    if not _stamp(home / "jars", pom.read_bytes()):
        return
    shutil.rmtree(home / "lib", ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={home / 'lib'}"]
    _run(["mvn", "-q", "-B", "-f", str(pom), f"-Dkafka.version={release}", *goal])
    _set_stamp(home / "jars", pom.read_bytes())


def _compile(release: str, home: Path) -> None:
    sources = {path.name: path.read_text() for path in sorted(_SOURCES.glob("*.java"))}
    content = json.dumps(sources).encode()
    if not _stamp(home / "classes.stamp", content):
        return
    number = tuple(int(part) for part in release.split("."))
    (home / "src").mkdir(exist_ok=True)
    for name, text in sources.items():
        if number >= (4, 2):
            text = re.sub(r"kafka\.common\.record\.(?!TimestampType)", "kafka.common.record.internal.", text)
        if number >= (4, 4):
            text = text.replace("utils.ByteBufferOutputStream", "utils.internals.ByteBufferOutputStream")
        (home / "src" / name).write_text(text)
    files = [str(home / "src" / name) for name in sources]
    _run(["javac", "-nowarn", "-Xlint:-deprecation", "-cp", f"{home / 'lib'}/*", "-d", str(home / "classes"), *files])
    _set_stamp(home / "classes.stamp", content)


def _stamp(path: Path, content: bytes) -> bool:
    """Whether what `path` marks has to be made anew."""
    return not path.exists() or path.read_text() != hashlib.sha256(content).hexdigest()


def _set_stamp(path: Path, content: bytes) -> None:
    path.write_text(hashlib.sha256(content).hexdigest())


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise NoJavaError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
