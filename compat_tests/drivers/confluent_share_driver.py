"""Driver of confluent-kafka's share consumer (KIP-932), a preview in librdkafka 2.16. Argument: the broker's host:port.

Asked as ShareDriver.java is: members by name, which join, poll, acknowledge, commit and leave.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import ShareConsumer, cimpl
from driver import security, serve, text

TYPES = {name: getattr(cimpl, f"SHARE_ACKNOWLEDGE_TYPE_{name}") for name in ("ACCEPT", "RELEASE", "REJECT")}
COMMIT_S = 30


class Operations:
    def __init__(self) -> None:
        self.members: dict[str, ShareConsumer] = {}
        self.given: dict[str, dict[int, Any]] = {}

    def version(self) -> str:
        return str(confluent_kafka.__version__)

    def join(self, member: str, group: str, topic: str) -> None:
        settings = {"group.id": group, "share.acknowledgement.mode": "explicit"}
        self.members[member] = ShareConsumer({"bootstrap.servers": sys.argv[1], **security(), **settings})
        self.members[member].subscribe([topic])
        self.given[member] = {}

    def poll(self, member: str, wait_ms: int) -> list[Any]:
        """Of the first poll that brings something, or none when the time is over."""
        deadline = time.monotonic() + wait_ms / 1000
        while (left := deadline - time.monotonic()) > 0:
            messages = [each for each in self.members[member].poll(left) if each.error() is None]
            if messages:
                self.given[member] |= {each.offset(): each for each in messages}
                return [
                    {"offset": each.offset(), "count": each.delivery_count(), "value": text(each.value())}
                    for each in messages
                ]
        return []

    def acknowledge(self, member: str, offsets: list[int], type: str) -> None:  # noqa: A002
        for offset in offsets:
            self.members[member].acknowledge(self.given[member].pop(offset), TYPES[type])

    def commit(self, member: str) -> list[str]:
        """What went wrong."""
        return [str(error) for error in self.members[member].commit_sync(COMMIT_S).values() if error is not None]

    def leave(self, member: str) -> None:
        self.members.pop(member).close()


serve(Operations())
