"""Driver of kcat: every operation is one run of the command. Arguments: the command, the broker's host:port.

A group member is a kcat that runs on in the background, in JSON mode; what it reads waits until asked for.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
from typing import Any

from driver import CodeError, data, security, serve

KCAT, ADDRESS = sys.argv[1], sys.argv[2]
SETTINGS = [word for name, value in security().items() for word in ("-X", f"{name}={value}")]
CODES = {"Unknown topic or partition": 3, "Message size too large": 10}


def run(*arguments: str, stdin: bytes = b"", wait_ms: int = 30_000) -> str:
    """The output of a run. Raises CodeError with what it said if it fails."""
    command = [KCAT, "-b", ADDRESS, *SETTINGS, *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=wait_ms / 1000)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode("latin-1")
    said = done.stderr.decode("latin-1")
    if done.returncode:
        raise CodeError(next((code for words, code in CODES.items() if words in said), -1), said)
    return done.stdout.decode("latin-1")


def shown(line: str) -> dict[str, Any]:
    record = json.loads(line)
    headers = record.get("headers", [])
    pairs = [[headers[at], headers[at + 1]] for at in range(0, len(headers), 2)]
    wanted = {name: record[name] for name in ("partition", "offset", "key")}
    return {**wanted, "timestamp": record["ts"], "value": record["payload"], "headers": pairs}


class Member:
    """A kcat in a group."""

    def __init__(self, group: str, topics: list[str], settings: list[str]) -> None:
        options = ["-X", "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=100", *settings]
        command = [KCAT, "-b", ADDRESS, *SETTINGS, "-J", "-u", "-q", *options, "-G", group, *topics]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)


class Operations:
    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def version(self) -> str:
        said = subprocess.run([KCAT, "-V"], capture_output=True, text=True).stdout
        return re.search(r"Version (\S+)", said)[1]

    def _metadata(self, *arguments: str) -> Any:
        return json.loads(run("-L", "-J", *arguments))

    def brokers(self) -> list[Any]:
        found = [(broker["id"], *broker["name"].rsplit(":", 1)) for broker in self._metadata()["brokers"]]
        return [[node, host, int(port)] for node, host, port in found]

    def topics(self) -> list[str]:
        return [topic["topic"] for topic in self._metadata()["topics"]]

    def partitions(self, topic: str) -> list[int]:
        return [partition["partition"] for partition in self._metadata("-t", topic)["topics"][0]["partitions"]]

    def produce(
        self, topic: str, records: list[dict[str, Any]], acks: int, codec: str, idempotent: bool, limit: int | None
    ) -> list[Any]:
        options = ["-X", f"acks={acks}", "-z", codec, "-X", f"enable.idempotence={str(idempotent).lower()}"]
        if limit:
            options += ["-X", f"message.max.bytes={limit}"]
        for record in self._alike(records):
            first = record[0]
            place = ["-p", str(first["partition"])] if "partition" in first else []
            headers = [word for name, value in first.get("headers", []) for word in ("-H", f"{name}={value}")]
            key = ["-K", "\t"] if first.get("key") is not None else []
            null = ["-Z"] if first["value"] is None else []
            lines = [(f"{one['key']}\t" if key else "") + (one["value"] or "") for one in record]
            text = "\n".join(lines) + "\n"
            run("-P", "-t", topic, *options, *place, *headers, *key, *null, stdin=data(text) or b"")
        return []

    @staticmethod
    def _alike(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Groups of records that one run can send."""
        groups: list[list[dict[str, Any]]] = []
        marks: list[Any] = []
        for record in records:
            mark = (record.get("partition"), record.get("headers"), record.get("key") is None, record["value"] is None)
            if marks and marks[-1] == mark:
                groups[-1].append(record)
            else:
                groups.append([record])
                marks.append(mark)
        return groups

    def read(self, topic: str, partition: int, offset: int, count: int, wait_ms: int) -> list[Any]:
        place = ["-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)]
        out = run("-C", "-J", "-u", "-q", "-X", "topic.metadata.refresh.interval.ms=500", *place, wait_ms=wait_ms)
        return [shown(line) for line in out.splitlines()]

    def bounds(self, topic: str, partition: int) -> list[int]:
        return [self._query(topic, partition, -2), self._query(topic, partition, -1)]

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        found = self._query(topic, partition, timestamp)
        return found if found >= 0 else None

    def _query(self, topic: str, partition: int, timestamp: int) -> int:
        out = run("-Q", "-t", f"{topic}:{partition}:{timestamp}")
        return int(re.search(r"offset (-?\d+)", out)[1])

    def join(self, member: str, group: str, topics: list[str], strategy: str, instance: str | None) -> None:
        strategy = "cooperative-sticky" if strategy == "cooperative" else strategy
        settings = ["-X", f"partition.assignment.strategy={strategy}"]
        if instance:
            settings += ["-X", f"group.instance.id={instance}"]
        self.members[member] = Member(group, topics, settings)

    def poll(self, member: str, count: int, wait_ms: int) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + wait_ms / 1000
        while len(records) < count or not count:
            try:
                records.append(shown(self.members[member].lines.get(timeout=max(0, deadline - time.monotonic()))))
            except queue.Empty:
                break
        return records

    def commit(self, member: str) -> None:
        """kcat commits by itself: at the latest when it leaves."""

    def leave(self, member: str) -> None:
        process = self.members.pop(member).process
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    serve(Operations())
