"""Why a log cannot be compacted."""

from __future__ import annotations


class UncleanableError(Exception):
    """A log has something in it that compaction must not touch: one line, with path and position."""


class GoneError(Exception):
    """A segment went away while it was read: the log was cut, or deleted."""
