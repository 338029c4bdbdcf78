"""What an archive says of itself: of which topics it is, how far they are read, and which batch is being written.

Called by archive and by what writes its records (`files`, `tables`). In its folder:

    _manifest/archive.json    topics, their settings, the format, how values are decoded
    _manifest/open.json       the batch that is being written: it is there or not, as its format's commit has it
    _manifest/batch-N.json    a batch that is there: how many records it has, how far the topics are read by it
    _manifest/compact-N.json  of plain Parquet: which files hold all of batches 0 to N, instead of theirs

A batch, or a compaction, counts once its file is there, and there it is put by one job only: who finds it there has
been overtaken, and ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from kbroker.pipeline.ahead import Read, Spans
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.lease import taken
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import PartitionEnd
from protocol.namedtuple import NamedTuple

MANIFEST = "_manifest"
ARCHIVE, OPEN = f"{MANIFEST}/archive.json", f"{MANIFEST}/open.json"
PARQUET, ICEBERG, DELTA = "parquet", "iceberg", "delta"
FORMATS = (PARQUET, ICEBERG, DELTA)

Manifest = Mapping[str, Any]


class Batch(NamedTuple):
    """What is written in one go. read: how far the topics are read once it is there."""

    number: int
    spans: Spans
    read: Read

    @classmethod
    def of(cls, state: Manifest) -> Self:
        """From what `state` made."""
        spans = {(topic, index): PartitionEnd(start, end) for topic, index, start, end in state["spans"]}
        return cls(state["number"], spans, Read.of(state))

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        spans = [[*place, *span] for place, span in sorted(self.spans.items())]
        return {"number": self.number, "spans": spans, **self.read.state()}


class Count(NamedTuple):
    """How many records of a topic a batch has. kind: `records`, or `quarantine` of those that are set apart."""

    kind: str
    topic: str
    records: int


def described(store: Storage) -> dict[str, Any]:
    """What the archive is of; nothing if it is new."""
    return dict(store.read_json_if_there(ARCHIVE) or {})


def form_of(known: Mapping[str, Any]) -> str:
    """One of FORMATS."""
    return str(known.get("format", PARQUET))


def progress(store: Storage) -> tuple[int, Read]:
    """The number that the next batch has, and how far the topics have been read: the last batch's manifest says so."""
    names = batches(store)
    if not names:
        return 0, Read({}, {})
    return number_of(names[-1]) + 1, Read.of(store.read_json(f"{MANIFEST}/{names[-1]}"))


def batches(store: Storage) -> list[str]:
    """The names of the batches' manifests, in order."""
    return [name for name in store.names(MANIFEST) if name.startswith("batch-")]


def number_of(manifest: str) -> int:
    """The batch of a manifest's name."""
    return int(re.sub(r"\D", "", manifest))


def write_open(store: Storage, state: Manifest) -> None:
    """Say what is about to be written."""
    store.write_json(OPEN, state)


def opened(store: Storage) -> dict[str, Any] | None:
    """What was being written when a job was cut off; None if all is whole."""
    state = store.read_json_if_there(OPEN)
    if state and "number" in state and store.exists(_batch_name(state["number"])):
        store.delete(OPEN)
        return None
    return state


def close(store: Storage, batch: Batch, counts: Sequence[Count], files: Sequence[str] = ()) -> None:
    """Say that a batch is there. files: of plain Parquet, which are its own."""
    told = [each._asdict() for each in counts]
    manifest = {"number": batch.number, "files": list(files), "records": told, **batch.read.state()}
    if not store.create_json(_batch_name(batch.number), manifest):
        raise PipelineError(taken(store))
    store.delete(OPEN)


def close_compaction(store: Storage, through: int, files: Sequence[str]) -> None:
    """Say that these files hold all of the batches up to this one. Raises PipelineError if another job did so."""
    if not store.create_json(_compaction_name(through), {"through": through, "files": list(files)}):
        raise PipelineError(taken(store))


def fence(store: Storage, state: Manifest) -> None:
    """Keep a job that was taken for dead, and lives, from bringing files that are about to be removed: what it has open
    has its number taken by a compaction, or a batch, that changes nothing. Of plain Parquet."""
    number, read = progress(store)
    if "through" in state:
        now = [path for manifest in counting(store) for path in manifest["files"]]
        store.create_json(_compaction_name(state["through"]), {"through": state["through"], "files": now})
    else:
        write_open(store, {"overtaken": number})  # until its files are removed: its batch does not say so
    # behind a compaction, too, or the next one would have its number
    store.create_json(_batch_name(number), {"number": number, "files": [], "records": [], **read.state()})


def _batch_name(number: int) -> str:
    return f"{MANIFEST}/batch-{number:010}.json"


def _compaction_name(through: int) -> str:
    return f"{MANIFEST}/compact-{through:010}.json"


def counting(store: Storage) -> list[Manifest]:
    """The manifests that count: the last compaction and the batches behind it. Raises PipelineError for no archive."""
    names = store.names(MANIFEST)
    if not names:
        raise PipelineError(f"{store.root} is no archive: it has no {MANIFEST} folder")
    compacted = [name for name in names if name.startswith("compact-")][-1:]
    through = number_of(compacted[0]) if compacted else -1
    behind = [name for name in names if name.startswith("batch-") and number_of(name) > through]
    return store.read_all_json([f"{MANIFEST}/{name}" for name in (*compacted, *behind)])
