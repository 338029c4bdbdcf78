"""This broker's life in a quorum's cluster: its registration, heartbeats and directories, told to the quorum's leader.

A part of a member. What is told when is decided by `quorum/life.py` and `quorum/directories.py`; here are the
connection, timers, and the facts that follow: `Registered`, `LeftCluster`. Whom to ask is known to the observer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kbroker.ports import LIFE, PeerAnswer
from kbroker.quorum.directories import DirectoryAssignments
from kbroker.quorum.facts import LeaderChanged, LeftCluster, Registered
from kbroker.quorum.life import HEARTBEAT_VERSIONS, NO_EPOCH, REGISTRATION_VERSIONS, BrokerLife
from protocol.messages.quorum import AssignReplicasToDirsRequest, BrokerRegistrationRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kbroker.broker.facts import Handler, Tell
    from kbroker.broker.observer import Observer
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.metadata.store import Endpoint
    from kbroker.ports import PeerEvent
    from kbroker.quorum.life import Identity, LifeRequest, LifeResponse
    from kbroker.timing import Scheduler
    from protocol.messages.quorum import AssignReplicasToDirsResponse

SESSION_SHARE = 2
"""A heartbeat is waited for so long: this part of broker.session.timeout.ms, so that a second one is in time."""


class Life:
    """The life that begins with `start`."""

    def __init__(
        self,
        identity: Identity,
        observer: Observer,
        requester: Requester,
        configs: Configs,
        scheduler: Scheduler,
        tell: Tell,
    ) -> None:
        self._identity = identity
        self._observer = observer
        self._requester = requester
        self._configs = configs
        self._tell = tell
        self._life: BrokerLife | None = None
        self._directories = DirectoryAssignments(identity.node_id)
        self._is_asking = False
        self._told_epoch, self._has_told_end = NO_EPOCH, False
        self._due = scheduler.alarm(self._go_on)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Another leader is asked at once."""
        return {LeaderChanged: lambda fact, now_ms: self._go_on(now_ms)}

    @property
    def broker_epoch(self) -> int:
        """Of the registration; -1 before."""
        return NO_EPOCH if self._life is None else self._life.broker_epoch

    @property
    def is_fenced(self) -> bool:
        """Whether controllers let it lead nothing, as far as it knows."""
        return self._life is None or self._life.is_fenced

    @property
    def fatal(self) -> str:
        """Why the broker cannot go on, else empty."""
        return "" if self._life is None else self._life.fault

    # -- what happens

    def start(self, endpoints: Iterable[Endpoint], now_ms: int) -> None:
        """Begin to register. endpoints: as advertised."""
        assert self._life is None, self._identity
        self._life = BrokerLife(self._identity, endpoints, self._configs.broker, now_ms)
        self._go_on(now_ms)

    def published(self, offset: int) -> None:
        """Records up to this one are applied, and what follows from them is done."""
        if self._life is not None:
            self._life.metadata_offset = offset

    def ready_to_serve(self, now_ms: int) -> None:
        """It may be unfenced from now on."""
        if self._life is not None:
            self._life.ready_to_serve(now_ms)
            self._go_on(now_ms)

    def advertise(self, endpoints: Iterable[Endpoint], now_ms: int) -> None:
        """Its addresses are others now."""
        if self._life is not None:
            self._life.advertise(endpoints, now_ms)
            self._go_on(now_ms)

    def directory_failed(self, directory_id: bytes, now_ms: int) -> None:
        """A log directory has gone offline."""
        if self._life is not None:
            self._life.directory_failed(directory_id, self._configs.broker, now_ms)
            self._go_on(now_ms)

    def assigned(self, topic_id: bytes, index: int, directory_id: bytes, now_ms: int) -> None:
        """A replica is in another directory than controllers know."""
        self._directories.assign(topic_id, index, directory_id, now_ms)
        self._go_on(now_ms)

    def unassigned(self, topic_id: bytes, index: int) -> None:
        """A replica is not here any more, or controllers know its directory."""
        self._directories.forget(topic_id, index)

    def leave(self, now_ms: int) -> None:
        """Hand over what is led here, and end then; `LeftCluster` is told."""
        if self._life is not None:
            self._life.leave(now_ms)
            self._go_on(now_ms)

    def close(self) -> None:
        """Say nothing more."""
        if self._life is not None:
            self._life.end()
        self._due.cancel()

    # -- asking

    def _go_on(self, now_ms: int) -> None:
        """Ask what is due, if there is a leader to ask, and nothing under way."""
        life = self._life
        if life is None:
            return
        life.expire(now_ms)
        self._say()
        leader = self._observer.leader
        if not life.fault and not self._is_asking and leader is not None:
            request = life.next_request(now_ms)
            if request is None and life.broker_epoch != NO_EPOCH and not life.is_over:
                assignments = self._directories.next_request(life.broker_epoch, now_ms)
                if assignments is not None:
                    self._ask(assignments, (0, 0))
            elif request is not None:
                is_first = isinstance(request, BrokerRegistrationRequest)
                self._ask(request, REGISTRATION_VERSIONS if is_first else HEARTBEAT_VERSIONS)
        self._sleep(now_ms)

    def _ask(self, request: LifeRequest | AssignReplicasToDirsRequest, versions: tuple[int, int]) -> None:
        leader = self._observer.leader
        assert leader is not None
        self._is_asking = True
        self._requester.ask(
            self,
            leader.node_id,
            LIFE,
            request,
            request,
            endpoint=leader.endpoint,
            version=versions,
            timeout_ms=self._configs.broker.broker_session_timeout_ms // SESSION_SHARE,
        )

    def _sleep(self, now_ms: int) -> None:
        """Until the next request is due, or something has taken too long."""
        life = self._life
        assert life is not None
        due = [life.deadline_ms()]
        if not self._is_asking and self._observer.leader is not None:  # else what ends that goes on
            due += [life.due_ms, None if life.broker_epoch == NO_EPOCH else self._directories.due_ms]
        times = [each for each in due if each is not None]
        if times and not life.fault and not life.is_over:
            self._due.set(max(min(times), now_ms + 1))
        else:
            self._due.cancel()

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """The leader has answered, or not."""
        self._is_asking = False
        life, config = self._life, self._configs.broker
        assert life is not None
        request = asked.token
        if isinstance(request, AssignReplicasToDirsRequest):
            if isinstance(event, PeerAnswer):
                self._directories.answered(cast("AssignReplicasToDirsResponse", event.response), now_ms)
            else:
                self._directories.failed(now_ms)
        elif isinstance(event, PeerAnswer):
            life.answered(cast("LifeRequest", request), cast("LifeResponse", event.response), config, now_ms)
        else:
            life.failed(f"{event.kind.value}: {event.why}", config, now_ms)
        self._go_on(now_ms)

    def _say(self) -> None:
        """Tell what is news."""
        life = self._life
        assert life is not None
        if life.broker_epoch != self._told_epoch:
            self._told_epoch = life.broker_epoch
            self._tell(Registered(life.broker_epoch))
        if life.is_over and not self._has_told_end:
            self._has_told_end = True
            self._tell(LeftCluster())
