"""AclAuthorizer: decides by access rules (ACLs) that the metadata store has, under Kafka's paths, for all brokers.

Kafka's AclAuthorizer, chosen by `authorizer.class.name`. It keeps an image of all rules (`acls.py`), which is read in
each session before the broker registers, so that no client meets a broker that does not know them yet; after that it
follows the notices. What it has decided holds for a principal, a host, an operation and a resource until any rule
changes. ACL requests are procedures on the store: the rules of a pattern are read, and written with the version that
was read, and if another broker was faster, again.

Unlike Kafka: a change and its notice are one transaction. See `acls.py` for rules that make no sense.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from kbroker.broker.acls import (
    ACL_CHANGES,
    DENIES_ALL,
    FOLDERS,
    PREFIXED_ACL_CHANGES,
    Filter,
    Pattern,
    Rule,
    Rules,
    change_of,
    decode_change,
    decode_rules,
    encode_rules,
    java_host,
    name_fault,
    pattern_at,
    pattern_path,
    super_users,
)
from kbroker.broker.authorizer import audit_log
from kbroker.broker.notices import Notices
from kbroker.broker.session import Grants
from kbroker.metadata.steps import one_by_one
from kbroker.metadata.store import understood
from kbroker.metadata.tree import ancestors
from kbroker.ports import Children, Create, Delete, Get, Multi, NodeChanged, Outcome, SetData, StoreFault
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kbroker.broker.authorizer import Operation, ResourceType
    from kbroker.broker.session import Principal, Session
    from kbroker.config import BrokerConfig
    from kbroker.controller.admin import Pending
    from kbroker.metadata.steps import Procedure, Steps
    from kbroker.timing import Scheduler

    Start: TypeAlias = Callable[[Procedure[Any]], Pending[Any]]
    Change: TypeAlias = Callable[[frozenset[Rule]], frozenset[Rule]]

log = logging.getLogger("kbroker.security")

Deleted: TypeAlias = list[list[tuple[Pattern, Rule, KafkaError | None]]]
"""By filter, what it has removed, or why not."""

ATTEMPTS = 11  # to write the rules of a pattern that other brokers write, too; Kafka's maxUpdateRetries and the first
READ_AT_ONCE = 200  # patterns in one step: some 200 KB of rules
MOST_SESSIONS = 1_000  # principals at hosts whose decisions are remembered, ...
MOST_DECISIONS = 1_000  # ... of each so many; 200 bytes each
LONGEST_NAME = 249  # of a resource that is remembered: that of a topic; clients may send longer ones


class Decisions(Grants):
    """What was decided of a principal at a host. is_void: a rule has changed since.

    answers: by name of the resource and a number of its type and the operation. asks: the principal, as a text, and the
    host, as rules have them.
    """

    __slots__ = ("answers", "asks", "is_void")

    def __init__(self, principal: Principal, host: str) -> None:
        super().__init__()
        self.answers: dict[tuple[str, int], bool] = {}
        self.asks = str(principal), java_host(host)
        self.is_void = False

    def read(self, topics: Iterable[str | None]) -> None:
        """See Grants."""
        self._grant(self.readable, topics)

    def write(self, topics: Iterable[tuple[str, bytes]]) -> None:
        """See Grants."""
        self._grant(self.writable, topics)

    def _grant(self, granted: set[Any], topics: Iterable[Any]) -> None:
        if self.is_void or audit_log.isEnabledFor(logging.DEBUG):
            return  # what is allowed has a line each time
        if len(granted) >= MOST_DECISIONS:
            granted.clear()
        granted.update(topics)

    def end(self) -> None:
        """A rule has changed; sessions may hold this still."""
        self.is_void = True
        self.readable.clear()
        self.writable.clear()


class RulesAuthorizer:
    """An `Authorizer` with rules, wherever they come from."""

    has_rules = True

    def __init__(self, config: BrokerConfig) -> None:
        self.rules = Rules(super_users(config.super_users), is_open=config.allow_everyone_if_no_acl_found)
        self._decisions: dict[tuple[Principal, str], Decisions] = {}

    # -- deciding

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        """See `Authorizer`."""
        decisions = self._decisions_of(session)
        key = name, resource << 5 | operation
        answer = decisions.answers.get(key)
        if answer is None:
            answer = self.rules.allow(*decisions.asks, operation, resource, name)
            if len(name) <= LONGEST_NAME:
                if len(decisions.answers) >= MOST_DECISIONS:
                    decisions.answers.clear()
                decisions.answers[key] = answer
        return answer

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        """See `Authorizer`."""
        decisions = self._decisions_of(session)
        key = "", -(resource << 5 | operation)
        if key not in decisions.answers:
            decisions.answers[key] = self.rules.allow_any(*decisions.asks, operation, resource)
        return decisions.answers[key]

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> None:
        """See `Authorizer`: the rules are known."""

    def _decisions_of(self, session: Session) -> Decisions:
        decisions = session.grants
        if isinstance(decisions, Decisions) and not decisions.is_void:
            return decisions
        asks = session.principal, session.peer_host
        found = self._decisions.get(asks)
        if found is None:
            if len(self._decisions) >= MOST_SESSIONS:
                self._forget_decisions()
            found = self._decisions[asks] = Decisions(*asks)
        session.grants = found
        return found

    def _forget_decisions(self) -> None:
        for each in self._decisions.values():
            each.end()
        self._decisions = {}

    def put(self, pattern: Pattern, rules: frozenset[Rule]) -> None:
        """The rules of a pattern are these now."""
        if self.rules.by_pattern.get(pattern, frozenset()) == rules:
            return
        self.rules.put(pattern, rules)
        self._forget_decisions()
        log.info("access rules of %s: %d", pattern, len(rules))


class AclAuthorizer(RulesAuthorizer):
    """With the rules of a metadata store. start: runs a procedure on it, as an admin request."""

    def __init__(self, config: BrokerConfig, steps: Steps, scheduler: Scheduler, start: Start) -> None:
        super().__init__(config)
        self._start = start
        self._put: set[Pattern] = set()  # since all rules were last listed
        self._notices = [
            Notices(path, steps, scheduler, self._handle_changes) for path in (ACL_CHANGES, PREFIXED_ACL_CHANGES)
        ]

    # -- the image

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins: all rules are read."""
        paths = (*FOLDERS, ACL_CHANGES, PREFIXED_ACL_CHANGES)
        above = {each: None for path in paths for each in ancestors(path)}
        yield [Create(path) for path in (*above, *paths)]
        for notices in self._notices:
            yield from notices.begin(now_ms)
        self._put.clear()
        listed = yield [Children(folder) for folder in FOLDERS]
        there = [pattern_at(folder, name) for folder, each in zip(FOLDERS, listed, strict=True) for name in each.names]
        for at in range(0, len(there), READ_AT_ONCE):
            yield from self._read(there[at : at + READ_AT_ONCE])
        for gone in self.rules.by_pattern.keys() - set(there) - self._put:
            self._set(gone, frozenset())

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        return any(notices.node_changed(change, now_ms) for notices in self._notices)

    def _handle_changes(self, answers: Sequence[Outcome]) -> Procedure[None]:
        changed = {understood(each.path, each.data, decode_change): None for each in answers}
        yield from self._read([each for each in changed if each is not None and not _name_fault(each.name)])

    def _read(self, patterns: Sequence[Pattern]) -> Procedure[None]:
        answers = yield [Get(pattern_path(each)) for each in patterns]
        for pattern, answer in zip(patterns, answers, strict=True):
            self._set(pattern, _rules_of(pattern, answer))

    def _set(self, pattern: Pattern, rules: frozenset[Rule]) -> None:
        self._put.add(pattern)
        self.put(pattern, rules)

    # -- changing rules

    def create(self, bindings: Sequence[tuple[Pattern, Rule]]) -> Pending[dict[Pattern, KafkaError | None]]:
        """Add rules. The value: by pattern, why those of it are not there."""
        return self._start(self._creating(bindings))

    def delete(self, filters: Sequence[Filter]) -> Pending[Deleted]:
        """Remove the rules that filters mean."""
        return self._start(self._deleting(filters))

    def _creating(self, bindings: Sequence[tuple[Pattern, Rule]]) -> Procedure[dict[Pattern, KafkaError | None]]:
        outcomes: dict[Pattern, KafkaError | None] = {}
        for pattern in dict.fromkeys(pattern for pattern, _ in bindings):
            new = frozenset(rule for each, rule in bindings if each == pattern)
            outcomes[pattern] = yield from self._changing(pattern, lambda rules, new=new: rules | new)  # type: ignore[misc]
        return outcomes

    def _deleting(self, filters: Sequence[Filter]) -> Procedure[Deleted]:
        deleted: Deleted = [[] for _ in filters]
        named = [pattern for each in filters for pattern in each.patterns() if not _name_fault(pattern.name)]
        for pattern in dict.fromkeys((*self.rules.by_pattern, *named)):
            fitting = [(at, each) for at, each in enumerate(filters) if each.fits_pattern(pattern)]
            if not fitting:
                continue
            meant: dict[Rule, int] = {}

            def without(
                rules: frozenset[Rule],
                meant: dict[Rule, int] = meant,
                fitting: Sequence[tuple[int, Filter]] = fitting,
            ) -> frozenset[Rule]:
                meant.clear()
                for rule in rules:
                    for at, each in fitting:
                        if each.fits_rule(rule):
                            meant[rule] = at
                            break
                return rules - meant.keys()

            error = yield from self._changing(pattern, without)
            for rule, at in meant.items():
                deleted[at].append((pattern, rule, error))
        return deleted

    def _changing(self, pattern: Pattern, change: Change) -> Procedure[KafkaError | None]:
        """Change the rules of a pattern. Returns: why they are not changed."""
        path = pattern_path(pattern)
        for _ in range(ATTEMPTS):
            (found,) = yield [Get(path)]
            before = _rules_of(pattern, found)
            after = change(before)
            if before is DENIES_ALL and after:
                text = f"the access rules of {pattern} make no sense, and have to be removed first"
                return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            if after == before:
                self._set(pattern, after)
                return None
            notice = Create(*change_of(pattern), sequential=True)
            (written,) = yield from one_by_one([Multi((_write(path, found, after), notice))])
            if written.fault is None:
                self._set(pattern, after)
                return None
            if written.fault is StoreFault.REFUSED:
                break
        text = f"the metadata store did not take the access rules of {pattern}, or other brokers were faster"
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _name_fault(name: str) -> str:
    return name_fault(name) or ("no name of a node" if not name or "/" in name else "")


def _write(path: str, found: Outcome, rules: frozenset[Rule]) -> Create | SetData | Delete:
    if found.stat is None:
        return Create(path, encode_rules(rules))
    version = found.stat.version
    return SetData(path, encode_rules(rules), version) if rules else Delete(path, version)


def _rules_of(pattern: Pattern, found: Outcome) -> frozenset[Rule]:
    """The rules that were read; what denies everything if they make no sense."""
    if found.fault is StoreFault.NO_NODE:
        return frozenset()
    try:
        return decode_rules(found.data)
    except ValueError as error:
        log.error("access rules of %s make no sense, and all is denied there until they are mended: %s", pattern, error)
        return DENIES_ALL
