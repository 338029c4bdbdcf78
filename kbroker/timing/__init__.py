"""Waiting without a clock: timers that come back when due, operations parked until a key moves, and work in slices."""

from kbroker.timing.deadlines import nobody_asks
from kbroker.timing.keyed import KeyedTimers
from kbroker.timing.purgatory import Parked, Purgatory, Touched
from kbroker.timing.turns import Steps, Turns, begun
from kbroker.timing.wheel import Timer, TimingWheel

__all__ = [
    "KeyedTimers",
    "Parked",
    "Purgatory",
    "Steps",
    "Timer",
    "TimingWheel",
    "Touched",
    "Turns",
    "begun",
    "nobody_asks",
]
