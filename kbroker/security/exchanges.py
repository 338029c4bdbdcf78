"""The client's end of each mechanism: what it says first, and to each token of the broker's.

Used where this broker logs in at others; `scram.py` has SCRAM's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.security.scram import HASHES, ScramClient

if TYPE_CHECKING:
    from kbroker.config.sasl import PeerLogin


class Exchange(Protocol):
    """One login."""

    def first(self) -> bytes:
        """The first token."""
        ...

    def evaluate_challenge(self, token: bytes) -> bytes | None:
        """What a token of the broker's is answered with; None: it was the last. Raises: ValueError."""
        ...


class PlainClient:
    """PLAIN."""

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """All of it."""
        return self._token

    def evaluate_challenge(self, token: bytes) -> bytes | None:
        """An empty token, and the last."""
        return None


class BearerClient:
    """OAUTHBEARER. bearer: the token."""

    def __init__(self, bearer: str) -> None:
        self._first = f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()

    def first(self) -> bytes:
        """With the token."""
        return self._first

    def evaluate_challenge(self, token: bytes) -> bytes | None:
        """Nothing if all is well; a refusal is answered with a byte, and then told again as an error."""
        return b"\x01" if token else None


def exchange_of(login: PeerLogin, nonce: str, bearer: str) -> Exchange:
    """How a broker logs in at another. bearer: its token, where it has one."""
    if login.mechanism in HASHES:
        extensions = {"tokenauth": "true"} if login.is_token else None
        return ScramClient(login.mechanism, login.user, login.password, nonce, extensions)
    return BearerClient(bearer) if login.is_bearer else PlainClient(login.user, login.password)
