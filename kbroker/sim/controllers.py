"""What the controllers of a simulated quorum decide: which brokers there are, and which of them may serve.

The rules are those of Apache's controller as far as a broker meets them: a registration per incarnation, fenced until
it has caught up and asks for it, fenced again when it has been silent. The state is what records come to, those that
are not committed included, as with Apache's; an answer that changes something waits until that is committed.

Source: ClusterControlManager, BrokerHeartbeatManager and ReplicationControlManager of Apache Kafka 4.3, by behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kbroker.sim.quorum import LogBatch, Quorum, QuorumNode, State
from protocol.errors import ErrorCode
from protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
)
from protocol.messages.quorum import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kbroker.sim.net import Net
    from kbroker.sim.world import World
    from protocol.message import Message

METADATA_VERSION = "metadata.version"
SWEEP_MS = 500
UNFENCE, FENCE = -1, 1
REGISTER_VERSION, CHANGE_VERSION = 3, 2

Answer = Callable[["Message"], None]


class ClusterState(State):
    """Brokers, configs and features, as the records say. registered_at: offset of each broker's registration."""

    def __init__(self) -> None:
        self.brokers: dict[int, RegisterBrokerRecord] = {}
        self.configs: dict[tuple[int, str, str], str] = {}
        self.features: dict[str, int] = {}

    def apply(self, record: Message) -> None:
        """The next record."""
        if isinstance(record, RegisterBrokerRecord):
            self.brokers[record.broker_id] = record
        elif isinstance(record, BrokerRegistrationChangeRecord):
            self.brokers[record.broker_id] = changed(self.brokers[record.broker_id], record)
        elif isinstance(record, ConfigRecord):
            key = (record.resource_type, record.resource_name, record.name)
            if record.value is None:
                self.configs.pop(key, None)
            else:
                self.configs[key] = record.value
        elif isinstance(record, FeatureLevelRecord):
            self.features[record.name] = record.feature_level

    def records(self) -> Iterable[tuple[Message, int]]:
        """As a snapshot has them."""
        for name, level in self.features.items():
            yield FeatureLevelRecord(name=name, feature_level=level), 0
        for broker in self.brokers.values():
            yield broker, REGISTER_VERSION
        for (kind, name, key), value in self.configs.items():
            yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0

    def image(self) -> tuple[object, ...]:
        """All of it, to be compared."""
        brokers = {each: tuple(getattr(record, name) for name in _FACTS) for each, record in self.brokers.items()}
        return brokers, dict(self.configs), dict(self.features)


_FACTS = ("broker_epoch", "fenced", "in_controlled_shutdown", "incarnation_id", "log_dirs")


def changed(record: RegisterBrokerRecord, change: BrokerRegistrationChangeRecord) -> RegisterBrokerRecord:
    """A registration behind a change."""
    return RegisterBrokerRecord(
        broker_id=record.broker_id,
        incarnation_id=record.incarnation_id,
        broker_epoch=record.broker_epoch,
        end_points=record.end_points,
        features=record.features,
        rack=record.rack,
        fenced=record.fenced if not change.fenced else change.fenced == FENCE,
        in_controlled_shutdown=record.in_controlled_shutdown or bool(change.in_controlled_shutdown),
        log_dirs=change.log_dirs or record.log_dirs,
    )


class Controllers(Quorum):
    """A quorum that decides about brokers. state: of the controller that leads, with what is not committed.

    session_timeout_ms: as broker.session.timeout.ms of the controllers.
    """

    state: ClusterState

    def __init__(
        self,
        world: World,
        net: Net,
        *,
        controllers: int = 3,
        session_timeout_ms: int = 9000,
        make_state: Callable[[], ClusterState] = ClusterState,
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.heard_ms: dict[int, int] = {}  # of each broker, by who leads
        super().__init__(world, net, make_state, controllers=controllers)
        self.served = {62: (0, 4), 63: (0, 1), 73: (0, 0)}
        self._sweep()

    # -- leading

    def leads(self, node: QuorumNode) -> None:
        """Know all that is in its log; every session begins again."""
        self.state = self._state_of(node)
        self.heard_ms = dict.fromkeys(self.state.brokers, self.world.now_ms)
        if not self.state.features:
            node.append([(FeatureLevelRecord(name=METADATA_VERSION, feature_level=self.first_level), 0)])

    first_level = 25
    """metadata.version: 3.9-IV0 is 21."""

    def _state_of(self, node: QuorumNode) -> ClusterState:
        state = cast("ClusterState", self.state_at(node.start_offset))
        for batch in node.log:
            for record in batch.records:
                state.apply(record)
        return state

    def appended(self, node: QuorumNode, batch: LogBatch) -> None:
        """What is appended counts at once for who leads."""
        if node is self.leader:
            for record in batch.records:
                self.state.apply(record)

    def write(self, records: list[tuple[Message, int]]) -> bool:
        """Have the controller that leads write something; whether there is one."""
        leader = self.leader
        if leader is None:
            return False
        leader.append(records)
        return True

    # -- what brokers ask

    def serve(self, node: QuorumNode, request: Message, answer: Answer) -> None:
        """Only the newest leader decides; an older one finds no majority, and answers nothing that it decides."""
        if not node.leads:
            answer(self._refusal(request, ErrorCode.NOT_CONTROLLER))
        elif node is not self.leader:
            return  # what it would append is never committed: the broker's patience ends
        elif isinstance(request, BrokerRegistrationRequest):
            self._register(node, request, answer)
        elif isinstance(request, BrokerHeartbeatRequest):
            self._heartbeat(node, request, answer)
        else:
            self.decide(node, request, answer)

    def decide(self, node: QuorumNode, request: Message, answer: Answer) -> None:
        """Other requests."""
        assert isinstance(request, AssignReplicasToDirsRequest), request
        answer(AssignReplicasToDirsResponse(error_code=0, directories=[]))

    def _refusal(self, request: Message, error: ErrorCode) -> Message:
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(error_code=error)
        if isinstance(request, BrokerHeartbeatRequest):
            return BrokerHeartbeatResponse(error_code=error, should_shut_down=False)
        return AssignReplicasToDirsResponse(error_code=error, directories=[])

    def when_committed(self, node: QuorumNode, what: Callable[[], None]) -> None:
        """Do something once all that its log has is committed."""
        if node.end_offset <= node.high_watermark:
            what()
        else:
            node.awaiting.append((node.end_offset, what))

    def _register(self, node: QuorumNode, request: BrokerRegistrationRequest, answer: Answer) -> None:
        if request.cluster_id != self.cluster_id:
            answer(BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
            return
        known = self.state.brokers.get(request.broker_id)
        is_same = known is not None and known.incarnation_id == request.incarnation_id
        silent_ms = self.world.now_ms - self.heard_ms.get(request.broker_id, -self.session_timeout_ms)
        if known is not None and not is_same and not known.fenced and silent_ms < self.session_timeout_ms:
            answer(BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))
            return
        levels = {each.name: (each.min_supported_version, each.max_supported_version) for each in request.features}
        for name, level in self.state.features.items():
            low, high = levels.get(name, (0, 0))
            if level and not low <= level <= high:
                answer(BrokerRegistrationResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
                return
        before = [] if is_same else self.leaves(request.broker_id)
        broker_epoch = known.broker_epoch if known is not None and is_same else node.end_offset + len(before)
        record = RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=broker_epoch,
            end_points=[
                BrokerEndpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for each in request.listeners
            ],
            features=[
                BrokerFeature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in request.features
            ],
            rack=request.rack,
            fenced=known.fenced if known is not None and is_same else True,
            log_dirs=list(request.log_dirs),
        )
        self.heard_ms[request.broker_id] = self.world.now_ms
        node.append([*before, (record, REGISTER_VERSION)])
        self.when_committed(node, lambda: answer(BrokerRegistrationResponse(error_code=0, broker_epoch=broker_epoch)))

    def _heartbeat(self, node: QuorumNode, request: BrokerHeartbeatRequest, answer: Answer) -> None:
        known = self.state.brokers.get(request.broker_id)
        if known is None or known.broker_epoch != request.broker_epoch:
            answer(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, should_shut_down=False))
            return
        self.heard_ms[request.broker_id] = self.world.now_ms
        lost = [each for each in known.log_dirs if each in request.offline_log_dirs]
        if lost:
            left = [each for each in known.log_dirs if each not in lost]
            change = self._change(known, log_dirs=left), CHANGE_VERSION
            node.append([change, *self.loses(known.broker_id, lost)])
            known = self.state.brokers[known.broker_id]
        is_caught_up = request.current_metadata_offset >= known.broker_epoch
        records: list[tuple[Message, int]] = []
        should_shut_down = False
        if request.want_shut_down:
            if not known.in_controlled_shutdown:
                records = [
                    (self._change(known, in_controlled_shutdown=1), CHANGE_VERSION),
                    *self.hands_over(known.broker_id),
                ]
            elif not self.leads_anything(known.broker_id):
                should_shut_down = True
        elif request.want_fence:
            if not known.fenced:
                records = [(self._change(known, fenced=FENCE), CHANGE_VERSION), *self.leaves(known.broker_id)]
        elif known.fenced and is_caught_up:
            records = [(self._change(known, fenced=UNFENCE), CHANGE_VERSION), *self.comes_back(known.broker_id)]
        if records:
            node.append(records)

        def reply() -> None:
            now = self.state.brokers.get(request.broker_id)
            answer(
                BrokerHeartbeatResponse(
                    error_code=0,
                    is_caught_up=is_caught_up,
                    is_fenced=now is None or now.fenced,
                    should_shut_down=should_shut_down,
                )
            )

        self.when_committed(node, reply)

    @staticmethod
    def _change(
        known: RegisterBrokerRecord, *, fenced: int = 0, in_controlled_shutdown: int = 0, log_dirs: Sequence[bytes] = ()
    ) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(
            broker_id=known.broker_id,
            broker_epoch=known.broker_epoch,
            fenced=fenced,
            in_controlled_shutdown=in_controlled_shutdown,
            log_dirs=list(log_dirs),
        )

    # -- what it means for partitions

    def leaves(self, broker_id: int) -> list[tuple[Message, int]]:
        """A broker is fenced."""
        return []

    def loses(self, broker_id: int, directories: Sequence[bytes]) -> list[tuple[Message, int]]:
        """Log directories of a broker have failed."""
        return []

    def hands_over(self, broker_id: int) -> list[tuple[Message, int]]:
        """A broker wants to stop."""
        return []

    def comes_back(self, broker_id: int) -> list[tuple[Message, int]]:
        """A broker is unfenced."""
        return []

    def leads_anything(self, broker_id: int) -> bool:
        """Whether a broker leads a partition."""
        return False

    # -- time

    def _sweep(self) -> None:
        """Brokers that have been silent are fenced."""
        leader = self.leader
        for known in list(self.state.brokers.values()) if leader is not None else ():
            silent_ms = self.world.now_ms - self.heard_ms.setdefault(known.broker_id, self.world.now_ms)
            if not known.fenced and silent_ms >= self.session_timeout_ms and leader is not None and leader.leads:
                self.world.note(f"{leader} fences broker {known.broker_id}")
                leader.append([(self._change(known, fenced=FENCE), CHANGE_VERSION), *self.leaves(known.broker_id)])
        self.world.after(SWEEP_MS, self._sweep)
