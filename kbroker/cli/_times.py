"""Times as people write them: 2026-11-25T10:00, 2026-11-25, -1h, -2d12h, or milliseconds since 1970.

Without a zone a time is of the local one, which is what `kbroker consume` shows.
"""

from __future__ import annotations

import re
import time
from datetime import datetime

TIMES = "YYYY-MM-DDThh:mm, -1h"
_AGO = re.compile(r"-(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_DATE = re.compile(r"[0-9]{4}-.*", re.DOTALL)
_UNITS_S = (604_800, 86_400, 3_600, 60, 1)


MARKS = {"latest": -1, "earliest": -2, "max-timestamp": -3, "-1": -1, "-2": -2, "-3": -3}
"""What ListOffsets takes in place of a time, by what kafka-get-offsets.sh calls it."""


def time_or_mark(text: str) -> int | None:
    """Milliseconds since 1970, or what stands in place of them; None if the text is neither."""
    if text in MARKS:
        return MARKS[text]
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else time_ms(text)


def time_ms(text: str) -> int | None:
    """Milliseconds since 1970; None if the text is no time. A time before 1970 is 0, the beginning of all."""
    match = _AGO.fullmatch(text)
    if match is not None and any(match.groups()):
        ago_s = sum(int(count or 0) * unit_s for count, unit_s in zip(match.groups(), _UNITS_S, strict=True))
        return max(0, int(time.time() * 1000) - ago_s * 1000)
    if _DATE.fullmatch(text) is None:  # fromisoformat takes 20261125 and the like, which are offsets here
        return None
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return None
