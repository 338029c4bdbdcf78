"""Values of JSON as typed columns: by a schema that is given, or that a sample of the records shows.

Called by archive on the driver. A value that is JSON, but none of the schema, is set apart like one that is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from kbroker.pipeline import kafka
from kbroker.pipeline.ahead import Spans
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.session import setting
from kbroker.pipeline.values import decoder
from kbroker.pipeline.wire import PartitionEnd
from protocol.namedtuple import NamedTuple

INFER = "infer"
SAMPLE_RECORDS, SAMPLE_PARTITIONS = 1000, 32
"""What a schema is inferred from: the last records of a partition, of so many partitions."""
SAMPLE_DEPTH = 64
"""Values that are nested more deeply have no part in it: Spark's inference calls itself, and at some hundreds its JVM
ends."""
_CORRUPT = "_corrupt_record"
"""Spark's name for what does not fit."""


class Typed(NamedTuple):
    """A schema, and what it was inferred from: so many values; 0 if it was given."""

    kind: StructType
    sampled: int = 0

    @property
    def told(self) -> str:
        """The schema in a line, as a user writes it."""
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.kind.fields)


def parsed(text: str) -> Typed:
    """A schema as a user writes it: Spark's DDL, or its JSON. Raises PipelineError."""
    try:
        kind = StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else StructType.fromDDL(text)
    except (PySparkException, KeyError, TypeError, ValueError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise PipelineError(
            f"the schema is neither Spark's DDL (id bigint, name string) nor its JSON of a struct: {first[0]}"
        ) from None
    if not isinstance(kind, StructType) or not kind.fields:
        raise PipelineError("the schema is no struct: write the columns' names and types (id bigint, name string)")
    if name := _named_twice(kind):
        raise PipelineError(f"the schema names {name} twice: Spark's columns do not mind case")
    return Typed(kind)


def _named_twice(kind: DataType) -> str | None:
    """A name that is there twice, in upper or lower case."""
    if isinstance(kind, ArrayType):
        return _named_twice(kind.elementType)
    if not isinstance(kind, StructType):
        return None
    names = [each.name.lower() for each in kind.fields]
    twice = [name for name in names if names.count(name) > 1]
    return next(iter([*twice, *filter(None, (_named_twice(each.dataType) for each in kind.fields))]), None)


def _once(kind: DataType) -> DataType:
    """A type without the names that others differ from by case alone: the first is kept."""
    if isinstance(kind, ArrayType):
        return ArrayType(_once(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    first = {each.name.lower(): each for each in reversed(kind.fields)}
    kept = [each for each in kind.fields if first[each.name.lower()] is each]
    return StructType([StructField(each.name, _once(each.dataType)) for each in kept])


def quoted(name: str) -> str:
    """A name of any characters, as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def ddl_of(kind: DataType) -> str:
    """A type as Spark reads it: names of fields may have any characters."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(each.name)}: {ddl_of(each.dataType)}' for each in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return kind.simpleString()


_WIDER = {"int": ("bigint",), "float": ("double",)}
"""What a type may become without a change of the values that are there."""


def grown(began: Typed, given: Typed) -> Typed:
    """The schema of a table that has all of both. Raises PipelineError where a column of the one is none of the
    other's."""
    kind = _grown(began.kind, given.kind, "")
    assert isinstance(kind, StructType)
    return Typed(kind)


def _grown(began: DataType, given: DataType, path: str) -> DataType:
    if isinstance(began, StructType) and isinstance(given, StructType):
        new = {each.name: each for each in given.fields}
        whole = [
            StructField(each.name, _grown(each.dataType, new.pop(each.name).dataType, f"{path}{each.name}."))
            if each.name in new
            else each
            for each in began.fields
        ]
        return StructType([*whole, *new.values()])
    if isinstance(began, ArrayType) and isinstance(given, ArrayType):
        return ArrayType(_grown(began.elementType, given.elementType, path))
    before, now = began.simpleString(), given.simpleString()
    if before == now or before in _WIDER.get(now, ()):
        return began
    if now in _WIDER.get(before, ()):
        return given
    raise PipelineError(f"the schema makes {path.rstrip('.')} a {now}, and it is a {before}: give it another name")


def inferred(spark: SparkSession, source: Source, ends: Spans) -> Typed:
    """The schema of what there is of JSON among the last records. Raises PipelineError where there is nothing."""
    last = {place: PartitionEnd(max(span.start, span.end - SAMPLE_RECORDS), span.end) for place, span in ends.items()}
    some = dict([each for each in sorted(last.items()) if each[1].end > each[1].start][:SAMPLE_PARTITIONS])
    rows = kafka.read_apart(spark, source, some, decoder("json", None), allow_gaps=True)
    found = rows.where("value_json is not null").select("value_json").collect()
    texts = [row.value_json for row in found if depth_of(row.value_json) <= SAMPLE_DEPTH]
    return Typed(_common(spark, texts), len(texts))


def _common(spark: SparkSession, texts: Sequence[str]) -> StructType:
    with setting(spark, "spark.sql.caseSensitive", "true"):  # or an object with names that differ by case ends the job
        found = _once(spark.read.json(spark.sparkContext.parallelize(texts)).schema if texts else StructType())
    assert isinstance(found, StructType)
    kind = StructType([field for field in found.fields if field.name != _CORRUPT])
    if not kind.fields:
        raise PipelineError("no schema can be inferred: there is no object of JSON among the topics' last records")
    return kind


_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')


def depth_of(text: str) -> int:
    """How deeply a text of JSON is nested."""
    if text.count("{") + text.count("[") <= SAMPLE_DEPTH:
        return text.count("{") + text.count("[")
    depth = deepest = 0
    for mark in _NESTING.findall(text):
        depth += 1 if mark in "{[" else -1 if mark in "}]" else 0
        deepest = max(deepest, depth)
    return deepest


def with_struct(rows: DataFrame, typed: Typed) -> DataFrame:
    """Rows of `read_apart` with `value_json` as a struct."""
    whole = StructType([*typed.kind.fields, StructField(_CORRUPT, StringType())])
    struct = f.from_json("value_json", whole, {"columnNameOfCorruptRecord": _CORRUPT})
    text = f.col("value_json")
    misfit = text.isNotNull() & (~text.rlike(r"^[ \t\n\r]*\{") | struct[_CORRUPT].isNotNull())
    reason = f.when(f.col("reason").isNull() & misfit, "the value does not fit the schema").otherwise(f.col("reason"))
    shaped = f.when(~misfit, struct.dropFields(_CORRUPT))
    return rows.withColumns({"reason": reason, "value_json": shaped})
