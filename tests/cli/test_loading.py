"""The bars of a long start."""

from __future__ import annotations

import io

from rich.console import Console

from kbroker.cli._loading import LoadingBars
from kbroker.log.log_loader import LoadProgress
from kbroker.log.names import TopicPartition
from kbroker.log.recovery import RecoveryProgress
from kbroker.runtime.loading import DirectoryLoad


def test_a_directory_is_one_line_of_a_narrow_terminal_with_counts_rate_and_time_left() -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    load = DirectoryLoad("/var/lib/kbroker/data", 0.0)
    load.report(LoadProgress("/var/lib/kbroker/data", 120, 5000), 10.0)
    reading = (TopicPartition("t", 0), RecoveryProgress(1, 2, 1_200_000_000, 2_400_000_000))
    load.report(LoadProgress("/var/lib/kbroker/data", 120, 5000, reading), 10.0)
    bars = LoadingBars(terminal)
    bars(load)
    bars(load)
    shown = screen.getvalue()
    load.report(LoadProgress("/var/lib/kbroker/data", 5000, 5000), 11.0)
    bars(load)
    assert "/var/lib/kbroker/data" in shown
    assert "120/5000 1.2 GB, 120 MB/s 7 min left" in shown
    assert "\x1b[2K" in screen.getvalue().removeprefix(shown)
