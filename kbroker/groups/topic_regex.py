"""Regular expressions that stand for topics, in RE2's syntax, matched in bounded time and memory (KIP-848).

Called by consumer.py: `compile_regex` once an expression is new, `TopicRegex.matches` for each topic's name. RE2 has no
back-references and no look-around, so that an expression is a finite automaton: a name of n characters takes n steps,
and no expression of a client's can hold a broker up. An expression here becomes a graph of states (Thompson), of which
sets are looked up by character and remembered. A name has to match as a whole, as in Apache's coordinator.

Judged by RE2 itself (tests/groups/test_topic_regex.py). Captures, and preferring short matches to long ones, make no
difference to whether a whole name matches, so groups and lazy quantifiers are only parsed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

MOST_CHARACTERS = 10_000  # of an expression
MOST_STATES = 10_000  # of its graph: repetitions are written out
MOST_REPETITIONS = 1_000  # RE2's
MOST_DEPTH = 100  # of groups in groups
MOST_REMEMBERED = 20_000  # sets of states, by character; then they are worked out again

Matches = Callable[[str], bool]


class BadRegexError(Exception):
    """An expression that RE2 would not take; the text says why."""


def compile_regex(regex: str) -> TopicRegex:
    """An expression, ready to match. Raises: KafkaError INVALID_REGULAR_EXPRESSION, with RE2's reason."""
    try:
        return TopicRegex(regex)
    except BadRegexError as error:
        text = f"SubscribedTopicRegex `{regex[:200]}` is not a valid regular expression: {error}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from error


class _Edge(NamedTuple):
    """From one state to another: by a character that is in a class, or by none where a place is right (None: any)."""

    to: int
    takes: Matches | None
    at: str | None


class TopicRegex:
    """A compiled expression. steps: looked at so far, for who has them counted."""

    def __init__(self, regex: str) -> None:
        if len(regex) > MOST_CHARACTERS:
            raise BadRegexError(f"expression of {len(regex)} characters; allowed: {MOST_CHARACTERS}")
        self._edges: list[list[_Edge]] = []
        start, self._accept = self._state(), self._state()
        _Parser(regex, self).into(start, self._accept)
        self._first = frozenset((start,))
        self._remembered: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self.steps = 0

    def matches(self, name: str) -> bool:
        """Whether a whole name matches."""
        states, before = self._first, ""
        for character in name:
            key = states, _place(before), character
            found = self._remembered.get(key)
            if found is None:
                if len(self._remembered) >= MOST_REMEMBERED:
                    self._remembered.clear()
                found = self._remembered[key] = self._step(states, before, character)
            self.steps += 1
            if not found:
                return False
            states, before = found, character
        return self._accept in self._closure(states, before, "")

    def _step(self, states: frozenset[int], before: str, character: str) -> frozenset[int]:
        return frozenset(
            edge.to
            for state in self._closure(states, before, character)
            for edge in self._edges[state]
            if edge.takes is not None and edge.takes(character)
        )

    def _closure(self, states: frozenset[int], before: str, after: str) -> set[int]:
        """The states that are reached without a character, between these two; "" is an end of the name."""
        found, open_states = set(states), list(states)
        while open_states:
            edges = self._edges[open_states.pop()]
            self.steps += len(edges)
            for edge in edges:
                if edge.takes is None and edge.to not in found and (not edge.at or _holds(edge.at, before, after)):
                    found.add(edge.to)
                    open_states.append(edge.to)
        return found

    # --- for the parser

    def _state(self) -> int:
        if len(self._edges) >= MOST_STATES:
            raise BadRegexError("expression is too large")
        self._edges.append([])
        return len(self._edges) - 1

    def state(self) -> int:
        """Another state."""
        return self._state()

    def edge(self, start: int, end: int, takes: Matches | None = None, at: str | None = None) -> None:
        """An edge between two states."""
        self._edges[start].append(_Edge(end, takes, at))


def _place(before: str) -> str:
    """All that edges without a character ask of the one before."""
    return "" if not before else "w" if _is_word(before) else "\n" if before == "\n" else "-"


def _holds(at: str, before: str, after: str) -> bool:
    if at == "^":
        return not before
    if at == "$":
        return not after
    if at == "(?m)^":
        return before in ("", "\n")
    if at == "(?m)$":
        return after in ("", "\n")
    at_word = (bool(before) and _is_word(before)) != (bool(after) and _is_word(after))
    return at_word == (at == "b")


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


# --- syntax

_PERL: dict[str, Matches] = {
    "d": lambda c: "0" <= c <= "9",
    "s": lambda c: c in "\t\n\f\r ",
    "w": _is_word,
}
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_POSIX: dict[str, Matches] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": lambda c: c.isascii(),
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": _PERL["d"],
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_HEX = frozenset("0123456789abcdefABCDEF")


class _Parser:
    """Reads an expression into the graph, by descent: alternatives of sequences of repeated atoms."""

    def __init__(self, regex: str, graph: TopicRegex) -> None:
        self._regex = _unquoted(regex)
        self._graph = graph
        self._at = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()

    def into(self, start: int, end: int) -> None:
        """The whole expression, between two states."""
        self._alternatives(start, end)
        if self._at < len(self._regex):
            raise BadRegexError("unexpected ): " + self._regex)

    def _alternatives(self, start: int, end: int) -> None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadRegexError("expression nests too deeply")
        flags = self._flags
        while True:
            here = self._graph.state()
            self._graph.edge(start, here)
            self._sequence(here, end)
            if not self._took("|"):
                break
        self._flags = flags
        self._depth -= 1

    def _sequence(self, start: int, end: int) -> None:
        here = start
        while self._at < len(self._regex) and self._regex[self._at] not in "|)":
            after = self._graph.state()
            self._repeated(here, after)
            here = after
        self._graph.edge(here, end)

    # --- repetition

    def _repeated(self, start: int, end: int) -> None:
        at, flags = self._at, self._flags
        first, last = self._graph.state(), self._graph.state()
        if not self._atom(first, last):
            self._graph.edge(start, end)  # flags alone
            return
        least, most = self._bounds()
        if (least, most) == (1, 1):
            self._graph.edge(start, first)
            self._graph.edge(last, end)
            return
        behind = self._at
        here = start
        for number in range(max(least, 1) if most is None else most):
            if number:
                first, last = self._copy(at, flags)
            if number >= least:
                self._graph.edge(here, end)
            self._graph.edge(here, first)
            here = last
        if most is None:
            self._graph.edge(last, first)
            if not least:
                self._graph.edge(start, end)
        if most == 0:
            self._graph.edge(start, end)
        else:
            self._graph.edge(here, end)
        self._at = behind

    def _copy(self, at: int, flags: frozenset[str]) -> tuple[int, int]:
        """The atom that was read at a place, once more."""
        first, last = self._graph.state(), self._graph.state()
        self._at, after, names = at, self._flags, self._names
        self._flags, self._names = flags, set()
        self._atom(first, last)
        self._flags, self._names = after, names
        return first, last

    def _bounds(self) -> tuple[int, int | None]:
        """How often what was read may come."""
        bounds: tuple[int, int | None] = (1, 1)
        read = False
        start = self._at
        while (found := self._quantifier()) is not None:
            if read:
                raise BadRegexError(f"bad repetition operator: {self._regex[start : self._at]}")
            read, bounds = True, found
            self._took("?")  # lazy
        return bounds

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._at >= len(self._regex):
            return None
        character = self._regex[self._at]
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if character in simple:
            self._at += 1
            return simple[character]
        return self._braces() if character == "{" else None

    def _braces(self) -> tuple[int, int | None] | None:
        """{n}, {n,}, {n,m}; what is not one of these are plain characters."""
        end = self._regex.find("}", self._at)
        least, comma, most = self._regex[self._at + 1 : end].partition(",")
        if end < 0 or not _is_number(least) or not (most == "" or _is_number(most)):
            return None
        low = int(least[:6])
        high = low if not comma else None if not most else int(most[:6])
        if low > MOST_REPETITIONS or (high or 0) > MOST_REPETITIONS or (high is not None and high < low):
            raise BadRegexError(f"bad repetition operator: {self._regex[self._at : end + 1]}")
        self._at = end + 1
        return low, high

    # --- atoms

    def _atom(self, start: int, end: int) -> bool:
        """Whether there was something that can be repeated."""
        character = self._next()
        if character == "(":
            return self._group(start, end)
        if character in "*+?" or (character == "{" and self._is_quantifier_before()):
            raise BadRegexError(f"no argument for repetition operator: {character}")
        if character == "[":
            self._graph.edge(start, end, self._class())
        elif character == ".":
            self._graph.edge(start, end, (lambda c: True) if "s" in self._flags else (lambda c: c != "\n"))
        elif character in "^$":
            self._graph.edge(start, end, None, f"(?m){character}" if "m" in self._flags else character)
        elif character == "\\":
            self._escape(start, end)
        else:
            self._graph.edge(start, end, self._literal(character))
        return True

    def _is_quantifier_before(self) -> bool:
        self._at -= 1
        is_one = self._braces() is not None
        if not is_one:
            self._at += 1
        return is_one

    def _group(self, start: int, end: int) -> bool:
        flags = self._flags
        if self._took("?") and not self._group_head():
            return False
        self._alternatives(start, end)
        if not self._took(")"):
            raise BadRegexError("missing closing )")
        self._flags = flags
        return True

    def _group_head(self) -> bool:
        """Behind `(?`: a name, or flags. Returns: whether a group follows; else flags hold for the rest of this one."""
        begin = self._at - 2
        for opening in ("P<", "<"):
            if self._regex.startswith(opening, self._at) and self._regex[self._at + len(opening) :][:1] not in (
                "=",
                "!",
            ):
                close = self._regex.find(">", self._at)
                name = self._regex[self._at + len(opening) : close] if close > 0 else ""
                if not name or not all(_is_word(each) for each in name):
                    raise BadRegexError(f"invalid named capture: {self._regex[begin : max(close + 1, begin + 3)]}")
                if name in self._names:
                    raise BadRegexError(f"duplicate capture group name: {name}")
                self._names.add(name)
                self._at = close + 1
                return True
        flags, minus, seen = set(self._flags), False, False
        while self._at < len(self._regex):
            character = self._next()
            if character in "imsU":
                seen = True
                (flags.discard if minus else flags.add)(character)
            elif character == "-" and not minus:
                minus, seen = True, False
            elif character in ":)" and (seen or not minus):
                self._flags = frozenset(flags)
                return character == ":"
            else:
                break
        raise BadRegexError(f"invalid perl operator: {self._regex[begin : self._at]}")

    def _escape(self, start: int, end: int) -> None:
        character = self._next("trailing \\ at end of expression")
        places = {"A": "^", "z": "$", "b": "b", "B": "B"}
        if character in places:
            self._graph.edge(start, end, None, places[character])
        elif character == "C":
            self._graph.edge(start, end, lambda c: True)
        else:
            self._graph.edge(start, end, self._named_class(character) or self._literal(self._escaped(character)))

    def _named_class(self, character: str) -> Matches | None:
        """\\d and its like, \\pN, \\p{Greek}."""
        lower = character.lower()
        if character in "pP":
            return self._unicode_class(negated=character == "P")
        if lower not in _PERL:
            return None
        matches = _PERL[lower]
        return matches if character == lower else (lambda c: not matches(c))

    def _unicode_class(self, *, negated: bool) -> Matches:
        begin = self._at - 2
        name = self._next("invalid character class range")
        if name == "{":
            close = self._regex.find("}", self._at)
            name = self._regex[self._at : close] if close > 0 else ""
            self._at = close + 1 if close > 0 else len(self._regex)
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        if name != "Any" and (name[:1] not in "CLMNPSZ" or len(name) > 2 or not name):
            raise BadRegexError(f"invalid character class range: {self._regex[begin : self._at]}")
        folds = "i" in self._flags

        def matches(c: str) -> bool:
            variants = (c, c.lower(), c.upper()) if folds else (c,)
            return (name == "Any" or any(unicodedata.category(v[0]).startswith(name) for v in variants)) != negated

        return matches

    def _escaped(self, character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            return self._hexadecimal()
        if character == "0" or (character in "1234567" and self._regex[self._at : self._at + 1] in tuple("01234567")):
            digits = character
            while len(digits) < 3 and self._regex[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next()
            return chr(int(digits, 8))
        if character.isascii() and not character.isalnum():
            return character
        raise BadRegexError(f"invalid escape sequence: \\{character}")

    def _hexadecimal(self) -> str:
        if self._took("{"):
            close = self._regex.find("}", self._at)
            digits = self._regex[self._at : close] if close > 0 else ""
            self._at = close + 1
        else:
            digits = self._regex[self._at : self._at + 2]
            self._at += 2
            digits = digits if len(digits) == 2 else ""
        if not digits or not set(digits) <= _HEX or int(digits, 16) > 0x10FFFF:
            raise BadRegexError("invalid escape sequence: \\x")
        return chr(int(digits, 16))

    # --- classes

    def _class(self) -> Matches:
        begin, negated = self._at - 1, self._took("^")
        parts: list[Matches] = []
        is_first = True
        while is_first or self._regex[self._at : self._at + 1] != "]":
            if self._at >= len(self._regex):
                raise BadRegexError(f"missing closing ]: {self._regex[begin:]}")
            parts.append(self._class_part(begin))
            is_first = False
        self._at += 1
        if negated:
            return lambda c: not any(part(c) for part in parts)
        return lambda c: any(part(c) for part in parts)

    def _class_part(self, begin: int) -> Matches:
        if self._regex.startswith("[:", self._at) and ":]" in self._regex[self._at + 2 :]:
            close = self._regex.index(":]", self._at + 2)
            name = self._regex[self._at + 2 : close]
            posix = _POSIX.get(name.removeprefix("^"))
            if posix is None:
                raise BadRegexError(f"invalid character class range: [:{name}:]")
            self._at = close + 2
            return (lambda c: not posix(c)) if name.startswith("^") else posix
        low = self._next()
        if low == "\\":
            escaped = self._next("trailing \\ at end of expression")
            named = self._named_class(escaped)
            if named is not None:
                return named
            low = self._escaped(escaped)
        if self._regex[self._at : self._at + 1] != "-" or self._regex[self._at + 1 : self._at + 2] in ("]", ""):
            return self._literal(low)
        self._at += 1
        high = self._next()
        if high == "\\":
            high = self._escaped(self._next("trailing \\ at end of expression"))
        if high < low:
            raise BadRegexError(f"invalid character class range: {low}-{high}")
        if "i" not in self._flags:
            return lambda c: low <= c <= high
        return lambda c: any(low <= each <= high for each in (c, c.lower(), c.upper()))

    def _literal(self, character: str) -> Matches:
        if "i" not in self._flags:
            return lambda c: c == character
        folded = character.casefold()
        return lambda c: c.casefold() == folded

    # --- characters

    def _next(self, missing: str = "unexpected end of expression") -> str:
        if self._at >= len(self._regex):
            raise BadRegexError(missing)
        self._at += 1
        return self._regex[self._at - 1]

    def _took(self, character: str) -> bool:
        found = self._regex[self._at : self._at + 1] == character
        self._at += found
        return found


def _unquoted(regex: str) -> str:
    """The same expression without \\Q...\\E, of which each character stands for itself."""
    parts: list[str] = []
    at = 0
    while at < len(regex):
        if regex[at] != "\\":
            parts.append(regex[at])
            at += 1
        elif regex[at + 1 : at + 2] != "Q":
            parts.append(regex[at : at + 2])
            at += 2
        else:
            close = regex.find("\\E", at + 2)
            text = regex[at + 2 :] if close < 0 else regex[at + 2 : close]
            parts += [each if each.isalnum() or not each.isascii() else f"\\{each}" for each in text]
            at = len(regex) if close < 0 else close + 2
    return "".join(parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
