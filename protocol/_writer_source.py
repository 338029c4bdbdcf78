"""Generates the writer of one message in one version; see `codec.py` for the idea.

Output is a list of small bytes, joined at the end, or wherever records come in between. Fixed-size fields wait in
`run` until something of variable length follows, and are then packed together with its first length byte.
"""

from __future__ import annotations

from typing import Any

from protocol import _runtime
from protocol._source import MANY, TURN_MASK, Source, packed, packers
from protocol.message import Message, Struct
from protocol.primitives import ONE_BYTE, uvarint
from protocol.schema import Field, FieldType, fields, fields_at, has_records, is_flexible


class WriterSource(Source):
    """The text of a writer: `write(message) -> parts`. A sliced one is a generator that yields now and then."""

    def __init__(self, message: type[Message], version: int, *, sliced: bool = False) -> None:
        super().__init__()
        self.version = version
        self.sliced = sliced
        self.in_tags = False  # in a function of its own, where nothing can be yielded
        self.flexible = is_flexible(message, version)
        self.views = has_records(message, version)
        self.run: list[tuple[str, str]] = []  # (format, expression) of fixed-size values not written yet
        self.scope |= {
            "Malformed": _runtime.Malformed,
            "join": b"".join,
            "one_byte": ONE_BYTE,
            "uvarint": uvarint,
            "length": _runtime.length,
            "string_length": _runtime.string_length,
            "tag_section": _runtime.tag_section,
            "array_of": _runtime.array_of,
            "explain": lambda value, error: _runtime.explain_write(value, version, error),
        }
        with self.block("def write(o):"):
            self._body(message)

    def _body(self, message: type[Message]) -> None:
        self.emit("out = []; w = out.append")
        if self.sliced:
            self.emit("turn = 0; done = []", "if 0: yield")
        if self.views:
            self.emit("parts = []; part = parts.append")
        with self.block("try:"):
            self.struct(message, "o")
            self.flush()
            if self.views:
                with self.block("if out or not parts:"):
                    self.emit("part(join(out))")
                self.emit("return parts")
            elif self.sliced:
                self.emit("done.append(join(out))", "return [join(done)]")
            else:
                self.emit("return [join(out)]")
        with self.block("except Exception as error:"):
            self.emit("raise explain(o, error) from None")

    def struct(self, cls: type[Struct], source: str) -> None:
        """Write the instance in local `source`, after a look at what this version cannot say."""
        self.open(cls, source)
        self.refusals(cls, source)
        self.members(cls, source)

    def open(self, cls: type[Struct], source: str) -> None:
        """Before the fields of `source` are named: an instance needs nothing."""

    def place(self, source: str, field: Field) -> str:
        """An expression for a field of `source`."""
        return f"{source}.{field.name}"

    def unknown(self, source: str) -> str:
        """An expression for its unknown tags; empty if it cannot have any."""
        return f"{source}.unknown_tags"

    def default_of(self, field: Field) -> Any:
        """What the field holds where nothing is said."""
        return field.default_value()

    def members(self, cls: type[Struct], source: str) -> None:
        """Write the fields, then the tagged ones."""
        for field in fields_at(cls, self.version):
            if field.tag is None:
                self.value(field.type, self.place(source, field), field.nullable_at(self.version))
        if self.flexible:
            self.tags(cls, source)

    def refusals(self, cls: type[Struct], source: str) -> None:
        """One test for all that would be lost or would come out too short."""
        tests = []
        for field in fields(cls):
            place = self.place(source, field)
            if not field.present_at(self.version):
                if not field.ignorable:
                    tests.append(self.differs(field, place))
            elif field.type.kind == "uuid" and field.tag is None:
                tests.append(f"len({place}) != 16")
        if not self.flexible and (unknown := self.unknown(source)):
            tests.append(unknown)
        if tests:
            with self.block(f"if {' or '.join(tests)}:"):
                self.emit("raise Malformed")

    def differs(self, field: Field, place: str) -> str:
        """A test whether the value is not the default."""
        value = self.default_of(field)
        if field.type.struct is not None and value is not None:
            shared = self.constant(value, "default")
            return f"({place} is not {shared} and {place} != {shared})"
        if value is None:
            return f"{place} is not None"
        if isinstance(value, list):
            return f"{place} != []"
        return f"{place} != {self.literal(value)}"

    def value(self, kind: FieldType, place: str, nullable: bool) -> None:
        """Write one value."""
        if kind.struct is not None:
            self.inner_struct(kind.struct, place, nullable)
        elif kind.kind == "array":
            self.array(kind, place, nullable)
        elif kind.wire is not None and kind.wire.size:
            self.run.append((kind.wire.format, place))
        elif kind.kind == "records":
            self.records(place, nullable)
        else:
            self.text_or_bytes(kind.kind, place, nullable)

    def inner_struct(self, cls: type[Struct], place: str, nullable: bool, null: str = "\\xff") -> None:
        """A struct as a field: behind an int8 that is -1 for null, if it may be null; in a tag it is 0."""
        inner = self.name("o")
        self.emit(f"{inner} = {place}")
        if not nullable:
            self.struct(cls, inner)
            return
        self.flush()
        with self.block(f"if {inner} is None:"):
            self.emit(f"w(b'{null}')")
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.struct(cls, inner)
            self.flush()

    def text_or_bytes(self, kind: str, place: str, nullable: bool) -> None:
        """A string or bytes behind its length."""
        code = "h" if kind == "string" else "i"
        if nullable:
            self.emit(f"e = {place}")
            waiting = list(self.run)
            with self.block("if e is None:"):
                self.run.append(("x", "") if self.flexible else (code, "-1"))
                self.flush()
            self.run = waiting
            with self.block("else:"):
                self.text_or_bytes(kind, "e", nullable=False)
            return
        content = f"{place}.encode()" if kind == "string" else place
        if content != "e":
            self.emit(f"e = {content}")
        size = "len(e)"
        if self.flexible:
            size = self.name("n")
            self.emit(f"{size} = len(e) + 1")
        self.flush_length(size, "string_length" if kind == "string" else "length", code)
        self.emit("w(e)")

    def records(self, place: str, nullable: bool) -> None:
        """Records: what was written so far becomes a part, the records follow as they are."""
        size, given = self.name("n"), self.name("r")
        self.emit(f"{given} = {place}")
        more = " + 1" if self.flexible else ""
        opening = f"if type({given}) is list or type({given}) is tuple:"
        if nullable:
            with self.block(f"if {given} is None:"):
                self.emit(f"{size} = {0 if self.flexible else -1}")
            opening = "el" + opening
        with self.block(opening):
            self.emit(f"{size} = sum(map(len, {given})){more}")
        with self.block("else:"):
            self.emit(f"{size} = len({given}){more}")
        self.flush_length(size, "length", "i")
        with self.block(f"if {given}:"):
            self.emit("part(join(out)); out.clear()")
            with self.block(f"if type({given}) is list or type({given}) is tuple:"):
                self.emit(f"parts.extend({given})")
            with self.block("else:"):
                self.emit(f"part({given})")

    def array(self, kind: FieldType, place: str, nullable: bool) -> None:
        """A count, then the elements."""
        element = kind.element
        assert element is not None
        if element.wire is not None and element.wire.size:
            self.primitives(element, place, nullable)
            return
        items, count = self.name("items"), self.name("n")
        self.emit(f"{items} = {place}")
        more = " + 1" if self.flexible else ""
        if nullable:
            null = 0 if self.flexible else -1
            with self.block(f"if {items} is None:"):
                self.emit(f"{items} = (); {count} = {null}")
            with self.block("else:"):
                self.emit(f"{count} = len({items}){more}")
        else:
            self.emit(f"{count} = len({items}){more}")
        self.flush_length(count, "length", "i")
        item = self.name("o")
        with self.block(f"for {item} in {items}:"):
            if element.struct is not None:
                self.struct(element.struct, item)
            else:
                self.value(element, item, nullable=False)
            self.flush()
            if self.sliced and not self.in_tags:
                self.emit(f"turn = (turn + 1) & {TURN_MASK}")
                with self.block("if not turn:"):
                    if not self.views:  # a million pieces take longer to join than to write
                        self.emit("done.append(join(out)); out.clear()")
                    self.emit("yield")

    def primitives(self, element: FieldType, place: str, nullable: bool) -> None:
        """An array of fixed-size primitives: one pack for count and elements."""
        assert element.wire is not None
        self.flush()
        code = element.wire.format
        items, count = self.name("items"), self.name("n")
        self.emit(f"{items} = {place}")
        opening = "if"
        if nullable:
            with self.block(f"if {items} is None:"):
                self.emit("w(b'\\0')" if self.flexible else "w(b'\\xff\\xff\\xff\\xff')")
            opening = "elif"
        with self.block(f"{opening} {items} == []:"):  # many are
            self.emit("w(b'\\1')" if self.flexible else "w(b'\\0\\0\\0\\0')")
        opening = "elif"
        prefix = f"length({count} + 1)" if self.flexible else f"{self.form('i')}({count})"
        number = f"{count} + 1" if self.flexible else count
        if code == "16s":  # a Struct would pad or cut an id of the wrong length
            prefix = prefix.replace(count, f"len({items})")
        else:
            many = self.constant(packers("B" if self.flexible else "i", code), "many_" + element.wire.name)
            with self.block(f"{opening} ({count} := len({items})) < {MANY}:"):
                self.emit(f"w({many}[{count}]({number}, *{items}))")
        with self.block("else:"):
            self.emit(f"w(array_of({items}, {prefix}, {code!r}))")

    def tags(self, cls: type[Struct], source: str) -> None:
        """The tagged fields at the end of a struct: mostly none, so anything else is out of line."""
        known = [field for field in fields_at(cls, self.version) if field.tag is not None]
        unknown = self.unknown(source)
        tests = [self.tag_differs(field, self.place(source, field)) for field in known]
        some = " or ".join([*tests, unknown] if unknown else tests)
        if not some:
            self.run.append(("x", ""))
            return
        waiting = list(self.run)
        with self.block(f"if {some}:"):
            self.some_tags(cls, source, known)
        with self.block("else:"):
            self.run = [*waiting, ("x", "")]
            self.flush()

    def some_tags(self, cls: type[Struct], source: str, known: list[Field]) -> None:
        """What waits, and tagged fields that are there."""
        unknown = self.unknown(source)
        section = f"{self.tag_writer(cls, known)}({source})" if known else f"tag_section({unknown})"
        self.flush()
        self.emit(f"w({section})")

    def tag_differs(self, field: Field, place: str) -> str:
        """A quick test whether the value may have to be written: it may err on the side of yes."""
        value = self.default_of(field)
        if field.type.struct is not None and value is not None:
            return f"{place} is not {self.constant(value, 'default')}"
        return self.differs(field, place)

    def tag_writer(self, cls: type[Struct], known: list[Field]) -> str:
        """A function that returns the tag section of an instance of `cls`; its name."""
        function = self.name("tags")
        outer, self.run = self.run, []
        was_in_tags, self.in_tags = self.in_tags, True
        with self.function(f"def {function}(o):"):
            self.open(cls, "o")
            unknown = self.unknown("o")
            self.emit(f"found = dict({unknown}) if {unknown} else {{}}" if unknown else "found = {}")
            for field in fields(cls):
                if unknown and field.tag is not None:
                    with self.block(f"if {field.tag} in found:"):
                        self.emit("raise Malformed")
            for field in known:
                value = self.name("v")
                self.emit(f"{value} = {self.place('o', field)}")
                with self.block(f"if {self.differs(field, value)}:"):
                    self.emit("out = []; w = out.append")
                    if field.type.kind == "uuid":
                        self.emit(f"if len({value}) != 16: raise Malformed")
                    nullable, inner = field.nullable_at(self.version), field.type.struct
                    if inner is not None:
                        self.inner_struct(inner, value, nullable, null="\\0")
                    else:
                        self.value(field.type, value, nullable)
                    self.flush()
                    self.emit(f"found[{field.tag}] = join(out)")
            self.emit("return tag_section(found)")
        self.run, self.in_tags = outer, was_in_tags
        return function

    def flush_length(self, size: str, helper: str, code: str) -> None:
        """Write what waits, and a length: one byte of a compact one in the same pack if it fits, mostly."""
        if not self.flexible:
            self.run.append((code, size))
            self.flush()
            return
        if not self.run:
            self.emit(f"w(one_byte[{size}] if {size} < 128 else {helper}({size}))")
            return
        with self.block(f"if {size} < 128:"):
            waiting = list(self.run)
            self.run.append(("B", size))
            self.flush()
        with self.block("else:"):
            self.run = waiting
            self.flush()
            self.emit(f"w({helper}({size}))")

    def flush(self) -> None:
        """Write what waits as one pack."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        if codes == "x":
            self.emit("w(b'\\0')")
        else:
            values = ", ".join(value for _, value in self.run if value)
            self.emit(f"w({self.form(codes)}({values}))")
        self.run = []

    def form(self, codes: str) -> str:
        """The name of a bound `pack`."""
        name = "pack_" + codes.replace("?", "t")
        self.scope.setdefault(name, packed(codes).pack)
        return name
