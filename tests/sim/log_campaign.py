"""The log alone, in bulk: `scripts/sim log [--seeds N] [--minutes M] [--seed S]`.

Each seed is one life of a log on a simulated disk: some hundred steps of what a broker does, the power failing or the
process dying now and then, within recovery as well; and once every story of `test_log_crashes` with a crash at every
call. After each step the log is compared with a list in memory. Stops at the first seed that fails, and names it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable

from kbroker.log.config import LogConfig
from kbroker.sim.disk import PowerLoss
from tests.sim.log_world import Host
from tests.sim.test_log_crashes import STORIES, crash_everywhere

STEPS = 150
DAY_MS = 24 * 3600 * 1000


def config_of(rng: random.Random) -> LogConfig:
    """A small log of some kind."""
    return LogConfig(
        segment_bytes=rng.choice((1000, 2500, 6000)),
        index_interval_bytes=rng.choice((0, 150, 400)),
        segment_index_bytes=rng.choice((120, 240, 4096)),
        segment_jitter_ms=rng.choice((0, 50)),
        segment_ms=rng.choice((100, 7 * DAY_MS)),
        retention_bytes=rng.choice((-1, 3000)),
        preallocate=rng.random() < 0.3,
        file_delete_delay_ms=0,
    )


def life(seed: int) -> None:
    """One life of a log. Raises AssertionError where it is not what it should be."""
    rng = random.Random(seed)
    host = Host(seed, config_of(rng))
    for _ in range(STEPS):
        if rng.random() < 0.08:
            host.disk.crash_at = host.disk.calls + 1 + rng.randrange(40)
        try:
            step(host, rng)
            if host.disk.is_down:
                raise PowerLoss
        except PowerLoss:
            host.recover(crash_in_recovery=rng.randrange(1, 40) if rng.random() < 0.3 else None)
        crash_at, host.disk.crash_at = host.disk.crash_at, None
        host.check()
        host.disk.crash_at = crash_at


def step(host: Host, rng: random.Random) -> None:
    """One thing that a broker does."""
    end = host.log.log_end_offset
    starts = [written.base_offset for written in host.line if written.base_offset >= host.log.log_start_offset] or [end]
    steps: list[tuple[int, Callable[[], None]]] = [
        (12, lambda: host.append(rng.randint(1, 4), rng.randrange(200), rng.randint(-1, 3))),
        (6, lambda: host.append_as_follower([rng.randint(1, 4) for _ in range(rng.randint(1, 4))])),
        (3, lambda: host.truncate(rng.choice(starts[-12:]))),
        (1, lambda: host.start_again(rng.randrange(end + 50))),
        (2, lambda: host.delete_records(rng.choice(starts))),
        (2, lambda: host.retain(host.clock + rng.choice((0, 6, 8)) * DAY_MS)),
        (3, host.roll),
        (5, host.flush),
        (2, host.remove_files),
        (2, host.stop_cleanly),
        (2, lambda: host.recover(power_loss=rng.random() < 0.6)),
    ]
    weights, calls = zip(*steps, strict=True)
    rng.choices(calls, weights)[0]()


def run(seed: int) -> bool:
    """One seed; False, with all about it on the screen, if it fails."""
    try:
        life(seed)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print(f"seed {seed} fails: scripts/sim log --seed {seed}")
        return False
    return True


def main(arguments: list[str]) -> int:
    """Run seeds until there were enough, time is up, or one fails."""
    parser = argparse.ArgumentParser(prog="scripts/sim log", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=500, help="how many lives (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for how long at most")
    parser.add_argument("--seed", type=int, help="one life, again")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return 0 if run(chosen.seed) else 1
    first, begun = random.SystemRandom().randrange(1 << 32), time.monotonic()
    crashes = sum(crash_everywhere(story, first) for story in STORIES.values())
    print(f"{crashes} crashes, one at every call of {len(STORIES)} stories")
    for count in range(chosen.seeds):
        if time.monotonic() - begun > chosen.minutes * 60:
            print(f"{count} lives in {chosen.minutes} minutes")
            return 0
        if not run(first + count):
            return 1
    print(f"{chosen.seeds} lives of {STEPS} steps, from seed {first} on")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("broken off: nothing has failed")
