"""Partitions that are read: which, from where to where, as a group's member or alone.

Called by `kbroker consume` and `kbroker perf consume`, over the client of `_librdkafka.py`. What it hands out are that
client's messages, in lists.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli import complain
from kbroker.cli._cluster import Cluster
from kbroker.cli._librdkafka import Heard, Place, client_of, metadata, offsets_at, topic_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

POLL_S = 0.25  # how long a look at an idle topic waits: as often as the live line moves
MOST_AT_ONCE = 10_000  # records
WAIT_S = 3.0  # for a group's partitions, before it is said what is waited for
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")  # the client is not told which
NO_GROUP = "kbroker"  # the library wants one; without offsets stored or committed it is of no effect


class Reader:
    """A consumer, and how far it is. assigned: None before a group has given it partitions."""

    def __init__(self, cluster: Cluster, group: str | None, own: Mapping[str, Any]) -> None:
        """own: settings that the command has decided. Raises: ClickException, KafkaException."""
        from confluent_kafka import Consumer

        self._cluster = cluster
        self._group = group
        self._heard = Heard(cluster.bootstrap)
        settings = {
            "group.id": group or NO_GROUP,
            "enable.auto.commit": group is not None,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
            **own,
        }
        self._consumer: Consumer = client_of(Consumer, cluster, self._heard, settings)
        self._joined_s = 0.0
        self._is_told = False
        self._is_cut = False
        self._at_end: set[Place] = set()
        self._ends: dict[Place, int] = {}
        self.assigned: dict[Place, int] | None = None

    def close(self) -> None:
        """Leave the group, if it is in one."""
        self._consumer.close()

    def partitions(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises: ClickException if there is no such topic."""
        found = topic_of(self._consumer, self._cluster, self._heard, topic)
        if found is None:
            raise click.ClickException(f"there is no topic {topic!r} at {self._cluster.bootstrap}")
        return set(found.partitions)

    def matching(self, patterns: Collection[str]) -> list[str]:
        """Topics whose whole name matches a pattern, but for those that brokers keep for themselves.

        Raises: ClickException for a pattern that none matches, or that is none.
        """
        names = sorted(metadata(self._consumer, self._cluster, self._heard).topics) if patterns else []
        found: dict[str, None] = {}
        for pattern in patterns:
            try:
                matching = [each for each in names if each not in INTERNAL_TOPICS and re.fullmatch(pattern, each)]
            except re.error as error:
                raise click.ClickException(f"{pattern}: not a regular expression: {error}") from None
            if not matching:
                raise click.ClickException(f"no topic at {self._cluster.bootstrap} matches {pattern}")
            found.update(dict.fromkeys(matching))
        return list(found)

    # ---- where to

    def offsets(self, places: Collection[Place], timestamp: int) -> dict[Place, int]:
        """As `offsets_at`. Raises: ClickException for a partition without a leader."""
        found = metadata(self._consumer, self._cluster, self._heard)
        for topic, partition in places:
            if topic in found.topics and found.topics[topic].partitions[partition].leader not in found.brokers:
                raise click.ClickException(f"{topic}-{partition} has no leader: is its broker away?")
        return offsets_at(self._consumer, places, timestamp)

    def read(self, starts: Mapping[Place, int], ends: Mapping[Place, int], *, only: bool = False) -> None:
        """Read these partitions from these offsets on. ends: where they end now. only: nothing behind that counts."""
        from confluent_kafka import TopicPartition

        self.assigned = dict(starts)
        self._ends = dict(ends)
        self._is_cut = only
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def join(self, topics: Iterable[str]) -> None:
        """Read what the group gives this member of these topics."""
        self._joined_s = time.monotonic()
        self._consumer.subscribe(list(topics), on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = {(each.topic, each.partition): 0 for each in partitions}
        self._at_end.clear()
        self._ends.clear()
        self._is_told = False
        if not partitions:
            complain(f"group {self._group} has no partition for this member: others have all of them")

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = None
        self._joined_s = time.monotonic()

    # ---- how far

    def poll(self, most: int | None) -> list[Message]:
        """The next records, at most `most`, or none after a moment. Raises: KafkaException, ClickException."""
        first = self._consumer.poll(POLL_S)
        if first is None:
            self._say_what_is_waited_for()
            self._heard.check()
            return []
        left = (MOST_AT_ONCE if most is None else min(most, MOST_AT_ONCE)) - 1
        messages = [first, *(self._consumer.consume(left, 0) if left else ())]
        if any(each.error() is not None for each in messages):
            messages = [each for each in messages if not self._is_event(each)]
        if self._is_cut:  # one partition may be read further while another is not at its end yet
            return [each for each in messages if each.offset() < self._ends[each.topic(), each.partition()]]
        return messages

    def _is_event(self, message: Message) -> bool:
        from confluent_kafka import KafkaError, KafkaException

        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self._is_at_end((message.topic(), message.partition()), message.offset())
            return True
        # without a group and a topic it is about the coordinator of a group that we are not in
        if (self._group is not None or message.topic() is not None) and not error.retriable():
            raise KafkaException(error)
        return True

    def _is_at_end(self, place: Place, offset: int) -> None:
        """A group has committed where it begins, too, as with Kafka's client: this one commits what was read alone."""
        from confluent_kafka import TopicPartition

        if self._group is not None and place not in self._at_end:
            (read,) = self._consumer.position([TopicPartition(*place)])
            if read.offset < 0:
                self._consumer.commit(offsets=[TopicPartition(*place, offset)], asynchronous=True)
        self._at_end.add(place)

    def _say_what_is_waited_for(self) -> None:
        if self.assigned is None and not self._is_told and time.monotonic() >= self._joined_s + WAIT_S:
            self._is_told = True
            complain(
                f"waiting for group {self._group} to give this member partitions: each of its members has to join "
                "again, or is given up when its session has timed out"
            )

    def is_done(self) -> bool:
        """Whether all that is assigned was read to where it ended at first.

        That is asked before anything is read, or came with a member's first records: a question now would wait behind
        a fetch that waits for records.
        """
        if self.assigned is None:
            return False
        self._ends = {**self.end_offsets(self.assigned), **self._ends}
        return all(
            place in self._at_end or (place in self._ends and self.position(place) >= self._ends[place])
            for place in self.assigned
        )

    # ---- as the live line asks for it

    def assignment(self) -> set[Place]:
        """The partitions that are read now."""
        return set(self.assigned or ())

    def position(self, place: Place) -> int:
        """The offset of the next record."""
        from confluent_kafka import TopicPartition

        (found,) = self._consumer.position([TopicPartition(*place)])
        return found.offset if found.offset >= 0 else (self.assigned or {}).get(place, 0)

    def end_offsets(self, places: Iterable[Place]) -> dict[Place, int]:
        """Where they end, as far as is known without asking: fetched along with their records."""
        from confluent_kafka import TopicPartition

        ends = {}
        for place in places:
            marks = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            if marks is not None and marks[1] >= 0:
                ends[place] = marks[1]
        return ends
