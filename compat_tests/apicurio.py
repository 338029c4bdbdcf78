"""A schema registry that tests can start: Apicurio's, which has Confluent's HTTP interface, in memory, on the loopback.

Its program comes from Maven, once, into `.cache/clients/`. Called by tests of the pipeline.
"""

from __future__ import annotations

import socket
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compat_tests import environments
from compat_tests.environments import NoClientError
from compat_tests.waiting import eventually

RELEASE = "3.0.9"
"""The newest that runs on Java 17."""
PATH = "/apis/ccompat/v7"


def program() -> Path:
    """The jar to start. Raises NoClientError."""

    def install(home: Path) -> None:
        home.mkdir(parents=True)
        artifact = f"io.apicurio:apicurio-registry-app:{RELEASE}:tar.gz:all"
        goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
        environments.run([*environments.MAVEN, *goal])
        for archive in home.glob("*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(home, filter="data")
            archive.unlink()

    found = sorted(environments.installed(f"apicurio-{RELEASE}", [RELEASE], install).glob("*-runner.jar"))
    if not found:
        raise NoClientError("apicurio-registry-app has no runner")
    return found[0]


@contextmanager
def registry() -> Iterator[str]:
    """A registry that runs: its URL. Raises NoClientError."""
    jar = program()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    where = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    url = f"http://127.0.0.1:{port}{PATH}"
    words = ["java", *small, *where, "-jar", str(jar)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        try:
            eventually(lambda: _answers(url) or process.poll() is not None, 120)
            assert process.poll() is None, "the registry has ended"
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
        return bool(answer.status == 200)
    return False
