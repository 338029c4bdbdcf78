"""Generates the reader of one message in one version; see `codec.py` for the idea.

A read position is kept as `pos` plus a skew known here: bytes that were read but not yet added to `pos`. Fixed-size
fields wait in `run` until something of variable length follows, and are then read together.
"""

from __future__ import annotations

from typing import Any

from protocol import _runtime
from protocol._source import MANY, TURN_MASK, Source, packed, unpackers
from protocol.message import Message, Struct
from protocol.primitives import read_uvarint, read_uvarint_rest, utf8
from protocol.schema import Field, FieldType, SchemaError, fields, fields_at, has_records, is_flexible, minimum_size


class ReaderSource(Source):
    """The text of a reader: `read(buffer, start) -> (message, end)`.

    A strict one calls `forgiving()`, which its scope must have, for another reader once a string is no UTF-8. A sliced
    one is a generator `read(buffer, start, left)`: it yields now and then, and reads no more than `left` elements.
    """

    def __init__(self, message: type[Message], version: int, *, strict: bool = True, sliced: bool = False) -> None:
        super().__init__()
        self.version = version
        self.strict = strict and not sliced
        self.sliced = sliced
        self.in_tags = False  # in a function of its own, where nothing can be yielded
        self.flexible = is_flexible(message, version)
        self.views = has_records(message, version)
        self.run: list[tuple[str, str]] = []  # (format, where to) of fixed-size reads not written yet
        self.skew = 0
        self.strings: list[str] = []  # where to, of neighbouring strings that may be null: mostly all of them are
        self.scope |= {
            "new": object.__new__,
            "Malformed": _runtime.Malformed,
            "utf8": utf8,
            "rest": read_uvarint_rest,
            "uvarint": read_uvarint,
            "long_string": _runtime.long_string,
            "long_string_or_none": _runtime.long_string_or_none,
            "long_array": _runtime.long_array,
            "long_array_or_none": _runtime.long_array_or_none,
            "long_count": _runtime.long_count,
            "array_count": _runtime.array_count,
            "compact_array": _runtime.compact_array,
            "compact_array_or_none": _runtime.compact_array_or_none,
            "unknown_tags": _runtime.unknown_tags,
            "explain": lambda buffer, start, error: _runtime.explain_read(message, version, buffer, start, error),
        }
        self.scope |= {"TooMany": _runtime.TooMany, "explain_slices": _runtime.explain_slices}
        with self.block("def read(buffer, start, left):" if sliced else "def read(buffer, start):"):
            self._body(message)

    def _body(self, message: type[Message]) -> None:
        if self.views:
            self.emit("b = buffer if type(buffer) is memoryview else memoryview(buffer)", "pos = start; base = 0")
        else:
            with self.block("if type(buffer) is bytes:"):
                self.emit("b = buffer; pos = start; base = 0")
            with self.block("else:"):  # bytes are read faster than a view, and one copy now is cheaper than many
                self.emit("b = bytes(memoryview(buffer)[start:]); pos = 0; base = start")
        self.emit("end = len(b)")
        if self.sliced:
            self.emit("turn = 0", "if 0: yield")
        with self.block("try:"):
            self.struct(message, "o")
            self.settle()
            self.emit("if pos > end: raise Malformed")
        if self.strict:
            with self.block("except UnicodeDecodeError:"):
                self.emit("o, pos = forgiving()(b, start - base)")
        with self.block("except Exception as error:"):
            # Of slices without another look: the patient codec takes many times as long, and would do so in one go.
            why = "explain_slices(error)" if self.sliced else "explain(b, start - base, error)"
            self.emit(f"raise {why} from None")
        self.emit("return o, pos + base")

    def struct(self, cls: type[Struct], target: str) -> None:
        """Make an instance in local `target` and fill its slots."""
        self.emit(f"{target} = new({self.constant(cls, cls.__name__)})")
        for field in fields(cls):
            place = f"{target}.{field.name}"
            if not field.present_at(self.version) or field.tag is not None:
                self.emit(f"{place} = {self.default(field)}")
            else:
                self.value(field.type, place, field.nullable_at(self.version))
        self.flush_strings()
        self.emit(f"{target}.unknown_tags = None")
        if self.flexible:
            self.tags(cls, target)

    def default(self, field: Field) -> str:
        """An expression for what a version without the field yields."""
        value = field.default_value()
        return "[]" if value == [] and isinstance(value, list) else self.literal(value)

    def value(self, kind: FieldType, place: str, nullable: bool) -> None:
        """Read one value into `place`."""
        if kind.kind == "string" and nullable and self.flexible:
            self.strings.append(place)
            return
        self.flush_strings()
        if kind.struct is not None:
            self.inner_struct(kind.struct, place, nullable)
        elif kind.kind == "array":
            self.array(kind, place, nullable)
        elif kind.wire is not None and kind.wire.size:
            self.run.append((kind.wire.format, place))
        elif kind.kind == "string":
            self.string(place, nullable)
        else:
            self.buffer(kind.kind, place, nullable)

    def inner_struct(self, cls: type[Struct], place: str, nullable: bool, null: str = "< 0") -> None:
        """A struct as a field: behind an int8 that is negative for null, if it may be null; in a tag it is 0."""
        inner = self.name("o")
        if not nullable:
            self.struct(cls, inner)
            self.emit(f"{place} = {inner}")
            return
        mark = self.name("n")
        self.run.append(("b", mark))
        self.settle()
        with self.block(f"if {mark} {null}:"):
            self.emit(f"{place} = None")
        with self.block("else:"):
            self.struct(cls, inner)
            self.emit(f"{place} = {inner}")
            self.settle()

    def flush_strings(self) -> None:
        """Read the strings that wait: by one look, if there are several and all are null, which takes a byte each."""
        strings, self.strings = self.strings, []
        if len(strings) < 2:
            for place in strings:
                self.string(place, nullable=True)
            return
        self.flush()
        size, skew = len(strings), self.skew
        with self.block(f"if b[{self.at()}:pos + {skew + size}] == {bytes(size)!r}:"):
            self.emit(f"{' = '.join(strings)} = None", f"pos += {skew + size}")
        with self.block("else:"):
            for place in strings:
                self.string(place, nullable=True)

    def string(self, place: str, nullable: bool) -> None:
        """A string: compact length or int16; the common short case inlined."""
        size = self.length("h")
        at = self.at()
        text = f"utf8(b[{at}:e])"
        if self.strict:  # a call less, and nothing to give in the usual case
            text = f"str(b[{at}:e], 'utf-8')" if self.views else f"b[{at}:e].decode()"
        if self.flexible:
            with self.block(f"if 0 < {size} < 128:"):
                self.emit(f"e = pos + {size}{_plus(self.skew - 1)}")
                self.emit(f"{place} = {text}", "pos = e")
            if nullable:
                with self.block(f"elif not {size}:"):
                    self.emit(f"{place} = None")
                    if self.skew:
                        self.emit(f"pos += {self.skew}")
            helper = "long_string_or_none" if nullable else "long_string"
            with self.block("else:"):
                self.emit(f"{place}, pos = {helper}(b, {at}, {size})")
        else:
            with self.block(f"if {size} >= 0:"):
                self.emit(f"e = {at} + {size}", f"{place} = {text}", "pos = e")
            self.null("else:", place, nullable)
        self.skew = 0

    def buffer(self, kind: str, place: str, nullable: bool) -> None:
        """Bytes (a copy) or Records (a view on the frame)."""
        size = self.length("i")
        self.settle()
        if self.flexible:
            with self.block(f"if {size} > 127:"):
                with self.block("if (m := b[pos]) < 128:"):  # two bytes: records of up to 16 KiB
                    self.emit(f"{size} += (m << 7) - 128; pos += 1")
                with self.block("else:"):
                    self.emit(f"{size}, pos = rest(b, pos, {size})")
        with self.block(f"if {size}:" if self.flexible else f"if {size} >= 0:"):
            self.emit(f"e = pos + {size}{' - 1' if self.flexible else ''}")
            cut = "b[pos:e]" if kind == "records" or not self.views else "bytes(b[pos:e])"
            self.emit(f"{place} = {cut}", "pos = e")
        self.null("else:", place, nullable)

    def null(self, opening: str, place: str, nullable: bool) -> None:
        """The branch for a null on the wire: None, or an error where the field may not be null."""
        with self.block(opening):
            if nullable:
                self.emit(f"{place} = None")
                if self.skew:
                    self.emit(f"pos += {self.skew}")
            else:
                self.emit("raise Malformed")

    def array(self, kind: FieldType, place: str, nullable: bool) -> None:
        """A count, checked against the bytes left, then the elements."""
        element = kind.element
        assert element is not None
        if element.wire is not None and element.wire.size:
            self.primitives(element, place, nullable)
            return
        count = self.length("i")
        self.settle()
        least = minimum_size(element, self.version, self.flexible)
        if not least:
            raise SchemaError(f"{place}: elements of an array cannot be empty")
        more = 1 if self.flexible else 0  # a compact count is one more than the elements, and 0 is null
        is_plain = f"{count} >= 0"
        # A compact count of one byte needs no look at the bytes left: so few elements end with the frame soon enough.
        if self.flexible:
            is_plain = f"{count} < 128" if nullable else f"1 <= {count} < 128"
        is_too_long = "" if self.flexible else f" or {count} * {least} > end - pos"
        with self.block(f"if not {is_plain}{is_too_long}:"):
            if self.flexible:
                self.emit(f"{count}, pos = array_count(b, pos, {count}, {least}, {nullable})")
            elif nullable:
                self.emit(f"if {count} >= 0: raise Malformed")
            else:
                self.emit("raise Malformed")
        if nullable:
            with self.block(f"if {count} < {more}:"):
                self.emit(f"{place} = None")
            with self.block("else:"):
                self.elements(element, place, f"{count} - 1" if more else count)
            return
        self.elements(element, place, f"{count} - 1" if more else count)

    def elements(self, element: FieldType, place: str, count: str) -> None:
        """The loop over structs, strings or bytes."""
        items = self.name("items")
        self.count(count)
        self.emit(f"{place} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            if element.struct is not None:
                self.element(element.struct, items)
            else:
                item = self.name("o")
                self.value(element, item, nullable=False)
                self.settle()
                self.emit(f"{items}.append({item})")
            if self.sliced and not self.in_tags:
                self.emit(f"turn = (turn + 1) & {TURN_MASK}", "if not turn: yield")

    def element(self, cls: type[Struct], items: str) -> None:
        """One struct more in `items`."""
        item = self.name("o")
        self.struct(cls, item)
        self.settle()
        self.emit(f"{items}.append({item})")

    def count(self, more: str) -> None:
        """In a sliced reader: so many more elements are about to be read."""
        if self.sliced and not self.in_tags:
            self.emit(f"left -= {more}", "if left < 0: raise TooMany")

    def primitives(self, element: FieldType, place: str, nullable: bool) -> None:
        """An array of fixed-size primitives: one unpack for all; none for an empty one, as many are."""
        wire = element.wire
        assert wire is not None
        count = self.length("i")
        more = 1 if self.flexible else 0  # a compact count is one more than the elements
        many = self.constant(unpackers(wire.format, more), "many_" + wire.name)
        with self.block(f"if {more} < {count} < {MANY + more}:"):
            self.emit(f"{place} = [*{many}[{count}](b, {self.at()})]")
            self.emit(f"pos += {count} * {wire.size}{_plus(self.skew - more * wire.size)}")
        with self.block(f"elif {count} == {more}:"):
            self.emit(f"{place} = []", f"pos += {self.skew}")
        one = self.constant(packed(wire.format), "one_" + wire.name)
        helper = ("compact_array" if self.flexible else "long_array") + ("_or_none" if nullable else "")
        with self.block("else:"):
            if self.sliced and not self.in_tags:
                self.count(f"long_count(b, {self.at()}, {count})" if self.flexible else count)
            self.emit(f"{place}, pos = {helper}(b, {self.at()}, {count}, {one})")
        self.skew = 0

    def tags(self, cls: type[Struct], target: str) -> None:
        """The tagged fields at the end of a struct: mostly none, so anything else is out of line."""
        count = self.length("i")
        self.settle()
        if not any(field.tag is not None for field in fields(cls)):
            with self.block(f"if {count}:"):
                self.emit(f"{target}.unknown_tags, pos = unknown_tags(b, pos, {count})")
                self.count(f"len({target}.unknown_tags)")
            return
        function = self.tag_reader(cls)
        with self.block(f"if {count}:"):
            self.emit(f"pos = {function}({target}, b, pos, end, {count})")

    def tag_reader(self, cls: type[Struct]) -> str:
        """A function that reads the tagged fields of `cls` into an instance; its name."""
        function = self.name("tags")
        outer_skew, self.skew = self.skew, 0
        was_in_tags, self.in_tags = self.in_tags, True
        with self.function(f"def {function}(o, b, pos, end, count):"):
            with self.block("if count > 127:"):
                self.emit("count, pos = rest(b, pos, count)")
            self.emit(f"if count > {_runtime.MOST_UNKNOWN_TAGS}: raise Malformed", "unknown = None")
            with self.block("for _ in range(count):"):
                self.emit("tag, pos = uvarint(b, pos)", "size, pos = uvarint(b, pos)", "stop = pos + size")
                self.emit("if stop > end: raise Malformed")
                self.tag_branches(cls)
                with self.block("else:"):
                    self.emit("if unknown is None: unknown = {}")
                    self.emit("unknown[tag] = bytes(b[pos:stop])", "pos = stop")
                self.emit("if pos != stop: raise Malformed")
            self.emit("o.unknown_tags = unknown", "return pos")
        self.skew, self.in_tags = outer_skew, was_in_tags
        return function

    def tag_branches(self, cls: type[Struct]) -> None:
        """One branch for each tag that `cls` knows; one that belongs to other versions is an error, as in Kafka."""
        word = "if"
        now = {field.tag for field in fields_at(cls, self.version)}
        for field in fields(cls):
            if field.tag is None:
                continue
            if field.present_at(self.version):
                with self.block(f"{word} tag == {field.tag}:"):
                    nullable, inner = field.nullable_at(self.version), field.type.struct
                    if inner is not None:
                        self.inner_struct(inner, f"o.{field.name}", nullable, null="<= 0")
                    else:
                        self.value(field.type, f"o.{field.name}", nullable)
                    self.flush_strings()
                    self.settle()
            elif field.tag not in now:
                with self.block(f"{word} tag == {field.tag}:"):
                    self.emit("raise Malformed")
            else:
                continue  # the tag has a new owner
            word = "elif"

    def length(self, code: str) -> str:
        """Read the first byte of a compact length, or a whole length of format `code`, with what waits in the run."""
        size = self.name("n")
        self.run.append(("B" if self.flexible else code, size))
        self.flush()
        return size

    def flush(self) -> None:
        """Write the waiting fixed-size reads as one call; leaves their size in the skew."""
        if not self.run:
            return
        targets = ", ".join(place for _, place in self.run)
        codes = "".join(code for code, _ in self.run)
        form = packed(codes)
        if codes == "B":
            self.emit(f"{targets} = b[{self.at()}]")
        elif codes == "?":
            self.emit(f"{targets} = b[{self.at()}] != 0")
        else:
            unpack = self.form(codes, form)
            comma = "," if len(self.run) == 1 else ""
            self.emit(f"{targets}{comma} = {unpack}(b, {self.at()})")
        self.skew += form.size
        self.run.clear()

    def form(self, codes: str, form: Any) -> str:
        """The name of a bound `unpack_from`."""
        name = "unpack_" + codes.replace("?", "t")
        self.scope.setdefault(name, form.unpack_from)
        return name

    def at(self) -> str:
        """The read position as an expression."""
        return f"pos + {self.skew}" if self.skew else "pos"

    def settle(self) -> None:
        """Write what waits and bring `pos` up to date: before every branch, loop and call."""
        self.flush()
        if self.skew:
            self.emit(f"pos += {self.skew}")
            self.skew = 0


def _plus(number: int) -> str:
    """As the end of a sum: plus 4, minus 4, or nothing for 0."""
    return f" {'+' if number > 0 else '-'} {abs(number)}" if number else ""
