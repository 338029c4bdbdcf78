"""How `dump-log` shows keys and values: as text or numbers, or as what brokers and controllers keep in their topics.

Called by dump_log only. What such a record means is JSON with Kafka's own field names, as Apache's tool shows it:
`{"type":"1","data":{...}}` for a coordinator's key, `{"version":"3","data":{...}}` for its value, and of a metadata
quorum's log `{"type":"TOPIC_RECORD","version":0,"data":{...}}`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from kbroker.broker.coordinator_types import GROUP, TRANSACTION
from kbroker.log.tools.dump import Decoder
from kbroker.log.tools.message_json import as_json, json_line
from kbroker.txn.state import STATUS
from protocol.message import DecodeError, Message
from protocol.messages import embedded, stored
from protocol.records import Record

Decode = Callable[[bytes], str]


def _integer(data: bytes) -> str:
    return str(int.from_bytes(data, "big", signed=True))


def _of_size(size: int) -> Decode:
    def decode(data: bytes) -> str:
        return _integer(data) if len(data) == size else f"not {size} bytes: {data.hex()}"

    return decode


DECODERS: dict[str, Decode] = {
    "string": lambda data: data.decode(errors="replace"),
    "integer": _of_size(4),
    "long": _of_size(8),
    "hex": bytes.hex,
    "base64": lambda data: base64.b64encode(data).decode(),
}
"""By the name that --key-decoder-class and --value-decoder-class take."""

_APACHE = {"StringDecoder": "string", "IntegerDecoder": "integer", "LongDecoder": "long", "DefaultDecoder": "hex"}


def decoder_for(*, offsets: bool, transactions: bool, metadata: bool, key: str | None, value: str | None) -> Decoder:
    """What the flags ask for. Raises click.UsageError for a decoder that we do not have."""
    if offsets:
        return decode_group_record
    if transactions:
        return decode_transaction_record
    if metadata:
        return decode_metadata_record
    of_key, of_value = _named(key), _named(value)

    def decode(record: Record) -> tuple[str | None, str | None]:
        return (
            None if record.key is None else of_key(record.key),
            None if record.value is None else of_value(record.value),
        )

    return decode


def _named(name: str | None) -> Decode:
    short = (name or "string").rpartition(".")[2]
    decode = DECODERS.get(_APACHE.get(short, short))
    if decode is None:
        raise click.UsageError(f"there is no decoder {name!r}: choose from {', '.join(DECODERS)}")
    return decode


def decode_group_record(record: Record) -> tuple[str | None, str | None]:
    """A record of __consumer_offsets."""
    return _decode_stored(record, GROUP.records())


def decode_transaction_record(record: Record) -> tuple[str | None, str | None]:
    """A record of __transaction_state."""
    return _decode_stored(record, TRANSACTION.records())


def decode_metadata_record(record: Record) -> tuple[str | None, str | None]:
    """A record of __cluster_metadata, or of a snapshot of it."""
    from protocol.messages.metadata_records import decode_record

    try:
        found, version = decode_record(record.value)
    except DecodeError as error:
        return None, f"Error at {record.offset}, skipping. {error}"
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(found).__name__).upper()
    return None, json_line({"type": name, "version": version, "data": as_json(found, version)})


def _decode_stored(
    record: Record, kinds: Mapping[int, tuple[type[Message], type[Message]]]
) -> tuple[str | None, str | None]:
    try:
        kind = stored.version_of(record.key or b"")
        if kind not in kinds:
            return f"Unknown record type {kind} at offset {record.offset}, skipping.", None
        of_key, of_value = kinds[kind]
        key = json_line({"type": str(kind), "data": as_json(stored.decode_versioned(of_key, record.key or b""), kind)})
        if record.value is None:
            return key, "<DELETE>"
        version = stored.version_of(record.value)
        data = as_json(stored.decode_versioned(of_value, record.value), version)
    except DecodeError as error:
        return f"Error at offset {record.offset}, skipping. {error}", None
    if of_value is stored.GroupMetadataValue and data["protocolType"] == "consumer":
        for member in data["members"]:
            _open_embedded(member, "subscription", embedded.ConsumerProtocolSubscription)
            _open_embedded(member, "assignment", embedded.ConsumerProtocolAssignment)
    if of_value is stored.TransactionLogValue and (state := STATUS.get(data["transactionStatus"])):
        data["transactionStatus"] = state.value  # since Kafka 4.4; a number before
    return key, json_line({"version": str(version), "data": data})


def _open_embedded(member: dict[str, Any], name: str, kind: type[Message]) -> None:
    """Show the bytes of a consumer's protocol as what they are; leave them, if they are something else."""
    data = base64.b64decode(member[name])
    try:
        version = min(stored.version_of(data), kind.versions[1])
        member[name] = as_json(stored.decode_versioned(kind, data, newer_as_newest=True), version)
    except DecodeError:
        return
