"""Clients from before v2 batches, and new ones told that the broker is that old: how each is had, and one way to ask.

An `OldClient` is a row of facts; an `OldDriver` one running driver program, asked by lines with tabs between their
fields (drivers/OldJavaDriver.java says which). Java clients come from Maven and are compiled once with our driver.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests import environments
from compat_tests.apache import SMALL_JVM

_KAFKA_PYTHON = ["kafka-python==2.3.3", "lz4==4.4.5", "python-snappy==0.7.3"]
_CONFLUENT = ["confluent-kafka==2.11.1"]
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>kbroker</groupId><artifactId>old</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId><version>{release}</version></dependency>
</dependencies></project>"""


class OldRecord(NamedTuple):
    """A record as an old client has it. timestamp: ms, -1 where it knows none."""

    offset: int
    timestamp: int
    key: str
    value: str


@dataclass(frozen=True, eq=False)
class OldClient:
    """A client. lacks: what it cannot do -> why."""

    name: str
    command: Callable[[], list[str]]
    lacks: Mapping[str, str] = field(default_factory=dict)
    has_timestamps: bool = False
    quick: bool = False  # part of scripts/test, not only of scripts/compat

    def __str__(self) -> str:
        return self.name

    def needs(self, *abilities: str) -> None:
        """Skip the test, with the reason, if the client lacks one of the abilities."""
        for ability in abilities:
            if ability in self.lacks:
                pytest.skip(self.lacks[ability])


def _python(library: str, version: str) -> Callable[[], list[str]]:
    requirements = _KAFKA_PYTHON if library == "kafka-python" else _CONFLUENT

    def command() -> list[str]:
        release = requirements[0].split("==")[1]
        python = environments.python(f"old-{library}", release, requirements)
        return [str(python), environments.driver("old_python_driver.py"), "{address}", library, version]

    return command


def _java(release: str, artifact: str = "kafka-clients", reader: str = "OldJavaReader.java") -> Callable[[], list[str]]:
    def command() -> list[str]:
        home = environments.old_java(f"{artifact}-{release}", _POM.format(artifact=artifact, release=release), reader)
        classpath = f"{home / 'classes'}:{home / 'lib'}/*"
        return ["java", *SMALL_JVM, "-Xmx256m", "-cp", classpath, "OldJavaDriver", "{address}"]

    return command


_NO_LZ4 = "kafka-python 2.3.3 writes and reads lz4 of format v0 wrongly, against Apache's broker as well"
_READS_NO_LZ4 = {"lz4": _NO_LZ4}
OLD_CLIENTS = (
    OldClient("Scala 0.8.2.2", _java("0.8.2.2", "kafka_2.11", "SimpleConsumerReader.java"), quick=True),
    OldClient("Java 0.9.0.1", _java("0.9.0.1")),
    OldClient("Java 0.10.2.2", _java("0.10.2.2"), has_timestamps=True, quick=True),
    OldClient("Java 0.11.0.3", _java("0.11.0.3"), has_timestamps=True),
    OldClient("Java 1.1.1", _java("1.1.1"), has_timestamps=True),
    OldClient("Java 2.0.1", _java("2.0.1"), has_timestamps=True),
    OldClient("kafka-python as of 0.8.2", _python("kafka-python", "0.8.2"), _READS_NO_LZ4),
    OldClient("kafka-python as of 0.9", _python("kafka-python", "0.9"), _READS_NO_LZ4),
    OldClient("kafka-python as of 0.10.1", _python("kafka-python", "0.10.1"), has_timestamps=True),
    OldClient("librdkafka as of 0.8.2", _python("librdkafka", "0.8.2")),
    OldClient("librdkafka as of 0.9.0", _python("librdkafka", "0.9.0")),
    OldClient("librdkafka as of 0.10.0", _python("librdkafka", "0.10.0"), has_timestamps=True),
)


class OldDriver:
    """One running driver program."""

    def __init__(self, client: OldClient, address: str, folder: Path) -> None:
        """address: the broker's host:port. folder: where the program's error stream is kept."""
        self.client = client
        command = [address if word == "{address}" else word for word in client.command()]
        self._errors = folder / f"{client.name.replace(' ', '-')}.stderr"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def produce(self, topic: str, codec: str, count: int, value: str) -> list[int]:
        """Write records k0, k1... with the value and the number behind it to partition 0; their offsets."""
        return list(map(int, self.ask("produce", topic, codec, str(count), value).split(",")))

    def read(self, topic: str, offset: int, count: int) -> list[OldRecord]:
        """Read partition 0 from the offset on, until `count` records came or the client gives up."""
        found = self.ask("read", topic, str(offset), str(count))
        records = (text.split(":", 3) for text in found.split("\t") if text)
        return [OldRecord(int(at), int(time), key, value) for at, time, key, value in records]

    def ask(self, *words: str) -> str:
        """The answer to one line; fails the test with what the client says if that is an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().rstrip("\n")
        if self._process.poll() is not None or answer.startswith("error\t"):
            pytest.fail(f"{self.client}: {answer or 'ended'}\n{self._errors.read_text(errors='replace')[-2000:]}")
        return answer

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
