"""Topics become tables and tables become topics: PySpark jobs, the same on a laptop and on a Spark cluster.

`kbroker pipeline NAME` runs them; each is a function here too, for a session of one's own. Installed with
`pip install '.[pipeline]'`; nothing of a broker is imported here but file formats, nothing of Spark by a broker.

- `archive`, `replay`, `mirror`, `audit`, `profile`, `compact_check`, `convert`: a job each.
- `source`: `spark.read.format("kbroker")` without any jar; `register(spark)` makes it known to a session, and
  `load(spark, **options)` reads a batch on versions of Spark that have no data sources in Python (`versions`).
- `kafka`: topics as DataFrames. `wire`: a small client of the protocol. `columns`: log bytes and Arrow.
- `files`, `tables`: what an archive's records are written as. `manifests`: what it says of itself.
- `progress`: what is told of batches.
- `ahead`, `session`, `jars`, `storage`, `counts`, `names`, `errors`: what the jobs stand on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kbroker")` known to a session."""
    from kbroker.pipeline.source import register as known

    known(spark)


def load(spark: SparkSession, **options: str) -> DataFrame:
    """A batch by the options of `format("kbroker")`, on any version of Spark."""
    from kbroker.pipeline.source import load as loaded

    return loaded(spark, **options)
