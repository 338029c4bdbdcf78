"""Single bits flipped in every kind of file: detected, repaired or harmless (the long run is `scripts/fuzz flips`)."""

from __future__ import annotations

import pytest

from kbroker.log.tools.verify import Finding, verify
from protocol.records import legacy
from tests.log.flips import PATH, Campaign, Flip, disk_of, image, run


def test_flipped_bits_never_go_unnoticed_and_never_crash() -> None:
    campaign = run(50, seed=1)
    assert sum(sum(outcomes.values()) for outcomes in campaign.outcomes.values()) == 50


@pytest.mark.slow
def test_many_flipped_bits_in_every_kind_of_file() -> None:
    campaign = run(250, seed=2)
    kinds = {
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
        ".kafka_cleanshutdown",
        "leader-epoch-checkpoint",
    }
    kinds |= {"partition.metadata", "meta.properties", "recovery-point-offset-checkpoint"}
    kinds |= {"log-start-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"}
    assert set(campaign.outcomes) == kinds


@pytest.mark.parametrize("kind", [".log", ".snapshot", ".txnindex", "recovery-point-offset-checkpoint"])
def test_the_first_bits_of_a_file_are_noticed(kind: str) -> None:
    campaign = Campaign()
    path = next(path for path, content in campaign.files.items() if content and Flip(path, 0).kind == kind)
    assert {campaign.check(Flip(path, bit)).partition(",")[0] for bit in range(16)} == {"detected"}


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_messages_offset_is_held_by_its_neighbours_and_its_records(magic: int) -> None:
    files = image()
    path = f"{PATH}/format-{magic}-0/00000000000000000000.log"
    content = files[path]
    messages = [message for message in legacy.scan(content) if message.offset in (6, 11, 23, 34)]
    assert [message.attributes for message in messages] == [0, 1, 2, 0]
    for message in messages:
        for bit in range(3):  # of the lowest byte: to an offset of a neighbour, or of one within a wrapper
            changed = bytearray(content)
            changed[message.position + 7] ^= 1 << bit
            found = verify(disk_of({**files, path: bytes(changed)}), [PATH])
            assert any(isinstance(each, Finding) and each.path == path for each in found), (message, bit)
