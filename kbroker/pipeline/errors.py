"""What goes wrong in a job, in one line for its user.

`PipelineError` is raised with that line already; `explain` finds it, or Java's own reason, in what Spark raises, where
it may lie some dozens of lines deep in a trace of Java or of a Python worker.
"""

from __future__ import annotations

import re


class PipelineError(Exception):
    """A job cannot go on; the text is one line that says what, where, and what to do."""


_PATTERNS = (
    (
        r"(?:file:/*(?=/)|file:)?(\S+\.parquet)\S*[^\n]*(?:is not a Parquet file|footer|Corrupted|corrupt)"
        r"|(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)\S*[^\n]*?file:/*(?=/)(\S+\.parquet)",
        "the archive's file {0} is damaged: put a sound copy in its place, or take it out of the archive's manifest",
    ),
    (
        r"PATH_NOT_FOUND\S*[^\n]*?file:/*(?=/)(\S+\.parquet)|FileNotFoundException: File file:/*(?=/)(\S+\.parquet)",
        "the archive's file {0} is missing: put it back, or take it out of the archive's manifest",
    ),
    (
        r"(?:Class org\.apache\.hadoop\.fs\.(s3a)\.S3AFileSystem not found|No FileSystem for scheme \W?(gs)\b)",
        "the session lacks {0}'s jars: give --packages {0}, or --jars with a folder of them",
    ),
    (r"Initial job has not accepted any resources", "the Spark master has no worker with room for this job"),
    (r"No space left on device", "the disk is full: make room, then start this job again"),
)


def explain(error: BaseException) -> str:
    """The one line. error: whatever a job raised."""
    if isinstance(error, PipelineError):
        return _one_line(str(error))
    text = "\n".join(said(error))
    found = re.findall(r"(?:PipelineError|AnswerError|MadeAnewError|AwayError): (.+)", text)
    if found:
        return _one_line(found[-1])
    for pattern, line in _PATTERNS:
        match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            groups = [each for each in match.groups() if each] or ["(unknown)"]
            return line.format(*groups)
    trace = text.rpartition("Traceback (most recent call last)")[2]
    raised = re.search(r"^[\w.]+(?:Error|Exception): .+", trace, re.MULTILINE) if trace != text else None
    if raised:  # by a Python worker; the text begins with no more than that one raised something
        return _one_line(raised[0])
    causes = _JAVA.findall(text)
    if causes:  # the line before the first names an object of Py4J's; the last is what the others came of
        return _one_line(next((each for each in reversed(causes) if ": " in each), causes[-1]))
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return _one_line(f"{type(error).__name__}: {first}")


_JAVA = re.compile(
    r"^(?:: |\s*Caused by: |.*\(TID \d+\)[^:\n]*: )([\w.$]+(?:Error|Exception)\b(?:[: ].+)?)$", re.MULTILINE
)
"""What Java raised, where a trace begins: in Py4J's text, behind what another came of, in the text of a lost task."""


def said(error: BaseException | None) -> list[str]:
    """What an error says, and what it came of: Spark's own errors have that beside Python's."""
    said: list[str] = []
    while error is not None and len(said) < 20:
        said.append(str(error))
        error = getattr(error, "_cause", None) or error.__cause__
    return said


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]
