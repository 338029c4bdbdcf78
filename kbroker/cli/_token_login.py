"""How kafka-python logs in by a delegation token (KIP-48): SCRAM with `tokenauth`, which it does not have itself.

Called by `_cluster.py` for a command whose settings say so. The exchange is ours (`security/scram.py`); kafka-python
carries its messages. A user whose name is a `TokenId` logs in so, any other as before.
"""

from __future__ import annotations

import secrets
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.scram import SaslMechanismScram

from kbroker.security.client import SCRAM
from kbroker.security.scram import NONCE_BYTES, ScramClient, printable


class TokenId(str):
    """The id of a token, where a user's name may be."""

    __slots__ = ()


class _TokenScram(SaslMechanism):  # type: ignore[misc]  # kafka-python has no types
    """A login by a token's id and HMAC."""

    def __init__(self, **config: Any) -> None:
        self._mechanism, self._id = config["sasl_mechanism"], config["sasl_plain_username"]
        nonce = printable(secrets.token_bytes(NONCE_BYTES))
        password = config["sasl_plain_password"]
        self._client = ScramClient(self._mechanism, self._id, password, nonce, {"tokenauth": "true"})
        self._next: bytes | None = self._client.first()

    def auth_bytes(self) -> bytes:
        return self._next or b""

    def receive(self, auth_bytes: bytes) -> bool:
        self._next = self._client.evaluate_challenge(auth_bytes)
        return self._client.done

    def is_done(self) -> bool:
        return self._client.done

    def is_authenticated(self) -> bool:
        return self._client.done

    def auth_details(self) -> str:
        return f"Authenticated by delegation token {self._id} via SASL / {self._mechanism}"


def _scram(**config: Any) -> SaslMechanism:
    made = _TokenScram if isinstance(config["sasl_plain_username"], TokenId) else SaslMechanismScram
    return made(**config)


def token_id(user: str) -> TokenId:
    """A user's name by which kafka-python logs in by a token."""
    for name in SCRAM:
        register_sasl_mechanism(name, _scram, overwrite=True)
    return TokenId(user)
