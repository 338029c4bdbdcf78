"""What can be wrong with a file: the errors of every reader in this package.

Raised by the parsers, which know no path; the caller that read the file adds it. Each is one line for a person.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.errors import ErrorCode, KafkaError

SHOWN_RECORDS = 3


class CorruptFileError(Exception):
    """A file does not hold what its name promises.

    path: empty until the caller that opened the file has filled it in. where: "line 3", "position 4096", or empty.
    """

    def __init__(self, reason: str, *, where: str = "", path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.path = path

    def at(self, path: str) -> CorruptFileError:
        """The same fault, with the file's path."""
        self.path = path
        return self

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.where, self.reason) if part)


class NewerFormatError(CorruptFileError):
    """The file names a version that this program does not know: written by a newer broker, never touched by us."""


class UnforeseenError(OSError):
    """A job for the disk ended by an unexpected error, as when memory runs out. Its owner gets this."""


def lacks_descriptors(error: OSError) -> bool:
    """Whether something could not be opened only because too much is open: nothing is wrong with the disk.

    Nor is there by what an UnforeseenError says.
    """
    return error.errno in (errno.EMFILE, errno.ENFILE) or isinstance(error, UnforeseenError)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """A block whose OSErrors name a path: those of a file that is open name none, and say not whose disk it is."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


class OutOfDescriptorsError(KafkaError):
    """Too much is open for now: nothing is lost, nothing was done, and the same may go well in a moment.

    fault: what the operating system said.
    """

    def __init__(self, fault: OSError, why: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, why)
        self.fault = fault


def storage_error(error: OSError, why: str) -> KafkaError:
    """KAFKA_STORAGE_ERROR, to be raised from `error`: OutOfDescriptorsError if that is all that is wrong."""
    if lacks_descriptors(error):
        return OutOfDescriptorsError(error, why)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)


class RefusedRecordsError(KafkaError):
    """A batch has records that its topic does not take. records: index in the batch, and why, as the client is told.

    The text is Apache's, which scripts look for. Source: LogValidator of Apache Kafka 3.9.
    """

    def __init__(self, code: ErrorCode, records: Sequence[tuple[int, str]]) -> None:
        why = "invalid timestamp"
        if code is not ErrorCode.INVALID_TIMESTAMP:
            shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in records[:SHOWN_RECORDS])
            why = f"{len(records)} record errors in total, and only showing the first three errors at most: [{shown}]"
        super().__init__(code, f"One or more records have been rejected due to {why}")
        self.records = records


def reason_of(error: OSError) -> str:
    """What the operating system said, in one line."""
    return f"{error.strerror or error} [{errno.errorcode.get(error.errno or 0, '?')}]"


def fault_of(error: OSError, path: str) -> str:
    """The same with the file it is about; path: what it was in, if the error does not say."""
    return f"{error.filename or path}: {reason_of(error)}"
