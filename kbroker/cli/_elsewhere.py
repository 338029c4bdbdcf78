"""What other tools call things: the programs of Apache Kafka and kcat, and options of theirs that ours stand for.

Who comes from them types what they have typed for years. It works, or the line that refuses it says what to type here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import click

_PROGRAMS = {
    "broker-api-versions": "cluster --api-versions",
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer-groups": "groups",
    "consumer-perf-test": "perf consume",
    "get-offsets": "topics --offsets",
    "kcat": "produce or kbroker consume",
    "kafkacat": "produce or kbroker consume",
    "leader-election": "elect-leaders",
    "log-dirs": "cluster --log-dirs",
    "producer-perf-test": "perf produce",
    "reassign-partitions": "reassign",
    "server-start": "start",
    "share-groups": "groups",
    "streams-groups": "groups",
}
MODES = {
    "-C": "consume",
    "-G": "consume -G GROUP",
    "-L": "topics --describe, or kbroker cluster --describe",
    "-P": "produce",
    "-Q": "topics --offsets --time WHEN",
}
"""What kcat's options that say what to do are here."""


def here(program: str, commands: Container[str]) -> str:
    """The command that does what a program of Apache Kafka's does, or nothing. It may end in .sh."""
    name = program.removesuffix(".sh").removeprefix("kafka-")
    return _PROGRAMS.get(name) or (name if name in commands else "")


class Also(click.Option):
    """An option that goes by further names, which other tools have and help does not show."""

    def __init__(self, *arguments: Any, also: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._also = also

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have them read."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        parser.add_option(self, list(self._also), dest=self.name, action=action, nargs=self.nargs)
