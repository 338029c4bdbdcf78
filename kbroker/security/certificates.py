"""What a certificate says: whose it is, as Java writes the name, under which other names, and until when.

Used where a client has shown one (its principal) and where one is loaded or replaced. Python's `ssl` gives a name as
text without the order and the types that Java's text depends on, so it is read from the certificate itself.

Source: RFC 5280; RFC 2253, and X500Principal.getName() of Java by behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kbroker.security.der import GENERALIZED_TIME, OCTETS, SEQUENCE, Element, oid, parse
from protocol.namedtuple import NamedTuple

VERSION, EXTENSIONS = 0xA0, 0xA3  # tags of optional fields
SAN = "2.5.29.17"
KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 has a word for: others are told by number, and their values in hex."""

TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))  # UTF8, Printable, T61, IA5, General, BMP
ESCAPED = frozenset(',=+<>#;"\\')
BLANKS = " \r"


class Certificate(NamedTuple):
    """The fields that are looked at. subject: the encoded name. other_names: the encoded subject alternative names."""

    subject: bytes
    other_names: frozenset[bytes]
    not_before: datetime
    not_after: datetime

    @property
    def name(self) -> str:
        """The subject as Java writes it: CN=..., OU=..., the last part of the encoded name first."""
        return java_name(self.subject)


def read_certificate(data: bytes) -> Certificate:
    """A certificate in DER. Raises: ValueError."""
    try:
        (outer,) = parse(data)
        fields = outer.children[0].children
        if fields[0].tag == VERSION:
            del fields[0]
        _, _, _, validity, subject, *others = fields[:6] + fields[6:]
        not_before, not_after = map(_time, validity.children)
        names = [name for each in others if each.tag == EXTENSIONS for name in _other_names(each)]
    except (IndexError, TypeError) as error:
        raise ValueError("no certificate") from error
    return Certificate(subject.whole, frozenset(names), not_before, not_after)


def _time(element: Element) -> datetime:
    text = element.content.decode("ascii")
    if element.tag != GENERALIZED_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _other_names(extensions: Element) -> Iterator[bytes]:
    for each in extensions.children[0].children:
        kind, *rest = each.children
        if oid(kind.content) == SAN and rest[-1].tag == OCTETS:
            for names in parse(rest[-1].content):
                yield from (name.whole for name in names.children)


def java_name(subject: bytes) -> str:
    """An encoded name as X500Principal.getName() writes it. Raises: ValueError."""
    (name,) = parse(subject)
    if name.tag != SEQUENCE:
        raise ValueError("no name")
    return ",".join("+".join(map(_attribute, part.children)) for part in reversed(name.children))


def _attribute(element: Element) -> str:
    kind, value = element.children
    number = oid(kind.content)
    word = KEYWORDS.get(number)
    if word is None or value.tag not in TEXTS:
        return f"{word or number}=#{value.whole.hex()}"
    return f"{word}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    inner = text.strip(BLANKS)
    start = len(text) - len(text.lstrip(BLANKS)) if inner else len(text)
    before, behind = text[:start], text[start + len(inner) :]
    middle = "".join("\\" + each if each in ESCAPED else "\\00" if each == "\0" else each for each in inner)
    return "".join("\\" + each for each in before) + middle + "".join("\\" + each for each in behind)
