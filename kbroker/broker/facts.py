"""What one part of a broker tells the others, and the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol.message import Message


class Ticket(Protocol):
    """The place of one answer in its connection's order; opaque to everything but `core.py`."""


class Reply:
    """An answer that was LATER: the ticket its request came with, and the response."""

    __slots__ = ("response", "ticket")

    def __init__(self, ticket: Ticket, response: Message) -> None:
        self.ticket = ticket
        self.response = response
