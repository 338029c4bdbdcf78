"""Faults from a file, for tests in any language: `kbroker start --faults FILE`. TOML, with the words of the language.

    act_like = "2.8"

    [[fault]]
    on = "Produce"
    topic = "orders"
    fail = "NOT_LEADER_OR_FOLLOWER"
    times = 2

What a fault does is one of `fail`, `delay_ms`, `throttle_ms`, `in_pieces` (bytes) with a value, or `drop`,
`disconnect`, `hold`, `corrupt` with true; `after`, `times` and `nth` beside it.

    [disk]
    slow_ms = 20
    full_after_bytes = 10_000_000

What the disk does is `slow_ms`, and one of `full_after_bytes` and `broken_after_bytes`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kbroker.faults.script import Fault, Faults
from kbroker.usage import UsageError, unknown
from protocol.namedtuple import NamedTuple

FILTERS: Mapping[str, type] = {
    "topic": str,
    "partition": int,
    "group": str,
    "transactional_id": str,
    "client_id": str,
    "version": int,
}
ACTIONS: Mapping[str, tuple[type, Callable[[Fault, Any, dict[str, bool]], object]]] = {
    "fail": (str, lambda fault, value, after: fault.fail(value, **after)),
    "delay_ms": (int, lambda fault, value, after: fault.delay(ms=value, **after)),
    "throttle_ms": (int, lambda fault, value, after: fault.throttle(ms=value)),
    "in_pieces": (int, lambda fault, value, after: fault.in_pieces(value)),
    "drop": (bool, lambda fault, value, after: fault.drop(**after)),
    "disconnect": (bool, lambda fault, value, after: fault.disconnect(**after)),
    "hold": (bool, lambda fault, value, after: fault.hold(**after)),
    "corrupt": (bool, lambda fault, value, after: fault.corrupt()),
}
OTHERS: Mapping[str, type] = {"on": str, "after": bool, "times": int, "nth": int}
DISK = ("slow_ms", "full_after_bytes", "broken_after_bytes")
WORDS = ("act_like", "fault", "disk")
NAMES: Mapping[type, str] = {str: "a text in quotes", int: "a whole number", bool: "true"}


class Switch(Protocol):
    """A disk's, which makes it slow or fail; see `runtime/switched_disk.py`."""

    slow_s: float

    def fail(self, code: int, after_bytes: int = 0) -> None:
        """Fail with this errno, once so many bytes are written."""


class DiskPlan(NamedTuple):
    """What the disk does wrong. slow_ms: each write and fsync; the others: how much is written before it does."""

    slow_ms: int = 0
    full_after_bytes: int | None = None
    broken_after_bytes: int | None = None

    def put_on(self, disk: Switch) -> None:
        """Let a disk do so."""
        if self.slow_ms:
            disk.slow_s = self.slow_ms / 1000
        if self.full_after_bytes is not None:
            disk.fail(errno.ENOSPC, self.full_after_bytes)
        if self.broken_after_bytes is not None:
            disk.fail(errno.EIO, self.broken_after_bytes)


class Plan(NamedTuple):
    """What a file says."""

    faults: Faults
    disk: DiskPlan | None = None


def read_faults(text: str, file_name: str) -> Plan:
    """What a file says. Raises: UsageError with the file's name, the fault's number, and what to write instead."""
    import tomllib  # a broker's console arms faults without a file

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file_name}: is not TOML: {error}") from None
    faults = Faults()
    try:
        for name in table:
            if name not in WORDS:
                raise unknown("word", name, WORDS)
        if "act_like" in table:
            faults.act_like(str(table["act_like"]))
        disk = _disk(table["disk"]) if "disk" in table else None
    except UsageError as error:
        raise UsageError(f"{file_name}: {error}") from None
    listed = table.get("fault", [])
    if not isinstance(listed, list):
        raise UsageError(f"{file_name}: write [[fault]], in two pairs of brackets, above each fault")
    for number, entry in enumerate(listed, 1):
        try:
            faults.add(fault_of(entry))
        except UsageError as error:
            raise UsageError(f"{file_name}: fault {number}: {error}") from None
    return Plan(faults, disk)


def _disk(entry: object) -> DiskPlan:
    if not isinstance(entry, dict):
        raise UsageError("write [disk], in one pair of brackets, above slow_ms and its like")
    for name, value in entry.items():
        if name not in DISK:
            raise unknown("word", name, DISK)
        if type(value) is not int or value < 0:
            raise UsageError(f"[disk] {name} = {value!r}: allowed: {NAMES[int]}, 0 or more")
    plan = DiskPlan(**entry)
    if plan == DiskPlan():
        raise UsageError(f"[disk] does nothing: write one of {', '.join(DISK)}")
    if plan.full_after_bytes is not None and plan.broken_after_bytes is not None:
        raise UsageError("[disk] is full_after_bytes and broken_after_bytes: write one of them")
    return plan


def fault_of(entry: Mapping[str, Any]) -> Fault:
    """One, of the words of a file. Raises: UsageError, which says what to write instead."""
    for name, value in entry.items():
        _check(name, value)
    if "on" not in entry:
        raise UsageError('it is on no API: write on = "Produce"')
    fault = Fault(entry["on"], **{name: entry[name] for name in FILTERS if name in entry})
    actions = [name for name in ACTIONS if name in entry]
    if len(actions) != 1:
        said = " and ".join(actions) or "nothing"
        raise UsageError(f"it does {said}: write one of {', '.join(ACTIONS)}")
    ACTIONS[actions[0]][1](fault, entry[actions[0]], {"after": True} if entry.get("after") else {})
    if "times" in entry:
        fault.times(entry["times"])
    if "nth" in entry:
        fault.nth(entry["nth"])
    return fault


def _check(name: str, value: object) -> None:
    kinds = {**FILTERS, **OTHERS, **{action: kind for action, (kind, _) in ACTIONS.items()}}
    if name not in kinds:
        raise unknown("word", name, kinds)
    kind = kinds[name]
    if type(value) is not kind or value is False:
        raise UsageError(f"{name} = {value!r}: allowed: {NAMES[kind]}")
