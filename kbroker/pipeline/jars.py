"""Jars that a job's session has beside Spark's own: those of a folder that its user names.

Called before a session starts. The jobs need none: they are for what a user's paths or settings need.
"""

from __future__ import annotations

import os
from pathlib import Path

from kbroker.pipeline.errors import PipelineError


def settings(folder: str | None = None) -> dict[str, str]:
    """Spark's settings that bring the jars of a folder: this one, or KBROKER_PIPELINE_JARS. Raises PipelineError."""
    folder = folder or os.environ.get("KBROKER_PIPELINE_JARS")
    if not folder:
        return {}
    found = sorted(map(str, Path(folder).absolute().glob("*.jar")))
    if not found:
        raise PipelineError(f"{folder}: there is no *.jar in it")
    return {"spark.jars": ",".join(found)}
