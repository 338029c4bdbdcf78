"""What a record's bytes are shown as."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator

import fastavro
import pytest

from kbroker.console.values import Values

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string who = 2; }'


class _Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        schemas = {
            "/schemas/ids/1": {"schema": json.dumps(SCHEMA)},
            "/schemas/ids/2": {"schema": PROTO, "schemaType": "PROTOBUF"},
            "/schemas/ids/3": {"schema": "{}", "schemaType": "JSON"},
        }
        found = schemas.get(self.path)
        body = json.dumps(found or {"error_code": 40403}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("data", "form", "shown"),
    [
        (None, "auto", ("null", "")),
        (b"", "auto", ("text", "")),
        ("grün".encode(), "auto", ("text", "grün")),
        (b'{"a":[1]}', "auto", ("json", '{"a": [1]}')),
        (b"{a", "auto", ("text", "{a")),
        (b"\xff\x00", "auto", ("hex", "ff00")),
        (b"\xff", "text", ("text", "\ufffd")),
        (b"ab", "hex", ("hex", "6162")),
        (b"\x00\x00\x00\x00\x01x", "auto", ("hex", "0000 0000 0178")),
    ],
)
def test_a_value_is_shown_as_what_it_is(data: bytes | None, form: str, shown: tuple[str, str]) -> None:
    found = Values().shown(data, form)
    assert (found.form, found.text) == shown


def test_a_long_value_is_cut_within_no_character() -> None:
    found = Values().shown("grün".encode() * 100, "auto", 3)
    assert (found.form, found.text, found.is_cut, found.size) == ("text", "gr", True, 500)


def test_avro_is_read_by_its_schema(registry: str) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), {"id": 7, "who": "alice"})
    values = Values(registry)
    found = values.shown(framed(1, out.getvalue()))
    assert (found.form, json.loads(found.text)) == ("avro", {"id": 7, "who": "alice"})
    broken = values.shown(framed(1, b""))
    assert broken.form == "hex"
    assert "not as its schema says" in broken.note


def test_protobuf_and_json_are_read_by_their_schemas(registry: str) -> None:
    pytest.importorskip("grpc_tools", reason="the extra `pipeline` is not installed")
    values = Values(registry)
    found = values.shown(framed(2, b"\0" + b"\x08\x07\x12\x05alice"))
    assert (found.form, json.loads(found.text)) == ("protobuf", {"id": "7", "who": "alice"})
    assert values.shown(framed(3, b'{"a": 1}')).form == "json"


def test_a_schema_that_is_not_there_is_told(registry: str) -> None:
    found = Values(registry).shown(framed(9, b"x"))
    assert (found.form, found.note) == ("hex", "the schema registry answers 404 to /schemas/ids/9")
