"""A broker with a shop's topics, and consoles of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kbroker.console.app import Console, Options
from kbroker.security.client import ClientSecurity
from kbroker.testing import Broker, broker
from tests.console.pages import Running

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
"""What a record, a group or a client may be called."""


def options(of: Broker, *, read_only: bool = False) -> Options:
    """Those of a console of a broker that wants no login."""
    return Options([("127.0.0.1", of.port)], ClientSecurity(), ("127.0.0.1", "localhost"), read_only)


@pytest.fixture(scope="module")
def shop() -> Iterator[Broker]:
    """Topics: orders (3 partitions, 300 records), evil (hostile ones), empty; groups: billing, which is behind, and a
    hostile one."""
    with broker(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0) as running:
        running.create_topic("orders", partitions=3)
        running.create_topic("evil")
        running.create_topic("empty")
        for number in range(300):
            value = json.dumps({"id": number, "item": {"name": f"book {number}"}, "price": number / 2})
            running.produce("orders", value.encode(), key=b"k%d" % number, partition=number % 3)
        running.produce("evil", EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())])
        yield running


@pytest.fixture(scope="module")
def pages(shop: Broker) -> Iterator[Running]:
    with Running(Console(options(shop))) as running:
        yield running
