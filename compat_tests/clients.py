"""The stock clients of the matrix, and the one interface through which tests drive any of them.

A `Client` is a row of facts: its name, how its driver is started, what it lacks. A `Driver` is one running driver
program (drivers/), asked over its standard input and output; its methods are the contract that each driver fulfils
with its client's own calls. Tests never speak the protocol: what reaches the broker is the client's own.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compat_tests import environments
from compat_tests.apache import NEWEST, SMALL_JVM

ANSWER_S = 60.0
"""The longest a client may take for one call; the tests' own deadlines are shorter."""
LONG_S = 120.0
"""The same for what goes on in the background, from when it is waited for."""


class ClientError(Exception):
    """What the client reported. code: Kafka's error code, if the client gave one."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind} (code {code}): {text}")
        self.code = code


@dataclass(frozen=True, eq=False)
class Client:
    """A stock client. lacks: operation, argument or codec -> why this client cannot do it."""

    name: str
    release: str
    command: Callable[[], list[str]]
    lacks: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False  # part of scripts/test, not only of scripts/compat

    def __str__(self) -> str:
        return f"{self.name} {self.release}"

    def needs(self, *abilities: str) -> None:
        """Skip the test, with the reason, if the client lacks one of the abilities."""
        for ability in abilities:
            if ability in self.lacks:
                pytest.skip(self.lacks[ability])


def _python(name: str, release: str, driver: str, *requirements: str) -> Callable[[], list[str]]:
    def command() -> list[str]:
        return [str(environments.python(name, release, requirements)), environments.driver(driver)]

    return command


def _java(release: str) -> Callable[[], list[str]]:
    def command() -> list[str]:
        classpath = environments.java_classpath(release)
        return ["java", *SMALL_JVM, "-Xmx512m", "-cp", classpath, environments.driver("JavaDriver.java")]

    return command


def _node() -> list[str]:
    home = environments.node("kafkajs", "2.2.4", _KAFKAJS)
    return ["node", environments.driver("kafkajs_driver.js"), str(home / "node_modules")]


def _kcat() -> list[str]:
    python = environments.python("kafka-python", "3.0.12", _KAFKA_PYTHON)  # any interpreter will do
    return [str(python), environments.driver("kcat_driver.py"), environments.kcat()]


_KAFKA_PYTHON = ["kafka-python==3.0.12", "lz4==4.4.5", "python-snappy==0.7.3", "zstandard==0.25.0", "crc32c==2.9.post0"]
_AIOKAFKA = ["aiokafka==0.14.0", "cramjam==2.14.0"]
_KAFKAJS = ["kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "lz4-napi@2.10.0", "@bokuweb/zstd-wasm@0.0.27"]
_NO_COOPERATIVE = "the client has no cooperative assignor"
_NO_SCRAM = "Apache's broker refuses the SCRAM of Debian's kcat, whose librdkafka is 2.0.2, too"
_NO_LOG_DIRS = "the client has no call to describe log directories"
_ADMIN_CALLS = ["create_topic", "add_partitions", "delete_topic", "delete_records", "log_dirs"]
_ADMIN_CALLS += ["topic_configs", "broker_configs", "set_topic_config"]

REFERENCE = Client(
    "kafka-python", "3.0.12", _python("kafka-python", "3.0.12", "kafka_python_driver.py", *_KAFKA_PYTHON), quick=True
)
"""The client that writes what the others read, and reads what they write."""

LIBRDKAFKA = Client(
    "confluent-kafka",
    "2.16.0",
    _python("confluent-kafka", "2.16.0", "confluent_driver.py", "confluent-kafka==2.16.0"),
    lacks={"log_dirs": _NO_LOG_DIRS},
    quick=True,
)

LIBRDKAFKA_SHARES = Client(
    "librdkafka share consumer",
    "2.16.0",
    _python("confluent-kafka", "2.16.0", "confluent_share_driver.py", "confluent-kafka==2.16.0"),
)
"""A preview. Its driver has members of share groups alone."""

NEWEST_JAVA = Client("Java", NEWEST, _java(NEWEST))

CLIENTS = (
    Client(
        "kafka-python",
        "2.3.3",
        _python("kafka-python", "2.3.3", "kafka_python_driver.py", "kafka-python==2.3.3", *_KAFKA_PYTHON[1:]),
        lacks={
            "cooperative": _NO_COOPERATIVE,
            "acks=0": "kafka-python 2.3.3 keeps a request with acks 0 to itself until it has another to send",
        },
    ),
    REFERENCE,
    Client(
        "aiokafka",
        "0.14.0",
        _python("aiokafka", "0.14.0", "aiokafka_driver.py", *_AIOKAFKA),
        lacks={
            "cooperative": _NO_COOPERATIVE,
            "log_dirs": _NO_LOG_DIRS,
            "delete_group": "the client has no call to delete groups",
        },
    ),
    LIBRDKAFKA,
    Client(
        "kcat",
        environments.kcat_release(),
        _kcat,
        lacks={
            **dict.fromkeys(_ADMIN_CALLS, "kcat has no admin calls"),
            **dict.fromkeys(["committed", "groups", "group", "delete_group"], "kcat has no calls about groups"),
            "rebalance": "kcat does not tell its assignment",
            "offsets of acknowledgements": "kcat does not tell the offsets of what it produced",
            "timestamps": "kcat cannot set the timestamp of a record",
            "transactions": "kcat has no calls about transactions",
            **dict.fromkeys(["SCRAM-SHA-256", "SCRAM-SHA-512"], _NO_SCRAM),
        },
    ),
    Client(
        "kafkajs",
        "2.2.4",
        _node,
        lacks={
            "range": "the client has one assignor, round robin",
            "cooperative": _NO_COOPERATIVE,
            "static members": "the client has no static members",
            "offset by a late time": "the client answers the end of the partition in place of nothing",
            "log_dirs": _NO_LOG_DIRS,
        },
    ),
    Client("Java", "3.9.1", _java("3.9.1")),
    NEWEST_JAVA,
)


@contextmanager
def running(address: str, folder: Path, *clients: Client) -> Iterator[list[Driver]]:
    """A driver of each client, ended with the block, as `start` has them."""
    with ExitStack() as ended:
        drivers = []
        for client in clients:
            drivers.append(start(client, address, folder))
            ended.callback(drivers[-1].close)
        yield drivers


FRANZ_GO = Client("franz-go", "1.22.2", lambda: [environments.go_program("franz-go-1.22.2", "franz_go")])
"""Of which the driver has group transactions, members of groups, and what the matrix of security asks."""
SPEAK_KIP_848 = (LIBRDKAFKA, NEWEST_JAVA, FRANZ_GO)
"""Clients that know groups whose coordinator assigns."""


def start(client: Client, address: str, folder: Path, security: Mapping[str, Any] | None = None) -> Driver:
    """A running driver. If the client cannot be had its test is skipped with the reason, and fails under CI=true.

    security: what the client is to be told of that, in its own words.
    """
    try:
        return Driver(client, address, folder, security)
    except environments.NoClientError as reason:
        environments.unavailable(str(reason))


class Driver:
    """One running driver program. Every method asks the client for one thing; raises ClientError if it reports one."""

    def __init__(self, client: Client, address: str, folder: Path, security: Mapping[str, Any] | None = None) -> None:
        """address: the broker's host:port. folder: where the program's error stream is kept."""
        self.client, self.address = client, address
        self.release = client.release
        self._errors = folder / f"{client.name}-{client.release}-{os.urandom(3).hex()}.stderr"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*client.command(), address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "CLIENT_SETTINGS": json.dumps(dict(security or {}))},
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._collect, daemon=True).start()

    def __str__(self) -> str:
        return str(self.client)

    # brokers and topics

    def version(self) -> str:
        """The client's own word on its release."""
        return str(self._call("version"))

    def brokers(self) -> list[tuple[int, str, int]]:
        """(node id, host, port) of every broker."""
        return [tuple(broker) for broker in self._call("brokers")]

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic with one replica a partition."""
        self._call("create_topic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def topics(self) -> list[str]:
        """The names of all topics."""
        return list(self._call("topics"))

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return sorted(self._call("partitions", topic=topic))

    def add_partitions(self, topic: str, total: int) -> None:
        """Let the topic have `total` partitions."""
        self._call("add_partitions", topic=topic, total=total)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._call("delete_topic", topic=topic)

    # records

    def produce(
        self,
        topic: str,
        records: Sequence[Mapping[str, Any]],
        *,
        acks: int = -1,
        codec: str = "none",
        idempotent: bool = False,
        limit: int | None = None,
    ) -> list[tuple[int, int]]:
        """Send records (value, and if wanted key, headers, partition, timestamp) and wait for all acknowledgements.

        limit: the most bytes of a request, if not the client's own. Returns: (partition, offset) of each, in order;
        offset -1 where acks is 0. A client that reports no offsets returns an empty list.
        """
        arguments = {"acks": acks, "codec": codec, "idempotent": idempotent, "limit": limit}
        return [tuple(place) for place in self._call("produce", topic=topic, records=list(records), **arguments)]

    def start_writing(self, topic: str, partitions: int, pause_ms: float, size: int) -> None:
        """Write in the background, idempotent and with acks=all, to all partitions in turn; see drivers/writer.py."""
        self._call("start_writing", topic=topic, partitions=partitions, pause_ms=pause_ms, size=size)

    def written(self) -> list[int]:
        """How many records of what is being written are acknowledged, by partition."""
        return list(self._call("written"))

    def stop_writing(self) -> tuple[list[tuple[int, int, int]], list[str]]:
        """(number, partition, offset) of each record acknowledged, and what failed. All is settled then."""
        done = self._start("stop_writing", LONG_S)()
        return [tuple(each) for each in done["acknowledged"]], list(done["failed"])

    def read(self, topic: str, partition: int, offset: int, count: int, wait_ms: int = 20_000) -> list[dict[str, Any]]:
        """Assign one partition, seek to the offset, and poll until `count` records came or the time is over."""
        return list(self.start_read(topic, partition, offset, count, wait_ms)())

    def start_read(
        self, topic: str, partition: int, offset: int, count: int, wait_ms: int
    ) -> Callable[[], list[dict[str, Any]]]:
        """As `read`, in the background: call what is returned for the records."""
        place = {"topic": topic, "partition": partition, "offset": offset}
        return self._start("read", **place, count=count, wait_ms=wait_ms)

    def transact(
        self,
        producer: str,
        topic: str,
        values: Sequence[str],
        *,
        group: str,
        source: str,
        offset: int,
        commit: bool = True,
        outcome: bool = True,
        name: str | None = None,
    ) -> None:
        """One transaction: values into partition 0, and a group's offset of partition 0 of `source`; then its end.

        producer: one by this name is made at the first call. name: its transactional id, if another. commit: False
        aborts. outcome: False leaves it open. Raises: ClientError, if the client cannot go on.
        """
        arguments = {"group": group, "source": source, "offset": offset, "commit": commit, "outcome": outcome}
        self._call("transact", producer=producer, name=name or producer, topic=topic, values=list(values), **arguments)

    def read_committed(self, topic: str, count: int, wait_ms: int = 20_000) -> list[str]:
        """Values of partition 0 from its beginning, as a consumer with isolation level read_committed gets them."""
        return [str(value) for value in self._call("read_committed", topic=topic, count=count, wait_ms=wait_ms)]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset there is, and the next there will be."""
        first, after = self._call("bounds", topic=topic, partition=partition)
        return first, after

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first offset whose timestamp is at least `timestamp`, or None."""
        found: int | None = self._call("offset_at", topic=topic, partition=partition, timestamp=timestamp)
        return found

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the records below an offset. Returns: the first offset left."""
        return int(self._call("delete_records", topic=topic, partition=partition, before=before))

    # groups

    def join(
        self, member: str, group: str, topics: Sequence[str], strategy: str = "range", instance: str | None = None
    ) -> None:
        """Make a consumer, called `member` from here on, that subscribes in a group and starts at the earliest.

        strategy: `consumer` for a group whose coordinator assigns (KIP-848).
        """
        arguments = {"topics": list(topics), "strategy": strategy, "instance": instance}
        self._call("join", member=member, group=group, **arguments)

    def poll(self, member: str, count: int, wait_ms: int = 20_000) -> list[dict[str, Any]]:
        """Poll until `count` records came or the time is over. count 0: poll for all of the time."""
        return list(self.start_poll(member, count, wait_ms)())

    def start_poll(self, member: str, count: int, wait_ms: int) -> Callable[[], list[dict[str, Any]]]:
        """As `poll`, in the background: call what is returned for the records."""
        return self._start("poll", member=member, count=count, wait_ms=wait_ms)

    def assignment(self, member: str) -> set[tuple[str, int]]:
        """The (topic, partition)s that the member has now."""
        return {(topic, partition) for topic, partition in self._call("assignment", member=member)}

    def commit(self, member: str) -> None:
        """Commit the positions of the member and wait for the answer."""
        self._call("commit", member=member)

    def leave(self, member: str) -> None:
        """Close the member's consumer."""
        self._call("leave", member=member)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The committed offset, or None."""
        found: int | None = self._call("committed", group=group, topic=topic, partition=partition)
        return found

    def groups(self) -> list[str]:
        """The ids of all groups."""
        return list(self._call("groups"))

    def group(self, group: str) -> dict[str, Any]:
        """`state` and number of `members` of a group."""
        return dict(self._call("group", group=group))

    def delete_group(self, group: str) -> None:
        """Delete an empty group."""
        self._call("delete_group", group=group)

    # settings and disk

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        """All settings of a topic."""
        return dict(self._call("topic_configs", topic=topic))

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        """All settings of a broker."""
        return dict(self._call("broker_configs", broker=broker))

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        """Set one setting of a topic."""
        self._call("set_topic_config", topic=topic, name=name, value=value)

    def log_dirs(self) -> dict[str, int]:
        """`topic-partition` -> bytes, over all log directories."""
        return dict(self._call("log_dirs"))

    # the program

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """End the program at once, as a crash would."""
        self._process.kill()

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._process.poll() is None

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The answer to an operation that only this program has."""
        return self._call(operation, **arguments)

    def start(self, operation: str, wait_s: float = LONG_S, **arguments: Any) -> Callable[[], Any]:
        """As `ask`, in the background: call what is returned for the answer."""
        return self._start(operation, wait_s, **arguments)

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._start(operation, **arguments)()

    def _start(self, operation: str, wait_s: float = ANSWER_S, /, **arguments: Any) -> Callable[[], Any]:
        self.client.needs(operation)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"operation": operation, "arguments": arguments}) + "\n")
        self._process.stdin.flush()

        def answer() -> Any:
            try:
                line = self._answers.get(timeout=wait_s)
            except queue.Empty:
                self.close()
                pytest.fail(f"{self} gave no answer to {operation} in {wait_s:.0f} s\n{self._said()}")
            if not line:
                pytest.fail(f"the driver of {self} ended in {operation}\n{self._said()}")
            reply = json.loads(line)
            if "error" in reply:
                raise ClientError(reply["error"], reply["code"], reply["text"])
            return reply["value"]

        return answer

    def _said(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
