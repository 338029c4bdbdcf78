"""`kbroker dump-log`: the files of a log directory as text that reads like that of Apache's tool, or as JSON lines.

Flags, names and order of what is printed are Apache's (kafka-dump-log.sh). Beyond it: files may be named without
--files, a folder stands for all the files in it, checkpoints and meta.properties are shown as well, a broken file does
not keep the others from being shown, and the exit code tells whether anything was wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from kbroker.cli import complain, said_by_system
from kbroker.cli._decoders import DECODERS, decoder_for
from kbroker.cli._numbers import Number
from kbroker.log.errors import CorruptFileError
from kbroker.log.tools.dump import MAX_BYTES, DumpOptions, Fault, Line, Said, Value, dump, is_known
from kbroker.runtime.files import SystemDisk

_OPTIONAL = frozenset({"deleteHorizonMs", "currentTxnFirstOffset"})  # Apache's tool shows these as Java's OptionalLong
_WITHOUT_COLON = frozenset(
    {"SnapshotHeader", "SnapshotFooter", "KRaftVersion", "KRaftVoters"}
)  # as Apache's tool has it
_TIME_TYPES = frozenset({"NoTimestampType", "CreateTime", "LogAppendTime"})


@click.command("dump-log")
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--files", multiple=True, metavar="FILE,FILE,...", help="Files to show, separated by commas.")
@click.option("--print-data-log", is_flag=True, help="Show keys and values of records as well.")
@click.option("--deep-iteration", is_flag=True, help="Show the records in each batch; implied by --print-data-log.")
@click.option("--skip-record-metadata", is_flag=True, help="Of records show only keys and values.")
@click.option("--index-sanity-check", is_flag=True, help="Of indices only say whether a broker would use them as is.")
@click.option("--verify-index-only", is_flag=True, help="Compare indices with the log, and show only what differs.")
@click.option("--max-message-size", type=Number(1), default=5 << 20, show_default=True, metavar="BYTES")
@click.option("--max-bytes", type=Number(0, MAX_BYTES), default=MAX_BYTES, metavar="BYTES", help="Of each .log.")
@click.option("--offsets-decoder", is_flag=True, help="Read records as those of __consumer_offsets.")
@click.option("--transaction-log-decoder", is_flag=True, help="Read records as those of __transaction_state.")
@click.option("--cluster-metadata-decoder", is_flag=True, help="Read records as those of __cluster_metadata.")
@click.option("--remote-log-metadata-decoder", is_flag=True, help="Not supported: this broker keeps no such records.")
@click.option("--share-group-state-decoder", is_flag=True, help="Not supported: this broker keeps no such records.")
@click.option("--key-decoder-class", metavar="NAME", help=f"One of {', '.join(DECODERS)}, or Apache's class name.")
@click.option("--value-decoder-class", metavar="NAME", help="Likewise.  [default: string]")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def dump_log(
    paths: tuple[str, ...],
    files: tuple[str, ...],
    print_data_log: bool,
    deep_iteration: bool,
    skip_record_metadata: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_message_size: int,
    max_bytes: int,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    cluster_metadata_decoder: bool,
    remote_log_metadata_decoder: bool,
    share_group_state_decoder: bool,
    key_decoder_class: str | None,
    value_decoder_class: str | None,
    form: str,
) -> int:
    """Show what is in segments, indices, snapshots, epochs and checkpoints. No broker is needed.

    A folder stands for all the files in it. Exit code: 0 all well, 1 something in a file is wrong, 2 a file could not
    be read.
    """
    if remote_log_metadata_decoder or share_group_state_decoder:
        raise click.UsageError("records of tiered storage and share groups are not supported")
    wanted = [*paths, *(path for group in files for path in group.split(",") if path)]
    if not wanted:
        raise click.UsageError("no files: name some, or give --files")
    decoder = decoder_for(
        offsets=offsets_decoder,
        transactions=transaction_log_decoder,
        metadata=cluster_metadata_decoder,
        key=key_decoder_class,
        value=value_decoder_class,
    )
    decodes = any(
        (offsets_decoder, transaction_log_decoder, cluster_metadata_decoder, key_decoder_class, value_decoder_class)
    )
    options = DumpOptions(
        deep_iteration=deep_iteration or print_data_log or decodes,
        print_data=print_data_log or decodes,
        skip_record_metadata=skip_record_metadata,
        index_sanity_only=index_sanity_check,
        verify_only=verify_index_only,
        max_message_bytes=max_message_size,
        max_bytes=max_bytes,
        decoder=decoder,
    )
    return _Dump(options, as_json=form == "json").files(wanted)


class _Dump:
    """One run: prints file after file, keeps the faults for the end as Apache's tool does."""

    def __init__(self, options: DumpOptions, *, as_json: bool) -> None:
        self._options = options
        self._as_json = as_json
        self._faults: dict[str, list[str]] = {}
        self._code = 0
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]

    def files(self, paths: Iterable[str]) -> int:
        """Show all of them; the exit code."""
        for path in paths:
            try:
                for file in _expanded(path):
                    self._file(file)
            except BrokenPipeError:
                raise
            except OSError as error:
                self._code = complain(said_by_system(error))
            except CorruptFileError as error:
                self._fault(Fault(f"Cannot be read: {error.path or path}", str(error)), path)
        sys.stdout.flush()
        for title, texts in self._faults.items():
            click.echo("\n".join([title, *(f"  {text.strip()}" for text in texts)]), err=True)
        return self._code

    def _file(self, path: str) -> None:
        if not is_known(os.path.basename(path)):
            os.stat(path)
            click.echo(f"Ignoring unknown file {path}", err=True)
            return
        if not self._as_json:
            print(f"Dumping {path}")
        options = replace(self._options, shown_path=path)
        try:
            for shown in dump(SystemDisk(), os.path.abspath(path), options):
                self._show(shown, path)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._code = complain(said_by_system(error))
        except CorruptFileError as error:
            self._fault(Fault(f"Cannot be read: {path}", str(error)), path)

    def _show(self, shown: Line | Said | Fault, path: str) -> None:
        if isinstance(shown, Fault):
            self._fault(shown, path)
        elif self._as_json:
            if isinstance(shown, Line):
                print(json.dumps({"file": path, "type": shown.kind, **_json_fields(shown.fields)}, ensure_ascii=False))
        else:
            print(shown.text if isinstance(shown, Said) else _text(shown))

    def _fault(self, fault: Fault, path: str) -> None:
        self._code = max(self._code, 1)
        if self._as_json:
            print(json.dumps({"file": path, "type": "fault", "title": fault.title, "text": fault.text.strip()}))
        else:
            self._faults.setdefault(fault.title, []).append(fault.text)


def _expanded(path: str) -> Iterator[str]:
    """The files that a path stands for."""
    if not os.path.isdir(path):
        yield path
        return
    for name in sorted(os.listdir(path)):
        if is_known(name):
            yield os.path.join(path, name)


def _text(line: Line) -> str:
    """As Apache's tool writes it: names and values with a colon between, records behind a bar."""
    parts = [
        f"{name} {value}" if name in _WITHOUT_COLON else f"{name}: {_shown(name, value)}"
        for name, value in line.fields.items()
    ]
    text = " ".join(parts)
    return f"| {text}" if line.kind == "record" and parts else text


def _shown(name: str, value: Value) -> str:
    if name in _OPTIONAL:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return "null" if value is None else str(value)


def _json_fields(fields: dict[str, Value]) -> dict[str, Value]:
    """The same, but that the type of timestamp is a value and not a name."""
    found: dict[str, Value] = {}
    for name, value in fields.items():
        if name in _TIME_TYPES:
            found |= {"timestampType": name, "timestamp": value}
        else:
            found[name] = value
    return found
