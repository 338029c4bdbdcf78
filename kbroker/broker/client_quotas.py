"""Client quotas: how much each client may do, what it has used, and how long a client over its quota has to wait.

Made by `broker.py`. `set_entity` is told what the metadata store says of users, clients and addresses; handlers and the
core ask (`core.py`, "within quotas"). It knows no connection and no answer: who has to wait is muted by the core.

| manager | quota | what counts |
|---|---|---|
| `produce` | `producer_byte_rate` | bytes of Produce requests |
| `fetch` | `consumer_byte_rate` | bytes of answers to consumers' fetches |
| `request` | `request_percentage` | time on the broker's thread: 100 is all of it |
| `controller_mutation` | `controller_mutation_rate` | partitions made or deleted |
| `connections` | `connection_creation_rate` | connections from an address |

Which quota counts for a user with a client id (Kafka's order): of that user with that client id, of that user with any
client id, of that user; of all users with that client id, of all users with any, of all users; of that client id, of
any. Clients under one quota share it if it is a user's; each client id has its own if it names client ids.

A kind of quota that is set for none of them costs nothing and counts nothing: `is_on` is False.

Source: ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager and ConnectionQuotas of Apache
Kafka 3.9, by behaviour. Unlike Kafka: what a client used before it had a quota is not known.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Generic, TypeVar

from kbroker.broker.rates import MOST_BYTES, Rate, TokenBucket, Windows
from kbroker.config.settings import INT_MAX
from kbroker.metadata.entities import DEFAULT_ENTITY, desanitized, sanitized
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kbroker.config import BrokerConfig
    from kbroker.ports import Clock

PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)

QUOTAS = (*OF_CLIENTS, CONNECTION_CREATION_RATE)

NANOSECONDS_TO_PERCENT = 100 / 1e9
EXCEEDED = "The throttling quota has been exceeded."
MOST_METERS = 10_000  # of one kind; then those of clients that were quiet are forgotten

Meter = TypeVar("Meter", Rate, TokenBucket)
Entity = tuple[str | None, str | None]
"""A user and a client id, sanitized; None: whatever it is, `<default>`: each that has no quota of its own."""


class Metered(Generic[Meter]):
    """What one client has used of a quota. tags: the user and the client id that share it, "" for all.

    throttles: how many requests were throttled by it; throttled_ms: for how long together.
    """

    __slots__ = ("meter", "tags", "throttled_ms", "throttles")
    meter: Meter

    def __init__(self, tags: tuple[str, str], meter: Meter) -> None:
        self.tags, self.meter = tags, meter
        self.throttles = self.throttled_ms = 0

    def noted(self, throttle_ms: int) -> int:
        """A request is throttled by this quota for so long, which is returned."""
        self.throttles += 1
        self.throttled_ms += throttle_ms
        return throttle_ms


class ByClient(dict[tuple[str, str | None], "Metered[Meter] | None"], Generic[Meter]):
    """By user and client id what they have used, None where there is no quota for them."""

    __slots__ = ("_manager",)
    _manager: ClientQuotaManager[Meter]

    def __init__(self, manager: ClientQuotaManager[Meter]) -> None:
        super().__init__()
        self._manager = manager

    def __missing__(self, client: tuple[str, str | None]) -> Metered[Meter] | None:
        user, client_id = client
        found = self._manager.find(user, client_id or "")
        self[client] = found
        return found


class ClientQuotaManager(Generic[Meter]):
    """One kind of quota. limits: by entity. of: what a client has used.

    unlimited: what those have used together who have no quota. It and the other meters may be kept, and used as long as
    they are quick (`rates.py`): that ends when any quota of the kind changes.
    """

    _make: Callable[[Windows, float], Meter]
    of: ByClient[Meter]
    unlimited: Meter

    def __init__(self, make: Callable[[Windows, float], Meter], windows: Windows) -> None:
        self._make = make
        self.windows = windows
        self.limits: dict[Entity, float] = {}
        self.is_on = False
        self.meters: dict[tuple[str, str], Metered[Meter]] = {}
        self.of = ByClient(self)
        self.unlimited = make(windows, MOST_BYTES)

    def set_limit(self, entity: Entity, limit: float | None) -> None:
        """The quota of an entity is this now; None: it has none."""
        if limit is None:
            self.limits.pop(entity, None)
        else:
            self.limits[entity] = limit
        self.is_on = bool(self.limits)
        self.of = ByClient(self)
        self.unlimited = self.unlimited.renewed(MOST_BYTES)
        for tags, metered in list(self.meters.items()):
            bound = self._limit_of(*tags)
            if bound is None:
                del self.meters[tags]
            metered.meter = metered.meter.renewed(bound or 0.0)

    def find(self, user: str, client_id: str) -> Metered[Meter] | None:
        """As `of`, of one that is not in it yet. user: not sanitized."""
        tags = self._tags(sanitized(user), client_id)
        limit = self._limit_of(*tags)
        if len(self.of) >= MOST_METERS or len(self.meters) >= MOST_METERS:
            self._forget_quiet()
        if limit is None:
            return None
        metered = self.meters.get(tags)
        if metered is None:
            metered = self.meters[tags] = Metered(tags, self._make(self.windows, limit))
        return metered

    def _forget_quiet(self) -> None:
        """Forget those that have been quiet for longest, but for half of what there may be."""
        self.of = ByClient(self)
        for each in sorted(self.meters.values(), key=lambda each: each.meter.last_ms)[: -MOST_METERS // 2]:
            each.meter.renewed(0.0)
            del self.meters[each.tags]

    def _tags(self, user: str, client_id: str) -> tuple[str, str]:
        """Who shares the quota that counts for a user with a client id."""
        limits, client = self.limits, sanitized(client_id)
        for entity, tags in (
            ((user, client), (user, client_id)),
            ((user, DEFAULT_ENTITY), (user, client_id)),
            ((user, None), (user, "")),
            ((DEFAULT_ENTITY, client), (user, client_id)),
            ((DEFAULT_ENTITY, DEFAULT_ENTITY), (user, client_id)),
            ((DEFAULT_ENTITY, None), (user, "")),
        ):
            if entity in limits:
                return tags
        return "", client_id

    def _limit_of(self, user: str, client_id: str) -> float | None:
        """The quota that those with these tags share."""
        client = sanitized(client_id)
        entities: Iterable[Entity]
        if user and client_id:
            entities = ((u, c) for u in (user, DEFAULT_ENTITY) for c in (client, DEFAULT_ENTITY))
        elif user:
            entities = ((user, None), (DEFAULT_ENTITY, None))
        else:
            entities = ((None, client), (None, DEFAULT_ENTITY)) if client_id else ()
        return next((self.limits[each] for each in entities if each in self.limits), None)


class ControllerMutationQuota:
    """What one request may make and delete. is_strict: it is refused where there is nothing left, else only counted."""

    __slots__ = ("_clock", "_is_strict", "_metered", "_until_ms")

    def __init__(self, metered: Metered[TokenBucket], clock: Clock, *, is_strict: bool) -> None:
        self._metered, self._clock, self._is_strict = metered, clock, is_strict
        self._until_ms = 0

    def record(self, partitions: int) -> None:
        """So many are about to be made or deleted. Raises: KafkaError THROTTLING_QUOTA_EXCEEDED."""
        bucket, now_ms = self._metered.meter, self._clock.now_ms()
        if self._is_strict:
            self._wait(bucket, now_ms)
            if self._until_ms > now_ms:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        bucket.add(partitions, now_ms)
        if not self._is_strict:
            self._wait(bucket, now_ms)

    def _wait(self, bucket: TokenBucket, now_ms: int) -> None:
        wait_ms = bucket.wait_ms(now_ms)
        if wait_ms:
            self._until_ms = now_ms + wait_ms

    def noted(self, now_ms: int) -> int:
        """How long its client has to wait from now on, if at all; it is told so."""
        left_ms = self._until_ms - now_ms
        return self._metered.noted(left_ms) if left_ms > 0 else 0


class ConnectionQuotas:
    """How fast addresses may connect (KIP-612). Those of an address without a quota do not count."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._limits: dict[str, float] = {}
        self._rates: dict[str, Rate] = {}

    def set_limit(self, address: str, limit: float | None) -> None:
        """The quota of an address, or of `<default>`, is this now; None: it has none."""
        if limit is None:
            self._limits.pop(address, None)
        else:
            self._limits[address] = limit
        for each, rate in list(self._rates.items()):
            bound = self._limit_of(each)
            if bound is None:
                del self._rates[each]
            else:
                rate.set_bound(bound)

    def throttle_ms(self, address: str, now_ms: int) -> int:
        """How long a connection of an address has to wait until it is refused; 0: it is taken, and counted."""
        if not self._limits:
            return 0
        limit = self._limit_of(address)
        if limit is None:
            return 0
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= MOST_METERS:
                for each in [each for each, rate in self._rates.items() if rate.measure(now_ms) == 0]:
                    del self._rates[each]
            rate = self._rates[address] = Rate(self._windows, limit)
        throttle_ms = min(rate.record(1, now_ms), self._windows.size_ms)
        if throttle_ms:
            rate.add(-1, now_ms)
        return throttle_ms

    def _limit_of(self, address: str) -> float | None:
        limit = self._limits.get(address, self._limits.get(DEFAULT_ENTITY))
        return None if limit is None or limit >= INT_MAX else limit


class ClientQuotas:
    """All quotas of a broker."""

    def __init__(self, config: BrokerConfig) -> None:
        windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
        self.produce: ClientQuotaManager[Rate] = ClientQuotaManager(Rate, windows)
        self.fetch: ClientQuotaManager[Rate] = ClientQuotaManager(Rate, windows)
        self.request: ClientQuotaManager[Rate] = ClientQuotaManager(Rate, windows)
        self.controller_mutation: ClientQuotaManager[TokenBucket] = ClientQuotaManager(
            TokenBucket, Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds)
        )
        self.connections = ConnectionQuotas(windows)
        self._by_key: dict[str, ClientQuotaManager[Rate] | ClientQuotaManager[TokenBucket]] = {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.controller_mutation,
        }

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Of which kinds any client has a quota."""
        return tuple(each.is_on for each in self._by_key.values())

    @property
    def is_on(self) -> bool:
        """Whether any client has a quota."""
        return any(self.kinds)

    def managers(self) -> Iterator[tuple[str, ClientQuotaManager[Rate] | ClientQuotaManager[TokenBucket]]]:
        """Of each kind, with Kafka's name of it."""
        yield "Produce", self.produce
        yield "Fetch", self.fetch
        yield "Request", self.request
        yield "ControllerMutation", self.controller_mutation

    def set_entity(self, path: str, settings: Mapping[str, str]) -> None:
        """What is set for an entity (`metadata/entities.py`) is this now. What is no number counts as not set."""
        kind, *names = path.split("/")
        if kind == "ips":
            self.connections.set_limit(address_of(names[0]), number(settings.get(CONNECTION_CREATION_RATE)))
            return
        entity: Entity = (names[0], names[2] if len(names) > 1 else None) if kind == "users" else (None, names[0])
        for key, manager in self._by_key.items():
            limit = number(settings.get(key))
            if manager.limits.get(entity) != limit:
                manager.set_limit(entity, limit)


def address_of(node: str) -> str:
    """The address that a node stands for."""
    return node if node == DEFAULT_ENTITY else desanitized(node)


def number(text: str | None) -> float | None:
    """A quota as it is stored; None for what makes no sense, and for what is no limit."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if isfinite(found) else None
