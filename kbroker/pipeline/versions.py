"""What this Spark has of the interface of data sources in Python; in place of what it lacks there is an empty class.

Used by `source.py`. Spark 3.5 has none of it, 4.0 has batches and streams, 4.1 conditions and streams that are
written, 4.2 tells a stream where it stands.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kbroker.pipeline.errors import PipelineError


def _found(name: str, module: str = "pyspark.sql.datasource") -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None


def _of(name: str) -> Any:
    return _found(name) or type(name, (), {})


DataSource, DataSourceReader = map(_of, ("DataSource", "DataSourceReader"))
DataSourceStreamReader = _of("DataSourceStreamReader")
DataSourceArrowWriter, DataSourceStreamArrowWriter = map(_of, ("DataSourceArrowWriter", "DataSourceStreamArrowWriter"))
InputPartition, WriterCommitMessage = map(_of, ("InputPartition", "WriterCommitMessage"))
_AVAILABLE_NOW = _found("SupportsTriggerAvailableNow", "pyspark.sql.streaming.datasource")
AvailableNow: Any = _AVAILABLE_NOW or type("AvailableNow", (), {})
HAS_SOURCES, KNOWS_START = _found("DataSource") is not None, _AVAILABLE_NOW is not None
HAS_STREAM_WRITERS = _found("DataSourceStreamArrowWriter") is not None


def check(there: bool, what: str, since: str) -> None:
    """Raises: PipelineError for what this Spark does not have."""
    if not there:
        from pyspark import __version__

        raise PipelineError(f"{what} need Spark {since} or newer: this is {__version__}")
