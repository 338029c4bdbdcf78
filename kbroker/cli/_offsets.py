"""A group's offsets, and where a reset would put them: the specifications of kafka-consumer-groups.sh.

Called by `kbroker groups`. Asks the cluster, changes nothing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli._numbers import Number, whole
from kbroker.cli._times import time_ms
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

Command = TypeVar("Command", bound=Callable[..., Any])
Place = tuple[str, int]
"""A topic's name and a partition's number."""

EARLIEST, LATEST = -2, -1  # what ListOffsets takes in place of a time
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
SPECIFIED = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "from_file",
)


class Reset(NamedTuple):
    """One partition of a group, and the offset that it is to go on at."""

    group: str
    topic: str
    partition: int
    new_offset: int


def SPECIFICATIONS(command: Command) -> Command:  # noqa: N802  # used as a decorator among click's
    """The options that say where a reset goes."""
    for option in (
        click.option("--from-file", type=click.Path(exists=True, dir_okay=False), help="To what a CSV file says."),
        click.option("--by-duration", metavar="PnDTnHnMnS", help="To this long before now; 1h30m, too."),
        click.option("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="To this time, UTC if no zone is given."),
        click.option("--shift-by", type=Number(), metavar="N", help="By N records, back if N is negative."),
        click.option("--to-offset", type=Number(0), metavar="N", help="To this offset."),
        click.option("--to-current", is_flag=True, help="To what is committed now."),
        click.option("--to-latest", is_flag=True, help="To the log's end."),
        click.option("--to-earliest", is_flag=True, help="To the log's start."),
    ):
        command = option(command)
    return command


class Offsets:
    """What a group has committed. committed: offset by place."""

    def __init__(self, admin: KafkaAdminClient, committed: Mapping[Place, int]) -> None:
        self.committed = committed
        self._admin = admin

    @classmethod
    def of_group(cls, admin: KafkaAdminClient, group: str) -> Offsets:
        """Ask for them."""
        found = admin.list_group_offsets([group]).get(group, {})
        return cls(admin, {(each.topic, each.partition): at.offset for each, at in found.items() if at.offset >= 0})

    def ends(self, more: Iterable[Place]) -> dict[Place, int]:
        """Log end offsets of these and of all that is committed; a partition that is gone is left out."""
        return listed(self._admin, dict.fromkeys({*self.committed, *more}, LATEST))

    def chosen(self, topics: Sequence[str]) -> list[Place]:
        """The committed places among `topics`, each written as TOPIC or TOPIC:P,P."""
        wanted = [_topic_of(each) for each in topics]
        return sorted(
            place
            for place in self.committed
            if any(place[0] == topic and (not numbers or place[1] in numbers) for topic, numbers in wanted)
        )


def resets(admin: KafkaAdminClient, group: str, options: Mapping[str, Any]) -> list[Reset]:
    """Where the options put each partition of a group. Raises: UsageError, ClickException."""
    given = [name for name in SPECIFIED if options[name] not in (None, False)]
    if len(given) != 1:
        raise click.UsageError("--reset-offsets wants one of --" + ", --".join(SPECIFIED).replace("_", "-"))
    offsets = Offsets.of_group(admin, group)
    stored = _from_file(options["from_file"], group) if given == ["from_file"] else None
    places = _places(admin, offsets, options) if stored is None else sorted(stored)
    earliest = listed(admin, dict.fromkeys(places, EARLIEST))
    latest = listed(admin, dict.fromkeys(places, LATEST))
    for topic, partition in sorted((stored or {}).keys() - latest.keys()):
        raise click.ClickException(f"{options['from_file']}: there is no partition {topic}-{partition}")
    targets = _targets(admin, given[0], options, offsets, earliest, latest) if stored is None else stored
    return [
        Reset(group, *place, min(max(targets[place], earliest[place]), latest[place]))
        for place in places
        if place in latest
    ]


def listed(admin: KafkaAdminClient, wanted: Mapping[Place, int]) -> dict[Place, int]:
    """Offsets by time, or EARLIEST and LATEST. A partition that is not there is left out."""
    topics = (
        {each["name"]: each for each in admin.describe_topics(sorted({topic for topic, _ in wanted}))} if wanted else {}
    )
    there = {name: {part["partition_index"] for part in topic["partitions"]} for name, topic in topics.items()}
    asked = {place: at for place, at in wanted.items() if place[1] in there.get(place[0], ())}
    return {place: answer.offset for place, answer in offsets_of(admin, asked).items()}


def offsets_of(admin: KafkaAdminClient, wanted: Mapping[Place, int]) -> dict[Place, Any]:
    """Offsets and timestamps, by time or by what stands in place of one, of partitions that are there and led."""
    from kafka import TopicPartition

    asked = {TopicPartition(*place): at for place, at in wanted.items()}
    answers = admin.list_partition_offsets(asked) if asked else {}
    return {(each.topic, each.partition): answer for each, answer in answers.items()}


def _places(admin: KafkaAdminClient, offsets: Offsets, options: Mapping[str, Any]) -> list[Place]:
    """All partitions of the topics named, whether committed or not; with --all-topics those committed."""
    if options["all_topics"]:
        return sorted(offsets.committed)
    places: set[Place] = set()
    for text in options["topics"]:
        topic, numbers = _topic_of(text)
        (found,) = admin.describe_topics([topic])
        there = {part["partition_index"] for part in found["partitions"]}
        if not there:
            raise click.ClickException(f"there is no topic {topic!r}")
        if absent := numbers - there:
            raise click.ClickException(f"topic {topic} has no partition {min(absent)}")
        places |= {(topic, number) for number in numbers or there}
    return sorted(places)


def _targets(
    admin: KafkaAdminClient,
    how: str,
    options: Mapping[str, Any],
    offsets: Offsets,
    earliest: dict[Place, int],
    latest: dict[Place, int],
) -> dict[Place, int]:
    """Where each place goes, before it is held to the log. earliest, latest: of all places there are."""
    value = options[how]
    if how == "to_offset":
        return dict.fromkeys(latest, value)
    if how in ("to_datetime", "by_duration"):
        at_ms = _time_ms(value) if how == "to_datetime" else _before_now_ms(value)
        at_ms = max(0, at_ms)  # below 0 are marks like EARLIEST
        found = listed(admin, dict.fromkeys(latest, at_ms))  # nothing that young: Kafka's tool goes to the end
        return {place: offset if offset >= 0 else latest[place] for place, offset in found.items()}
    current = {place: offsets.committed.get(place, end) for place, end in latest.items()}
    if how == "shift_by":
        return {place: offset + value for place, offset in current.items()}
    if how == "to_current":
        return current
    return earliest if how == "to_earliest" else latest


def _topic_of(text: str) -> tuple[str, set[int]]:
    topic, _, numbers = text.partition(":")
    try:
        return topic, {whole(number) for number in numbers.split(",") if number}
    except ValueError:
        raise click.UsageError(f"--topic {text}: write partitions as TOPIC:0,1,2") from None


def _from_file(path: str, group: str) -> dict[Place, int]:
    """Rows of group,topic,partition,offset, or without the group."""
    targets: dict[Place, int] = {}
    with open(path, encoding="utf-8-sig", newline="") as file:  # some editors begin a file with a mark of byte order
        rows = csv.reader(file)
        try:
            for row in rows:
                *named, topic, partition, offset = (cell.strip() for cell in row)
                if not named or named == [group]:
                    targets[topic, whole(partition)] = whole(offset)
        except UnicodeDecodeError:
            raise click.ClickException(f"{path}: allowed: text in UTF-8") from None
        except (ValueError, csv.Error):
            raise click.ClickException(f"{path} line {rows.line_num}: allowed: group,topic,partition,offset") from None
    return targets


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--to-datetime {text}: write it as 2026-01-31T12:00:00.000") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _before_now_ms(text: str) -> int:
    if (simply := time_ms(f"-{text}")) is not None:
        return simply
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise click.UsageError(f"--by-duration {text}: write it as P1DT2H30M")
    days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    try:
        begin = datetime.now(UTC) - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise click.UsageError(f"--by-duration {text}: allowed: back to the year 1") from None
    return int(begin.timestamp() * 1000)
