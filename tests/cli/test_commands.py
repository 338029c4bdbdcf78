"""The command line as a user meets it: output, exit codes, and one line for every bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from kbroker.cli import run
from kbroker.cli._broker import plain_start
from kbroker.cli._commands import kbroker
from kbroker.cli._numbers import Number
from kbroker.cli.start import start
from kbroker.runtime.files import SystemDisk
from tests.log.directories import fill

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that our log wrote."""
    path = tmp_path_factory.mktemp("logs") / "a"
    fill(SystemDisk(), str(path))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    fill(SystemDisk(), str(tmp_path / "a"))
    return tmp_path / "a"


def segment(directory: Path, topic: str = "segments", part: str = "log", base_offset: int = 0) -> Path:
    return directory / f"{topic}-0" / f"{base_offset:020d}.{part}"


# ---- the program


def test_the_overview_names_the_commands_without_loading_them() -> None:
    script = "import sys; from kbroker.cli import run; run(['--help']); print('kbroker.log.tools.dump' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "dump-log" in output
    assert "verify-log" in output
    assert output.endswith("False\n")


def test_without_a_command_the_overview_is_shown(capsys: Captured) -> None:
    assert run([]) == 2
    assert "Commands" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["no-such"], "kbroker: No such command 'no-such'."),
        (["topic", "--list"], "kbroker: No such command 'topic'; did you mean topics?"),
        (["stop"], "kbroker: No such command 'stop': Ctrl-C or SIGTERM ends a broker (see kbroker --help)"),
        (["status"], "kbroker: No such command 'status': it is kbroker cluster --describe here (see"),
        (["version"], "kbroker: No such command 'version': it is kbroker --version here (see"),
        (
            ["topics", "list"],
            "kbroker: Got unexpected extra argument (list); did you mean kbroker topics --list?",
        ),
        (
            ["topics", "create", "t"],
            "kbroker: Got unexpected extra arguments (create t); did you mean kbroker topics --create --topic t?",
        ),
        (
            ["groups", "--describe", "billing"],
            "kbroker: Got unexpected extra argument (billing); did you mean kbroker groups --group billing?",
        ),
        (["cluster", "nonsense"], "kbroker: Got unexpected extra argument (nonsense) (see kbroker cluster --help)"),
        (["features", "describe", "x"], "kbroker: Got unexpected extra argument (x) (see kbroker features describe"),
        (["produce", "orders"], "kbroker: Invalid value for '[PATHS]...': File 'orders' does not exist. Records are"),
        (["dump-log"], "kbroker: no files: name some, or give --files"),
        (["dump-log", "--nonsense", "x"], "kbroker: No such option"),
        (["dump-log", "--max-bytes", "x", "y"], "kbroker: Invalid value for '--max-bytes'"),
        (["dump-log", "--share-group-state-decoder", "x"], "kbroker: records of tiered storage"),
        (["dump-log", "--value-decoder-class", "my.Own", "x"], "kbroker: there is no decoder 'my.Own'"),
        (["start", "--nonsense"], "kbroker: No such option"),
        (["start", "--port", "65536"], "kbroker: Invalid value for '--port': 65536 is not in the range 0<=x<=65535."),
        (["start", "--data", "/a,/b"], "kbroker: --data /a,/b: allowed: a path without commas"),
        (["start", "--data", __file__], "kbroker: Invalid value for '--data': Directory"),
        (
            ["-b", "127.0.0.1:9092", "topics", "--list"],
            "kbroker: No such option '-b'. It goes behind the command: kbroker topics -b ...",
        ),
        (
            ["transactions", "--bootstrap-server=127.0.0.1:9092", "list"],
            "kbroker: No such option '--bootstrap-server'. It goes behind the command: "
            "kbroker transactions list --bootstrap-server ...",
        ),
        (["--nonsense", "topics", "--list"], "kbroker: No such option '--nonsense'. (see kbroker --help)"),
        (
            ["start", "/no/such.properties"],
            "kbroker: Invalid value for '[PROPERTIES]': File '/no/such.properties' does not",
        ),
        (["verify-log"], "kbroker: Missing argument 'DIRECTORIES...'"),
        (
            ["pipeline", "mirror", "--from=a:1", "--to=b:1", "--topics=t,u=t"],
            "kbroker: t and u cannot both be t: give each a name of its own",
        ),
        (
            ["pipeline", "mirror", "--from=a:1", "--to=b:1", "--topics=t=u,t=v"],
            "kbroker: t cannot be u and v: name it once",
        ),
        (
            ["pipeline", "replay", "--from=a", "--topic=t=v", "--topic=u=v"],
            "kbroker: t and u cannot both be v: give each a name of its own",
        ),
        (
            ["pipeline", "audit", "--left=a:1", "--right=b:1", "--topics=t=v,u=v"],
            "kbroker: t and u cannot both be v: give each a name of its own",
        ),
        (["verify-log", "/no/such"], "kbroker: /no/such: there is no such directory"),
        (["verify-log", __file__], f"kbroker: {__file__}: is not a directory"),
        (["dump-log", "/no/such.log"], "kbroker: /no/such.log: No such file or directory"),
        (["dump-log", "/no/meta.properties"], "kbroker: /no/meta.properties: No such file or directory"),
        (
            ["dump-log", "/no/recovery-point-offset-checkpoint"],
            "kbroker: /no/recovery-point-offset-checkpoint: No such file or directory",
        ),
        (
            ["dump-log", "/no/00000000000000000000.log"],
            "kbroker: /no/00000000000000000000.log: No such file or directory",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], line: str, capsys: Captured) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1


def every_command(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below, *words, name)


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params if isinstance(option, click.Option) for name in option.opts}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_every_command_and_option(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(kbroker, {}, "kbroker", "_KBROKER_COMPLETE")
    assert "_KBROKER_COMPLETE" in completion.source()
    for words, command in every_command(kbroker):
        offered = {each.value for each in completion.get_completions(list(words), "--")}
        assert {name for name in options_of(command) if name.startswith("--")} <= offered, words
        if words:
            assert words[-1] in {each.value for each in completion.get_completions(list(words[:-1]), words[-1][:2])}


def test_every_command_that_asks_a_cluster_has_json_and_says_its_exit_codes() -> None:
    asking = [(words, each) for words, each in every_command(kbroker) if "--bootstrap-server" in options_of(each)]
    others = ("pipeline", "console")  # whose results are reports of Spark's, and pages
    asking = [(words, each) for words, each in asking if words[0] not in others]
    assert len(asking) > 10
    for words, command in asking:
        assert "--json" in options_of(command), words
        whole = kbroker.get_command(click.Context(kbroker), words[0])
        assert whole is not None
        assert "Exit code: 0 " in (whole.help or ""), words


def test_a_reader_that_has_seen_enough_is_no_error(sound: Path) -> None:
    program = f"{sys.executable} -c 'from kbroker.cli import main; main()'"
    command = f"{program} dump-log --print-data-log {sound}/*/*.log | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_help_says_bounds_only_of_numbers_that_have_some() -> None:
    for words, command in every_command(kbroker):
        assert "None" not in command.get_help(click.Context(command)), words
    context = click.Context(found := kbroker.get_command(click.Context(kbroker), "consume"))  # type: ignore[arg-type]
    assert found is not None
    assert "-p, --partition INTEGER   Only this partition." in re.sub(" +", " ", found.get_help(context)).replace(
        " Only", "   Only"
    )


def test_every_number_of_every_command_is_read_in_the_same_way() -> None:
    numbers = [
        (*words, param.name)
        for words, command in every_command(kbroker)
        for param in command.params
        if isinstance(param.type, click.types.IntParamType) and not isinstance(param.type, Number)
    ]
    assert numbers == []


@pytest.mark.parametrize("text", ["\u0663", "1_000", " 3", "3 ", "3.0", "0x3", "", "9" * 21])
def test_a_number_is_plain_digits(text: str, capsys: Captured) -> None:
    assert run(["dump-log", "--max-bytes", text, "--files", "x"]) == 2
    assert capsys.readouterr().err.startswith(
        f"kbroker: Invalid value for '--max-bytes': {text!r} is not a valid integer."
    )


def test_a_number_may_have_a_sign(sound: Path, capsys: Captured) -> None:
    assert run(["dump-log", "--max-bytes", "+300", "--files", str(segment(sound))]) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_does_without_a_stream_that_the_shell_has_closed(closed: str, sound: Path) -> None:
    command = f"{sys.executable} -m kbroker verify-log {sound} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_schema_that_is_no_text_is_named(tmp_path: Path, capsys: Captured) -> None:
    (schema := tmp_path / "a.avsc").write_bytes(b"\xff")
    words = ["--topics", "t", "--to", str(tmp_path / "to"), "--values", "avro", "--schema", str(schema)]
    assert run(["pipeline", "archive", *words]) == 2
    assert capsys.readouterr().err.startswith(f"kbroker: {schema}: allowed: JSON in UTF-8")


# ---- the pages


def commands_in(page: Path) -> Iterator[list[str]]:
    """The command lines of ours in a page's code, as a shell splits them."""
    text = page.read_text().replace("\\\n", " ")
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for line in [*re.findall(r"^    .*", text, re.MULTILINE), *fenced.splitlines()]:
        if found := re.search(r"(?:^|\| )\s*(?:\$ )?kbroker (.*)", line):
            yield [word for word in shlex.split(found[1], comments=True) if word != "&"]


def fault_of(words: list[str]) -> str:
    """What is wrong with a command line, of which nothing is carried out; empty if it can be."""
    command: click.Command | None = kbroker
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    if command is None:
        return f"no command {name}"
    try:
        given, _, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    options = [each for each in command.params if isinstance(each, click.Option)]
    missing = [each.opts[0] for each in options if each.required and each.name not in given]
    actions = getattr(import_module(command.callback.__module__), "ACTIONS", ())
    asked = [each for each in actions if each.replace("-", "_") in given]
    return f"without {missing[0]}" if missing else f"asks for {asked}" if actions and len(asked) != 1 else ""


def test_the_commands_that_the_pages_show_can_be_typed() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    shown = [(page.name, words) for page in pages for words in commands_in(page)]
    assert len(shown) > 40
    assert [(page, words, fault) for page, words in shown if (fault := fault_of(words))] == []


# ---- start


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [__file__],
        ["--override", "a=b", __file__, "--override=c=d=e", "--log-level", "debug"],
        ["--log-format=json", "--log-level=error", "--log-level=warning"],
        ["--port", "9093", "--data=/no/such/directory", __file__],
        ["--port=0", "--data", os.path.dirname(__file__)],
        ["--ready-lines", "--console", "--port", "9093"],
    ],
)
def test_a_plainly_written_start_is_read_as_click_reads_it(arguments: list[str]) -> None:
    context = start.make_context("start", list(arguments))
    plain = plain_start(arguments)
    assert plain is not None
    assert plain._asdict() == {name: context.params[name] for name in plain._fields}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--nonsense"],
        ["--override"],
        ["--override", "--log-level"],
        ["--log-level", "loud"],
        ["--log-format=yaml"],
        ["--port", "65536"],
        ["--port", "+1"],
        ["--port", "one"],
        ["--data", __file__],
        ["--data", "/a,/b"],
        [__file__, __file__],
        ["/no/such.properties"],
        [os.path.dirname(__file__)],
        ["--", __file__],
    ],
)
def test_whatever_else_a_start_says_is_left_to_click(arguments: list[str]) -> None:
    assert plain_start(arguments) is None


def test_a_broker_that_starts_imports_no_tool_and_nothing_of_asyncio() -> None:
    script = (
        "import sys, logging; before = set(sys.modules);"  # logging needs more of them from Python 3.14 on
        "from kbroker.cli import run; import kbroker.runtime.main; from kbroker.api.routes import load;"
        "load(); print({name.partition('.')[0] for name in sys.modules.keys() - before}"
        " & {'asyncio', 'click', 'dataclasses', 'inspect', 'pathlib', 'rich', 'ssl', 'subprocess'})"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"


# ---- dump-log


def test_batches_are_shown_as_apaches_tool_shows_them(sound: Path, capsys: Captured) -> None:
    path = segment(sound)
    assert run(["dump-log", "--files", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"Dumping {path}", "Log starting offset: 0"]
    assert lines[2].startswith(
        "baseOffset: 0 lastOffset: 2 count: 3 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        "position: 0 CreateTime: 1700000000004 size: "
    )
    assert lines[2].endswith(" isvalid: true")


def test_records_are_shown_with_keys_values_and_header_keys(sound: Path, capsys: Captured) -> None:
    run(["dump-log", "--print-data-log", str(segment(sound, "codec-zstd"))])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| offset: 2 ")]
    assert lines == [
        "| offset: 2 CreateTime: 1700000000004 keySize: 5 valueSize: 24 sequence: -1 headerKeys: [h0,h1] "
        "key: key-2 payload: value 0 value 0 value 0 "
    ]


def test_markers_name_their_outcome(sound: Path, capsys: Captured) -> None:
    run(["dump-log", "--deep-iteration", str(segment(sound, "transactions"))])
    output = capsys.readouterr().out
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in output
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in output


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("segments-0/00000000000000000000.index", "offset: 8 position: 309"),
        ("segments-0/00000000000000000000.timeindex", "timestamp: 1700000000024 offset: 8"),
        ("segments-0/00000000000000000039.snapshot", "producerId: 42 producerEpoch: 1 coordinatorEpoch: -1 "),
        ("transactions-0/00000000000000000000.txnindex", "version: 0 producerId: 7 firstOffset: 0 lastOffset: 5 "),
        ("segments-0/leader-epoch-checkpoint", "epoch: 1 startOffset: 18"),
        ("segments-0/partition.metadata", "version: 0 topicId: AQIDBAUGBwgJCgsMDQ4PEA"),
        ("meta.properties", "version: 0 clusterId: some-cluster nodeId: 1 directoryId: "),
        ("log-start-offset-checkpoint", "topic: segments partition: 0 offset: 13"),
        (".kafka_cleanshutdown", "brokerEpoch: 7"),
    ],
)
def test_every_kind_of_file_is_shown(name: str, line: str, sound: Path, capsys: Captured) -> None:
    assert run(["dump-log", str(sound / name)]) == 0
    assert any(shown.startswith(line) for shown in capsys.readouterr().out.splitlines())


def test_a_folder_stands_for_its_files(sound: Path, capsys: Captured) -> None:
    assert run(["dump-log", str(sound / "segments-0")]) == 0
    assert capsys.readouterr().out.count("Dumping ") == 10


def test_json_lines_have_a_type_and_the_same_values(sound: Path, capsys: Captured) -> None:
    run(["dump-log", "--format", "json", "--print-data-log", str(segment(sound, "codec-none"))])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["type"] for line in lines} == {"batch", "record"}
    record = next(line for line in lines if line["type"] == "record" and line["offset"] == 2)
    assert (record["timestampType"], record["timestamp"], record["key"]) == ("CreateTime", 1700000000004, "key-2")


def test_a_sanity_check_says_whether_a_broker_would_use_the_index(directory: Path, capsys: Captured) -> None:
    good, bad = segment(directory, part="index"), segment(directory, part="timeindex")
    bad.write_bytes(bad.read_bytes() + b"x")
    assert run(["dump-log", "--index-sanity-check", str(good), str(bad)]) == 1
    said = capsys.readouterr()
    assert f"{good} passed sanity check." in said.out
    assert f"Failed sanity check: {bad}\n  holds 1 bytes more than entries of 12 bytes" in said.err


def test_an_index_that_lies_is_reported_at_the_end(directory: Path, capsys: Captured) -> None:
    path = segment(directory, part="index")
    path.write_bytes(b"\0\0\0\1" + path.read_bytes()[4:])
    assert run(["dump-log", "--verify-index-only", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == f"Dumping {path}\n"
    assert said.err == f"Mismatches in :{path}\n  Index offset: 1, log offset: 5\n"


def test_a_torn_end_is_reported(directory: Path, capsys: Captured) -> None:
    path = segment(directory)
    path.write_bytes(path.read_bytes()[:-7])
    assert run(["dump-log", str(path)]) == 1
    said = capsys.readouterr()
    assert "invalid bytes at the end of 00000000000000000000.log" in said.out
    assert "is cut off after" in said.err


def test_broken_records_do_not_keep_the_next_batch_from_being_shown(directory: Path, capsys: Captured) -> None:
    path = segment(directory, "codec-gzip")
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(data)
    assert run(["dump-log", "--print-data-log", str(path)]) == 1
    said = capsys.readouterr()
    assert "isvalid: false" in said.out
    assert "| offset: 5 " in said.out
    assert "batch at position 0: " in said.err


def test_a_broken_file_does_not_keep_the_others_from_being_shown(directory: Path, capsys: Captured) -> None:
    broken = directory / "meta.properties"
    broken.write_text("version=3\n")
    assert run(["dump-log", str(broken), str(directory / "nowhere.log"), str(segment(directory))]) == 2
    said = capsys.readouterr()
    assert "Log starting offset: 0" in said.out
    assert "has version 3, this program knows versions 0 and 1" in said.err


def test_max_bytes_ends_the_dump_without_complaint(sound: Path, capsys: Captured) -> None:
    assert run(["dump-log", "--max-bytes", "400", str(segment(sound))]) == 0
    assert capsys.readouterr().out.count("baseOffset") == 2


def test_decoders_by_name_and_by_apaches_name(sound: Path, capsys: Captured) -> None:
    arguments = ["--key-decoder-class", "org.apache.kafka.tools.api.DefaultDecoder", "--value-decoder-class", "base64"]
    run(["dump-log", *arguments, str(segment(sound, "codec-none"))])
    assert "key: 6b65792d32 payload: dmFsdWUgMCB2YWx1ZSAwIHZhbHVlIDAg" in capsys.readouterr().out


# ---- verify-log


def test_a_sound_directory_has_exit_code_0(sound: Path, capsys: Captured) -> None:
    assert run(["verify-log", str(sound)]) == 0
    assert capsys.readouterr().out == f"{sound}: nothing wrong\n"


def test_a_broken_directory_has_exit_code_1_and_names_the_place(directory: Path, capsys: Captured) -> None:
    path = segment(directory)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert run(["verify-log", str(directory)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"fault: {path}: position 0: the checksum does not hold", f"{directory}: 1 fault"]


def test_findings_as_json_lines(directory: Path, capsys: Captured) -> None:
    (directory / "notes.txt").touch()
    assert run(["verify-log", "--format", "json", str(directory)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "level": "note",
        "file": str(directory / "notes.txt"),
        "where": "",
        "text": "is a foreign file; it is left alone",
    }


def test_notes_can_be_left_out(directory: Path, capsys: Captured) -> None:
    (directory / "notes.txt").touch()
    run(["verify-log", "--quiet", str(directory)])
    assert "notes.txt" not in capsys.readouterr().out


def test_a_newer_format_has_exit_code_2(directory: Path, capsys: Captured) -> None:
    (directory / "meta.properties").write_text("version=2\n")
    assert run(["verify-log", str(directory)]) == 2
    assert "has version 2, this program knows versions 0 and 1" in capsys.readouterr().out


def test_a_directory_in_use_is_said_to_be(directory: Path, capsys: Captured) -> None:
    lock = SystemDisk().lock(str(directory / ".lock"))
    try:
        assert run(["verify-log", str(directory)]) == 0
        assert (
            capsys.readouterr().err
            == f"kbroker: {directory}: is in use by a broker: what it is writing may look broken\n"
        )
    finally:
        lock.release()


def test_verifying_changes_nothing(directory: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        files = [path for path in directory.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), os.stat(path).st_mtime_ns) for path in files}

    before = state()
    run(["verify-log", str(directory)])
    assert state() == before


def test_a_file_whose_name_is_no_text_is_named_all_the_same(directory: Path, capsys: Captured) -> None:
    (directory / os.fsdecode(b"odd\xff")).touch()
    run(["verify-log", str(directory)])
    assert "odd\\udcff" in capsys.readouterr().out


def test_output_that_nobody_reads_any_more_is_no_fault_of_a_file(sound: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kbroker", "dump-log", str(sound / "segments-0")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
