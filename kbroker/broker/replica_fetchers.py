"""The fetchers of this broker: which leader each followed partition is fetched from, over which connection, and when.

A part of the broker. Each leader has num.replica.fetchers fetchers, a partition belongs to one by its name, and each
fetcher has a connection of `Peers` of its own with one request under way. What a fetcher asks, and does with an answer,
is in `replica/fetcher.py`; here are roles that change, addresses, faults and pauses. A fetcher that follows nothing is
dropped with its connection.

Source: ReplicaFetcherManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kbroker.broker.facts import BrokerConfigChanged
from kbroker.log.facts import LogFlushed, LogTruncated
from kbroker.metadata.cache import MetadataDelta
from kbroker.ports import FETCHER, PeerFault, PeerFaultKind
from kbroker.replica.facts import RoleChanged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.facts import Handler
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import Clock, PeerEvent
    from kbroker.replica import Partition, ReplicaManager
    from kbroker.replica.fetcher import Fetcher
    from kbroker.timing import Scheduler
    from protocol.messages.offsets import ListOffsetsResponse


class ReplicaFetchers:
    """All fetchers of a broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        plane: ControlPlane,
        requester: Requester,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        self._replicas = replicas
        self._plane = plane
        self._requester = requester
        self._clock = clock
        self._pause_over = scheduler.alarm(self._wake)  # of the first idle one that pauses
        self._fetchers: dict[tuple[int, str], Fetcher] = {}  # by leader and purpose
        self._followed: dict[Partition, Fetcher] = {}
        self._idle: dict[Fetcher, None] = {}  # with something to ask for, perhaps, and nothing under way
        self._homeless: dict[Fetcher, None] = {}  # it is unknown where their leader is

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Roles, cuts, fsyncs, news of where leaders are, and another number of fetchers."""
        return {
            RoleChanged: self._role_changed,
            LogTruncated: self._truncated,
            LogFlushed: self._flushed,
            MetadataDelta: self._updated,
            BrokerConfigChanged: self._reconfigured,
        }

    # -- who is followed

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        partition = fact.partition
        follows = not fact.is_leader and partition.leader_id >= 0 and partition.log is not None
        wanted = self._fetcher(partition) if follows and not partition.is_leader else None
        self._hand_over(partition, wanted, now_ms, is_new_epoch=True)

    def _reconfigured(self, fact: BrokerConfigChanged, now_ms: int) -> None:
        """There may be more fetchers of each leader now, or fewer: who belongs to another one goes there."""
        for partition, before in list(self._followed.items()):
            wanted = self._fetcher(partition)
            if wanted is not before:
                self._hand_over(partition, wanted, now_ms, is_new_epoch=False)

    def _hand_over(self, partition: Partition, wanted: Fetcher | None, now_ms: int, *, is_new_epoch: bool) -> None:
        """Have a partition followed by this fetcher and no other, from where its log ends."""
        before = self._followed.pop(partition, None)
        if before is not None and before is not wanted:
            before.leave(partition)
            self._drop_if_idle(before)
        if wanted is not None:
            self._followed[partition] = wanted
            wanted.follow(partition, is_new_epoch=is_new_epoch)
            self._ask(wanted, now_ms)

    def _fetcher(self, partition: Partition) -> Fetcher:
        """The one that a partition belongs to."""
        from kbroker.replica.fetcher import Fetcher, fetcher_number  # a lone broker follows no leader

        count = self._plane.configs.broker.num_replica_fetchers
        number = fetcher_number(partition.topic, partition.index, count)
        purpose = FETCHER if number == 0 else f"{FETCHER}-{number}"
        key = (partition.leader_id, purpose)
        if key not in self._fetchers:
            self._fetchers[key] = Fetcher(partition.leader_id, purpose, self._plane.broker_id, self._replicas)
        return self._fetchers[key]

    def _drop_if_idle(self, fetcher: Fetcher) -> None:
        if not len(fetcher):
            del self._fetchers[fetcher.leader_id, fetcher.purpose]
            self._idle.pop(fetcher, None)
            self._homeless.pop(fetcher, None)
            self._requester.drop(fetcher.leader_id, fetcher.purpose)

    # -- asking

    def _ask(self, fetcher: Fetcher, now_ms: int) -> None:
        """Send the next request, if there is one and none is under way."""
        line = fetcher.leader_id, fetcher.purpose
        if self._requester.is_asking(*line) or self._fetchers.get(line) is not fetcher:
            return
        endpoint = self._requester.endpoint(*line)
        if endpoint is None:
            self._idle.pop(fetcher, None)  # no pause ends for it: it would be woken again and again
            self._homeless[fetcher] = None
            return
        config = self._plane.configs.broker
        epoch = self._plane.broker_epoch
        asked = fetcher.look_up(now_ms) or fetcher.request(config, epoch, now_ms)
        if asked is None:
            self._idle[fetcher] = None
            self._sleep()
            return
        self._idle.pop(fetcher, None)
        request, version = asked
        timeout_ms = config.replica_socket_timeout_ms
        self._requester.ask(self, *line, request, fetcher, endpoint=endpoint, version=version, timeout_ms=timeout_ms)

    def _updated(self, fact: MetadataDelta, now_ms: int) -> None:
        homeless, self._homeless = self._homeless, {}
        for fetcher in homeless:
            self._ask(fetcher, now_ms)

    def _truncated(self, fact: LogTruncated, now_ms: int) -> None:
        partition = self._replicas.partitions.get(fact.partition)
        fetcher = self._followed.get(partition) if partition is not None else None
        if partition is not None and fetcher is not None and partition.log is fact.log:
            try:
                fetcher.truncated(partition, now_ms, self._clock.wall_ms())
            finally:  # who does not ask again now, never does
                self._ask(fetcher, now_ms)

    def _flushed(self, fact: LogFlushed, now_ms: int) -> None:
        partition = self._replicas.partitions.get(fact.partition)
        fetcher = self._followed.get(partition) if partition is not None else None
        if partition is not None and fetcher is not None:
            fetcher.flushed(partition)
            self._ask(fetcher, now_ms)

    # -- answers

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """A fetcher's leader has answered, or not: it is asked the next."""
        fetcher, backoff_ms = cast("Fetcher", asked.token), self._plane.configs.broker.replica_fetch_backoff_ms
        try:
            if isinstance(event, PeerFault):
                fetcher.failed()
                if event.kind is PeerFaultKind.UNSUPPORTED:  # the broker would be asked the same at once
                    fetcher.pause(now_ms + backoff_ms)
            elif isinstance(event.response, tuple):
                fetcher.answered(event.response, now_ms, self._clock.wall_ms(), backoff_ms)
            else:
                fetcher.looked_up(cast("ListOffsetsResponse", event.response), now_ms, backoff_ms)
        except Exception:  # as where memory runs out: who does not ask again now, never does
            fetcher.failed()
            fetcher.pause(now_ms + backoff_ms)
            raise
        finally:
            self._ask(fetcher, now_ms)

    # -- time

    def _wake(self, now_ms: int) -> None:
        """Pauses end."""
        for fetcher in list(self._idle):
            due_ms = fetcher.next_due_ms()
            if due_ms is not None and due_ms <= now_ms:
                self._ask(fetcher, now_ms)
        self._sleep()

    def _sleep(self) -> None:
        """Until the next pause ends of a fetcher that has nothing under way; the others look when they are answered."""
        due_ms = min((due_ms for each in self._idle if (due_ms := each.next_due_ms()) is not None), default=None)
        if due_ms is not None:
            self._pause_over.set(due_ms)
