"""Names that topics get at the other end: the check that the jobs `mirror` and `replay` and their commands share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbroker.pipeline.errors import PipelineError


def check_names(names: Mapping[str, str]) -> None:
    """Raises PipelineError where two topics would be one: records have their places from one topic alone."""
    for new, count in Counter(names.values()).items():
        if count > 1:
            both = " and ".join(old for old in names if names[old] == new)
            raise PipelineError(f"{both} cannot both be {new}: give each a name of its own")
