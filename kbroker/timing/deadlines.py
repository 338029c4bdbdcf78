"""Who is told that a deadline has moved: whoever sleeps until the earliest of all deadlines, if there is somebody.

Parts of a broker say so by calling what they were given; until then, and where a test or a simulation asks for
deadlines whenever it wants, it is this.
"""

from __future__ import annotations


def nobody_asks() -> None:
    """A deadline has moved, and nobody sleeps until then."""
