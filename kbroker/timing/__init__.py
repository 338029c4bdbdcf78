"""Waiting without a clock: alarms that ring when due, operations parked until a key moves, and work in slices."""

from kbroker.timing.purgatory import Parked, Purgatory, Touched
from kbroker.timing.scheduler import Alarm, KeyedAlarms, Scheduler, Steps, begun
from kbroker.timing.wheel import NEVER, Timer, TimingWheel

__all__ = [
    "NEVER",
    "Alarm",
    "KeyedAlarms",
    "Parked",
    "Purgatory",
    "Scheduler",
    "Steps",
    "Timer",
    "TimingWheel",
    "Touched",
    "begun",
]
