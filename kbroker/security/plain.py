"""PLAIN (RFC 4616): one token, with the user's name and password. Kafka's PlainSaslServer.

Whom it lets in the login module says (`user_NAME="PASSWORD"`), or a function of the user's own, which runs beside the
loop: `check(username: str, password: str) -> bool`.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from kbroker.security.login import Accepted, Beside, LoginError, Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    CheckPassword = Callable[[str, str], object]

WRONG = "Authentication failed: Invalid username or password"
_OF_USER = "user_"


def passwords_of(options: Mapping[str, str]) -> dict[str, bytes]:
    """The users of a PlainLoginModule and their passwords."""
    return {key.removeprefix(_OF_USER): text.encode() for key, text in options.items() if key.startswith(_OF_USER)}


class Plain:
    """passwords: by user. check: asked instead, if there is one."""

    __slots__ = ("_check", "_passwords")

    def __init__(self, passwords: Mapping[str, bytes], check: CheckPassword | None = None) -> None:
        self._passwords = passwords
        self._check = check

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """The only token."""
        user, password = _read(token)
        check = self._check
        if check is not None:
            return Beside(lambda: _asked(check, user, password))
        expected = self._passwords.get(user)
        # compared also where there is no such user: the time that it takes tells nothing
        is_right = hmac.compare_digest(password.encode(), b"" if expected is None else expected)
        if expected is None or not is_right:
            raise LoginError(Reason.CREDENTIALS, f"user {user!r:.100}: no such user, or another password", WRONG)
        return Accepted(user)


def _asked(check: CheckPassword, user: str, password: str) -> Accepted:
    if check(user, password) is not True:
        raise LoginError(Reason.CREDENTIALS, f"user {user!r:.100}: refused by the callback", WRONG)
    return Accepted(user)


def _read(token: bytes) -> tuple[str, str]:
    """User and password. Raises: LoginError."""
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginError(Reason.MALFORMED, "PLAIN: a token that is not UTF-8") from None
    if len(parts) != 3:
        raise LoginError(Reason.MALFORMED, f"PLAIN: expected 3 parts of a token, got {len(parts)}")
    authorized, user, password = parts
    if not user or not password:
        which = "password" if user else "username"
        raise LoginError(Reason.CREDENTIALS, f"PLAIN: no {which}", f"Authentication failed: {which} not specified")
    if authorized not in ("", user):
        told = "Authentication failed: Client requested an authorization id that is different from username"
        raise LoginError(Reason.CREDENTIALS, f"user {user!r:.100} wants to be another", told)
    return user, password
