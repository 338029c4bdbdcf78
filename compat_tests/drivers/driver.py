"""How a driver of a Python client talks to the tests: one JSON object a line in, one a line out.

A driver is a small program around one client, written with that client's own calls and nothing else, run in an
environment where only that client is installed. What it can be asked is listed in `compat_tests/clients.py`. Texts of
keys and values travel as Latin-1, so that any byte may occur in them. Imported by the drivers of Python clients; they
import nothing of kbroker.

In:  {"operation": "bounds", "arguments": {"topic": "t", "partition": 0}}
Out: {"value": [0, 10]}  or  {"error": "UnknownTopic", "code": 3, "text": "..."}; code is Kafka's error code, or null.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from typing import Any


class CodeError(Exception):
    """An error code that the client handed over as a value."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or f"error code {code}")
        self.code = code


def security() -> dict[str, Any]:
    """What the client is to be told of security, in its own words."""
    return dict(json.loads(os.environ.get("CLIENT_SETTINGS", "{}")))


def check(code: int, text: str | None = None) -> None:
    """Raise CodeError unless `code` says that all is well."""
    if code:
        raise CodeError(code, text or "")


def data(text: str | None) -> bytes | None:
    """The bytes of a key or value of a request."""
    return None if text is None else text.encode("latin-1")


def text(data: bytes | None) -> str | None:
    """The text of a key or value for an answer."""
    return None if data is None else bytes(data).decode("latin-1")


def serve(operations: Any) -> None:
    """Answer requests by the methods of `operations` until the input ends."""
    asyncio.run(_serve(operations))


async def _serve(operations: Any) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints belongs to the errors
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer = await _answer(operations, json.loads(line))
        out.write(json.dumps(answer) + "\n")
        out.flush()
    os._exit(0)  # without the farewells of a client whose broker may be gone


async def _answer(operations: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        value = getattr(operations, request["operation"])(**request["arguments"])
        return {"value": await value if inspect.isawaitable(value) else value}
    except Exception as error:
        return {"error": type(error).__name__, "code": _code_of(error), "text": f"{error}"[:2000]}


def _code_of(error: object) -> int | None:
    for name in ("code", "errno"):
        code = getattr(error, name, None)
        code = code() if callable(code) else code
        if isinstance(code, int):
            return code
    causes = getattr(error, "args", None)  # some clients wrap their error in another
    return _code_of(causes[0]) if isinstance(causes, tuple) and causes else None
