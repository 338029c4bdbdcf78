"""A schema registry: what a run asks of it, and which columns its schemas make.

Called by archive and profile, on the driver: tasks ask a registry nothing, and need no way to it. Each schema is
fetched once in a run. The columns have room for all schemas that were seen: a field that a later one adds is a column
more, null in what came before; one that a later schema lacks stays. A schema that does not fit the columns any more, as
text where there were numbers, has its records set apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from kbroker.pipeline.errors import PipelineError, said
from kbroker.pipeline.framed import FORMS, PROTOBUF, WHOLE, FramedDecoder, Known, NewSchemaError, Ref, Schema, compiled
from kbroker.pipeline.protobuf import compiled as descriptors_of
from kbroker.pipeline.shapes import MisfitError, ddl, merged, plain
from protocol.namedtuple import NamedTuple

ANSWER_S = 8
"""How long a request may take: a user learns within ten seconds that a registry is not there."""
RETRIES = 3
ASKED = 1000
"""Ids that are asked for because records of one batch have them, at most: what is no framing at all may look like so
many."""
_REFS = "side string, id bigint, path string"


class Access(NamedTuple):
    """Where a registry is. settings: of Confluent's client, as basic.auth.user.info and ssl.ca.location."""

    url: str
    settings: Mapping[str, str] = {}


class Registry:
    """What is known of a registry."""

    def __init__(self, access: Access, retries: int = RETRIES) -> None:
        """Raises: PipelineError for settings that the client does not take."""
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._url = access.url
        own = {"url": access.url, "timeout": ANSWER_S, "max.retries": retries}
        try:
            self._client = SchemaRegistryClient({**access.settings, **own})
        except Exception as error:  # of its settings, or of a file that they name
            raise PipelineError(f"--schema-registry-url {access.url}: {_line(error)}") from None
        self._schemas: dict[int, Schema | str] = {}
        self._versions: dict[tuple[str, int], Schema] = {}

    def check(self) -> None:
        """Raises: PipelineError where it does not answer."""
        self._ask(self._client.get_subjects)

    def schema(self, number: int) -> Schema | str:
        """The schema of an id, or why there is none to use. Raises PipelineError if the registry does not answer."""
        if number not in self._schemas:
            found = self._ask(self._client.get_schema, number)
            self._schemas[number] = self._made(number, found) if found else f"schema id {number} is not in the registry"
        return self._schemas[number]

    def versions(self, subject: str) -> list[Schema]:
        """The schemas of a subject, the first first; none if there is no such subject. Raises as `schema`."""
        found = []
        for version in self._ask(self._client.get_versions, subject) or ():
            place = (subject, version)
            if place not in self._versions and (registered := self._ask(self._client.get_version, subject, version)):
                number = registered.schema_id
                if number not in self._schemas:
                    self._schemas[number] = self._made(number, registered.schema)
                if isinstance(schema := self._schemas[number], Schema):
                    self._versions[place] = schema
            if place in self._versions:
                found.append(self._versions[place])
        return found

    def named(self, number: int) -> list[tuple[str, int]]:
        """The subjects and versions that an id is of. Raises as `schema`."""
        return [(each.subject, each.version) for each in self._ask(self._client.get_schema_versions, number) or ()]

    def _made(self, number: int, found: Any) -> Schema | str:
        form = (found.schema_type or "AVRO").upper()
        if form not in FORMS:
            return f"schema id {number} is {form}, which is none of {', '.join(FORMS)}"
        references: dict[str, str] = {}
        try:
            self._collect(found.references or (), references)
            descriptors = descriptors_of(found.schema_str, references) if form == PROTOBUF else b""
        except ValueError as error:
            return f"schema id {number}: {error}"
        return Schema(number, form, found.schema_str, tuple(references.items()), descriptors)

    def _collect(self, references: Sequence[Any], found: dict[str, str]) -> None:
        """Note the texts of what a schema refers to, each after what it refers to itself. Raises ValueError."""
        for each in references:
            if each.name not in found:
                there = self._ask(self._client.get_version, each.subject, each.version)
                if not there:
                    raise ValueError(
                        f"it refers to {each.subject} version {each.version}, which is not in the registry"
                    )
                self._collect(there.schema.references or (), found)
                found[each.name] = there.schema.schema_str

    def _ask(self, call: Callable[..., Any], *given: Any) -> Any:
        """What the registry says; None where it has no such thing. Raises PipelineError."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call(*given)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code // 100 == 404:
                return None
            raise PipelineError(f"the schema registry at {self._url} says: {_line(error)}") from None
        except Exception as error:  # of the HTTP client, which has dozens
            raise PipelineError(
                f"the schema registry at {self._url} does not answer ({_line(error)}): start it, or name another "
                "(--schema-registry-url)"
            ) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Following:
    """Columns of keys and values by a registry's schemas, while topics are read.

    sides: which of `key` and `value` are decoded. state: that of an archive that was begun, as `state` made it.
    """

    def __init__(self, registry: Registry, sides: Sequence[str], state: Mapping[str, Any] | None = None) -> None:
        """Raises: as `Registry.schema`."""
        self._registry, self._sides = registry, tuple(sides)
        self._schemas: dict[int, Schema] = {}
        self._known = {side: self._recalled((state or {}).get(side)) for side in sides}
        self._asks, self._is_begun, self._has_learnt = False, False, False

    def _recalled(self, state: Mapping[str, Any] | None) -> Known:
        if state is None:
            return Known(None, {}, {})
        usable = {(number, tuple(path)): None for number, path in state["usable"]}
        for number, _ in usable:
            if isinstance(schema := self._registry.schema(number), str):
                raise PipelineError(f"{schema}, and the archive has records of it: is it another registry?")
            self._schemas[number] = schema
        apart = {(number, tuple(path)): why for number, path, why in state["apart"]}
        column = arrow_of(StructType.fromDDL(f"data {state['column']}")["data"].dataType) if state["column"] else None
        return Known(column, usable, apart)

    @property
    def decoder(self) -> FramedDecoder:
        """What decodes by all that is known now."""
        return FramedDecoder(dict(self._schemas), dict(self._known), asks=self._asks)

    @property
    def state(self) -> dict[str, Any]:
        """What is known, as JSON has it."""
        found = {}
        for side, (column, usable, apart) in self._known.items():
            kind = ddl(column) if column else None
            refs = sorted((number, list(path)) for number, path in usable)
            others = sorted((number, list(path), why) for (number, path), why in apart.items())
            found[side] = {"column": kind, "usable": [[*ref] for ref in refs], "apart": [[*each] for each in others]}
        return found

    def refresh(self, topics: Sequence[str]) -> None:
        """Read which schemas the topics' subjects have now.

        Raises: PipelineError where two topics have columns that are not the same, before there are any; and as
        `Registry.schema`, unless columns are known already: then what is new is asked for once a record has it.
        """
        if self._has_learnt:  # just now, for the batch that is read again
            self._has_learnt = False
            return
        is_new = all(known.column is None for known in self._known.values())
        if not self._is_begun:  # what an earlier run has set apart may be in the registry by now
            self._known = {side: known._replace(apart={}) for side, known in self._known.items()}
        self._asks = self._is_begun = True
        try:
            of_topics = {(topic, side): self._subject(topic, side) for side in self._sides for topic in topics}
        except PipelineError:
            if is_new:
                raise
            return
        if is_new:
            self._check_alike(of_topics)
        for (_, side), schemas in of_topics.items():
            for schema in schemas:
                self._learn(side, (schema.id, schema.first_path), schema)

    def _subject(self, topic: str, side: str) -> list[Schema]:
        return self._registry.versions(f"{topic}-{side}")

    def _check_alike(self, of_topics: Mapping[tuple[str, str], Sequence[Schema]]) -> None:
        columns: dict[str, tuple[str, pa.DataType]] = {}
        for (topic, side), schemas in of_topics.items():
            alone = Following(self._registry, [side])
            for schema in schemas:
                alone._learn(side, (schema.id, schema.first_path), schema)
            if (kind := alone._known[side].column) is None:
                continue
            other, before = columns.get(side, (topic, kind))
            try:
                columns[side] = (topic, merged(before, kind, side))
            except MisfitError as error:
                raise PipelineError(f"topics {other} and {topic} differ: {error}. Archive each by itself") from None

    def _learn(self, side: str, ref: Ref, schema: Schema) -> None:
        known = self._known[side]
        if ref in known.usable or ref in known.apart:
            return
        self._schemas[schema.id] = schema
        try:
            kind = compiled(schema, ref[1]).kind
            column = kind if known.column is None else merged(known.column, kind, side)
            self._known[side] = known._replace(column=column, usable={**known.usable, ref: None})
        except MisfitError as error:
            self._apart(side, ref, f"schema id {schema.id} has no column: {error}")
        except ValueError as error:
            self._apart(side, ref, f"schema id {schema.id}: {error}")

    def _apart(self, side: str, ref: Ref, why: str) -> None:
        known = self._known[side]
        self._known[side] = known._replace(apart={**known.apart, ref: why})

    def learns(self, error: BaseException, records: Callable[[], DataFrame]) -> bool:
        """Whether a batch has ended because its records have schemas that were not known, and they are known now: then
        it is read again. records: those of the batch. Raises as `Registry.schema`."""
        if NewSchemaError.__name__ not in "\n".join(said(error)) or not self._asks:
            return False
        found = new_refs(records(), self.decoder)
        self._asks, self._has_learnt = len(found) < ASKED, True
        for side, number, path in found:
            schema = self._registry.schema(number)
            if isinstance(schema, str):
                self._apart(side, (number, WHOLE), schema)
            else:
                self._learn(side, (number, path or schema.first_path), schema)
        return True


def columns_of(state: Mapping[str, Any]) -> str:
    """The columns that `state` tells of, as DDL."""
    found = []
    for side, known in state.items():
        found += [f"{side}_schema bigint", *([f"{side}_data {known['column']}"] if known["column"] else [])]
    return ", ".join(found)


def arrow_of(kind: DataType) -> pa.DataType:
    """The type of Arrow that `shapes.ddl` has made one of Spark of."""
    if isinstance(kind, StructType):
        return pa.struct([(field.name, arrow_of(field.dataType)) for field in kind.fields])
    if isinstance(kind, MapType):
        return pa.map_(arrow_of(kind.keyType), arrow_of(kind.valueType))
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_of(kind.elementType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return plain(kind.simpleString())


def new_refs(records: DataFrame, decoder: FramedDecoder) -> list[tuple[str, int, tuple[int, ...]]]:
    """What a decoder does not know of these records' framing, the most frequent first, at most ASKED."""

    def refs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [(side, number, ",".join(map(str, path))) for side, number, path in decoder.unknown(batch)]
            if found:  # Spark takes no batch without columns
                yield pa.RecordBatch.from_pydict(
                    dict(zip(("side", "id", "path"), zip(*found, strict=True), strict=True))
                )

    sound = records.where(f.col("reason").isNull()).select("key", "value")
    found = sound.mapInArrow(refs, _REFS).groupBy("side", "id", "path").count()
    rows = found.orderBy(f.desc("count"), "side", "id", "path").limit(ASKED).collect()
    return [(row.side, row.id, tuple(int(each) for each in row.path.split(",") if each)) for row in rows]
