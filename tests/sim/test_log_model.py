"""Anything a broker may do with a log, in any order, power cuts and deaths in between, against a list in memory."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.log.config import LogConfig
from kbroker.sim.disk import PowerLoss
from tests.sim.log_world import Host

CONFIGS = [
    LogConfig(segment_bytes=1000, index_interval_bytes=150, segment_index_bytes=240, file_delete_delay_ms=0),
    LogConfig(segment_bytes=2500, index_interval_bytes=400, segment_index_bytes=1200, preallocate=True),
]
OFFSETS = st.integers(0, 60)


class LogMachine(RuleBasedStateMachine):
    """Rules are what a broker does; a step in which the power fails ends with a recovery."""

    host: Host

    @initialize(seed=st.integers(0, 1 << 16), config=st.sampled_from(CONFIGS))
    def start(self, seed: int, config: LogConfig) -> None:
        self.host = Host(seed, config)

    def step(self, name: str, *arguments: object) -> None:
        """One call on the host, in which the power may fail as planned."""
        try:
            getattr(self.host, name)(*arguments)
            if self.host.disk.is_down:
                raise PowerLoss
        except PowerLoss:
            self.host.recover()

    @rule(count=st.integers(1, 4), size=st.integers(0, 200), producer_id=st.integers(-1, 2))
    def append(self, count: int, size: int, producer_id: int) -> None:
        self.step("append", count, size, producer_id)

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def append_as_follower(self, counts: list[int]) -> None:
        self.step("append_as_follower", counts)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        starts = [written.base_offset for written in self.host.line] or [0]
        self.step("truncate", max(starts[-min(back, len(starts))], self.host.log.log_start_offset))

    @rule(offset=OFFSETS)
    def start_again(self, offset: int) -> None:
        self.step("start_again", offset)

    @rule(offset=OFFSETS)
    def delete_records(self, offset: int) -> None:
        self.step("delete_records", offset)

    @rule(later_ms=st.sampled_from([0, 7 * 24 * 3600 * 1000, 8 * 24 * 3600 * 1000]))
    def retain(self, later_ms: int) -> None:
        self.step("retain", self.host.clock + later_ms)

    @rule()
    def roll(self) -> None:
        self.step("roll")

    @rule()
    def flush(self) -> None:
        self.step("flush")

    @rule()
    def remove_files(self) -> None:
        self.step("remove_files")

    @rule()
    def stop_cleanly(self) -> None:
        self.step("stop_cleanly")

    @rule(again=st.none() | st.integers(1, 30))
    def lose_power(self, again: int | None) -> None:
        self.host.recover(crash_in_recovery=again)

    @rule()
    def die(self) -> None:
        self.host.recover(power_loss=False)

    @rule(calls=st.integers(1, 40))
    def plan_power_loss(self, calls: int) -> None:
        self.host.disk.crash_at = self.host.disk.calls + calls

    @invariant()
    def log_is_the_list(self) -> None:
        crash_at, self.host.disk.crash_at = self.host.disk.crash_at, None
        self.host.check()
        self.host.disk.crash_at = crash_at


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=int(os.environ.get("LOG_MODEL_EXAMPLES", "60")),
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate] + [Phase.shrink] * ("LOG_MODEL_SHRINK" in os.environ),
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
