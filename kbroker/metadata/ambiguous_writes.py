"""What to do about operations of which it is unknown whether the store did them: the one rule.

A connection to the store may be lost while operations are under way. Its session goes on, and each of them was done or
not. The rule, followed by `Steps` for every procedure alike:

1. What was lost is submitted again, until it has an outcome.
2. A write that then fails as it would if it had been done before (the node is there, has another version, is gone) may
   have met itself. What it would have written is read: if all of it is there, the write counts as done, with the node
   as it is now; if not, another writer's is there, and the fault stands.

A node is as a write would have left it if its data is the same, its version the one that follows (SetData), and it
belongs to this session if it is ephemeral (Create); or if it is gone (Delete). So two writers must not be able to write
the same: data that is fought for names its writer (`/controller`, producer id blocks), or a fence keeps others from
writing it (`/controller_epoch`). A Multi was done if all of its writes look done; if it only deletes, and its fence
fails now, it is unknown, and it counts as not done: the epoch is over either way.

What the rule leaves open: a sequential node may be made twice, and a node deleted once more if it was made again
in between. Both are for their watchers a reason to look again, and no more.

Source: ZooKeeper Programmer's Guide, "ZooKeeper Sessions" (ConnectionLoss); Kafka retries likewise, and asks whose the
node is where it creates ephemeral ones.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

from kbroker.ports import Check, Create, Delete, Get, Multi, Operation, Outcome, SetData, StoreFault

ANY_VERSION = -1

Write: TypeAlias = Create | SetData | Delete
Asking: TypeAlias = Generator[Sequence[Operation], Sequence[Outcome], list[Outcome]]

_MAY_BE_ITS_OWN = {StoreFault.NODE_EXISTS, StoreFault.BAD_VERSION, StoreFault.NO_NODE}


def is_in_doubt(outcomes: Sequence[Outcome]) -> bool:
    """Whether some of a step's operations were lost with the connection."""
    return any(outcome.fault is StoreFault.CONNECTION_LOST for outcome in outcomes)


def resolve(operations: Sequence[Operation], outcomes: Sequence[Outcome], session: int) -> Asking:
    """Bring every operation of a step to an outcome. session: this broker's. Yields operations, as procedures do."""
    settled = list(outcomes)
    lost = [at for at, outcome in enumerate(outcomes) if outcome.fault is StoreFault.CONNECTION_LOST]
    again = yield from _insist([operations[at] for at in lost])
    for at, outcome in zip(lost, again, strict=True):
        settled[at] = outcome
        writes = _writes(operations[at])
        if not writes or outcome.fault not in _MAY_BE_ITS_OWN:
            continue
        found = yield from _insist([Get(write.path) for write in writes])
        if all(_is_done(write, now, session) for write, now in zip(writes, found, strict=True)):
            if _is_only_deleted(writes) and _fence_failed(outcome):
                continue
            settled[at] = _as_done(operations[at], dict(zip((write.path for write in writes), found, strict=True)))
    return settled


def _insist(operations: list[Operation]) -> Asking:
    """Submit these until each has an outcome."""
    outcomes: dict[int, Outcome] = {}
    missing = list(range(len(operations)))
    while missing:
        answers = yield [operations[at] for at in missing]
        outcomes.update(zip(missing, answers, strict=True))
        missing = [at for at in missing if outcomes[at].fault is StoreFault.CONNECTION_LOST]
    return [outcomes[at] for at in range(len(operations))]


def _writes(operation: Operation) -> list[Write]:
    parts = operation.operations if isinstance(operation, Multi) else (operation,)
    return [part for part in parts if isinstance(part, Create | SetData | Delete)]


def _is_done(write: Write, now: Outcome, session: int) -> bool:
    """Whether a node is as this write would have left it."""
    if isinstance(write, Delete):
        return now.fault is StoreFault.NO_NODE
    if now.stat is None or now.data != write.data:
        return False
    if isinstance(write, Create):
        return now.stat.session == (session if write.ephemeral else 0)
    return write.version == ANY_VERSION or now.stat.version == write.version + 1


def _is_only_deleted(writes: Sequence[Write]) -> bool:
    return all(isinstance(write, Delete) for write in writes)


def _fence_failed(outcome: Outcome) -> bool:
    """Whether a Multi failed by its first part, the check that all such begin with, and not by one of its writes."""
    return bool(outcome.parts) and outcome.parts[0].fault is StoreFault.BAD_VERSION


def _as_done(operation: Operation, found: dict[str, Outcome]) -> Outcome:
    """The outcome that was lost."""
    if isinstance(operation, Multi):
        return Outcome(None, "", parts=tuple(_as_done(part, found) for part in operation.operations))
    assert isinstance(operation, Create | SetData | Delete | Check), operation
    now = found.get(operation.path)
    return Outcome(None, operation.path, now.stat if now is not None and not isinstance(operation, Delete) else None)
