"""The options of `format("kbroker")`: which there are, what they say of topics and offsets, and what is refused.

Used by `source.py`, on the driver. What Spark's Kafka source refuses is refused here too: an option that cannot be
meant so would give no rows, and no reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.pipeline.ahead import RECREATED
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.settings import check_settings, check_usable
from kbroker.pipeline.wire import EARLIEST, LATEST, Cluster, Place, Settings

_KNOWN = {
    name.lower(): name
    for name in [
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "minPartitions",
        "maxRecordsPerPartition",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "failOnDataLoss",
        "pushDownPredicate",
        "recreated",
        "includeHeaders",
        "includeGeneration",
        "topic",
        "segments",
        "path",
        "checkpointLocation",  # Spark's own, handed on to the writer of a stream
    ]
}

CHOICES = ("assign", "subscribe", "subscribePattern")
_OF_FOLDER = {"subscribe", "includeheaders", "segments", "path", "pushdownpredicate"}
_WORDS = {
    "failOnDataLoss": ("true", "false"),
    "includeHeaders": ("true", "false"),
    "includeGeneration": ("true", "false"),
    "pushDownPredicate": ("true", "false"),
    "recreated": RECREATED,
    "startingOffsetsByTimestampStrategy": ("error", "latest"),
    "kafka.isolation.level": ("read_uncommitted", "read_committed"),
}
"""Options of which a typing error would pass for the other word."""

_LARGEST = (1 << 63) - 1
"""Of offsets and of times in ms, in Kafka's protocol."""
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Options:
    """The options of a read or write, as Spark's Kafka source has them. Names do not mind case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = [name for name in self._given if name not in _KNOWN and not name.startswith("kafka.")]
        if unknown:
            raise PipelineError(f"format kbroker has no option {unknown[0]!r}; it has {', '.join(_KNOWN.values())}")
        for name, allowed in _WORDS.items():
            if (text := self.get(name)) is not None:
                self._given[name.lower()] = text.lower()
                if text.lower() not in allowed:
                    raise PipelineError(f"option {name}: {text!r} is none of {', '.join(allowed)}")
        kafkas = {name[6:]: value for name, value in self._given.items() if name.startswith("kafka.")}
        check_settings(kafkas, "option kafka.{}")
        check_usable(kafkas)

    def get(self, name: str, default: str | None = None) -> str | None:
        """An option's text."""
        return self._given.get(name.lower(), default)

    def flag(self, name: str, default: bool = False) -> bool:
        """An option that is true or false."""
        return (self.get(name) or str(default)).lower() == "true"

    def number(self, name: str) -> int | None:
        """An option that is a number. Raises PipelineError."""
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d+", text):
            raise PipelineError(f"option {name}: {text!r} is no number")
        if int(text) > _LARGEST:
            raise PipelineError(f"option {name}: {text} is more than {_LARGEST}, the largest number of Kafka's")
        return int(text)

    def seconds(self, name: str, default: str) -> float:
        """An option that is a time as Spark writes it: 500ms, 30s, 15m, 2h, 1d; without a unit ms. Raises
        PipelineError."""
        text = (self.get(name, default) or "").strip().lower()
        found = re.fullmatch(r"(\d+)\s*(us|ms|s|m|min|h|d)?", text)
        if not found:
            raise PipelineError(f"option {name}: {text!r} is no time: write 30s, 15m or 2h")
        return int(found[1]) * _SECONDS[found[2] or "ms"]

    def parsed(self, name: str, default: str) -> Any:
        """An option that is a word or JSON. Raises PipelineError."""
        text = self.get(name, default) or ""
        if not text.lstrip().startswith("{"):
            return text.lower()
        try:
            return json.loads(text)
        except ValueError:
            raise PipelineError(f"option {name}: {text!r} is no JSON") from None

    @property
    def folder(self) -> str | None:
        """A log directory to read."""
        return self.get("segments") or self.get("path")

    def check_of_folder(self) -> None:
        """Raises: PipelineError that names an option which a log directory is not read by."""
        for name in self._given:
            if name not in _OF_FOLDER and not name.startswith("kafka."):
                raise PipelineError(
                    f"option {_KNOWN[name]} is not for log directories: choose by subscribe, and with "
                    "pushDownPredicate by conditions on partition, offset and timestamp"
                )

    def check_of_batch(self) -> None:
        """Raises: PipelineError for what Spark's Kafka source does not read a batch by."""
        for name in ("recreated", "includeGeneration"):
            if self.get(name) is not None:
                raise PipelineError(f"option {name}: it is of streams: a batch reads the topics that are there")
        for name, word, code in (("startingOffsets", "latest", LATEST), ("endingOffsets", "earliest", EARLIEST)):
            found = self.parsed(name, "{}")
            if found == word:
                raise PipelineError(f"option {name}: a batch cannot have {word}: nothing would be read")
            for topic, each in found.items() if isinstance(found, dict) else ():
                if isinstance(each, dict) and code in each.values():
                    raise PipelineError(f"option {name}: {topic} has {code}, which is {word}: nothing would be read")
        self._check_chosen()

    def check_of_stream(self) -> None:
        """Raises: PipelineError for what Spark's Kafka source does not read a stream by."""
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if self.get(name) is not None:
                raise PipelineError(f"option {name}: a stream has no end")
        if self.get("pushDownPredicate") is not None:
            raise PipelineError("option pushDownPredicate: it is of batches: a stream is told no conditions")
        self._check_chosen()

    def _check_chosen(self) -> None:
        chosen = [name for name in CHOICES if self.get(name) is not None]
        if len(chosen) != 1:
            raise PipelineError(f"one of the options {', '.join(CHOICES)} is needed")
        if not (self.get(chosen[0]) or "").strip(" ,") or self.parsed(chosen[0], "-") == {}:
            raise PipelineError(f"option {chosen[0]}: no topic is named")
        for name in ("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
            if self.number(name) == 0:
                raise PipelineError(f"option {name}: it is 1 at least")
        least, most = self.number("minOffsetsPerTrigger"), self.number("maxOffsetsPerTrigger")
        if least and most and least > most:
            raise PipelineError(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
        self.seconds("maxTriggerDelay", "15m")

    @property
    def settings(self) -> Settings:
        """Where the cluster is. Raises PipelineError."""
        bootstrap = self.get("kafka.bootstrap.servers")
        if not bootstrap:
            raise PipelineError("option kafka.bootstrap.servers is needed, or a log directory as path")
        return Settings.of(
            bootstrap, {name[6:]: value for name, value in self._given.items() if name.startswith("kafka.")}
        )

    @property
    def goes_on(self) -> bool:
        """Whether a stream reads a topic that was made again from its beginning."""
        return self.get("recreated", "stop" if self.flag("failOnDataLoss", True) else "continue") == "continue"

    @property
    def committed(self) -> bool:
        """Whether aborted and open transactions are left out."""
        return self.get("kafka.isolation.level") == "read_committed"

    def places(self, cluster: Cluster, *, without_missing: bool = False) -> list[Place]:
        """Topics and partitions to read. without_missing: but for topics that are not there. Raises PipelineError."""
        if self.get("assign") is not None:
            assigned = [each for each in self._assigned() if not without_missing or cluster.has(each[0])]
            return [self._place(cluster, *place) for place in assigned]
        if self.get("subscribe") is not None:
            topics = [each.strip() for each in (self.get("subscribe") or "").split(",") if each.strip()]
        else:
            try:
                pattern = re.compile(self.get("subscribePattern") or "")
            except re.error as error:
                raise PipelineError(f"option subscribePattern: no regular expression: {error}") from None
            topics = [each for each in cluster.topics() if pattern.fullmatch(each)]
        there = [each for each in dict.fromkeys(topics) if not without_missing or cluster.has(each)]
        return [(topic, index) for topic in there for index in range(cluster.partitions(topic))]

    def _assigned(self) -> list[Place]:
        chosen = self.parsed("assign", "")
        are_lists = isinstance(chosen, dict) and all(isinstance(each, list) and each for each in chosen.values())
        if not are_lists or not all(_is_whole(index) for found in chosen.values() for index in found):
            raise PipelineError(f'option assign: {self.get("assign")!r}: write {{"topic": [0, 1]}}')
        return list(dict.fromkeys((topic, index) for topic, found in chosen.items() for index in found))

    def _place(self, cluster: Cluster, topic: str, index: int) -> Place:
        if not 0 <= index < cluster.partitions(topic):
            raise PipelineError(f"{topic} has no partition {index}: it has {cluster.partitions(topic)}")
        return topic, index

    def boundary(self, cluster: Cluster, places: Sequence[Place], which: str, default: str) -> dict[Place, int]:
        """Offsets where reading starts or ends. which: `starting` or `ending`."""
        moment = self.number(f"{which}Timestamp")
        by_time = self.parsed(f"{which}OffsetsByTimestamp", "{}")
        if isinstance(by_time, str):
            raise PipelineError(f'option {which}OffsetsByTimestamp: {by_time!r}: write {{"topic": {{"0": MS}}}}')
        if moment is not None:
            by_time = nested(dict.fromkeys(places, moment))
        if by_time:
            self._check_places(places, by_time, f"{which}OffsetsByTimestamp")
            return self._by_time(cluster, places, by_time, which)
        offsets = self.parsed(f"{which}Offsets", default)
        if isinstance(offsets, dict):
            self._check_places(places, offsets, f"{which}Offsets")
        if isinstance(offsets, str):
            if offsets not in ("earliest", "latest"):
                raise PipelineError(f"option {which}Offsets: {offsets!r} is not earliest, latest or JSON")
            code = EARLIEST if offsets == "earliest" else LATEST
            return cluster.offsets(places, code, committed=self.committed)
        return {place: self._one(cluster, place, offsets, which) for place in places}

    @staticmethod
    def _check_places(places: Sequence[Place], given: Any, option: str) -> None:
        """Raises: PipelineError for a partition that is not read: none is passed over."""
        known = {topic: [str(index) for name, index in places if name == topic] for topic, _ in places}
        for topic, found in given.items():
            for index in found if isinstance(found, dict) else ():
                if index not in known.get(topic, ()):
                    raise PipelineError(f"option {option}: {topic}-{index} is not among what is read")

    def _one(self, cluster: Cluster, place: Place, offsets: Any, which: str) -> int:
        offset = _number_of(place, offsets, f"{which}Offsets")
        if offset < EARLIEST:
            raise PipelineError(f"option {which}Offsets: {offset} is no offset, -2 the earliest, -1 the latest")
        return cluster.offsets([place], offset, committed=self.committed)[place] if offset < 0 else offset

    def _by_time(self, cluster: Cluster, places: Sequence[Place], times: Any, which: str) -> dict[Place, int]:
        found = {}
        for place in places:
            moment = _number_of(place, times, f"{which}OffsetsByTimestamp")
            if moment < 0:
                raise PipelineError(f"option {which}OffsetsByTimestamp: {moment} is no time in ms")
            offset = cluster.offsets([place], moment)[place]
            if offset < 0:
                if which == "starting" and self.get("startingOffsetsByTimestampStrategy", "error") == "error":
                    raise PipelineError(
                        f"{place[0]}-{place[1]} has no record from {moment} on; startingOffsetsByTimestampStrategy="
                        "latest begins at its end then"
                    )
                offset = cluster.offsets([place], LATEST, committed=self.committed)[place]
            found[place] = offset
        return found


def _number_of(place: Place, numbers: Any, option: str) -> int:
    """What an option says of one partition. Raises PipelineError."""
    topic, index = place
    try:
        found = numbers[topic][str(index)]
    except KeyError:
        raise PipelineError(f"option {option} says nothing of {topic}-{index}") from None
    except TypeError:
        found = None
    if not _is_whole(found):
        raise PipelineError(f'option {option}: write {{"{topic}": {{"{index}": NUMBER}}}}')
    return int(found)


def _is_whole(value: Any) -> bool:
    """Whether JSON has a whole number there that fits into Kafka's: 1.5 and true would be taken for 1."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def nested(offsets: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark writes them: topic -> partition -> offset."""
    found: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(index)] = offset
    return found
