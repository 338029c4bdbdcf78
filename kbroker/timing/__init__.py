"""Waiting without a clock: timers that come back when due, and operations parked until a key moves."""

from kbroker.timing.keyed import KeyedTimers
from kbroker.timing.purgatory import Parked, Purgatory, Touched
from kbroker.timing.wheel import Timer, TimingWheel

__all__ = ["KeyedTimers", "Parked", "Purgatory", "Timer", "TimingWheel", "Touched"]
