"""Asks every judge about every message in every version and writes down, in docs/wire.md, who judged what.

Run by scripts/wire (`python -m tests.judges.report --examples N`); it needs Java. Writes nothing if anybody objects.
`test_report.py` holds the table in the file to what there is to judge.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from protocol.message import Message
from protocol.schema import direction
from tests.judges import kio
from tests.judges.java import RELEASES, judge
from tests.judges.pairs import all_messages, all_pairs, versions
from tests.judges.verdicts import apache_objects, for_examples, kio_objects

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
JUDGES = (*RELEASES, "kio")
_INTRODUCTION = """\
# The wire, and who judged it

Every message is read and written by strangers too: Apache Kafka's own Java classes of two releases, and kio 0.5.0,
whose schemas are generated from Kafka's definitions. For values made from our schemas (extremes, nulls, any Unicode,
empty, large; for Java also unknown tags) our bytes must equal theirs, they must read ours as the same values, and we
theirs; what a version lacks must come out as the same default. `scripts/wire` asks them all and writes this page;
`scripts/test` asks them with fewer examples, and checks that the table below is complete.

The headers of requests and answers and record sets (v0, v1 and v2; none, gzip, snappy, lz4, zstd; wrapper messages)
are judged by both releases of Kafka as well, in `tests/judges/test_headers.py` and `test_records.py`: uncompressed our
bytes equal theirs, compressed each side reads what the other wrote, and what we take of damaged sets they read alike.

A range in a judge's column says which of our versions it has, and so has judged; `-` that it has none. kio makes
datetimes, durations and enumerations of some integers: values out of their range are judged by Java alone. A tagged
field that only the later release knows is judged by that one.
"""


def judged(cls: type[Message], name: str) -> list[int]:
    """The versions of ours that a judge has."""
    if name == "kio":
        return [version for version in versions(cls) if kio.entity(cls.__name__, version) is not None]
    return [version for version in versions(cls) if version in judge(name).versions(cls.__name__)]


def row(cls: type[Message], ranges: Iterable[str]) -> str:
    """One line of the table."""
    key = "" if cls.api is None else str(cls.api)
    return f"| {key} | {cls.__name__} | {direction(cls)} | {span(list(versions(cls)))} | {' | '.join(ranges)} |"


def table() -> list[str]:
    """The table, as it has to be now."""
    head = ["| key | message | direction | versions | " + " | ".join(map(title, JUDGES)) + " |", "|---" * 7 + "|"]
    return head + [row(cls, [span(judged(cls, name)) for name in JUDGES]) for cls in all_messages().values()]


def title(name: str) -> str:
    """A judge's name as people read it."""
    return "kio 0.5.0" if name == "kio" else f"Kafka {name}"


def span(found: list[int]) -> str:
    """ "0-3", "4", "0, 2-3", or "-" for none."""
    parts: list[list[int]] = []
    for version in found:
        if parts and parts[-1][-1] == version - 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "-"


def unjudged() -> list[str]:
    """Messages and versions that no judge has."""
    return [
        f"{cls.__name__} {version}"
        for cls, version in all_pairs()
        if not any(version in judged(cls, name) for name in JUDGES)
    ]


def ask_all(examples: int) -> tuple[dict[str, int], list[str]]:
    """How many values each judge was asked about, and what was objected to."""
    counts, objections = dict.fromkeys(JUDGES, 0), []
    for cls, version in all_pairs():
        for name in JUDGES:
            if version in judged(cls, name):
                try:
                    for_examples(cls, version, examples, name != "kio", _asking(name, version, counts))
                except Exception as error:
                    objections.append(f"{cls.__name__} {version}, {name}: {error}")
    return counts, objections


def _asking(name: str, version: int, counts: dict[str, int]) -> Callable[[Message], None]:
    def ask(value: Message) -> None:
        counts[name] += 1
        found = kio_objects(value, version) if name == "kio" else apache_objects(judge(name), value, version)
        assert not found, found

    return ask


def page(counts: dict[str, int]) -> str:
    """The whole file."""
    asked = ", ".join(f"{title(name)} {counts[name]:,}" for name in JUDGES)
    pairs = sum(1 for _ in all_pairs())
    missing = unjudged()
    return "\n".join(
        [
            _INTRODUCTION,
            f"Messages in all their versions: {pairs}. Judged by nobody: {', '.join(missing) or 'none'}.",
            f"Values judged when this page was written, without an objection: {asked}.",
            "",
            *table(),
            "",
        ]
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/wire", description="Ask every judge about every message, and write docs/wire.md."
    )
    parser.add_argument("--examples", type=int, default=60, help="values a message and version (default %(default)s)")
    begun = time.monotonic()
    counts, objections = ask_all(parser.parse_args().examples)
    print(*objections, sep="\n")
    print(f"{counts}, {len(objections)} objections, {time.monotonic() - begun:.0f} s")
    if objections:
        return 1
    PAGE.write_text(page(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
