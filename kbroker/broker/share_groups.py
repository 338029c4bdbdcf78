"""What a group coordinator asks share coordinators for its share groups: to begin, to forget, how far they are.

A part of the broker from the first share group on. The records of the group say what is about to be asked, then the
share coordinators are asked for each share-partition (`share_state.py`), and then the records say what has come of it.
Who alters or deletes waits for each of these to be committed: what share coordinators have forgotten, the next
coordinator of the group must not assign.
Called by the coordinator's runtime with what it carries (`BeginShareState`), and by `api/share_groups.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from kbroker.broker.facts import PartialAnswer
from kbroker.broker.share_state import DELETE, INITIALIZE, SUMMARIZE
from kbroker.coordinator import Operation as GroupOperation
from kbroker.groups.share import BeginShareState, rules
from kbroker.groups.share_group import ShareGroup
from kbroker.share.share_records import Place
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.share_group_state import DeleteStatePartition, InitializeStatePartition, ReadStatePartition
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kbroker.broker.broker import Broker
    from kbroker.broker.facts import Handler
    from kbroker.broker.share_state import Operation
    from kbroker.coordinator.effects import Call
    from kbroker.groups.shard import GroupShard
    from protocol.message import Message
    from protocol.messages.share_groups import DescribedShareGroup

    Results = Mapping[tuple[bytes, int], Any]
    """What share coordinators say, by topic id and partition."""

log = logging.getLogger("kbroker.groups")


class GroupWritten(NamedTuple):
    """Fact: records of a group are committed, or the code says why that is not known. then: goes on."""

    then: Callable[[ErrorCode, int], None]
    code: ErrorCode


class _Writing(PartialAnswer):
    """Waits for records of a group. then: is called with the code, and the time."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[ErrorCode, int], None]) -> None:
        self._then = then

    def answered(self, response: Message | None) -> GroupWritten:
        """The response is a code."""
        return GroupWritten(self._then, cast("ErrorCode", response))


class ShareGroups:
    """Share groups that this broker coordinates, as share coordinators see them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group. Raises: KafkaError, why this broker cannot be asked."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        _ = self._broker.groups  # its code is loaded
        found = self._broker.group_runtime.find(group_id)
        if isinstance(found, ErrorCode):
            raise KafkaError(found)
        return found

    def describe(self, group_id: str) -> DescribedShareGroup:
        """ShareGroupDescribe. Raises: KafkaError."""
        return rules(self.shard(group_id)).describe_share(group_id)

    def find(self, group_id: str) -> ShareGroup:
        """A group. Raises: KafkaError."""
        return rules(self.shard(group_id)).find(group_id, may_make=False)

    def operate(self, group_id: str, operation: Callable[[Any, GroupOperation], Any], now_ms: int) -> Any:
        """Do something with the rules of a group's shard. Raises: KafkaError."""
        shard = self.shard(group_id)
        under_way = shard.operation(now_ms)
        try:
            return operation(rules(shard), under_way)
        finally:
            self._broker.group_runtime.carry_out(under_way.effects, now_ms)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Records that are committed."""
        return {GroupWritten: lambda fact, now_ms: fact.then(fact.code, now_ms)}

    # --- questions about many share-partitions

    def _ask(
        self,
        operation: Operation,
        group_id: str,
        said: Mapping[tuple[bytes, int], Any],
        done: Callable[[Results, int], None],
        now_ms: int,
    ) -> None:
        """Ask about each; `done` is called when all have answered. There is one at least."""
        results: dict[tuple[bytes, int], Any] = {}

        def answered(key: tuple[bytes, int]) -> Callable[[Any, int], None]:
            def add_result(result: Any, now_ms: int) -> None:
                results[key] = result
                if len(results) == len(said):
                    done(results, now_ms)

            return add_result

        requests = self._broker.share_partitions.requests
        for key, each in said.items():
            requests.ask(operation, Place(group_id, *key), each, answered(key), now_ms)

    # --- beginning

    def initialize_state(
        self,
        what: BeginShareState,
        now_ms: int,
        then: Callable[[ErrorCode, Results, int], None] = lambda code, results, now_ms: None,
    ) -> None:
        """Have the share coordinators begin with share-partitions; the group hears of those that have.

        then: is told a code of the group, and what share coordinators say.
        """
        said = {
            (topic_id, partition): InitializeStatePartition(
                partition=partition, state_epoch=what.state_epoch, start_offset=start
            )
            for topic_id, starts in what.starts.items()
            for partition, start in starts.items()
        }

        def done(results: Results, now_ms: int) -> None:
            begun: dict[bytes, list[int]] = {}
            for (topic_id, partition), result in results.items():
                if result.error_code:
                    code = ErrorCode.of(result.error_code).name
                    log.warning("share group %s cannot begin with a partition: %s", what.group_id, code)
                else:
                    begun.setdefault(topic_id, []).append(partition)
            if begun:
                self._note(
                    what.group_id,
                    lambda kind, it, call: kind.begun(it, what.group_id, begun, call),
                    lambda code, now_ms: then(code, results, now_ms),
                    now_ms,
                )
            else:
                then(ErrorCode.NONE, results, now_ms)

        if said:
            self._ask(INITIALIZE, what.group_id, said, done, now_ms)
        else:
            then(ErrorCode.NONE, {}, now_ms)

    def alter(
        self,
        group_id: str,
        starts: Mapping[bytes, tuple[str, Mapping[int, int]]],
        then: Callable[[ErrorCode, Results, int], None],
        now_ms: int,
    ) -> None:
        """Begin with share-partitions elsewhere. then: as for `initialize_state`.

        starts: the name of a topic, and offsets by partition, by topic id. Raises: KafkaError.
        """

        def written(code: ErrorCode, now_ms: int) -> None:
            if code is ErrorCode.NONE:
                wanted = {topic_id: offsets for topic_id, (_, offsets) in starts.items()}
                self.initialize_state(BeginShareState(group_id, epoch, wanted), now_ms, then)
            else:
                then(code, {}, now_ms)

        epoch = self.operate(group_id, lambda kind, it: kind.alter(it, group_id, starts, _Writing(written)), now_ms)

    def _note(
        self,
        group_id: str,
        operation: Callable[[Any, GroupOperation, Call], Any],
        then: Callable[[ErrorCode, int], None],
        now_ms: int,
    ) -> None:
        """Have the group's records say what share coordinators have done; then: is told the code."""
        try:
            self.operate(group_id, lambda kind, it: operation(kind, it, _Writing(then)), now_ms)
        except KafkaError as error:  # another broker coordinates it now, and asks again
            log.info("share group %s: %s", group_id, error)
            then(error.code, now_ms)

    # --- forgetting

    def delete_state(
        self,
        group_id: str,
        topics: Iterable[bytes] | None,
        then: Callable[[ErrorCode, Mapping[bytes, ErrorCode], int], None],
        now_ms: int,
    ) -> None:
        """Have the share coordinators delete a group's state (DeleteShareGroupState). topics: None for all.

        then: is told a code of the group, and one for each topic. Raises: KafkaError.
        """
        group = self.find(group_id)
        image = self._broker.plane.cache
        places = list(group.places())
        wanted = {topic_id for topic_id, _ in places} | set(group.deleting) if topics is None else set(topics)
        names = {topic_id: image.topic_name(topic_id) or "<UNKNOWN>" for topic_id in wanted}
        for topic_id in set(group.deleting) & wanted:
            found = image.topics.get(names[topic_id])
            places += [(topic_id, partition) for partition in (() if found is None else found.partitions)]
        said = {
            (topic_id, partition): DeleteStatePartition(partition=partition)
            for topic_id, partition in places
            if topic_id in wanted
        }

        def written(code: ErrorCode, now_ms: int) -> None:
            if code is not ErrorCode.NONE:
                then(code, {}, now_ms)
            elif said:
                self._ask(DELETE, group_id, said, done, now_ms)
            else:
                done({}, now_ms)

        def done(results: Results, now_ms: int) -> None:
            codes = dict.fromkeys(wanted, ErrorCode.NONE)
            for (topic_id, _), result in results.items():
                code = ErrorCode.of(result.error_code)
                if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    codes[topic_id] = code
            gone = [topic_id for topic_id, code in codes.items() if code is ErrorCode.NONE]
            if gone:
                self._note(
                    group_id,
                    lambda kind, it, call: kind.deleted(it, group_id, gone, call),
                    lambda code, now_ms: then(code, codes, now_ms),
                    now_ms,
                )
            else:
                then(ErrorCode.NONE, codes, now_ms)

        if wanted:
            self.operate(group_id, lambda kind, it: kind.deleting(it, group, names, _Writing(written)), now_ms)
        else:
            then(ErrorCode.NONE, {}, now_ms)

    # --- how far they are

    def summarize(
        self, group_id: str, places: Iterable[tuple[bytes, int]], then: Callable[[Results, int], None], now_ms: int
    ) -> None:
        """How far share-partitions are."""
        said = {
            (topic_id, partition): ReadStatePartition(partition=partition, leader_epoch=0)
            for topic_id, partition in places
        }
        if said:
            self._ask(SUMMARIZE, group_id, said, then, now_ms)
        else:
            then({}, now_ms)
