"""Functions that a user brings: named in a setting as `module:function`, and found at the start.

Called beside the loop, on a thread, for they may ask a directory or a database:

| setting, mechanism | called with | gives |
|---|---|---|
| sasl.server.callback.handler.class, PLAIN | username, password | True lets the user in |
| sasl.server.callback.handler.class, OAUTHBEARER | the token | name, or (name, end in ms); None refuses |
| sasl.login.callback.handler.class, OAUTHBEARER | nothing | a token for the broker to log in with |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kbroker.config.given import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def load(key: str, text: str) -> Callable[..., Any]:
    """The function of a setting. Raises: ConfigError."""
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # its module may do anything when it is imported
        raise ConfigError([f"{key}={text}: {type(error).__name__}: {error}; allowed: module:function"]) from None
    if not callable(found):
        raise ConfigError([f"{key}={text}: {name} is no function; allowed: module:function"])
    return found  # type: ignore[no-any-return]
