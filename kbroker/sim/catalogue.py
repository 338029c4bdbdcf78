"""What topics a simulated world has, as far as clients were told: ids, how many partitions, ends and new beginnings.

Part of `checks.py`. A name has one topic after the other: its era goes up by one when a client asks for its deletion,
and again when a log of the next one is seen. While the era is odd, the topic may be there or not, and nothing that is
said of it is held against a broker; committed offsets may go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.sim.commits import GroupHistory
    from kbroker.sim.topics import Topic
    from kbroker.sim.world import World


class Catalogue:
    """The topics of one world. changes: ends and beginnings of topics whose names were used before."""

    def __init__(self, world: World, groups: GroupHistory) -> None:
        self.world = world
        self.changes = 0
        self.ids: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._eras: dict[str, int] = {}
        self._living: dict[str, bytes] = {}  # ids, also of topics that no client was told of yet
        self._gone: set[tuple[str, bytes]] = set()  # names and ids of topics that another has followed
        self._told: dict[str, int] = {}  # the era of which the id is
        self._groups = groups

    # ---- told

    def topic_id(self, topic: str) -> bytes:
        """The id that the cluster gave to a topic, as far as clients were told; else zeros."""
        return self.ids.get(topic, bytes(16))

    def knows(self, topic: str, topic_id: bytes, partitions: int) -> None:
        """A client was told of a topic: while it lives its id stays, and its partitions never get fewer."""
        known = self.ids.setdefault(topic, topic_id)
        if known != topic_id:
            if topic not in self._eras:
                raise self.world.broken(f"{topic} has the id {topic_id.hex()}, and had {known.hex()}")
            self.ids[topic] = topic_id
            self._counts.pop(topic, None)
            self._told[topic] = self.begins(topic, topic_id)
        if partitions < self._counts.get(topic, 0):
            raise self.world.broken(f"{topic} has {partitions} partitions, and had {self._counts[topic]}")
        self._counts[topic] = partitions

    def count(self, topic: Topic) -> int:
        """How many partitions a topic has, as far as clients were told."""
        return self._counts.get(topic.name, topic.partitions)

    # ---- ends and beginnings

    def deletion_requested(self, topic: str) -> None:
        """A client asks for a topic's deletion: it goes at any time from now on."""
        if not self.is_being_deleted(topic):
            self._turn(topic)

    def begins(self, topic: str, topic_id: bytes) -> int:
        """A topic of this name was made, with this id; the era that it is in."""
        if self.is_being_deleted(topic):
            self._turn(topic)
        before = self._living.get(topic, topic_id)
        if before != topic_id:
            self._gone.add((topic, before))
        self._living[topic] = topic_id
        return self.era(topic)

    def era(self, topic: str) -> int:
        """How often the name was given up and taken again."""
        return self._eras.get(topic, 0)

    def is_being_deleted(self, topic: str) -> bool:
        """Whether it is unknown if the topic is there."""
        return self._eras.get(topic, 0) % 2 == 1

    def is_unsettled(self, topic: str) -> bool:
        """Whether a topic was given up, and no client has been told yet of the next one."""
        return self._told.get(topic, 0) != self.era(topic)

    def is_of_the_past(self, topic: str, topic_id: bytes) -> bool:
        """Whether an id is one that a topic of this name had before the present one, which is not being deleted."""
        return topic_id != self._living.get(topic, topic_id)

    def is_another(self, topic: str, topic_id: bytes) -> bool:
        """Whether an id is not that of the last topic of this name that was seen."""
        return topic_id != self._living.get(topic, topic_id)

    def is_gone(self, topic: str, topic_id: bytes) -> bool:
        """Whether a topic was deleted, and another of its name has been seen since."""
        return (topic, topic_id) in self._gone

    def was_deleted(self, topic: str) -> bool:
        """Whether the name has ever been given up, so that clients may know things of a topic that is gone."""
        return topic in self._eras

    def is_same(self, topic: str, changes: int) -> bool:
        """Whether a name has meant one topic ever since there were so many changes."""
        return topic not in self._eras or (changes == self.changes and not self.is_being_deleted(topic))

    def _turn(self, topic: str) -> None:
        self._eras[topic] = self._eras.get(topic, 0) + 1
        self.changes += 1
        self._groups.topic_may_go(topic, goes=self.is_being_deleted(topic))
