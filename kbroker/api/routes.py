"""What is served: one `Route` per API, from the modules that handle them.

`core.py` looks requests up here, and `handshake.py` advertises what it finds here: a version that is not in this
table is neither served nor promised. Each API module ends with its own `ROUTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kbroker.api.permitted import permitted
from kbroker.config.limits import ELEMENTS_AT_ONCE
from protocol.message import LAST_VERSION, Message

if TYPE_CHECKING:
    from kbroker.api.call import Result
    from kbroker.broker.permission import Operation
    from protocol.errors import ErrorCode

MODULES = (
    "configs",
    "control",
    "features",
    "fetch",
    "groups",
    "handshake",
    "logdirs",
    "metadata",
    "offsets",
    "produce",
    "producer_ids",
    "producers",
    "reassignments",
    "security",
    "topics",
    "transactions",
)


class Route:
    """How one API is served.

    first, last: versions served. handle: request and call to result. refuse: request, code, text and version to the
    response that tells every part of the request the same error. needs: operations on the cluster, one of which has to
    be allowed. flat: the response's class, where `handle` and `refuse` take and give tuples instead of messages
    (`protocol/flat.py`). read: (frame, version, start) to what `handle` takes; write: an answer and a version to
    buffers and regions; read_slices, write_slices: the same with breaks, and how many elements may be read.
    flexible_from: first version with tagged fields in headers and bodies. elements: how many a large request may have
    in its arrays: more where `handle` does them in slices, and where only brokers ask.
    """

    __slots__ = (
        "api",
        "elements",
        "first",
        "flat",
        "flexible_from",
        "handle",
        "last",
        "read",
        "read_slices",
        "refuse",
        "request",
        "write",
        "write_slices",
    )

    def __init__(
        self,
        api: int,
        request: type[Message],
        first: int,
        last: int,
        handle: Callable[[Any, Any], Result],
        refuse: Callable[[Any, ErrorCode, str, int], Result],
        needs: tuple[Operation, ...] = (),
        *,
        flat: type[Message] | None = None,
        elements: int = ELEMENTS_AT_ONCE,
    ) -> None:
        self.api = api
        self.elements = elements
        self.request = request
        self.first = first
        self.last = last
        self.handle = permitted(handle, needs, refuse) if needs else handle
        self.refuse = refuse
        self.flat = flat
        self.read: Callable[[memoryview, int, int], Any] = request.decode
        self.read_slices: Callable[..., Any] = request.decode_slices
        self.write: Callable[[Any, int], list[Any]] = Message.encode_parts
        self.write_slices: Callable[[Any, int], Any] = Message.encode_slices
        if flat is not None:
            self.read, self.read_slices = request.read_flat, request.read_flat_slices
            self.write, self.write_slices = flat.write_flat, flat.write_flat_slices
        tagged_from, tagged_to = request.flexible
        self.flexible_from = tagged_from if tagged_from <= tagged_to else LAST_VERSION + 1

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        return self.request.__name__.removesuffix("Request")


def _collect() -> dict[int, Route]:
    modules = [import_module(f"kbroker.api.{name}") for name in MODULES]
    return {route.api: route for module in modules for route in module.ROUTES}


ROUTES: dict[int, Route] = {}
"""By API key; filled by `load`, once, when a broker is put together."""


def load() -> None:
    """Import every handler and fill the table."""
    if not ROUTES:
        ROUTES.update(_collect())
