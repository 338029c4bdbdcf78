"""Where the cluster keeps what, and how it is written: paths and JSON of Apache Kafka 3.9 in ZooKeeper mode.

Read and written by the controller, the admin procedures and the broker's start. Values in, bytes out, and back; nothing
here asks a store. An Apache broker of the same cluster reads what these functions write, and the other way round.

| path | content |
|---|---|
| `/cluster/id` | `{"version":"1","id":...}`, made by the broker that starts first |
| `/brokers/ids/N` | a live broker, ephemeral: endpoints, rack; its czxid is the broker's epoch |
| `/brokers/topics/T` | topic id, and the replicas of each partition |
| `/brokers/topics/T/partitions/P/state` | leader, leader epoch, in-sync replicas; its version is the partition epoch |
| `/controller` | who is controller, ephemeral |
| `/controller_epoch` | number of the last election; its version fences what older controllers still write |
| `/config/{topics,brokers,...}/NAME` | settings; `<default>` stands for all brokers |
| `/config/changes/config_change_NNNNNNNNNN` | which of them has changed |
| `/admin/delete_topics/T` | a topic that is to be deleted |
| `/admin/reassign_partitions` | partitions and the replicas they are to have, for the controller to move |
| `/admin/preferred_replica_election` | partitions whose first replicas are to lead |
| `/isr_change_notification`, `/log_dir_event_notification` | notices to the controller, one child each |
| `/brokers/seqid` | its version counts the generated broker ids |
| `/feature` | the levels of features that all brokers have agreed on; its version is their epoch (`features.py`) |
| `/latest_producer_id_block` | the last block of producer ids that was handed out |

Source: ZkData of Apache Kafka 3.9, by observation of the nodes it writes.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.listeners import bracketed
from kbroker.ports import Endpoint as Endpoint
from kbroker.ports import Stat
from protocol.namedtuple import NamedTuple

log = logging.getLogger("kbroker.cluster")

T = TypeVar("T")

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
REASSIGNMENTS = "/admin/reassign_partitions"
PREFERRED_ELECTIONS = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURES = "/feature"
BROKER_SEQUENCE = "/brokers/seqid"

ALL_BROKERS = "<default>"  # the name that settings for all brokers are kept under

PERSISTENT = (
    "/consumers", BROKER_IDS, TOPICS, CONFIG_CHANGES, DELETE_TOPICS, BROKER_SEQUENCE, ISR_CHANGES, PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS, "/config/topics", "/config/clients", "/config/users", "/config/brokers", "/config/ips",
)  # fmt: skip
"""What every broker makes at its start where it is missing."""


NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1


class SupportedFeature(NamedTuple):
    """The levels of a feature that a broker can run, first and last; 0 is without it (KIP-584)."""

    name: str
    first: int
    last: int


class BrokerInfo(NamedTuple):
    """A broker's registration. epoch: czxid of its node; -1 before it is there. features: that it supports."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    features: tuple[SupportedFeature, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of a listener's name."""
        return next((each for each in self.endpoints if each.listener == listener), None)


class Assignment(NamedTuple):
    """The replicas of a partition in order of preference; adding and removing: of those, while it is being moved."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether it is being reassigned."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment under way, in an order that may have changed."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after it."""
        return tuple(each for each in self.replicas if each not in self.removing)

    def reassigned(self, target: tuple[int, ...]) -> Assignment:
        """On the way to these replicas, from what was there before any reassignment."""
        origin = self.origin
        return Assignment(
            tuple(dict.fromkeys((*target, *origin))),
            tuple(each for each in target if each not in origin),
            tuple(each for each in origin if each not in target),
        )


class TopicInfo(NamedTuple):
    """A topic's node. topic_id: 16 bytes; None if an old broker made it without one."""

    topic_id: bytes | None
    partitions: Mapping[int, Assignment]


class LeaderIsr(NamedTuple):
    """A partition's state node. version: the node's, also called partition epoch; -1 before it is there."""

    leader: int  # -1 none
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int = -1  # that in which it was written
    recovery: int = RECOVERED
    version: int = -1


# -- paths


def broker_path(broker_id: int) -> str:
    """A broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """A topic's replicas."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """The parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, index: int) -> str:
    """The parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{index}"


def state_path(topic: str, index: int) -> str:
    """A partition's state."""
    return f"{TOPICS}/{topic}/partitions/{index}/state"


def config_path(kind: str, name: str) -> str:
    """Settings of an entity. kind: topics, brokers, clients, users, ips."""
    return f"/config/{kind}/{name}"


def delete_topic_path(topic: str) -> str:
    """That a topic is to be deleted."""
    return f"{DELETE_TOPICS}/{topic}"


# -- contents


def encode_uuid(value: bytes) -> str:
    """A topic id or cluster id as Kafka writes it: base64url, 22 letters, no padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """The 16 bytes of an id. Raises: ValueError."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is not an id of 16 bytes")
    return value


def encode_cluster_id(cluster_id: str) -> bytes:
    """Content of `/cluster/id`."""
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """The cluster's id."""
    return str(_load(data)["id"])


def encode_broker(broker: BrokerInfo, wall_ms: int) -> bytes:
    """Content of `/brokers/ids/N`, layout 5; host and port are those of the first plaintext listener, for old tools.

    Features are told from level 1 on: Apache brokers before 3.9 cannot read a registration that says 0 (KAFKA-17011).
    """
    plain = next((each for each in broker.endpoints if each.security_protocol == 0), Endpoint("", 0, "", -1))
    content: dict[str, Any] = {
        "features": {
            each.name: {"min_version": max(each.first, 1), "max_version": each.last} for each in broker.features
        },
        "listener_security_protocol_map": {
            each.listener: SECURITY_PROTOCOLS[each.security_protocol] for each in broker.endpoints
        },
        "endpoints": [f"{each.listener}://{bracketed(each.host)}:{each.port}" for each in broker.endpoints],
        "jmx_port": -1,
        "port": plain.port,
        "host": plain.host or None,
        "version": 5,
        "timestamp": str(wall_ms),
    }
    if broker.rack is not None:
        content["rack"] = broker.rack
    return _dump(content)


def broker_ids(names: Iterable[str]) -> list[int]:
    """The ids among the children of `/brokers/ids`; what else stands there is no broker."""
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def decode_broker(broker_id: int, data: bytes, stat: Stat) -> BrokerInfo:
    """A registration of any layout from 1 on."""
    content = _load(data)
    protocols = content.get("listener_security_protocol_map") or {}
    endpoints = tuple(_endpoint(text, protocols) for text in content.get("endpoints") or ())
    if content["version"] == 1:
        endpoints = (Endpoint("PLAINTEXT", 0, _text(content["host"]), _number(content["port"])),)
    rack = content.get("rack")
    features = tuple(
        SupportedFeature(name, _number(levels["min_version"]), _number(levels["max_version"]))
        for name, levels in (content.get("features") or {}).items()
    )
    return BrokerInfo(_number(broker_id), endpoints, None if rack is None else _text(rack), stat.czxid, features)


def encode_topic(topic: TopicInfo) -> bytes:
    """Content of `/brokers/topics/T`, layout 3."""
    partitions = topic.partitions.items()
    content: dict[str, Any] = {
        "removing_replicas": {str(index): list(each.removing) for index, each in partitions if each.removing},
        "partitions": {str(index): list(each.replicas) for index, each in partitions},
    }
    if topic.topic_id is not None:
        content["topic_id"] = encode_uuid(topic.topic_id)
    content["adding_replicas"] = {str(index): list(each.adding) for index, each in partitions if each.adding}
    content["version"] = 3
    return _dump(content)


def decode_topic(data: bytes) -> TopicInfo:
    """A topic of any layout."""
    content = _load(data)
    adding, removing = content.get("adding_replicas") or {}, content.get("removing_replicas") or {}
    partitions = {
        _number(int(index)): Assignment(
            _numbers(replicas), _numbers(adding.get(index, ())), _numbers(removing.get(index, ()))
        )
        for index, replicas in content["partitions"].items()
    }
    topic_id = content.get("topic_id")
    return TopicInfo(None if topic_id is None else decode_uuid(topic_id), dict(sorted(partitions.items())))


def encode_state(state: LeaderIsr) -> bytes:
    """Content of `/brokers/topics/T/partitions/P/state`, layout 1."""
    content: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovery != RECOVERED:
        content["leader_recovery_state"] = state.recovery
    return _dump(content)


def decode_state(data: bytes, stat: Stat) -> LeaderIsr:
    """A partition's state."""
    content = _load(data)
    return LeaderIsr(
        _number(content["leader"]),
        _number(content["leader_epoch"]),
        _numbers(content["isr"]),
        _number(content["controller_epoch"]),
        _number(content.get("leader_recovery_state", RECOVERED)),
        stat.version,
    )


def encode_controller(broker_id: int, wall_ms: int) -> bytes:
    """Content of `/controller`, layout 2."""
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(wall_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    """The controller's node id."""
    return _number(_load(data)["brokerid"])


def decode_controller_epoch(data: bytes) -> int:
    """Content of `/controller_epoch`: the number of the last election."""
    return _number(int(data))


def kraft_fault(data: bytes) -> str:
    """What is wrong if a KRaft controller has taken `/controller`, and with it the cluster; empty: none has."""
    content = understood(CONTROLLER, data, _load) or {}
    epoch = content.get("kraftControllerEpoch", -1)
    if not isinstance(epoch, int) or epoch < 0:
        return ""
    return f"the cluster is on its way to KRaft (kraftControllerEpoch {epoch} in {CONTROLLER})"


def encode_config(settings: Mapping[str, str]) -> bytes:
    """Content of `/config/KIND/NAME`."""
    return _dump({"version": 1, "config": dict(settings)})


def decode_config(data: bytes) -> dict[str, str]:
    """The settings of an entity; {} for a node without content, or, with a line, with content that makes no sense."""
    return understood("a node of settings", data, _settings, is_secret=True) or {} if data else {}


def _settings(data: bytes) -> dict[str, str]:
    return {key: str(value) for key, value in (_load(data).get("config") or {}).items()}


def encode_config_change(entity_path: str) -> bytes:
    """Content of `/config/changes/config_change_N`, layout 2. entity_path: `topics/T`, `brokers/N`."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> tuple[str, str]:
    """(kind, name) of the entity that changed; layout 1, of Kafka before 0.10.1, too."""
    content = _load(data)
    if content["version"] == 1:
        return _text(content["entity_type"]), _text(content["entity_name"])
    kind, _, name = content["entity_path"].partition("/")
    return kind, name


def encode_reassignments(targets: Mapping[tuple[str, int], Sequence[int]]) -> bytes:
    """Content of `/admin/reassign_partitions`."""
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(replicas)} for (topic, index), replicas in targets.items()
    ]
    return _dump({"version": 1, "partitions": partitions})


def encode_features(levels: Mapping[str, int]) -> bytes:
    """Content of `/feature`, layout 2, of features that are in use, each at its level."""
    features = {name: {"max_version_level": level} for name, level in levels.items()}
    return _dump({"version": 2, "status": 1, "features": features})


def decode_features(data: bytes) -> dict[str, int]:
    """The finalized levels, of layout 1 or 2; none where features are not in use (status 0).

    Raises: ValueError, KeyError, TypeError if it makes no sense.
    """
    content = _load(data)
    if content["version"] not in (1, 2):
        raise ValueError(f"layout {content['version']}; known: 1 and 2")
    levels = {_text(name): _number(each["max_version_level"]) for name, each in content["features"].items()}
    if any(level < 1 for level in levels.values()):
        raise ValueError(f"a level below 1: {levels}")
    return levels if content["status"] else {}


def decode_reassignments(data: bytes) -> dict[tuple[str, int], tuple[int, ...]]:
    """Partitions and the replicas they are to have. Raises: ValueError, KeyError, TypeError if it makes no sense."""
    return {
        (_text(each["topic"]), _number(each["partition"])): _numbers(each["replicas"])
        for each in _load(data)["partitions"]
    }


def decode_preferred_elections(data: bytes) -> list[tuple[str, int]]:
    """Partitions whose first replicas are to lead. Raises: as decode_reassignments."""
    return [(_text(each["topic"]), _number(each["partition"])) for each in _load(data)["partitions"]]


def decode_isr_change(data: bytes) -> list[tuple[str, int]]:
    """The partitions whose in-sync replicas a leader has changed."""
    return [(_text(each["topic"]), _number(each["partition"])) for each in _load(data)["partitions"]]


def encode_log_dir_event(broker_id: int) -> bytes:
    """Content of `/log_dir_event_notification/log_dir_event_N`; event 1 is a failure, and there are no others."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """The broker one of whose log directories has failed."""
    return _number(_load(data)["broker"])


def encode_producer_id_block(broker_id: int, start: int, end: int) -> bytes:
    """Content of `/latest_producer_id_block`: producer ids start to end, both included, are the broker's."""
    return _dump({"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)})


def decode_producer_id_block(data: bytes) -> tuple[int, int, int]:
    """(broker id, first id, last id); ends at -1 where no block was handed out yet."""
    if not data:
        return -1, -1, -1
    content = _load(data)
    return content["broker"], int(content["block_start"]), int(content["block_end"])


def understood(path: str, data: bytes, decode: Callable[[bytes], T], *, is_secret: bool = False) -> T | None:
    """The content of a node, None if it makes no sense: then there is a log line, and the reader passes it by.

    is_secret: what it says may be a password or a key, and is not in the line.
    """
    try:
        return decode(data)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if is_secret:
            log.error("%s in the metadata store makes no sense, and is passed by: %s", path, type(error).__name__)
        else:
            log.error("%s in the metadata store makes no sense, and is passed by: %r (%.100r)", path, error, data)
        return None


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes) -> dict[str, Any]:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError(f"not a JSON object: {data[:100]!r}")
    return content


def _number(value: object) -> int:
    """A number that brokers can tell each other. Raises: ValueError for any other, and for a text of digits."""
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value!r:.50} is no number of 32 bits")
    return value


def _numbers(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(map(_number, values))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.50} is no text")
    return value


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    protocol = protocols.get(listener, listener)
    return Endpoint(listener, SECURITY_PROTOCOLS.index(protocol), host.strip("[]"), _number(int(port)))


def isr_without(isr: Sequence[int], gone: int) -> tuple[int, ...]:
    """The in-sync replicas without one of them; the last one stays, for it is where the records are."""
    return tuple(isr) if len(isr) == 1 else tuple(replica for replica in isr if replica != gone)
