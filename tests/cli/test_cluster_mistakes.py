"""The way of commands to a cluster, and what they say of mistakes, on a broker in this process."""

from __future__ import annotations

import os
import re
import socketserver
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kafka import errors
from kafka.admin import KafkaAdminClient

from kbroker.cli._cluster import Cluster, fault_of, no_answer, said_by_client
from protocol.errors import ErrorCode
from protocol.headers import parse_request_header
from protocol.message import Message
from protocol.messages.handshake import ApiVersion, ApiVersionsResponse, SaslAuthenticateResponse, SaslHandshakeResponse
from tests.cli.asking import Ask

# ---- the way to a cluster


def test_the_address_that_is_given_goes_before_that_of_a_file(ask: Ask, bootstrap: str, tmp_path: Path) -> None:
    (file := tmp_path / "client.properties").write_text("bootstrap.servers=127.0.0.1:1\nbootstrap.timeout.ms=200\n")
    assert ask("topics", "--list", "-b", bootstrap, "--command-config", str(file))[0] == 0
    assert ask("topics", "--list", "--command-config", str(file))[2] == "kbroker: no broker answers at 127.0.0.1:1\n"


class Doorman(socketserver.StreamRequestHandler):
    """As much of a broker as it takes to refuse a login."""

    def handle(self) -> None:
        served = [ApiVersion(api_key=api, min_version=0, max_version=1) for api in (3, 17, 18, 36)]
        answers: dict[int, Message] = {
            17: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
            18: ApiVersionsResponse(error_code=0, api_keys=served, throttle_time_ms=0),
            36: SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"", session_lifetime_ms=0),
        }
        while size := self.rfile.read(4):
            frame = self.rfile.read(int.from_bytes(size, "big"))
            api, version, correlation, *_ = parse_request_header(memoryview(frame))
            body = answers[api].encode(version)
            self.wfile.write(struct.pack(">ii", 4 + len(body), correlation) + body)


@pytest.mark.parametrize("command", ["topics --list", "produce -t t", "consume -t t"])
def test_a_wrong_password_is_not_taken_for_a_broker_that_is_not_there(ask: Ask, command: str) -> None:
    words = f"{command} -X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN -X bootstrap.timeout.ms=500"
    words += " -X sasl.plain.username=alice -X sasl.plain.password=wrong"
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Doorman) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        code, _, err = ask(*words.split(), "-b", f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("kbroker: SASL_AUTHENTICATION_FAILED: ")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("sasl.plain.password", "0123", "0123"),
        ("sasl_plain_username", "7", "7"),
        ("receive.buffer.bytes", "4096", 4096),
        ("security.protocol", "ssl", "SSL"),
    ],
)
def test_a_client_setting_is_of_the_kind_that_the_client_takes(key: str, text: str, value: object) -> None:
    options = Cluster("127.0.0.1:9092", {key: text}).options(KafkaAdminClient.DEFAULT_CONFIG)
    assert options[key.replace(".", "_")] == value


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-X security.protocol=nonsense", "security.protocol=nonsense: "),
        ("-X fetch.max.wait.ms=soon", "fetch.max.wait.ms=soon: "),
        ("-X retris=3", "retris: no setting of kafka-python; did you mean retries?"),
        ("-b 127.0.0.1:1 -X bootstrap.timeout.ms=200", "no broker answers at 127.0.0.1:1"),
    ],
)
@pytest.mark.parametrize("command", ["produce -t t", "consume -t t"])
def test_a_mistake_in_a_setting_is_one_line_where_records_are_carried(
    ask: Ask, command: str, words: str, line: str
) -> None:
    code, out, err = ask(*command.split(), *words.split())
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_setting_is_taken_in_the_spelling_of_either_library(ask: Ask) -> None:
    for words in ("topics --list", "produce -t spelled", "consume -t spelled -e"):
        settings = "fetch.max.wait.ms=50 fetch_wait_max_ms=50 sasl.plain.username=a sasl.username=a max.poll.records=7"
        given = [word for each in settings.split() for word in ("-X", each)]
        assert ask(*words.split(), *given)[::2] == (0, "")


def test_a_table_that_nobody_reads_to_its_end_is_no_error(bootstrap: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kbroker", "configs", "-b", bootstrap, "--describe", "--broker", "1", "--all"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# ---- mistakes: one line each, exit code 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("topics", "say one thing to do, of --list, --describe, --create, --alter, --delete"),
        (
            "topics --list --delete",
            "say one thing to do, of --list, --describe, --create, --alter, --delete, --offsets; not 2",
        ),
        ("topics --list --under-replicated-partitions", "--under-replicated-partitions goes with --describe, not with"),
        ("topics --list --unavailable-partitions --json", "--unavailable-partitions goes with --describe, not with"),
        ("topics --describe --time -1h", "--time goes with --offsets, not with --describe"),
        ("topics --describe --topic t --partitions 3", "--partitions goes with --create or --alter, not with"),
        ("groups --list --group g", "--group goes with --describe or --delete or --delete-offsets or --reset-offsets"),
        ("groups --delete --group g --execute", "--execute goes with --reset-offsets, not with --delete"),
        ("configs --describe --topic t --add-config a=1", "--add-config goes with --alter, not with --describe"),
        ("cluster --describe --topic t", "--topic goes with --log-dirs, not with --describe"),
        ("acls --list --allow-principal User:a", "--allow-principal goes with --add or --remove, not with --list"),
        ("users --list --iterations 5000", "--iterations goes with --create or --alter, not with --list"),
        ("reassign --list --throttle 5", "--throttle goes with --execute, not with --list"),
        ("topics --create", "--create wants --topic"),
        ("topics --alter --topic t", "--alter wants --partitions"),
        ("topics --describe --topic nosuch", "there is no topic 'nosuch'"),
        ("topics --delete --topic nosuch", "there is no topic 'nosuch'"),
        ("topics --list --topic (", "--topic (: not a regular expression"),
        ("topics --create --topic x --config a", "--config a: write it as KEY=VALUE"),
        ("topics --create --topic x --config nonsense=1", "INVALID_CONFIG: "),
        ("topics --create --topic x --replica-assignment a", "--replica-assignment a: broker ids"),
        ("topics --create --topic x --replica-assignment 1 --partitions 2", "--replica-assignment goes without"),
        ("topics --create --topic x --replication-factor 3", "INVALID_REPLICATION_FACTOR: "),
        ("topics --list -X retris=3", "retris: no setting of kafka-python; did you mean retries?"),
        ("topics --list -X retries", "-X retries: write it as KEY=VALUE"),
        ("topics --list -X request.timeout.ms=soon", "request.timeout.ms=soon: a number is allowed"),
        ("topics --list -b 127.0.0.1:1 -X bootstrap.timeout.ms=200", "no broker answers at 127.0.0.1:1"),
        ("topics --list -b 127.0.0.1:http", "--bootstrap-server 127.0.0.1:http: write it as HOST:PORT"),
        ("topics --list -X request.timeout.ms=\u0663", "request.timeout.ms=\u0663: a number is allowed"),
        ("topics --list -X request.timeout.ms=5_000", "request.timeout.ms=5_000: a number is allowed"),
        ("topics --create --topic x --replica-assignment 1_0", "--replica-assignment 1_0: broker ids"),
        ("groups --reset-offsets --group g --topic t:\u0663 --to-latest", "--topic t:\u0663: write partitions as"),
        ("configs --describe --broker \u0663", "broker \u0663: a broker's id is a number"),
        ("consume -t t -o \u0663", "-o \u0663: allowed: beginning"),
        ("consume -t t -o s@-3", "-o s@-3: allowed: beginning"),
        ("groups --describe", "--describe wants --group, or --all-groups"),
        ("groups --describe --group nosuch", "there is no consumer group 'nosuch'"),
        ("groups --delete --group nosuch", "there is no consumer group 'nosuch'"),
        ("groups --reset-offsets --group g", "--reset-offsets wants --topic, --all-topics or --from-file"),
        ("groups --reset-offsets --group g --topic t", "--reset-offsets wants one of --to-earliest, --to-latest"),
        ("groups --reset-offsets --group g --topic nosuch --to-latest", "there is no topic 'nosuch'"),
        ("groups --reset-offsets --group g --topic t:x --to-latest", "--topic t:x: write partitions as TOPIC:0,1,2"),
        ("groups --reset-offsets --group g --topic t --to-datetime soon --execute --dry-run", "--execute or --dry-run"),
        ("configs --describe", "say whose settings: --topic T, --broker ID"),
        (
            "configs --describe --entity-type topics --entity-default",
            "--entity-default goes with --entity-type brokers",
        ),
        ("configs --alter --broker-defaults --add-config no.such=1 --broker 1", "--entity-default goes with"),
        ("configs --describe --topic t --broker 1", "say whose settings: --topic T, --broker ID"),
        ("configs --describe --broker x", "broker x: a broker's id is a number"),
        ("configs --alter --topic t", "--alter wants --add-config"),
        ("configs --alter --topic t --add-config a", "--add-config a: write it as KEY=VALUE"),
        ("configs --alter --topic nosuch --add-config retention.ms=1", ""),
        ("configs --alter --broker 77 --add-config log.retention.ms=1", "there is no broker 77"),
        ("configs --describe --broker 77", "there is no broker 77"),
        ("configs --describe --topic nosuch", "there is no topic 'nosuch'"),
        ("transactions describe --transactional-id nosuch", "TRANSACTIONAL_ID_NOT_FOUND: "),
        ("transactions find-hanging --topic nosuch", "there is no topic 'nosuch'"),
        ("transactions find-hanging --broker-id 77", "there is no broker 77"),
        ("transactions describe-producers --topic t --partition 0 --broker-id 77", "there is no broker 77"),
        ("topics --create --topic x --partitions 99999999999", "a number has no room in Kafka's protocol: "),
        ("topics --create --topic x --replica-assignment 99999999999", "a number has no room in Kafka's protocol: "),
        ("groups --reset-offsets --group g --all-topics --by-duration P9999999999D", "--by-duration P9999999999D: all"),
        ("groups --delete-offsets --group nosuch --topic t", "there is no consumer group 'nosuch'"),
        ("cluster", "say one thing to do, of --describe, --cluster-id, --log-dirs, --api-versions"),
        ("cluster --log-dirs --topic nosuch", "there is no topic 'nosuch'"),
        ("topics --list -X security.protocol=nonsense", "security.protocol=nonsense: allowed: PLAINTEXT, SSL, SASL_P"),
        ("reassign --execute", "this wants --reassignment-json-file"),
        ("reassign --generate", "--generate wants --topics-to-move-json-file and --broker-list"),
        ("produce", "Missing option '--topic' / '-t'."),
        ("produce -t t -H =x", "--header =x: write it as NAME=VALUE, or NAME"),
        ("produce -t t -z rar", "Invalid value for '--compression-codec'"),
        ("consume", "name a topic: -t TOPIC"),
        ("consume -t nosuch", "there is no topic 'nosuch' at "),
        ("consume -t t -o soon", "-o soon: allowed: beginning, end, stored, N, -N, s@MILLISECONDS"),
        ("consume -t t -o stored", "-o stored wants --group"),
        ("consume -t t -G g -p 1", "-p goes without --group"),
        ("consume -t t -G g -o 5", "-o 5: a group begins at what it has committed"),
        ("consume -t t -f %q", "--format: '%q' is none of %s, %S, %k"),
        ("consume -t t -f %s -J", "one of --format, --key-delimiter, --json and --property"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: str, line: str) -> None:
    code, out, err = ask(*words.split())
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "words",
    [
        "topics --create --topic",
        "topics --list -X client.id=",
        "topics --list -b",
        "groups --describe --group",
        "groups --delete --group",
        "transactions describe --transactional-id",
        "configs --alter --topic t --add-config a=",
        "produce -t t -k",
        "consume -t t -G",
        "consume",
    ],
)
def test_an_argument_that_is_no_text_is_refused(ask: Ask, words: str) -> None:
    byte_e9 = "\udce9"  # as Python has it
    *first, last = words.split()
    code, out, err = ask(*first, *([last + byte_e9] if last.endswith("=") else [last, byte_e9]))
    assert re.fullmatch(r"kbroker: Invalid value for '.*: '.*\\udce9'; allowed: text in UTF-8 \(see .*\)\n", err), err
    assert (code, out) == (2, "")


@pytest.mark.parametrize("words", ["topics --list --command-config", "configs --alter --topic t --add-config-file"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"client.id=caf\xe9\n", ": allowed: text in UTF-8, other characters as \\uXXXX"),
        (b"# one\nclient.id=\\u00g0\n", " line 2: "),
    ],
)
def test_a_file_of_properties_that_is_none_is_named(
    ask: Ask, tmp_path: Path, words: str, content: bytes, told: str
) -> None:
    (file := tmp_path / "client.properties").write_bytes(content)
    code, out, err = ask(*words.split(), str(file))
    assert err.startswith(f"kbroker: {file}{told}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("command", ["topics --list", "consume -t t", "console --listener 127.0.0.1:0"])
@pytest.mark.parametrize(
    "content", ['{\n  "security.protocol": "SSL"\n}', "security.protocol=SSL".encode("utf-16-le").decode()]
)
def test_a_file_that_has_no_settings_of_clients_is_named(ask: Ask, tmp_path: Path, command: str, content: str) -> None:
    """Passed over, it would be plain text."""
    (file := tmp_path / "client.json").write_text(content)
    code, out, err = ask(*command.split(), "--command-config", str(file))
    assert err.startswith(f"kbroker: {file}: "), err
    assert err.endswith(" is no setting of a client; allowed: lines of key=value\n"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("", "''"),
        ("127.0.0.1:9092,", "''"),
        ("localhost:99999", "localhost:99999"),
        ("localhost:0", "localhost:0"),
        ("localhost:", "localhost:"),
        (":9092", ":9092"),
        ("localhost:\u0669\u0660", "localhost:\u0669\u0660"),
        ("[::1]:99999", "[::1]:99999"),
        ("[::1]9092", "[::1]9092"),
        ("a:b:9092", "a:b:9092"),
        ("http://localhost:9092/", "http://localhost:9092/"),
    ],
)
def test_an_address_that_can_be_none_is_named(ask: Ask, address: str, named: str) -> None:
    code, out, err = ask("topics", "--list", "-b", address)
    assert err.startswith(f"kbroker: --bootstrap-server {named}: write it as HOST:PORT, with a port of 1 to 65535"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("address", ["{}", "PLAINTEXT://{}", " {}", "localhost:1,{}"])
def test_an_address_is_taken_in_every_form_that_the_client_takes(ask: Ask, bootstrap: str, address: str) -> None:
    assert ask("topics", "--list", "-b", address.format(bootstrap))[::2] == (0, "")


@pytest.mark.parametrize("address", ["[::1]:1", "SSL://[::1]:1", "[fe80::1%lo]:1", "localhost:1,127.0.0.1:1"])
def test_nobody_answers_at_an_address_that_can_be_one(ask: Ask, address: str) -> None:
    code, _, err = ask("topics", "--list", "-b", address, "-X", "bootstrap.timeout.ms=200")
    assert (code, err) == (2, f"kbroker: no broker answers at {address}\n")


@pytest.mark.parametrize("command", ["topics --list", "consume -t t", "produce -t t"])
def test_what_listens_and_does_not_answer_is_not_taken_for_nothing(ask: Ask, command: str) -> None:
    """As a broker of TLS does to plain text."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as hangs_up:
        threading.Thread(target=hangs_up.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{hangs_up.server_address[1]}"
        code, _, err = ask(*command.split(), "-b", address, "-X", "bootstrap.timeout.ms=300")
        hangs_up.shutdown()
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(
        f"kbroker: no broker answers at {address}, where something listens: if it wants TLS or a login"
    )


@pytest.mark.parametrize(
    ("address", "knocked"),
    [
        ("broker", ("broker", 9092)),
        ("broker:1", ("broker", 1)),
        ("::1", ("::1", 9092)),
        ("SSL://[::1]:7", ("::1", 7)),
        (" [fe80::1%lo]", ("fe80::1%lo", 9092)),
    ],
)
def test_an_address_is_knocked_at_as_the_client_takes_it(
    address: str, knocked: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, int]] = []

    def refused(place: tuple[str, int], patience_s: float) -> None:
        tried.append(place)
        raise OSError

    monkeypatch.setattr("socket.create_connection", refused)
    assert no_answer(address) == f"no broker answers at {address}"
    assert tried == [knocked]


def plan(tmp_path: Path, replicas: str) -> str:
    (file := tmp_path / "plan.json").write_text(
        f'{{"version":1,"partitions":[{{"topic":"moved","partition":0,"replicas":{replicas}}}]}}'
    )
    return str(file)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_plan_that_the_cluster_cannot_carry_out_is_refused_before_anything_is_said(
    ask: Ask, tmp_path: Path, as_json: tuple[str, ...]
) -> None:
    ask("topics", "--create", "--topic", "moved")
    words = ("reassign", "--execute", *as_json, "--reassignment-json-file")
    said = ask(*words, file := plan(tmp_path, "[1,7]"))
    assert said == (2, "", "kbroker: there is no broker 7, where moved-0 is to go: there are 1\n")
    said = ask(*words, file := plan(tmp_path, "[]"))
    assert said == (2, "", f"kbroker: {file}: moved-0: replicas: allowed: at least one broker\n")


def test_no_plan_is_made_for_a_broker_that_is_not_there(ask: Ask, tmp_path: Path) -> None:
    ask("topics", "--create", "--topic", "planned")
    (file := tmp_path / "topics.json").write_text('{"version":1,"topics":[{"topic":"planned"}]}')
    said = ask("reassign", "--generate", "--topics-to-move-json-file", str(file), "--broker-list", "1,9")
    assert said == (2, "", "kbroker: there is no broker 9, which --broker-list names: there are 1\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.InvalidReplicationAssignmentError("Request 'X' failed with"), "INVALID_REPLICA_ASSIGNMENT: "),
        (errors.NotLeaderForPartitionError("list_partition_offsets timed out"), "NOT_LEADER_OR_FOLLOWER: "),
        (errors.KafkaTimeoutError("Timed out after 3 ms"), "the cluster at b:1 does not answer in time"),
        (errors.NodeNotReadyError("controller"), "a broker of the cluster at b:1 cannot be reached: try again"),
        (RuntimeError("Failed to find active controller id!"), "the cluster at b:1 has no controller now: try again"),
    ],
)
def test_a_failure_is_said_in_kafkas_words_and_not_in_the_clients(error: Exception, line: str) -> None:
    said = said_by_client(error, "b:1")
    assert said.startswith(line)
    assert str(error.args[0]) not in said


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("OK", None),
        (errors.NoError, None),
        ("NonEmptyGroupError", ErrorCode.NON_EMPTY_GROUP),
        (errors.InvalidReplicationAssignmentError, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("somethingNew", ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_clients_has_kafkas_name(given: object, code: ErrorCode | None) -> None:
    assert fault_of(given) is code


def test_a_record_that_nobody_takes_is_named(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "one")
    code, _, err = ask("produce", "-t", "one", "-p", "9", stdin=b"x\n")
    assert (code, err) == (2, "kbroker: record 1 to one: Unrecognized partition 9 for topic one\n")


def test_a_record_that_is_too_large_is_named_with_what_allows_it(ask: Ask) -> None:
    large = b"x" * 1_100_000
    code, _, err = ask("produce", "-t", "large", stdin=b"small\n" + large)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("kbroker: record 2 to large: MESSAGE_TOO_LARGE: it has 1100000 bytes; -X max.request.size=N ")
    allowed = ("-X", "max.request.size=2000000")
    assert ask("produce", "-t", "large", *allowed, stdin=large)[2].startswith(
        "kbroker: a record to large: MESSAGE_TOO_"
    )


def test_without_the_client_library_the_way_to_it_is_said(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka.errors", None)
    assert "type pip install 'kbroker[cli]'" in ask("topics", "--list")[2]
