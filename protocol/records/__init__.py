"""Records: v2 batches, legacy message sets, codecs. Bytes in, values and bytes out; no file, no clock.

`batch` is the data path: headers in one unpack, checksums, in-place rewrites. Everything it raises is a `RecordError`.
"""

from protocol.records._errors import Fault, RecordError, TornBatchError

__all__ = ["Fault", "RecordError", "TornBatchError"]
