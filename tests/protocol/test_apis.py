"""The table of APIs agrees with the classes it names, and every class says what it is for and how it came to be."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

import protocol.messages
from protocol import schema
from protocol.apis import APIS, BY_KEY, BY_NAME, Api
from protocol.message import LAST_VERSION, Message, Struct

# the control plane of a cluster with ZooKeeper, and what it needs of the rest (Kafka 3.9)
KEYS_OF_KAFKA_3_9 = [*range(52), 56, 57, 58, 60, 61, *range(65, 70)]


def declared() -> list[type[Struct]]:
    """Every message and struct under protocol/messages/."""
    modules = [
        importlib.import_module(f"protocol.messages.{module.name}")
        for module in pkgutil.iter_modules(protocol.messages.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == module.__name__
    ]


STRUCTS = declared()
MESSAGES = [cls for cls in STRUCTS if issubclass(cls, Message)]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_row_is_that_of_its_classes(api: Api) -> None:
    assert (api.request.api, api.response.api) == (api.key, api.key)
    assert api.versions == api.request.versions == api.response.versions
    flexible = (1, 0) if api.flexible_from is None else (api.flexible_from, LAST_VERSION)
    assert flexible == api.request.flexible == api.response.flexible
    assert api.kafka_3_9 is None or (api.has_version(api.kafka_3_9[0]) and api.has_version(api.kafka_3_9[1]))


def test_keys_rise() -> None:
    assert [api.key for api in APIS] == sorted(BY_KEY)


def test_everything_that_kafka_3_9_with_zookeeper_speaks_is_there() -> None:
    assert [api.key for api in APIS if api.kafka_3_9] == KEYS_OF_KAFKA_3_9


def test_every_request_and_response_has_a_row() -> None:
    rows = {api.request for api in APIS} | {api.response for api in APIS}
    assert {cls for cls in MESSAGES if cls.api is not None} == rows


def test_control_plane_is_what_clients_never_send() -> None:
    assert [api.name for api in APIS if api.control_plane] == [
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "AlterPartition",
        "Envelope",
        "FetchSnapshot",
        "BrokerRegistration",
        "BrokerHeartbeat",
        "AllocateProducerIds",
        "AssignReplicasToDirs",
    ]


def test_importing_the_table_imports_no_message() -> None:
    program = "import sys, protocol.apis; print([name for name in sys.modules if name.startswith('protocol.messages')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "version", "headers"),
    [
        ("Produce", 8, (1, 0)),
        ("Produce", 9, (2, 1)),
        ("ApiVersions", 2, (1, 0)),
        ("ApiVersions", 3, (2, 0)),
        ("ApiVersions", 99, (2, 0)),
        ("ControlledShutdown", 0, (0, 0)),
        ("ControlledShutdown", 1, (1, 0)),
        ("ControlledShutdown", 3, (2, 1)),
        ("SaslHandshake", 1, (1, 0)),
        ("OffsetDelete", 0, (1, 0)),
        ("AlterPartition", 0, (2, 1)),
    ],
)
def test_header_versions(name: str, version: int, headers: tuple[int, int]) -> None:
    api = BY_NAME[name]
    assert (api.request_header_version(version), api.response_header_version(version)) == headers


def history(message: type[Message]) -> list[int]:
    """The versions that the docstring tells of: one a line, or several as "6, 7" or "7-11"."""
    text = inspect.cleandoc(message.__doc__ or "")  # Python 3.13 does that itself
    lines = re.findall(r"^ {2}(\d[\d, -]*)  ", text.partition("Versions:\n")[2], re.MULTILINE)
    ranges = [[int(end) for end in part.split("-")] for line in lines for part in line.split(",")]
    return [version for ends in ranges for version in range(ends[0], ends[-1] + 1)]


def test_every_message_tells_the_history_of_its_versions() -> None:
    wanted = {cls: list(range(cls.versions[0], cls.versions[1] + 1)) for cls in MESSAGES}
    assert [cls.__name__ for cls in MESSAGES if history(cls) != wanted[cls]] == []


def test_every_class_begins_with_its_purpose() -> None:
    purposes = {cls.__name__: (cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ") for cls in STRUCTS}
    assert [name for name, purpose in purposes.items() if not re.match(r"[A-Z].+[.:]$", purpose)] == []


def test_schemas_resolve_in_every_version() -> None:
    for message in MESSAGES:
        versions = range(message.versions[0], message.versions[1] + 1)
        assert all(field.present_at(v) for v in versions for field in schema.fields_at(message, v)), message
