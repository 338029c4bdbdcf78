"""Which topics the expressions of consumer groups stand for: looked up apart from heartbeats, a slice at a time.

Called by consumer.py. A heartbeat only checks an expression; the topics that match it become known by a record of
their own (type 16), which moves the group epoch. All expressions of a group are looked up together, when there is
another one, when there are other topics, and now and then; at most every ten seconds, as Apache Kafka 4.4 does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.groups.consumer_group import ConsumerGroup, ConsumerGroupMember, ResolvedRegex
from kbroker.groups.consumer_records import epoch_record, regex_record, regex_tombstone
from kbroker.groups.modern import metadata_hash
from kbroker.groups.topic_regex import TopicRegex, compile_regex
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.coordinator import Operation
    from kbroker.groups.consumer import ConsumerGroups
    from kbroker.groups.records import GroupsRecord

LOOKED_UP_AGAIN_MS = 10_000
STEPS_AT_ONCE = 30_000  # some 10 ms, between which others have their turn


class Changed(NamedTuple):
    """What a heartbeat says of its expression. is_resolved: and it is known which topics that means."""

    is_changed: bool = False
    is_resolved: bool = False


UNCHANGED = Changed()


class _LookUp:
    """The expressions of a group, being looked up. names: topics still to come. version: of the topics."""

    def __init__(
        self, regexes: Iterable[str], names: Iterator[str], version: int, may_describe: Callable[[str], bool]
    ) -> None:
        self.names = names
        self.version = version
        self._may_describe = may_describe
        self._compiled: dict[str, TopicRegex] = {}
        self.found: dict[str, list[str]] = {regex: [] for regex in regexes}
        for regex in self.found:
            with suppress(KafkaError):  # it was checked when it came, by another release then; it matches nothing
                self._compiled[regex] = compile_regex(regex)

    def go_on(self) -> bool:
        """Look at some topics. Returns: whether that were all."""
        most = sum(each.steps for each in self._compiled.values()) + STEPS_AT_ONCE
        for name in self.names:
            for regex, compiled in self._compiled.items():
                if compiled.matches(name) and self._may_describe(name):
                    self.found[regex].append(name)
            if sum(each.steps for each in self._compiled.values()) > most:
                return False
        return True


class Regexes:
    """The expressions of all consumer groups of a shard."""

    def __init__(self, kind: ConsumerGroups) -> None:
        self._kind = kind
        self._version = 0  # of the topics that there are
        self._under_way: dict[str, _LookUp] = {}  # by group

    def topics_changed(self) -> None:
        """There are topics that were not there before, or some are gone."""
        self._version += 1

    def changed(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        changes: list[GroupsRecord],
    ) -> Changed:
        """What a member's expression means for the group. Raises: KafkaError INVALID_REGULAR_EXPRESSION."""
        if before.regex == after.regex:
            return UNCHANGED
        if before.regex and group.regexes.get(before.regex) == 1:
            changes.append(regex_tombstone(group.group_id, before.regex))
        if not after.regex:
            return Changed(is_changed=True, is_resolved=True)
        if after.regex not in group.regexes:
            compile_regex(after.regex)
        return Changed(is_changed=True, is_resolved=after.regex in group.resolved)

    def maybe_resolve(self, operation: Operation, group: ConsumerGroup, may_describe: Callable[[str], bool]) -> None:
        """Begin to resolve a group's expressions, if that is due. may_describe: of the member that is heard of."""
        if not group.regexes or group.group_id in self._under_way:
            return
        last_ms = max((each.timestamp_ms for each in group.resolved.values()), default=None)
        if last_ms is not None:
            if operation.wall_ms <= last_ms + LOOKED_UP_AGAIN_MS:
                return
            is_old = operation.wall_ms > last_ms + self._kind.shard.config.group_consumer_regex_refresh_interval_ms
            is_whole = group.regexes.keys() == group.resolved.keys()
            if is_whole and not is_old and group.regex_version >= self._version:
                return
        names = iter(self._kind.shard.image.sorted_names())
        self._under_way[group.group_id] = _LookUp(group.regexes, names, self._version, may_describe)
        operation.set_timer("regex", group.group_id, 0)

    def go_on(self, operation: Operation, group: ConsumerGroup) -> None:
        """Look at some more topics; at the end, store what was found."""
        group_id = group.group_id
        look_up = self._under_way.get(group_id)
        if look_up is None:
            return
        if not look_up.go_on():
            operation.set_timer("regex", group_id, 0)
            return
        del self._under_way[group_id]
        changes: list[GroupsRecord] = []
        is_other, topics = False, {name for member in group.members.values() for name in member.names}
        for regex in group.regexes:
            before = group.resolved.get(regex)
            known = () if before is None else before.topics
            if regex in look_up.found:
                found = tuple(look_up.found[regex])
                is_other = is_other or found != known
                changes.append(regex_record(group_id, regex, ResolvedRegex(found, look_up.version, operation.wall_ms)))
                known = found
            topics.update(known)
        hashed = metadata_hash(self._kind.shard.image, topics)
        if is_other or hashed != group.metadata_hash:
            changes.append(epoch_record(group_id, group.group_epoch + 1, hashed))
        if not changes or operation.write(changes, None) is ErrorCode.NONE:
            group.regex_version = look_up.version


def without_members(group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember]) -> list[str]:
    """The resolved expressions that no member subscribes by once these are gone."""
    counts = Counter(member.regex for member in leaving if member.regex)
    return [regex for regex, count in counts.items() if group.regexes[regex] == count and regex in group.resolved]
