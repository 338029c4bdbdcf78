"""Several brokers for a test that share one metadata store and speak to each other over sockets: `cluster(3)`.

    with cluster(3) as c:
        c.create_topic("orders", partitions=6)
        c.brokers[1].kill()                  # its partitions have no leader
        c.brokers[1].start()                 # and have one again

Every broker is one of `_broker.py`, on a thread of its own. The cluster hears of a kill at once: no test waits for
zookeeper.session.timeout.ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.log.checkpoints import format_uuid
from kbroker.metadata.cache import CONSUMER_OFFSETS
from kbroker.metadata.store import CLUSTER_ID, CONTROLLER, decode_cluster_id
from kbroker.ports import Post
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.node import CLUSTER_ID_BYTES, Node
from kbroker.runtime.shared_store import SharedSession, SharedStore
from kbroker.testing._broker import Broker
from kbroker.testing._clock import HandClock
from kbroker.testing._folder import Folder
from kbroker.testing._helpers import Helpers, looks
from kbroker.testing._leaders import move_leader
from kbroker.usage import UsageError

MOST_BROKERS = 100
STORE_FILE = "metadata.db"
WAIT_S = 15.0


def cluster(
    count: int = 3,
    *,
    data: str | PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    racks: Sequence[str] = (),
    **more: object,
) -> Cluster:
    """A cluster of so many brokers that is not started yet; `with` starts it and closes it.

    racks: of each broker, in the order of their ids (broker.rack). Everything else is as for `broker`; the settings are
    every broker's. Raises: UsageError.
    """
    return Cluster(count, data=data, settings={**(settings or {}), **more}, racks=racks)


class Cluster(Helpers):
    """brokers: in the order of their ids, which count from 1."""

    def __init__(
        self,
        count: int,
        *,
        data: str | PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        racks: Sequence[str] = (),
    ) -> None:
        """As `cluster`."""
        if not 1 <= count <= MOST_BROKERS:
            raise UsageError(f"a cluster of {count} brokers: write cluster(3), or any number from 1 to {MOST_BROKERS}")
        if len(racks) not in (0, count):
            raise UsageError(f"{len(racks)} racks for {count} brokers: name one for each, or none")
        self._given_data = data
        self._was_closed = False
        self.cluster_id = format_uuid(SystemRandom().token(CLUSTER_ID_BYTES))
        self.clock = HandClock()
        self._at_once = False
        self._is_cut = False
        self._folder: Folder | None = None
        self._store: SharedStore | None = None
        own: list[dict[str, object]] = [{"broker.rack": each} for each in racks] or [{}] * count
        self.brokers = [
            Broker(settings={**(settings or {}), **each, "broker.id": number}, home=self)
            for number, each in enumerate(own, 1)
        ]

    def __repr__(self) -> str:
        return f"<cluster of {', '.join(map(repr, self.brokers))}>"

    # -- its life

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start every broker that does not run. Returns: itself, once all know each other. Raises: UsageError."""
        self._was_closed = False
        if self._folder is None:
            self._folder = Folder(self._given_data)
        if self._store is None:
            try:
                self._store = SharedStore(str(self._folder.path / STORE_FILE) if self._given_data is not None else None)
            except OSError as error:
                self.close()
                raise UsageError(f"the cluster cannot start: {error}; name another folder in data=") from None
        known = self._store.read(CLUSTER_ID)
        self.cluster_id = decode_cluster_id(known) if known else self.cluster_id
        is_entered = any(each.is_running for each in self.brokers)
        try:
            with self._all_at_once():
                for each in self.brokers:
                    if not each.is_running:
                        each.start()
            self.await_agreement()
        except BaseException:
            if not is_entered:  # `with` does not close what it could not enter
                self.close()
            raise
        return self

    def stop(self) -> None:
        """A clean stop of every broker; `start` brings them back with what they had."""
        with self._all_at_once():
            for each in self.brokers:
                each.stop()

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good: ports are given back, and its data is removed if it was in memory. Idempotent."""
        with self._all_at_once():
            for each in self.brokers:
                each.close()
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._was_closed = True

    def await_agreement(self) -> None:
        """Until all brokers that run know each other and no other, and who leads what. Raises: UsageError."""
        for _ in looks(WAIT_S):
            running = self._running()
            ids = set(running)
            if all(each.call(partial(_agrees, ids)) for each in running.values()):
                return
        raise UsageError(f"the brokers do not find each other: {self!r}; is one of them paused? Call resume()")

    # -- what a test asks of it

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, with commas, for bootstrap.servers."""
        return ",".join(each.bootstrap for each in self.brokers)

    @property
    def _asked(self) -> str:
        """Those that are not paused: the others would take the question, and never answer it."""
        return ",".join(each.bootstrap for each in self.brokers if not each.is_paused) or self.bootstrap

    @property
    def controller(self) -> Broker:
        """The broker that is the controller. Raises: UsageError if none is."""
        for each in self.brokers:
            if each.is_running and each.call(lambda node: node.broker.store_plane.controller.is_active):
                return each
        raise UsageError("the cluster has no controller at the moment: start a broker first")

    def cut(self, broker: Broker) -> None:
        """Let nothing through between a broker and the others, either way; clients and the metadata store reach all.

        Until `heal`, or until a broker starts again. Raises: UsageError if it is none of these.
        """
        self._check_own(broker, "cut(c.brokers[0])")
        self._is_cut = True
        for each in self._running().values():
            far = self.brokers if each is broker else [broker]
            ids = [other.node_id for other in far if other is not each]
            each.call(lambda node, ids=ids: node.cut_from(ids))  # type: ignore[misc]

    def _check_own(self, broker: Broker, instead: str) -> None:
        if broker not in self.brokers:
            raise UsageError(f"{broker!r} is none of this cluster's: write {instead}")

    def heal(self) -> None:
        """End what `cut` began."""
        self._is_cut = False
        for each in self._running().values():
            each.call(lambda node: node.cut_from([]))

    def move_leader(self, topic: str, to: Broker, partition: int = 0) -> None:
        """Have a broker lead a partition, with what that has. Raises: UsageError if it cannot be."""
        self._check_own(to, f"move_leader({topic!r}, to=c.brokers[0])")
        move_leader(self._asked, topic, partition, to.node_id)
        self._agree()

    def move_coordinator(self, group: str, to: Broker) -> None:
        """Have a broker coordinate a group. Raises: UsageError if it cannot be, or no group was ever used."""
        self._check_own(to, f"move_coordinator({group!r}, to=c.brokers[0])")
        partition = self.controller.call(lambda node: node.broker.group_runtime.partition_of(group))
        if partition < 0:
            raise UsageError(f"no group was used yet: a consumer of {group!r} makes {CONSUMER_OFFSETS}")
        self.move_leader(CONSUMER_OFFSETS, to, partition)

    def move_controller(self, to: Broker | None = None) -> Broker:
        """Have another broker become the controller: `to`, or any other. Returns: it. Raises: UsageError if none can.

        The controller's node is deleted in the metadata store, until it is elected.
        """
        if to is not None:
            self._check_own(to, "move_controller(to=c.brokers[0])")
        before = self.controller
        able = [each for each in self._running().values() if (each is to if to is not None else each is not before)]
        if not able:
            raise UsageError(f"there is no other broker to be the controller: {self!r}")
        assert self._store is not None
        for _ in looks(WAIT_S):
            try:
                now = self.controller
            except UsageError:
                continue  # the election goes on
            if now in able:
                self._agree()
                return now
            self._store.remove(CONTROLLER)
        raise UsageError(f"no other broker became the controller: {self!r}; is one of them paused? Call resume()")

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Let this much time pass at once for every broker, as `Broker.advance`."""
        self.clock.advance(ms, seconds, minutes, hours, days)
        for each in self.brokers:
            each.catch_up()

    def reset(self) -> None:
        """Drop all topics, groups, transactions, faults and histories."""
        for each in self.brokers:
            each.forgive()
        super().reset()
        for each in self.brokers:
            each.faults.history.clear()

    def _forget_transactional_ids(self) -> bool:
        return all(each._forget_transactional_ids() for each in self.brokers)

    def put_back(self) -> None:
        """As new: every broker runs by the machine's time, reaches all others, and is empty."""
        for each in self.brokers:
            if each.is_paused:
                each.resume()
            each.disk.heal()  # it could not start on one that is broken
        self.heal()
        self.start()
        self.reset()
        if self.clock.is_ahead:  # as `Broker.put_back`
            self.stop()
            self.clock.put_back()
            self.start()

    def report(self) -> str:
        """What the brokers saw, in some lines."""
        from kbroker.testing._report import report

        return report(self, self.brokers)

    # -- the home of its brokers

    def data_of(self, node_id: int) -> Path:
        """The folder of one."""
        if self._folder is None:
            why = (
                "was closed: use it inside its `with` block" if self._was_closed else "does not run: call start() first"
            )
            raise UsageError(f"the cluster {why}")
        return self._folder.path / f"broker-{node_id}"

    def connect(self, post: Post) -> SharedSession:
        """The metadata store, for one."""
        assert self._store is not None
        return self._store.connect(post)

    def starting(self) -> None:
        """One is about to start, which ends what cut it off: else it would wait for a controller that cannot come."""
        if self._is_cut:
            self.heal()

    def changed(self) -> None:
        """One has started, stopped, or left its session behind, which is over; returns once the others know.

        Not while all are started or stopped, nor while one is paused: there would be no broker to agree with.
        """
        if self._store is not None:
            self._store.end_abandoned()
        if not self._at_once and self._running() and not any(each.is_paused for each in self.brokers):
            self._agree()

    def _agree(self) -> None:
        """Await agreement, but not of a broker that is cut off: it hears of nothing."""
        if not self._is_cut:
            self.await_agreement()

    def _running(self) -> dict[int, Broker]:
        return {each.node_id: each for each in self.brokers if each.is_running and not each.is_paused}

    @contextmanager
    def _all_at_once(self) -> Iterator[None]:
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False


def _agrees(running: set[int], node: Node) -> bool:
    """Whether a broker's image of the cluster is of these brokers: they lead what they can, and no other does."""
    cache = node.broker.plane.cache
    if set(cache.brokers) != running:
        return False
    partitions = [each for topic in cache.topics.values() for each in topic.partitions.values()]
    return all(each.leader in running if running & set(each.isr) else each.leader < 0 for each in partitions)
