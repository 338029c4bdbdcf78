"""Generates the flat codec of one message in one version: tuples in place of instances; see `flat.py` for the idea.

Everything but the shape of a struct is inherited from the generators of messages, so that both read and write the same
bytes. A struct's fields are locals of the generated function, made a tuple at its end or taken apart at its beginning.
"""

from __future__ import annotations

from typing import Any

from protocol._reader_source import ReaderSource
from protocol._runtime import explain_write, skip_unknown_tags
from protocol._source import packed
from protocol._writer_source import WriterSource
from protocol.flat import flat_default, message_of
from protocol.message import Message, Struct
from protocol.namedtuple import NamedTuple
from protocol.schema import Field, fields, fields_at


class FlatReaderSource(ReaderSource):
    """The text of a reader: `read(buffer, start) -> (tuple, end)`."""

    def __init__(self, message: type[Message], version: int, *, strict: bool = True, sliced: bool = False) -> None:
        super().__init__(message, version, strict=strict, sliced=sliced)
        self.scope["skip_unknown"] = skip_unknown_tags

    def struct(self, cls: type[Struct], target: str) -> None:
        """Read the fields into locals, and make `target` the tuple of them."""
        places = self.places(cls)
        self.flush()
        self.emit(f"{target} = {_tuple(places)}")

    def element(self, cls: type[Struct], items: str) -> None:
        """One tuple more in `items`."""
        places = self.places(cls)
        self.settle()
        self.emit(f"{items}.append({_tuple(places)})")

    def places(self, cls: type[Struct]) -> list[str]:
        """Read a struct; an expression for each of its fields."""
        places: list[str] = []
        tagged: list[tuple[Field, str]] = []
        for field in fields(cls):
            if not field.present_at(self.version):
                places.append(self.default(field))
                continue
            place = self.name(field.name)
            places.append(place)
            if field.tag is None:
                self.value(field.type, place, field.nullable_at(self.version))
            else:
                self.emit(f"{place} = {self.default(field)}")
                tagged.append((field, place))
        self.flush_strings()
        if self.flexible:
            self.flat_tags(cls, tagged)
        return places

    def default(self, field: Field) -> str:
        """An expression for what a version without the field yields."""
        value = flat_default(field)
        return "[]" if isinstance(value, list) else self.literal(value)

    def flat_tags(self, cls: type[Struct], tagged: list[tuple[Field, str]]) -> None:
        """The tagged fields at the end of a struct, mostly none; unknown ones are passed over."""
        if not tagged and not self.run:
            at = self.at()
            with self.block(f"if b[{at}]:"):
                self.emit(f"pos = skip_unknown(b, pos + {self.skew + 1}, b[{at}])")
            with self.block("else:"):
                self.emit(f"pos += {self.skew + 1}")
            self.skew = 0
            return
        count = self.length("i")
        self.settle()
        alone = fixed_tag([field for field, _ in tagged], self.version)
        if alone is None:
            with self.block(f"if {count}:"):
                self.any_tags(cls, tagged, count)
            return
        place = next(place for field, place in tagged if field is alone.field)
        at, size = f"b[pos] == {alone.field.tag} and b[pos + 1] == {alone.size}", alone.size
        with self.block(f"if {count} == 1 and {at} and not b[pos + {size + 1}]:"):
            names = {field.name: self.name(field.name) for field in alone.members}
            unpack = self.form(alone.codes, packed(alone.codes))
            self.emit(f"{_tuple(list(names.values()))} = {unpack}(b, pos + 2)")
            inner = fields(alone.cls)
            self.emit(f"{place} = {_tuple([names.get(field.name) or self.default(field) for field in inner])}")
            self.emit(f"pos += {size + 2}")
        with self.block(f"elif {count}:"):
            self.any_tags(cls, tagged, count)

    def any_tags(self, cls: type[Struct], tagged: list[tuple[Field, str]], count: str) -> None:
        """Whatever tagged fields there are."""
        if not tagged:
            self.emit(f"pos = skip_unknown(b, pos, {count})")
            return
        holder = self.name("holder")  # so rare that an instance may stand in between
        self.emit(f"{holder} = new({self.constant(cls, cls.__name__)})")
        for field, place in tagged:
            self.emit(f"{holder}.{field.name} = {place}")
        self.emit(f"pos = {self.tag_reader(cls)}({holder}, b, pos, end, {count})")
        for field, place in tagged:
            self.emit(f"{place} = {holder}.{field.name}")


class FlatWriterSource(WriterSource):
    """The text of a writer: `write(tuple) -> parts`."""

    def __init__(self, message: type[Message], version: int, *, sliced: bool = False) -> None:
        self._places: dict[str, dict[str, str]] = {}  # by the local that holds a tuple: its fields' locals, by name
        super().__init__(message, version, sliced=sliced)
        self.scope["explain"] = lambda values, error: explain_write(message_of(message, values), version, error)

    def place(self, source: str, field: Field) -> str:
        """The local that holds a field."""
        return self._places[source][field.name]

    def unknown(self, source: str) -> str:
        """Nothing: a tuple holds no unknown tags."""
        return ""

    def default_of(self, field: Field) -> Any:
        """What the field holds where nothing is said."""
        return flat_default(field)

    def open(self, cls: type[Struct], source: str) -> None:
        """Take the tuple apart."""
        places = self._places[source] = {field.name: self.name(field.name) for field in fields(cls)}
        self.emit(f"{_tuple(list(places.values()))} = {source}")

    def members(self, cls: type[Struct], source: str) -> None:
        """Write the fields: of an array's element by one `pack`, where all that may be empty is."""
        quiet = None if self.run or source == "o" else self.quiet(cls, source)
        if quiet is None:
            super().members(cls, source)
            return
        tests, run = quiet
        with self.block(f"if {' and '.join(tests)}:"):
            self.run = run
            self.flush()
        with self.block("else:"):
            super().members(cls, source)
            self.flush()

    def quiet(self, cls: type[Struct], source: str) -> tuple[list[str], list[tuple[str, str]]] | None:
        """Tests that nothing of variable length is there, and the fixed-size values that then are everything.

        None if a struct has no such fields, or one that is never empty.
        """
        tests: list[str] = []
        run: list[tuple[str, str]] = []
        present = fields_at(cls, self.version)
        for field in present:
            place, kind = self.place(source, field), field.type
            if field.tag is not None:
                tests.append(f"{place} == {self.literal(self.default_of(field))}")
            elif kind.wire is not None and kind.wire.size:
                run.append((kind.wire.format, place))
            elif kind.kind == "records":
                tests.append(f"{place} == b''")
                run.append(("B", "1") if self.flexible else ("i", "0"))
            elif field.nullable_at(self.version) and kind.struct is None:
                tests.append(f"{place} is None")
                run.append(("B", "0") if self.flexible else ("h" if kind.kind == "string" else "i", "-1"))
            elif kind.kind == "array":
                tests.append(f"not {place}")
                run.append(("B", "1") if self.flexible else ("i", "0"))
            else:
                return None
        if self.flexible:
            run.append(("x", ""))
        return (tests, run) if tests and run else None

    def some_tags(self, cls: type[Struct], source: str, known: list[Field]) -> None:
        """As for instances; a struct of fixed size alone, as followers send one with each fetch, by one `pack`."""
        alone = fixed_tag(known, self.version)
        if alone is None:
            super().some_tags(cls, source, known)
            return
        waiting, place = list(self.run), self.place(source, alone.field)
        tests = [f"{place} != {self.literal(self.default_of(alone.field))}"]
        tests += [f"not ({self.tag_differs(each, self.place(source, each))})" for each in known if each != alone.field]
        with self.block(f"if {' and '.join(tests)}:"):
            inner = self.name("o")
            self.emit(f"{inner} = {place}")
            self.open(alone.cls, inner)
            self.refusals(alone.cls, inner)
            self.run += [("B", "1"), ("B", str(alone.field.tag)), ("B", str(alone.size))]
            self.run += [(code, self.place(inner, each)) for code, each in zip(alone.codes, alone.members, strict=True)]
            self.run.append(("x", ""))
            self.flush()
        with self.block("else:"):
            self.run = waiting
            super().some_tags(cls, source, known)

    def tag_writer(self, cls: type[Struct], known: list[Field]) -> str:
        """As for instances; the function takes its tuple apart by itself."""
        outer, self._places = self._places, {}
        name = super().tag_writer(cls, known)
        self._places = outer
        return name


class FixedTag(NamedTuple):
    """A tagged field that is a struct of fixed-size fields: its class, these, their formats, the size of all."""

    field: Field
    cls: type[Struct]
    members: tuple[Field, ...]
    codes: str
    size: int  # with the byte that says that it has no tagged fields itself


def fixed_tag(tagged: list[Field], version: int) -> FixedTag | None:
    """The only such field among these; None if there are others, which then come together as well as alone."""
    found = [made for field in tagged if (made := _fixed(field, version)) is not None]
    return found[0] if len(found) == 1 else None


def _fixed(field: Field, version: int) -> FixedTag | None:
    cls = field.type.struct
    if cls is None:
        return None
    members = fields_at(cls, version)
    codes = "".join(each.type.wire.format for each in members if each.type.wire is not None and each.tag is None)
    size = packed(codes).size + 1
    is_fixed = all(each.tag is None and each.type.wire is not None and each.type.wire.size for each in members)
    return FixedTag(field, cls, members, codes, size) if is_fixed and size < 128 else None


def _tuple(places: list[str]) -> str:
    return f"({', '.join(places)}{',' if len(places) == 1 else ''})"
