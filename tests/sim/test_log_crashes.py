"""The power fails at every call that a log makes to the disk, and within the recovery from that as well."""

from __future__ import annotations

import errno

import pytest

from tests.sim.log_world import Host, Story, play, play_with_fault


def appends(count: int, producer_id: int = -1) -> Story:
    return [lambda host: host.append(producer_id=producer_id)] * count


STORIES: dict[str, Story] = {
    "append and roll": [
        *appends(6),
        lambda host: host.flush(),
        *appends(6, 1),
        lambda host: host.roll(),
        *appends(3, 2),
        lambda host: host.flush(),
        lambda host: host.roll(),
        lambda host: host.append(),
    ],
    "follow": [lambda host: host.append_as_follower([1, 2, 1]), lambda host: host.append_as_follower([2, 2])] * 3,
    "truncate": [
        *appends(12, 1),
        lambda host: host.flush(),
        *appends(3, 2),
        lambda host: host.truncate(7),
        *appends(6, 1),
        lambda host: host.truncate(6),
        *appends(3, 2),
        lambda host: host.flush(),
        lambda host: host.remove_files(),
    ],
    "start again": [
        *appends(9, 1),
        lambda host: host.flush(),
        lambda host: host.start_again(50),
        *appends(6, 2),
        lambda host: host.remove_files(),
        lambda host: host.flush(),
    ],
    "retain": [
        *appends(12, 1),
        lambda host: host.flush(),
        lambda host: host.delete_records(6),
        lambda host: host.retain(),
        *appends(3, 2),
        lambda host: host.remove_files(),
        lambda host: host.flush(),
        lambda host: host.retain(wall_ms=host.clock + 10**12),
        *appends(3),
    ],
    "stop and start": [
        *appends(5, 1),
        lambda host: host.stop_cleanly(),
        *appends(5, 1),
        lambda host: host.truncate(4),
        lambda host: host.stop_cleanly(),
        *appends(2, 2),
    ],
}


def crash_everywhere(story: Story, seed: int) -> int:
    """Play a story with a crash at each call in turn; how many crashes that were."""
    call = 1
    while play(story, seed, call, crash_in_recovery=1 + (call * 7 + seed * 3) % 23 if call % 2 else None):
        call += 1
    return call - 1


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STORIES)
def test_power_fails_at_every_call(name: str, seed: int) -> None:
    assert crash_everywhere(STORIES[name], seed) >= 10


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STORIES)
def test_every_call_may_fail(name: str, code: int) -> None:
    call = 1
    while play_with_fault(STORIES[name], 0, call, code):
        call += 1
    assert call > 50


@pytest.mark.parametrize("name", STORIES)
def test_every_story_ends_well_without_a_crash(name: str) -> None:
    host = Host(0)
    for step in STORIES[name]:
        step(host)
        host.check()
