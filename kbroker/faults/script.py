"""The language of faults: which requests, and what becomes of them.

    faults.on("Produce", topic="orders").fail("NOT_LEADER_OR_FOLLOWER").times(2)
    faults.on("Fetch").delay(seconds=1)
    faults.on("Heartbeat", group="billing").disconnect(after=True).nth(3)
    faults.act_like("2.8")

A fault does what it says until it is used up (`times`, `nth`) or taken away (`clear`). Of several that match the first
is obeyed. `after=True`: the request takes effect, and the fault meets its answer. What can never happen, or is written
wrongly, is a UsageError of one line. `core.py` obeys; nothing here knows a connection.

Added from a test's thread and counted on a broker's: every change is one step for the interpreter, there is no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from kbroker.api.routes import ROUTES, SERVED
from kbroker.faults.contents import filters_of
from kbroker.faults.history import History
from kbroker.faults.releases import RELEASES
from kbroker.usage import UsageError, unknown
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.api.routes import Route, Served
    from kbroker.faults.history import Seen

CORRUPTIBLE = "Fetch"
MET_AS_A_WHOLE = ("ShareFetch", "ShareAcknowledge")


class Asked:
    """A request as faults see it. partitions: those that it names, or that its fetch session does."""

    __slots__ = ("api", "client_id", "groups", "partitions", "transactional_ids", "version")

    def __init__(
        self,
        api: str,
        version: int,
        client_id: str,
        partitions: set[tuple[str, int]],
        groups: set[str],
        transactional_ids: set[str],
    ) -> None:
        self.api = api
        self.version = version
        self.client_id = client_id
        self.partitions = partitions
        self.groups = groups
        self.transactional_ids = transactional_ids


class Fault:
    """One fault: what it is on, and what it does. hits: how many requests it has met."""

    def __init__(
        self,
        api: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        client_id: str | None = None,
        version: int | None = None,
    ) -> None:
        """Raises: UsageError for what can never match."""
        self._route = route_of(api)
        self.api = self._route.name
        self.topic = topic
        self.partition = partition
        self.group = group
        self.transactional_id = transactional_id
        self.client_id = client_id
        self.version = version
        self.action = ""  # "fail", "delay", ...; empty: it does nothing yet
        self.after = False
        self.error = ErrorCode.NONE
        self.ms = 0
        self.size = 0
        self.hits = 0
        self.is_released = False
        self.on_release: list[Callable[[], None]] = []  # added by each broker that holds requests for it
        self._skips: list[None] = []
        self._left: list[None] | None = None  # None: without end
        self._check()

    def _check(self) -> None:
        route, filters = self._route, filters_of(self._route.request)
        if self.partition is not None and self.topic is None:
            raise UsageError(
                f'a partition is of a topic: write on("{self.api}", topic="...", partition={self.partition})'
            )
        for name, value, has in (
            ("topic", self.topic, filters.topics),
            ("group", self.group, filters.groups),
            ("transactional_id", self.transactional_id, filters.transactions),
        ):
            if value is not None and not has:
                raise UsageError(f'{self.api} names no {name}, so this can never match: write on("{self.api}") alone')
        if self.topic is not None and self.api in MET_AS_A_WHOLE:
            raise UsageError(
                f"{self.api} is met as a whole, for what is locked and what a session knows would differ from what "
                f'the member is told: write on("{self.api}", group="...")'
            )
        if self.version is not None and not route.first <= self.version <= route.last:
            raise UsageError(
                f"{self.api} is served in versions {route.first}-{route.last}, "
                f"so version {self.version} can never match: choose one of them"
            )

    # -- what it does

    def fail(self, error: str | ErrorCode, *, after: bool = False) -> Self:
        """Answer with this error, for the whole request or for the partitions that it is on.

        after: the request has taken effect, and is answered as if it had not.
        """
        self.error = error_of(error)
        return self._do("fail", after=after)

    def delay(self, seconds: float = 0, *, ms: int = 0, after: bool = False) -> Self:
        """Let it wait before it is looked at, or (after) before its answer leaves; all behind it waits, too."""
        self.ms = round(seconds * 1000) + ms
        if self.ms <= 0:
            raise UsageError("a delay takes time: write delay(seconds=0.5) or delay(ms=500)")
        return self._do("delay", after=after)

    def drop(self, *, after: bool = False) -> Self:
        """Never answer it, nor what follows on its connection."""
        return self._do("drop", after=after)

    def hold(self, *, after: bool = False) -> Self:
        """Keep it until `release`."""
        return self._do("hold", after=after)

    def release(self) -> None:
        """Let go what `hold` has kept; the fault is over."""
        if self.action != "hold":
            raise UsageError(f"{self!r} holds nothing: write .hold() before .release()")
        self._left = []
        self.is_released = True
        for close_files in self.on_release:
            close_files()

    def disconnect(self, *, after: bool = False) -> Self:
        """Hang up instead of answering."""
        return self._do("disconnect", after=after)

    def throttle(self, seconds: float = 0, *, ms: int = 0) -> Self:
        """Answer that the client was throttled for so long."""
        self.ms = round(seconds * 1000) + ms
        return self._do("throttle", after=True)

    def in_pieces(self, size: int = 1, *, gap_ms: int = 1) -> Self:
        """Send the answer in pieces of so many bytes, so far apart in time."""
        if size < 1:
            raise UsageError("a piece has at least one byte: write in_pieces(size=1)")
        self.size, self.ms = size, gap_ms
        return self._do("in_pieces", after=True)

    def corrupt(self) -> Self:
        """Turn one bit of the records in the answer; an answer without records does not count."""
        if self.api != CORRUPTIBLE:
            raise UsageError(f'answers to {self.api} have no records to corrupt: write on("Fetch")')
        return self._do("corrupt", after=True)

    def _do(self, action: str, *, after: bool) -> Self:
        if self.action:
            raise UsageError(f"{self!r} does something already: write another on(...) for {action}")
        self.action, self.after = action, after
        return self

    # -- how often

    def times(self, count: int) -> Self:
        """Only for the first so many requests that match."""
        if count < 1:
            raise UsageError(f"times({count}) would never match: write times(1) or more")
        self._left = [None] * count
        return self

    def once(self) -> Self:
        """times(1)."""
        return self.times(1)

    def nth(self, number: int) -> Self:
        """Only for the request of this number, counted from 1, among those that match."""
        if number < 1:
            raise UsageError(f"nth({number}) would never match: requests are counted from 1")
        self._skips = [None] * (number - 1)
        return self.times(1)

    @property
    def is_over(self) -> bool:
        """Whether it is used up, or was released."""
        return self._left == []

    # -- obeyed by the core

    def concerns(self, topic: str, partition: int) -> bool:
        """Whether it is on this partition. partition: -1 where a request names topics alone."""
        return self.topic in (None, topic) and (partition == -1 or self.partition in (None, partition))

    def matches(self, asked: Asked) -> bool:
        """Whether it is on such a request, however often it has been met."""
        return (
            bool(self.action)
            and asked.api == self.api
            and self.version in (None, asked.version)
            and self.client_id in (None, asked.client_id)
            and (self.group is None or self.group in asked.groups)
            and (self.transactional_id is None or self.transactional_id in asked.transactional_ids)
            and (self.topic is None or any(self.concerns(*each) for each in asked.partitions))
        )

    def count(self) -> bool:
        """Count a request that matches; whether it is met."""
        if self._skips:
            self._skips.pop()
            return False
        if self._left is not None:
            try:
                self._left.pop()
            except IndexError:
                return False
        self.hits += 1
        return True

    def give_back(self) -> None:
        """It found nothing to do in the request after all."""
        self.hits -= 1
        if self._left is not None:
            self._left.append(None)

    def __repr__(self) -> str:
        about = [
            f"{name}={value!r}"
            for name, value in (
                ("topic", self.topic),
                ("partition", self.partition),
                ("group", self.group),
                ("transactional_id", self.transactional_id),
                ("client_id", self.client_id),
                ("version", self.version),
            )
            if value is not None
        ]
        return f"on({', '.join([repr(self.api), *about])}).{self.does}"

    @property
    def does(self) -> str:
        """Its action, as it was written."""
        inside = []
        if self.action == "fail":
            inside.append(self.error.name)
        if self.action == "in_pieces":
            inside.append(f"size={self.size}")
        elif self.ms:
            inside.append(f"ms={self.ms}")
        if self.after and self.action in ("fail", "delay", "drop", "hold", "disconnect"):
            inside.append("after=True")
        return f"{self.action}({', '.join(inside)})" if self.action else "... does nothing yet"


class Faults:
    """The faults of a broker, and the history of what was asked of it."""

    def __init__(self) -> None:
        self.history = History()
        self._faults: tuple[Fault, ...] = ()
        self._release = ""

    def __repr__(self) -> str:
        lines = [f"{each!r} met {each.hits}" for each in self._faults]
        if self._release:
            lines.insert(0, f"acts like Kafka {self._release}")
        return "\n".join(lines) or "no faults"

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    @property
    def is_armed(self) -> bool:
        """Whether there is a fault, used up or not, or a release to act like."""
        return bool(self._faults or self._release)

    def on(
        self,
        api: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        client_id: str | None = None,
        version: int | None = None,
    ) -> Fault:
        """A new fault, on requests of this API that have all of these; say next what it does.

        partition: also of requests that name several; those are answered as usual for the others.
        """
        fault = Fault(
            api,
            topic=topic,
            partition=partition,
            group=group,
            transactional_id=transactional_id,
            client_id=client_id,
            version=version,
        )
        self.add(fault)
        return fault

    def add(self, fault: Fault) -> None:
        """One that was made elsewhere; several brokers may share it."""
        self._faults = (*self._faults, fault)

    def share(self, other: Faults) -> None:
        """All of another's, which count for both together."""
        self._faults = (*self._faults, *other._faults)
        self._release = other._release or self._release

    def act_like(self, release: str) -> None:
        """Serve no versions that this release of Kafka did not: "0.10", "1.0", "2.8"."""
        if release not in RELEASES:
            raise UsageError(f"there are no tables of Kafka {release}: choose {', '.join(RELEASES)}")
        for api, last in RELEASES[release].items():
            served = next((each for each in SERVED.values() if each.name == api), None)
            if api in ("Produce", "Fetch") and served is not None and served.first > last:
                others = ", ".join(each for each in RELEASES if RELEASES[each][api] >= served.first)
                raise UsageError(
                    f"{api} is served from version {served.first}, Kafka {release} ends at {last}: try {others}"
                )
        self._release = release

    def clear(self) -> None:
        """Take all faults away, and let go of what they hold."""
        faults, self._faults, self._release = self._faults, (), ""
        for fault in faults:
            if fault.action == "hold":
                fault.release()

    def find(self, asked: Asked) -> Fault | None:
        """The first fault on this request that is not used up; it is counted."""
        for fault in self._faults:
            if fault.matches(asked) and fault.count():
                return fault
        return None

    @property
    def has_features(self) -> bool:
        """Whether a broker like this one tells of features: no older release had any."""
        return not self._release

    def last_version(self, api: Served) -> int:
        """The last version of an API that is served; -1: none."""
        return min(api.last, RELEASES[self._release].get(api.name, -1)) if self._release else api.last

    def requests(self, api: str | None = None, *, topic: str | None = None, group: str | None = None) -> list[Seen]:
        """What was asked, in order: of this API, and about this topic or group."""
        name = route_of(api).name if api is not None else None
        return [
            each
            for each in self.history
            if name in (None, each.api)
            and (topic is None or topic in each.topics)
            and (group is None or group in each.groups)
        ]


def route_of(api: str) -> Route:
    """The API of this name, whatever its case. Raises: UsageError."""
    found = {served.name.casefold(): key for key, served in SERVED.items()}.get(api.casefold())
    if found is None:
        raise unknown("API", api, (served.name for served in SERVED.values()))
    return ROUTES[found]


def error_of(error: str | ErrorCode) -> ErrorCode:
    """An error by its name. Raises: UsageError."""
    if isinstance(error, ErrorCode):
        return error
    found = ErrorCode.__members__.get(error.upper())
    if found is None:
        raise unknown("error", error, ErrorCode.__members__)
    return found
