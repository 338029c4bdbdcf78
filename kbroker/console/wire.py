"""The wire of the broker that has started the console: requests, waits, a partition on disk, faults, rebalances.

The broker gives bytes and numbers (`looks.py`); they are decoded and drawn here, in the console's process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kbroker.console.cluster import ConsoleError
from kbroker.console.inside import Inside
from kbroker.console.screens import Screen
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.explain import Told, describe
from protocol.headers import parse_request_header, skip_tags
from protocol.message import DecodeError

MOST_ZEROS = 1 << 20  # in the place of records that are in files
MOST_NODES = 3000
MOST_SHOWN = 120  # characters of a value
MOST_EVENTS = 150
HEAD_BYTES, API_VERSIONS = 8, 18
OF_GROUPS = {
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    68: "ConsumerGroupHeartbeat",
    76: "ShareGroupHeartbeat",
    88: "StreamsGroupHeartbeat",
}
ACTIONS = {
    "fail": "answer with an error",
    "delay_ms": "let it wait, in ms",
    "throttle_ms": "say that it was throttled, in ms",
    "in_pieces": "send the answer in pieces of so many bytes",
    "drop": "never answer",
    "disconnect": "hang up",
    "hold": "hold it until the faults are taken away",
    "corrupt": "turn a bit of the records",
}


def wire(inside: Inside, connection: int = 0, api: str = "", client: str = "", own: bool = False) -> dict[str, Any]:
    """Connections, and the last requests. connection: 0 for all. own: the console's, too."""
    connections = inside.ask("connections")
    found = {"requests": with_errors(inside.ask("requests", connection=connection, api=api, client=client, own=own))}
    apis = sorted({each.name for each in BY_KEY.values()})
    return {**connections, **found, "apis": apis}


def wire_request(inside: Inside, number: int) -> dict[str, Any]:
    """One request, field by field, its answer likewise, and when what happened to it."""
    found = inside.ask("request", number=number)
    found["fields"], found["why_cut"] = _request_fields(found)
    found["answer_fields"], found["answer_cut"] = _answer_fields(found)
    del found["frame"], found["answer"]
    return dict(found)


def waits(inside: Inside) -> dict[str, Any]:
    """Requests that have no answer yet: for how long, and what they wait for."""
    return dict(inside.ask("waits"))


def partition(inside: Inside, topic: str, partition: int) -> dict[str, Any]:
    """A replica as it lies on this broker's disk."""
    found = dict(inside.ask("partition", topic=topic, partition=partition))
    active = found["segments"][-1]["base_offset"]
    found["index"] = inside.ask("entries", topic=topic, partition=partition, base_offset=active)
    return found


def segment(inside: Inside, topic: str, partition: int, base_offset: int, offset: int = -1) -> dict[str, Any]:
    """A segment's indices, and the batches behind an entry. offset: where to look it up; -1: the beginning."""
    found = inside.ask("entries", topic=topic, partition=partition, base_offset=base_offset, offset=offset)
    return {**found, "topic": topic, "partition": partition}


def faults(inside: Inside) -> dict[str, Any]:
    """Faults that are armed, and the last requests of the clients that they have met."""
    found = inside.ask("faults")
    clients = {each["client"] for each in found["met"]}
    first_ms = min((each["at_ms"] for each in found["met"]), default=0)
    asked = with_errors(inside.ask("requests")) if clients else []
    found["asked"] = [each for each in asked if each["client"] in clients and each["at_ms"] >= first_ms]
    apis = sorted({each.name for each in BY_KEY.values()})
    return {**found, "apis": apis, "errors": sorted(ErrorCode.__members__), "actions": ACTIONS}


def arm_fault(
    inside: Inside,
    on: str,
    action: str,
    value: str = "",
    topic: str = "",
    partition: str = "",
    group: str = "",
    transactional_id: str = "",
    client_id: str = "",
    times: int = 1,
    after: bool = False,
) -> dict[str, Any]:
    """Have requests of an API err. action: fail, delay_ms, throttle_ms, in_pieces, drop, disconnect, hold, corrupt.

    value: the error's name, or a number. times: 0 for without end. after: the request takes effect before.
    """
    if action not in ACTIONS:
        raise ConsoleError(f"action={action}: allowed: {', '.join(ACTIONS)}")
    of = {"topic": topic, "group": group, "transactional_id": transactional_id, "client_id": client_id}
    entry: dict[str, Any] = {"on": on, **{name: text for name, text in of.items() if text}}
    if partition:
        entry["partition"] = _whole("partition", partition)
    if action == "fail":
        entry[action] = value
    elif action in ("delay_ms", "throttle_ms", "in_pieces"):
        entry[action] = _whole("value", value)
    else:
        entry[action] = True
    if times > 0:
        entry["times"] = times
    if after:
        entry["after"] = True
    return dict(inside.ask("arm", fault=entry))


def disarm_faults(inside: Inside) -> dict[str, Any]:
    """Take all faults away, and let go of what they hold."""
    return dict(inside.ask("disarm"))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConsoleError(f"{name}={text}: write a whole number") from None


# ---- errors


def with_errors(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests with the names of the errors in their answers, instead of these."""
    rows: list[dict[str, Any]] = found["requests"]
    for each in rows:
        data = bytes.fromhex(each.pop("answer", ""))
        each["errors"] = list(_errors_in(each["key"], each["version"], data)) if each["state"] == "answered" else []
    return rows


@lru_cache(maxsize=4096)
def _errors_in(key: int, version: int, data: bytes) -> tuple[str, ...]:
    """The names of errors in the beginning of an answer; many answers are alike but for their numbers."""
    api = BY_KEY.get(key)
    if api is None or len(data) <= HEAD_BYTES or key == API_VERSIONS:
        return ()
    is_tagged = api.flexible_from is not None and version >= api.flexible_from
    told, _ = describe(api.response, version, data, HEAD_BYTES + is_tagged)
    codes: dict[int, None] = {}
    pending: list[Any] = list(told)
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, Told):
            if each.name.endswith("error_code") and each.value:
                codes[each.value] = None
            elif isinstance(each.value, list):
                pending += each.value
    return tuple(ErrorCode.of(code).name for code in codes)


# ---- fields


def _request_fields(found: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    if found["frame"] is None:
        return [], "its bytes are not kept any more"
    frame = bytes.fromhex(found["frame"])
    try:
        key, version, _, _, start = parse_request_header(frame)
        api = BY_KEY[key]
        if api.flexible_from is not None and version >= api.flexible_from:
            start = skip_tags(frame, start)
        told, why = describe(api.request, version, frame, start)
    except (DecodeError, KeyError) as error:
        return [], str(error)
    missing = found["size"] - len(frame)
    return _nodes(told), f"{missing} bytes at its end are not kept" if missing > 0 else why


def _answer_fields(found: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    pieces = found["answer"]
    if not pieces:
        return [], "" if pieces is not None else "its bytes are not kept any more"
    data = b"".join(bytes.fromhex(each) if isinstance(each, str) else bytes(min(each, MOST_ZEROS)) for each in pieces)
    try:
        key, version, _, _, _ = parse_request_header(bytes.fromhex(found["frame"]))
        api = BY_KEY[key]
        is_tagged = api.flexible_from is not None and version >= api.flexible_from and key != API_VERSIONS
        told, why = describe(api.response, version, data, HEAD_BYTES + is_tagged)
    except (DecodeError, KeyError) as error:
        return [], str(error)
    missing = found["answer_size"] - len(data)
    return _nodes(told), f"{missing} bytes at its end are not kept" if missing > 0 else why


def _nodes(told: Sequence[Told]) -> list[dict[str, Any]]:
    """Fields for a template: each with its value, or with what is in it."""
    left = [MOST_NODES]

    def node(name: str, kind: str, value: Any, at: int | None, size: int | None) -> dict[str, Any]:
        left[0] -= 1
        shown: dict[str, Any] = {"name": name, "kind": kind, "value": None, "inner": None, "at": at, "size": size}
        if isinstance(value, list):
            if value and isinstance(value[0], Told):
                shown["inner"] = [node(*each) for each in value if left[0] > 0]
            else:
                element = kind.removeprefix("array of ")
                shown["inner"] = [
                    node(f"[{i}]", element, each, None, None) for i, each in enumerate(value) if left[0] > 0
                ]
                shown["value"] = f"{len(value)} of them"
        else:
            shown["value"] = _plain(name, kind, value)
        return shown

    return [node(*each) for each in told]


def _plain(name: str, kind: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[:MOST_SHOWN])
        if kind == "uuid":
            return data.hex()
        text = data.decode(errors="replace") if data.isascii() and data.decode().isprintable() else data.hex(" ", -4)
        return f"{len(value)} bytes: {text}" if len(value) else "0 bytes"
    if name.endswith("error_code") and isinstance(value, int):
        return f"{value} {ErrorCode.of(value).name}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


# ---- a group's rebalances


def group_events(inside: Inside, name: str) -> dict[str, Any]:
    """What the members of a group and its coordinator have said, oldest first; heartbeats without news are left out."""
    found = inside.ask("frames", apis=list(OF_GROUPS))
    events: list[dict[str, Any]] = []
    for each in found["frames"]:
        events += _events(each, name)
    events.sort(key=lambda each: each["at_ms"])
    shown = events[-MOST_EVENTS:]
    return {"group": name, "events": shown, "members": list(dict.fromkeys(each["client"] for each in shown))}


def _events(found: Mapping[str, Any], name: str) -> Iterable[dict[str, Any]]:
    frame = bytes.fromhex(found["frame"])
    try:
        key, version, _, _, start = parse_request_header(frame)
        api = BY_KEY[key]
        if api.flexible_from is not None and version >= api.flexible_from:
            start = skip_tags(frame, start)
        told, _ = describe(api.request, version, frame, start)
    except (DecodeError, KeyError):
        return
    request = {each.name: each.value for each in told}
    if request.get("group_id") != name:
        return
    answer: dict[str, Any] = {}
    if found["answer"]:
        data = b"".join(bytes.fromhex(each) if isinstance(each, str) else bytes(each) for each in found["answer"])
        is_tagged = api.flexible_from is not None and version >= api.flexible_from
        answer = {each.name: each.value for each in describe(api.response, version, data, HEAD_BYTES + is_tagged)[0]}
    code = answer.get("error_code", 0) or 0
    is_heartbeat = OF_GROUPS[key].endswith("Heartbeat")
    if is_heartbeat and not code and not _has_news(request, answer):
        return
    client = f"{found['client']} ({found['connection']})"
    asked, said = _words(OF_GROUPS[key], request, answer)
    yield {
        "at_ms": found["at_ms"],
        "client": client,
        "out": False,
        "text": asked,
        "number": found["number"],
        "bad": False,
    }
    if found["state"] == "answered":
        told_text = ErrorCode.of(code).name if code else said
        yield {
            "at_ms": found["at_ms"] + found["ms"],
            "client": client,
            "out": True,
            "text": told_text,
            "number": found["number"],
            "bad": bool(code),
        }


def _has_news(request: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Whether a heartbeat of the newer groups brings a member, takes one away, or tells an assignment."""
    return request.get("member_epoch", 1) <= 0 or answer.get("assignment") is not None


def _words(api: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[str, str]:
    if api == "JoinGroup":
        leads = answer.get("leader") and answer.get("leader") == answer.get("member_id")
        reason = f": {request['reason']}" if request.get("reason") else ""
        return f"JoinGroup{reason}", f"generation {answer.get('generation_id')}{', is the leader' if leads else ''}"
    if api == "SyncGroup":
        count = len(request.get("assignments") or ())
        return f"SyncGroup{f', with {count} assignments' if count else ''}", "its assignment"
    if api == "LeaveGroup":
        return "LeaveGroup", "it has left"
    if api == "Heartbeat":
        return "Heartbeat", "well"
    epoch = request.get("member_epoch", 0)
    asked = f"{api}: {'joins' if epoch == 0 else 'leaves' if epoch < 0 else f'epoch {epoch}'}"
    return (
        asked,
        f"epoch {answer.get('member_epoch')}{', an assignment' if answer.get('assignment') is not None else ''}",
    )


WIRE: tuple[Screen, ...] = (
    Screen("/wire", "Wire", wire, "wire", "wire", wire=True),
    Screen("/wire/request", "Request", wire_request, "wire_request", "wire", wire=True),
    Screen("/wire/waits", "What waits", waits, "wire_waits", "wire", wire=True),
    Screen("/wire/partition", "Partition on disk", partition, "wire_partition", "wire", wire=True),
    Screen("/wire/segment", "Segment", segment, "wire_segment", "wire", wire=True),
    Screen("/wire/group", "Rebalances of a group", group_events, "wire_group", "wire", wire=True),
    Screen("/wire/faults", "Faults", faults, "wire_faults", "wire", wire=True),
    Screen("/wire/faults/arm", "Arm a fault", arm_fault, changes=True, part_of="wire", wire=True),
    Screen("/wire/faults/disarm", "Take all faults away", disarm_faults, changes=True, part_of="wire", wire=True),
)
