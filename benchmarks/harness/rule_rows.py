"""A row with access rules: what 1,000 of them cost a broker for each small produce and fetch.

A round starts two brokers of a kind, one without an authorizer and one with, and asks them in turn. The client is no
super user: a rule lets it write to and read its topic, the others are about other topics, half of them prefixes.
"""

from __future__ import annotations

import statistics

from benchmarks.harness.brokers import OURS, Broker
from benchmarks.harness.quota_rows import in_turn
from benchmarks.harness.rows import KEEP, Fresh, Measured, Metric, Row
from benchmarks.harness.wire import Connection, LoadError, Producer, batch, create_topics, produce_frame
from kbroker.config.broker import AUTHORIZERS
from protocol.messages.security import AclCreation, CreateAclsRequest

TOPIC = "bench-acls"
RULES = 1_000
TURNS = 28  # of both brokers, one after the other
WARM = 4
START_S = 90.0


class Acls(Row):
    """One small produce at a time, to a broker without access rules and to one with."""

    key = "acls"
    title = "1,000 access rules, one small produce at a time"
    metrics = (
        Metric("cpu", "CPU per request", "us"),
        Metric("off", "the same without rules", "us"),
        Metric("times", "with rules, in terms of without", "", most=1.03),
    )
    uses_fresh = True
    measures_latency = True

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        ruled = {"authorizer.class.name": AUTHORIZERS[kind != OURS], "allow.everyone.if.no.acl.found": "true"}
        with fresh(kind, {}) as plain, fresh(kind, ruled) as guarded:
            for broker in (plain, guarded):
                broker.launch()
            with plain.connect(START_S) as off, guarded.connect(START_S) as on:
                for connection in (off, on):
                    create_topics(connection, [TOPIC], configs=KEEP)
                _make_rules(on)
                return self._compare(plain, off, guarded, on)

    def _compare(self, plain: Broker, off: Connection, guarded: Broker, on: Connection) -> Measured:
        frame = produce_frame(TOPIC, [batch(1, 100)])
        producers = [(plain, Producer(off, frame)), (guarded, Producer(on, frame))]
        used: list[list[float]] = [[], []]
        pings = self.scale.pings // 3
        for _ in range(TURNS):
            for took, (broker, producer) in zip(used, producers, strict=True):
                before = broker.cpu_s()
                producer.latencies(pings)
                took.append((broker.cpu_s() - before) / pings * 1e6)
        without, with_rules = (took[WARM:] for took in used)
        (times,) = in_turn([(each,) for each in with_rules], [(each,) for each in without])
        return {"cpu": statistics.median(with_rules), "off": statistics.median(without), "times": times}


def _make_rules(connection: Connection) -> None:
    rules = [
        AclCreation(
            resource_type=2,
            resource_name=f"topic-{number}",
            resource_pattern_type=3 + number % 2,
            principal=f"User:{number}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(RULES - 1)
    ]
    mine = AclCreation(
        resource_type=2, resource_name=TOPIC, principal="User:*", host="*", operation=2, permission_type=3
    )
    answer = connection.ask(CreateAclsRequest(creations=[*rules, mine]), 3)
    if codes := {each.error_code for each in answer.results} - {0}:
        raise LoadError(f"rules are refused: {codes}")


ROWS: tuple[type[Row], ...] = (Acls,)
