"""Turns the schema of one message in one version into one flat reader and one flat writer.

Called by `Message.decode` and `Message.encode` at the first use of a version; everything after that runs the
generated functions alone. They are plain Python, printed by `reader_source` and `writer_source`, and differ from
what one would write by hand in being longer: nested structs and loops are inlined, neighbouring fixed-size fields
and the length byte after them travel in one `struct` call, and nothing asks for the version at run time.

The generated code takes shortcuts that only hold for good input: a slice past the end comes out short and is
noticed at the end of the frame at the latest. Whatever exception comes up, the message is then read or written
again by the patient codec of `explain.py`, which finds the field to blame. Array counts are checked against the
bytes left before anything is allocated. A message with a string that is no UTF-8 is read again by a second reader,
made when the first one comes, that puts U+FFFD in its place as Kafka's classes do; the others pay nothing for it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from protocol._flat_source import FlatReaderSource, FlatWriterSource
from protocol._reader_source import ReaderSource
from protocol._writer_source import WriterSource
from protocol.message import DecodeError, EncodeError, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.flat import Flat


def compile_reader(message: type[Message], version: int) -> Callable[[Any, int], tuple[Any, int]]:
    """The function (buffer, start) -> (message, end) for one version. Raises: DecodeError for an unknown version."""
    return _compile_reader(ReaderSource, message, version)


def compile_flat_reader(message: type[Message], version: int) -> Callable[[Any, int], tuple[Flat, int]]:
    """The function (buffer, start) -> (tuple, end) for one version (`flat.py`). Raises: as `compile_reader`."""
    return _compile_reader(FlatReaderSource, message, version)


def _compile_reader(
    kind: type[ReaderSource], message: type[Message], version: int
) -> Callable[[Any, int], tuple[Any, int]]:
    if not message.versions[0] <= version <= message.versions[1]:
        raise DecodeError("", _no_such_version(message, version))
    source = kind(message, version)
    source.scope["forgiving"] = cache(lambda: _run(kind(message, version, strict=False), "read", message, version))
    read: Callable[[Any, int], tuple[Any, int]] = _run(source, "read", message, version)
    return read


def compile_sliced_reader(message: type[Message], version: int, *, flat: bool = False) -> Callable[..., Any]:
    """The generator (buffer, start, elements at most) -> (message, end): it yields now and then, for large messages.

    flat: a tuple in place of the message. It says less about what is wrong: a client that sends much must not have
    it read twice. Raises: DecodeError.
    """
    if not message.versions[0] <= version <= message.versions[1]:
        raise DecodeError("", _no_such_version(message, version))
    kind = FlatReaderSource if flat else ReaderSource
    read: Callable[..., Any] = _run(kind(message, version, sliced=True), "read", message, version)
    return read


def compile_sliced_writer(message: type[Message], version: int, *, flat: bool = False) -> Callable[[Any], Any]:
    """The generator (message) -> parts, which yields now and then. Raises: EncodeError for an unknown version.

    flat: of a tuple in place of the message.
    """
    if not message.versions[0] <= version <= message.versions[1]:
        raise EncodeError("", _no_such_version(message, version))
    kind = FlatWriterSource if flat else WriterSource
    write: Callable[[Any], Any] = _run(kind(message, version, sliced=True), "write", message, version)
    return write


def compile_writer(message: type[Message], version: int) -> Callable[[Any], list[Any]]:
    """The function (message) -> parts for one version. Raises: EncodeError for an unknown version."""
    return _compile_writer(WriterSource, message, version)


def compile_flat_writer(message: type[Message], version: int) -> Callable[[Flat], list[Any]]:
    """The function (tuple) -> parts for one version (`flat.py`). Raises: as `compile_writer`."""
    return _compile_writer(FlatWriterSource, message, version)


def _compile_writer(kind: type[WriterSource], message: type[Message], version: int) -> Callable[[Any], list[Any]]:
    if not message.versions[0] <= version <= message.versions[1]:
        raise EncodeError("", _no_such_version(message, version))
    write: Callable[[Any], list[Any]] = _run(kind(message, version), "write", message, version)
    return write


def reader_source(message: type[Message], version: int) -> str:
    """The Python text of the generated reader, for the curious and for profiling."""
    return ReaderSource(message, version).text()


def writer_source(message: type[Message], version: int) -> str:
    """The Python text of the generated writer."""
    return WriterSource(message, version).text()


def _run(source: ReaderSource | WriterSource, name: str, message: type[Message], version: int) -> Any:
    exec(compile(source.text(), f"<{name} {message.__name__} v{version}>", "exec"), source.scope)
    return source.scope[name]


def _no_such_version(message: type[Message], version: int) -> str:
    first, last = message.versions
    return f"{message.__name__} has versions {first} to {last}, not {version}"
