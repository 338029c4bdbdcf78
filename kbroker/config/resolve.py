"""From what was written in many places to one value a key, and back: which value counts, and why.

`BrokerLayers` holds the raw values by source. The composition root makes one with the static values, metadata puts the
dynamic ones in as they change, and all other parts get the resolved BrokerConfig and TopicConfig. DescribeConfigs asks
here for entries, AlterConfigs and CreateTopics ask here whether a change is legal. Values only; nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from kbroker.config import broker, topic
from kbroker.config.broker import BrokerConfig
from kbroker.config.given import ConfigError, Given
from kbroker.config.listeners import listeners_after, resolve_listeners
from kbroker.config.settings import ConfigType, Dynamic, Setting, Value
from kbroker.config.topic import TopicConfig
from protocol.namedtuple import NamedTuple


class Source(Enum):
    """Where a value comes from, strongest first. Source: KIP-226."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    ONE_BROKER_CONFIG = -4  # ours: what a broker without a cluster assumes; weaker than anything set by a user
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8  # as strong as a topic's own

    @property
    def wire(self) -> int:
        """Its number in DescribeConfigs; a one-broker value shows as static, clients know no better word."""
        return abs(self.value)


# What Kafka's defaults get wrong for a broker that is alone; set by the composition root, only then.
ONE_BROKER: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",  # no other member is starting up; 3 s in every test is 3 s too many
    "offsets.topic.replication.factor": "1",  # as many as there are brokers
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class Synonym(NamedTuple):
    """One value that was set, or is the default, for an entry: under which key, and where."""

    name: str
    value: str | None
    source: Source


class Entry(NamedTuple):
    """One line of DescribeConfigs.

    value: None if there is none, or it is sensitive. synonyms: the one that counts comes first.
    """

    name: str
    value: str | None
    source: Source
    type: ConfigType
    sensitive: bool
    read_only: bool
    synonyms: tuple[Synonym, ...]
    documentation: str


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class BrokerLayers(NamedTuple):
    """The raw values of a broker by key, a mapping for each source; defaults are not among them.

    dynamic_broker: set for this broker. dynamic_default: set for all brokers. alone: see ONE_BROKER, {} in a cluster.
    """

    static: Mapping[str, Given] = _NOTHING
    alone: Mapping[str, str] = _NOTHING
    dynamic_broker: Mapping[str, str] = _NOTHING
    dynamic_default: Mapping[str, str] = _NOTHING

    def with_dynamic(self, *, broker: Mapping[str, str], default: Mapping[str, str]) -> BrokerLayers:
        """The same static values under other dynamic ones."""
        return self._replace(dynamic_broker=broker, dynamic_default=default)

    def by_strength(self) -> Iterator[tuple[Source, Mapping[str, str]]]:
        """Sources from the strongest down to the last above the defaults."""
        yield Source.DYNAMIC_BROKER_CONFIG, self.dynamic_broker
        yield Source.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default
        yield Source.STATIC_BROKER_CONFIG, {key: given.text for key, given in self.static.items()}
        # both are static on the wire, where a source has one value for a key
        yield Source.ONE_BROKER_CONFIG, {key: text for key, text in self.alone.items() if key not in self.static}


def resolve_broker(layers: BrokerLayers) -> BrokerConfig:
    """The broker's settings. Raises: ConfigError with a line for every bad value, then for every contradiction."""
    texts: dict[str, str] = {}
    for source, values in reversed(list(layers.by_strength())):
        texts |= {key: text for key, text in values.items() if key in BrokerConfig.KEYS and counts(key, source)}
    explicit = _parse(BrokerConfig.KEYS, texts, {key: given.where for key, given in layers.static.items()})
    fallen_back = [each.name for each in _WITH_FALLBACKS if any(key in explicit for key, _ in each.fallbacks)]
    changed = {key: _broker_value(BrokerConfig.KEYS[key], explicit) for key in (*explicit, *fallen_back)}
    config = BrokerConfig(_DEFAULTS | changed)
    faults = broker.contradictions(config) + _quorums(config)
    if faults:
        raise ConfigError(faults)
    return config


PER_LISTENER = ("ssl.", "sasl.")
"""What a listener may have of its own begins so, behind `listener.name.NAME.`,"""
LIMITS_PER_LISTENER = ("max.connections", "max.connection.creation.rate")
"""or is one of these (KIP-402, KIP-612): beside the broker's."""
MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
PER_MECHANISM = (
    "sasl.jaas.config", "sasl.server.callback.handler.class", "sasl.login.callback.handler.class",
    "connections.max.reauth.ms",
)  # fmt: skip
"""What a mechanism of a listener may have of its own, behind `listener.name.NAME.MECHANISM.`."""


def counts(key: str, source: Source) -> bool:
    """Whether a value counts that was set there: what is read only, and how a listener's clients log in, is the file's.

    A client that may alter settings would else let in whom it wants, or have any function of Python called.
    """
    if source not in (Source.DYNAMIC_BROKER_CONFIG, Source.DYNAMIC_DEFAULT_BROKER_CONFIG):
        return True
    base = key
    if key.startswith("listener.name."):
        base = key.split(".", 3)[-1]
        mechanism, _, of_mechanism = base.partition(".")
        base = of_mechanism if mechanism in MECHANISMS else base
        if base.startswith("sasl."):
            return False
    known = BrokerConfig.KEYS.get(base)
    return known is None or known.dynamic is not Dynamic.READ_ONLY


def may_be_a_listeners(key: str) -> bool:
    """Whether a listener may have a key of the broker's for itself."""
    return key in BrokerConfig.KEYS and (key.startswith(PER_LISTENER) or key in LIMITS_PER_LISTENER)


class ListenerConfig(NamedTuple):
    """A broker's settings as they are for one listener. own: the keys that it has for itself."""

    listener: str
    config: BrokerConfig
    own: frozenset[str]

    def named(self, key: str) -> str:
        """A key as the user has written it."""
        return f"{listener_prefix(self.listener)}{key}" if key in self.own else key


def listener_prefix(listener: str) -> str:
    """What stands before a key that is for this listener alone. Source: ListenerName.configPrefix of Apache Kafka."""
    return f"listener.name.{listener.lower()}."


def resolve_listener(layers: BrokerLayers, listener: str) -> ListenerConfig:
    """The settings of one listener: its own beat the broker's, wherever those are set. Raises: ConfigError."""
    prefix = listener_prefix(listener)
    own: dict[str, Given] = {}
    for source, values in reversed(list(layers.by_strength())):
        for key, text in values.items():
            base = key.removeprefix(prefix)
            if base != key and may_be_a_listeners(base) and counts(key, source):
                place = layers.static[key].where if source is Source.STATIC_BROKER_CONFIG else "dynamic"
                own[base] = Given(text, place)
    config = resolve_broker(layers)
    explicit = _parse(
        {f"{prefix}{base}": BrokerConfig.KEYS[base] for base in own},
        {f"{prefix}{base}": each.text for base, each in own.items()},
        {f"{prefix}{base}": each.where for base, each in own.items()},
    )
    settled = {each.name: explicit.get(f"{prefix}{each.name}", value) for each, value in config.items()}
    return ListenerConfig(listener, BrokerConfig(settled), frozenset(own))


PASSWORDS = tuple(
    key for key, each in BrokerConfig.KEYS.items() if each.sensitive and each.dynamic is not Dynamic.READ_ONLY
)


def is_password(key: str) -> bool:
    """Whether a key that may be set at run time holds a secret: Kafka's test, by which a listener's own are found."""
    return key.endswith(PASSWORDS)


def listener_limits(layers: BrokerLayers, listener: str) -> dict[str, int]:
    """Limits that a listener has for itself, by the broker's key; {} for most. Raises: ConfigError."""
    keys = {f"{listener_prefix(listener)}{key}": key for key in LIMITS_PER_LISTENER}
    texts: dict[str, str] = {}
    for _, values in reversed(list(layers.by_strength())):
        texts |= {key: values[key] for key in keys if key in values}
    where = {key: layers.static[key].where for key in texts if key in layers.static}
    found = _parse({key: BrokerConfig.KEYS[base] for key, base in keys.items()}, texts, where)
    return {keys[key]: value for key, value in found.items() if isinstance(value, int)}


def _quorums(config: BrokerConfig) -> list[str]:
    """A line for each setting by which a broker would be a controller, or a member that cannot find its quorum."""
    if not (config.process_roles or config.controller_quorum_voters or config.controller_quorum_bootstrap_servers):
        return []
    from kbroker.config.quorum import quorum_settings, refused_roles  # most brokers have none

    try:
        quorum_settings(config)
    except ConfigError as error:
        return error.lines
    return refused_roles(config)


def resolve_topic(overrides: Mapping[str, str], config: BrokerConfig) -> TopicConfig:
    """A topic's settings: its overrides over the broker's defaults.

    overrides: by key, as kept in metadata; keys unknown here (of another version, or of Apache's broker) are passed by.
    Raises: ConfigError.
    """
    explicit = _parse(TopicConfig.KEYS, {key: text for key, text in overrides.items() if key in TopicConfig.KEYS}, {})
    resolved = TopicConfig({key: _topic_value(each, explicit, config) for key, each in TopicConfig.KEYS.items()})
    faults = topic.contradictions(resolved)
    if faults:
        raise ConfigError(faults)
    return resolved


def warnings(static: Mapping[str, Given]) -> list[str]:
    """A line for every key that will not do what its writer hopes: unknown, or of a part that is not there."""
    lines = []
    is_member = "process.roles" in static and static["process.roles"].text.strip() == "broker"
    for key, given in static.items():
        known = BrokerConfig.KEYS.get(key)
        if not is_member and key in broker.OF_A_MEMBER and known is not None and _differs(known, given.text):
            lines.append(f"{key}: has no effect: {broker.NO_KRAFT} ({given.where})")
        elif known is not None:
            if known.unused is not None and _differs(known, given.text):
                lines.append(f"{key}: has no effect: {known.unused} ({given.where})")
        elif _is_for_a_listener(key, static):
            continue
        elif key in broker.FOREIGN_KEYS or key.startswith(broker.FOREIGN_PREFIXES):
            lines.append(
                f"{key}: has no effect: for a part of Apache Kafka that this broker does not have ({given.where})"
            )
        else:
            lines.append(f"{key}: unknown key{_nearest(key, BrokerConfig.KEYS)} ({given.where})")
    return lines


def _is_for_a_listener(key: str, static: Mapping[str, Given]) -> bool:
    """Whether it is acted on: for a listener that there is, and honoured."""
    if not key.startswith("listener.name."):
        return False
    name, _, base = key.removeprefix("listener.name.").partition(".")
    mechanism, _, of_mechanism = base.partition(".")
    if mechanism in MECHANISMS and of_mechanism in PER_MECHANISM:
        base = of_mechanism
    known = BrokerConfig.KEYS.get(base)
    if known is None or known.unused is not None or not (may_be_a_listeners(base) or base in PER_MECHANISM):
        return False
    default = str(BrokerConfig.KEYS["listeners"].default)
    listeners = static["listeners"].text if "listeners" in static else default
    return any(each.strip().lower().startswith(f"{name}://") for each in listeners.split(","))


def check_file(given: Mapping[str, Given], name: str) -> None:
    """Raises: ConfigError for a file without any key of a broker: whatever it is, it is no server.properties.

    A broker that starts on defaults alone is open to every client.
    """
    if any(key in BrokerConfig.KEYS for key in given):
        return
    from kbroker.config import foreign  # nearly every file has a key that is honoured

    if not any(foreign.base_of(key) in foreign.ALL for key in given):
        raise ConfigError(
            [f"{name}: no key of a broker is in it; allowed: lines of key=value, as server.properties has"]
        )


MOST_FAULTS = 20  # told of one change; to find what an unknown key may have meant takes half a millisecond


def check_topic(changes: Mapping[str, str], config: BrokerConfig) -> list[str]:
    """Why a topic's overrides cannot be taken, a line each; empty if they can. The error code is INVALID_CONFIG."""
    keys = TopicConfig.KEYS
    unknown = [key for key in changes if key not in keys]
    faults = [f"Unknown topic config name: {key}{_nearest(key, keys)}" for key in unknown[:MOST_FAULTS]]
    if len(unknown) > MOST_FAULTS:
        faults.append(f"{len(unknown) - MOST_FAULTS} more")
    illegal = _illegal(keys, changes)
    if illegal:
        return faults + illegal
    try:
        resolve_topic(changes, config)
    except ConfigError as error:
        faults += error.lines
    return faults


def check_group(changes: Mapping[str, str], config: BrokerConfig) -> list[str]:
    """Why a group's settings cannot be taken, a line each; empty if they can. The error code is INVALID_CONFIG."""
    from kbroker.config.group import GroupConfig, out_of_bounds  # only a change pays for loading it

    unknown = [key for key in changes if key not in GroupConfig.KEYS]
    faults = [f"Unknown group config name: {key}{_nearest(key, GroupConfig.KEYS)}" for key in unknown[:MOST_FAULTS]]
    if len(unknown) > MOST_FAULTS:
        faults.append(f"{len(unknown) - MOST_FAULTS} more")
    faults += _illegal(GroupConfig.KEYS, changes)
    return faults or list(out_of_bounds(changes, config))


def check_broker(changes: Mapping[str, str], layers: BrokerLayers, *, per_broker: bool) -> list[str]:
    """Why dynamic broker values cannot be taken, a line each; empty if they can. The error code is INVALID_CONFIG.

    changes: all dynamic values of that level as they are to become. per_broker: for this broker, not for all. Keys that
    are unknown are taken, as Apache's broker takes them for plugins; they have no effect.
    """
    from kbroker.config import foreign  # only a change pays for loading it

    faults = [fault for key in changes if (fault := _why_fixed(key, per_broker=per_broker))]
    faults += _fixed_of_listeners(changes, layers)
    bases = {foreign.base_of(key): text for key, text in changes.items()}
    illegal = _illegal(foreign.KNOWN, {**bases, **changes})
    if illegal:
        return faults + illegal
    changed = layers._replace(dynamic_broker=changes) if per_broker else layers._replace(dynamic_default=changes)
    try:
        before, after = resolve_broker(layers), resolve_broker(changed)
        if before.advertised_listeners != after.advertised_listeners:
            listeners_after(before, after)
        return faults + _leaps(_threads(layers, before), _threads(changed, after))
    except ConfigError as error:
        return faults + error.lines


def _fixed_of_listeners(changes: Mapping[str, str], layers: BrokerLayers) -> list[str]:
    """A line for each change of what a listener keeps while the broker runs; in Apache's words."""
    from kbroker.config import foreign

    before = {**layers.dynamic_default, **layers.dynamic_broker}
    new = [key for key, text in changes.items() if key.startswith("listener.name.") and before.get(key) != text]
    if not new:
        return []
    there = {each.name.lower(): each.name for each in resolve_listeners(resolve_broker(layers)).bound}
    lines = []
    for key in new:
        name, base = key.split(".", 3)[2], foreign.base_of(key)
        known = BrokerConfig.KEYS.get(base)
        may_change = base in foreign.FOR_ALL_LISTENERS or (
            known is not None and base.startswith("ssl.") and known.dynamic is not Dynamic.READ_ONLY
        )
        if name in there and not may_change:
            lines.append(
                f"Configs cannot be updated dynamically for existing listener ListenerName({there[name]}), "
                f"restart broker or create a new listener for update: {key}"
            )
    return lines


RESIZED_BY_STEPS = (
    "num.network.threads", "num.io.threads", "num.replica.fetchers", "num.recovery.threads.per.data.dir",
    "background.threads", "log.cleaner.threads",
)  # fmt: skip
"""Numbers of threads, which Kafka lets change to between half and twice the present number."""
PER_LISTENER_TOO = RESIZED_BY_STEPS[0]


def _threads(layers: BrokerLayers, config: BrokerConfig) -> dict[str, int]:
    """How many there are of each kind, by key, and for a listener that has a number of its own.

    config: what the layers resolve to. A listener's number in a file is as the file has it, and may be none.
    """
    numbers = {key: getattr(config, BrokerConfig.KEYS[key].attribute) for key in RESIZED_BY_STEPS}
    keys = {f"listener.name.{each.name.lower()}.{PER_LISTENER_TOO}" for each in resolve_listeners(config).bound}
    for _, values in reversed(list(layers.by_strength())):
        numbers |= {key: int(values[key]) for key in keys & values.keys() if values[key].strip().isdecimal()}
    return numbers


def _leaps(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Changes at run time that are too large, though both values are legal, a line each.

    Source: DynamicThreadPool, DataPlaneAcceptor and LogCleaner of Apache Kafka 3.9, by behaviour.
    """
    lines = []
    for key in {**before, **after}:  # a listener without a number has that of all
        now, then = (numbers.get(key, numbers[PER_LISTENER_TOO]) for numbers in (before, after))
        low, high = max(1, now // 2), 2 * now
        if then != now and not low <= then <= high:
            lines.append(f"{key}={then}: allowed: {low} to {high}, half to twice the present number ({now})")
    return lines


def _why_fixed(key: str, *, per_broker: bool) -> str | None:
    """Why a key may not be set at run time, at this level; in Apache's words."""
    from kbroker.config import foreign

    base = foreign.base_of(key)
    known = foreign.KNOWN.get(key)
    if key in foreign.FIXED or (known is not None and known.dynamic is Dynamic.READ_ONLY):
        return f"Cannot update these configs dynamically: {key}; change the broker's file and start it again"
    if key in foreign.PER_LISTENER:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{key}; set listener.name.NAME.{key}"
        )
    for_one = base not in foreign.FOR_ALL_LISTENERS if base != key else known and known.dynamic is Dynamic.PER_BROKER
    if for_one and not per_broker:
        return f"Cannot update these configs at default cluster level, broker id must be specified: {key}"
    return None


def describe_topic(overrides: Mapping[str, str], layers: BrokerLayers, config: BrokerConfig) -> list[Entry]:
    """Every setting of a topic. Its synonyms: the override, then what the broker's key and its older names say.

    config: what the layers resolve to.
    """
    resolved = resolve_topic(overrides, config)
    sources = list(layers.by_strength())
    entries = []
    for each, value in resolved.items():
        synonyms = []
        if each.name in overrides:
            shown = each.shown(each.parse(overrides[each.name]))
            synonyms.append(Synonym(each.name, shown, Source.DYNAMIC_TOPIC_CONFIG))
        if each.broker is not None:
            synonyms += _counted(BrokerConfig.KEYS[each.broker], sources)
        entries.append(_entry(each, each.shown(value), tuple(synonyms), read_only=False))
    return entries


def describe_group(said: Mapping[str, str], layers: BrokerLayers, config: BrokerConfig) -> list[Entry]:
    """Every setting of a group, whether there is one of this name or not. said: what is set for it, known and legal.

    config: what the layers resolve to.
    """
    from kbroker.config.group import GroupConfig  # only who asks pays for loading it

    sources = list(layers.by_strength())
    entries = []
    for each in GroupConfig.KEYS.values():
        own = each.shown(each.parse(said[each.name])) if each.name in said else None
        synonyms = [] if own is None else [Synonym(each.name, own, Source.DYNAMIC_GROUP_CONFIG)]
        if each.broker is not None:
            known = BrokerConfig.KEYS[each.broker]
            synonyms += _counted(known, sources)
            inherited = known.shown(getattr(config, known.attribute))
        else:
            inherited = each.shown(each.default)
            synonyms.append(Synonym(each.name, inherited, Source.DEFAULT_CONFIG))
        value = inherited if own is None else own
        entries.append(_entry(each, value, tuple(synonyms), read_only=False))
    return entries


def describe_broker(layers: BrokerLayers) -> list[Entry]:
    """Every setting of this broker, as itself: a key without a value shows none even where an older name gives one."""
    sources = list(layers.by_strength())
    entries = []
    for each in BrokerConfig.KEYS.values():
        synonyms = tuple(_counted(each, sources))
        if each.internal and synonyms[0].source is Source.DEFAULT_CONFIG:
            continue
        value = synonyms[0].value if synonyms else None
        entries.append(_entry(each, value, synonyms, read_only=each.dynamic is Dynamic.READ_ONLY))
    others = {key: None for _, values in sources for key in values if key not in BrokerConfig.KEYS}
    return entries + [_foreign_entry(key, sources) for key in others]


def describe_all_brokers(layers: BrokerLayers) -> list[Entry]:
    """What was set dynamically for all brokers: DescribeConfigs of the broker with the empty name."""
    entries = []
    for key, text in layers.dynamic_default.items():
        each = BrokerConfig.KEYS.get(key)
        if each is None:
            shown_for_all = _foreign_entry(key, [(Source.DYNAMIC_DEFAULT_BROKER_CONFIG, layers.dynamic_default)])
            entries.append(shown_for_all._replace(synonyms=shown_for_all.synonyms[:1]))
            continue
        shown = each.shown(each.parse(text))
        synonyms = (Synonym(key, shown, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),)
        entries.append(_entry(each, shown, synonyms, read_only=each.dynamic is Dynamic.READ_ONLY))
    return entries


def _entry(each: Setting, value: str | None, synonyms: tuple[Synonym, ...], *, read_only: bool) -> Entry:
    source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
    doc = each.doc if each.unused is None else f"{each.doc} Has no effect here: {each.unused}."
    return Entry(each.name, value, source, each.type, each.sensitive, read_only, synonyms, doc)


def _foreign_entry(key: str, sources: Sequence[tuple[Source, Mapping[str, str]]]) -> Entry:
    """A key that is set and that is none of the broker's own. One that has no type may be a secret, as in Kafka."""
    from kbroker.config import foreign

    base = foreign.base_of(key)
    known = foreign.KNOWN.get(base)
    hidden = known is None or known.sensitive
    found = [Synonym(key, None if hidden else values[key], source) for source, values in sources if key in values]
    if known is None:
        doc = "Has no effect here: the key is unknown."
        return Entry(key, None, found[0].source, ConfigType.UNKNOWN, True, True, tuple(found), doc)
    if base == key and known.shown(known.default) is not None:
        found.append(Synonym(key, known.shown(known.default), Source.DEFAULT_CONFIG))
    if base == key or not may_be_a_listeners(base):
        known = known._replace(unused=known.unused or "no listener has this for itself")
    is_fixed = base != key and (base not in foreign.PER_LISTENER or known.dynamic is Dynamic.READ_ONLY)
    return _entry(known._replace(name=key), found[0].value, tuple(found), read_only=is_fixed)


def _counted(each: Setting, sources: Sequence[tuple[Source, Mapping[str, str]]]) -> list[Synonym]:
    """The values of a key and its older names from its own first one on: as in Kafka, older names alone do not show."""
    synonyms = _broker_synonyms(each, sources)
    first = next((at for at, synonym in enumerate(synonyms) if synonym.name == each.name), len(synonyms))
    return synonyms[first:]


def _broker_synonyms(each: Setting, sources: Sequence[tuple[Source, Mapping[str, str]]]) -> list[Synonym]:
    """Values set for a key, then for its older names, source by source; defaults last."""
    family = [each, *(BrokerConfig.KEYS[key] for key, _ in each.fallbacks)]
    found = [
        Synonym(one.name, one.shown(one.parse(values[one.name])), source)
        for source, values in sources
        for one in family
        if one.name in values
    ]
    defaults = [Synonym(one.name, one.shown(one.default), Source.DEFAULT_CONFIG) for one in family]
    return found + [default for default in defaults if default.value is not None]


def _broker_value(each: Setting, explicit: Mapping[str, Value]) -> Value:
    if each.name in explicit:
        return explicit[each.name]
    for key, factor in each.fallbacks:
        if key in explicit:
            return _times(explicit[key], factor, as_list=each.type is ConfigType.LIST)
    if each.default is None:
        for key, factor in each.fallbacks:
            default = BrokerConfig.KEYS[key].default
            if default is not None:
                return _times(default, factor, as_list=each.type is ConfigType.LIST)
    return each.default


def _topic_value(each: Setting, explicit: Mapping[str, Value], config: BrokerConfig) -> Value:
    if each.name in explicit:
        return explicit[each.name]
    for key, factor in each.fallbacks:
        if key in explicit:
            return _times(explicit[key], factor)
    if each.broker is None:
        return each.default
    value: Value = getattr(config, BrokerConfig.KEYS[each.broker].attribute)
    return value


def _times(value: Value, factor: int, *, as_list: bool = False) -> Value:
    if isinstance(value, str):
        return (value,) if as_list else value
    assert isinstance(value, int), value
    return -1 if value < 0 and factor > 1 else value * factor


_DEFAULTS = {key: _broker_value(each, {}) for key, each in BrokerConfig.KEYS.items()}
"""The broker's settings where nothing is set: most of them, at each start and each change."""
_WITH_FALLBACKS = [each for each in BrokerConfig.KEYS.values() if each.fallbacks]


def _parse(keys: Mapping[str, Setting], texts: Mapping[str, str], where: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    faults = []
    for key, text in texts.items():
        try:
            values[key] = keys[key].parse(text)
        except ValueError:
            shown = "[hidden]" if keys[key].sensitive else text
            place = f" ({where[key]})" if key in where else ""
            faults.append(f"{key}={shown}: allowed: {keys[key].allowed}{place}")
    if faults:
        raise ConfigError(faults)
    return {key: value for key, value in values.items() if value is not None}


def _illegal(keys: Mapping[str, Setting], texts: Mapping[str, str]) -> list[str]:
    """A line for every value that its key does not take; it begins as Apache's does."""
    faults = []
    for key, text in texts.items():
        try:
            if key in keys:
                keys[key].parse(text)
        except ValueError:
            shown = "[hidden]" if keys[key].sensitive else text
            faults.append(f"Invalid value {shown} for configuration {key}: must be {keys[key].allowed}")
    return faults


def _differs(each: Setting, text: str) -> bool:
    try:
        return each.parse(text) != each.default
    except ValueError:
        return True


def _nearest(key: str, keys: Mapping[str, Setting]) -> str:
    from difflib import get_close_matches  # only a mistake pays for loading it

    close = get_close_matches(key, [each.name for each in keys.values() if not each.internal], n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
