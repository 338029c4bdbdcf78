"""Records: v2 batches, legacy message sets, codecs. Bytes in, values and bytes out; no file, no clock.

- `batch`: the data path. Headers in one unpack, checksums, in-place rewrites; no look at any record.
- `content`: the records of a batch: checked, parsed, built.
- `compression`: the codecs. `control_records`: markers. `legacy`: message sets of format v0 and v1.
- `convert`: one format into another.

Import those modules by name; what they share is here. Everything they say about bytes from outside is a `RecordError`.
"""

from protocol.records._built import use_or_refuse
from protocol.records._checksum import crc32c
from protocol.records._errors import RecordError, TornBatchError
from protocol.records._record import Readable, Record, Writable

__all__ = ["Readable", "Record", "RecordError", "TornBatchError", "Writable", "crc32c", "walker_kind"]

use_or_refuse(__name__, "_walker")


def walker_kind() -> str:
    """How this installation looks at single records: "compiled" or "interpreted" (some hundred times slower)."""
    from protocol.records._walker import COMPILED

    return "compiled" if COMPILED else "interpreted"
