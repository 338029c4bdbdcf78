"""What `kbroker start` does: read the settings, run a broker, say in a few lines where it is and how to use it.

Called by `run` with a command line that `plain_start` understood, or by the command in `start.py` with one that click
did. Imports neither click nor anything else that a running broker does not need.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker import __version__
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.config import Given
    from kbroker.console.start import BrokerConsole
    from kbroker.ports import Disk, Endpoint
    from kbroker.runtime.loading import DirectoryLoad, Show
    from kbroker.runtime.node import MakeCore, Node
    from kbroker.runtime.secure import Secured

log = logging.getLogger("kbroker")

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_LEVEL = "info"
LAST_PORT = 65535
NO_FILE = "default without a properties file"
"""Where a setting comes from that `_own_machine.py` assumes."""
CONSOLE_LISTENER = "127.0.0.1:8080"
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class Start(NamedTuple):
    """The arguments of `kbroker start`.

    properties, faults: the path of a server.properties, of a file of faults. secure: whether to make what it needs for
    TLS, logins and rules. ready_lines: whether to print what Apache's broker logs when it is up, too. console: whether
    there is a console, at CONSOLE_LISTENER unless the settings say where.
    """

    properties: str | None = None
    port: int | None = None
    data: str | None = None
    overrides: tuple[str, ...] = ()
    log_format: str = LOG_FORMATS[0]
    log_level: str = LOG_LEVEL
    faults: str | None = None
    secure: bool = False
    ready_lines: bool = False
    console: bool = False


def plain_start(words: Sequence[str]) -> Start | None:
    """What click would make of these arguments; None if they ask for help, are wrong, or not worth knowing here."""
    files: list[str] = []
    overrides: list[str] = []
    options: dict[str, str | None] = {
        "--port": None,
        "--data": None,
        "--log-format": LOG_FORMATS[0],
        "--log-level": LOG_LEVEL,
    }
    flags = {"--ready-lines": False, "--console": False}
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            files.append(word)
            continue
        if word in flags:
            flags[word] = True
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = next(left, "-")
            if value.startswith("-"):
                return None
        if name == "--override":
            overrides.append(value)
        elif name in options:
            options[name] = value
        else:
            return None
    port, data, log_format, log_level = options.values()
    is_sound = log_format in LOG_FORMATS and log_level in LOG_LEVELS and is_directory(data)
    if not is_sound or len(files) > 1 or not all(map(os.path.isfile, files)):
        return None
    if port is not None and not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= LAST_PORT):
        return None
    number = None if port is None else int(port)
    start = Start(files[0] if files else None, number, data, tuple(overrides), log_format or "", log_level or "")
    return start._replace(ready_lines=flags["--ready-lines"], console=flags["--console"])


def is_directory(data: str | None) -> bool:
    """Whether the argument of --data can be one: it may be missing; a comma would part it in log.dirs."""
    return data is None or ("," not in data and (os.path.isdir(data) or not os.path.exists(data)))


def run_broker(start: Start) -> int:
    """Run a broker until Ctrl-C or SIGTERM; the exit code. Raises: OSError if the properties cannot be read."""
    began = time.monotonic()
    gc.disable()  # until it is up: what a start makes stays, and to look for garbage in it is a twentieth of the time
    from kbroker.config import ConfigError  # here and below: the tools read this file, too, and need none of it
    from kbroker.runtime.logs import set_up_logging

    as_json = start.log_format == "json"
    set_up_logging(start.log_level, as_json=as_json)
    try:
        secured = _secured(start) if start.secure else None
        return _run(start, _settings(start, secured), began, secured)
    except ConfigError as error:
        return _cannot(error.lines, as_json=as_json)
    except OSError as error:
        if not as_json:
            raise
        _cannot([f"{error.filename}: {error.strerror}" if error.filename else str(error)], as_json=True)
        return 2
    finally:
        gc.enable()


def _cannot(why: Sequence[str], *, as_json: bool) -> int:
    """Say why there is no start, a line each; exit code 1."""
    from kbroker.runtime.logs import visible

    for line in why:
        if as_json:
            log.error("%s", line)
        else:
            say(f"kbroker: {visible(line)}")
    return 1


def say(line: str) -> None:
    """One line on standard error; on a terminal folded between words, where it is wider than that."""
    if sys.stderr.isatty():
        from shutil import get_terminal_size  # only a terminal pays for loading these
        from textwrap import fill

        width = get_terminal_size().columns
        line = fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


def announce(text: str) -> None:
    """Print where brokers are, and go on where it cannot be printed: the reader has gone, or the disk is full."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("standard output cannot be written: %s", error.strerror)
        discard_output()


def discard_output() -> None:
    """Throw standard output away, so that what could not be written is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _secured(start: Start) -> Secured:
    """What a secured start needs, made where it is missing. Raises: ConfigError, OSError."""
    from kbroker.cli._secure import secured_start
    from kbroker.config import ConfigError
    from kbroker.runtime.node import StartupError

    try:
        return secured_start(start)
    except StartupError as error:
        raise ConfigError([f"{error}{_instead(error, start)}"]) from None


def on_port(listeners: str, port: int) -> str:
    """The value of `listeners` with another port. Raises: ConfigError where it names several."""
    from kbroker.config import ConfigError

    if "," in listeners:
        raise ConfigError([f"--port {port}: there are several listeners ({listeners}); set their ports there"])
    return f"{listeners.rpartition(':')[0]}:{port}"


def _settings(start: Start, secured: Secured | None) -> dict[str, Given]:
    from kbroker.config import (
        BrokerConfig,
        ConfigError,
        Given,
        check_file,
        parse_properties,
        static_values,
        unheeded,
        warnings,
    )

    text, name = "", "server.properties"
    path = start.properties if secured is None else secured.properties
    if path is not None:
        name = path
        with open(name, "rb") as file:
            content = file.read()
        try:
            text = content.decode("utf-8-sig")  # some editors begin a file with a mark of byte order
        except UnicodeDecodeError as error:
            number = content.count(b"\n", 0, error.start) + 1
            raise ConfigError([f"{name} line {number}: allowed: text in UTF-8, other characters as \\uXXXX"]) from None
        check_file(parse_properties(text, name), name)
    static = static_values(text, file_name=name, environment=os.environ, overrides=start.overrides)
    assumed: dict[str, Given] = {}
    has_directory = start.data is not None or bool(static.keys() & {"log.dirs", "log.dir"})
    if path is None and not ("listeners" in static and has_directory):
        from kbroker.cli._own_machine import own_machine_defaults

        assumed = own_machine_defaults(static, needs_directory=not has_directory)
        static |= assumed
    if start.port is not None and secured is None:
        listeners = static["listeners"].text if "listeners" in static else str(BrokerConfig.KEYS["listeners"].default)
        where = NO_FILE if "listeners" in assumed else "--port"
        static["listeners"] = Given(on_port(listeners, start.port), where)
    if secured is not None:
        static["log.dirs"] = Given(secured.folder, "--data")
    elif start.data is not None:
        static["log.dirs"] = Given(start.data, "--data")
    if "console.client.config" in static and not os.path.isfile(path := static["console.client.config"].text.strip()):
        raise ConfigError([f"{static['console.client.config'].where}: console.client.config={path}: no such file"])
    if start.console and "console.listener" not in static:
        static["console.listener"] = Given(CONSOLE_LISTENER, "--console")
    if secured is not None and "console.client.config" not in static:
        static["console.client.config"] = Given(secured.admin_file, "--secure")
    for line in [*unheeded(os.environ), *warnings(static)]:
        log.warning("%s", line)
    return static


def _core_and_disk(faults: str | None, console: str) -> tuple[MakeCore, Disk | None, BrokerConsole | None]:
    """What makes the core, and the disk: the plain ones, or those that err as a file says; and the console, if any.

    console: where it is to be, or empty. Raises: UsageError, OSError, ConfigError, StartupError.
    """
    if faults is None:
        if console:
            from kbroker.console.start import BrokerConsole
            from kbroker.faults import Faults

            made = BrokerConsole(console, Faults(), remembers=False)
            return made.make_core(), None, made
        from kbroker.core import Core

        return Core, None, None
    from kbroker.faults import scripted
    from kbroker.faults.file import read_faults

    with open(faults, encoding="utf-8", errors="replace") as file:  # what is no text is no TOML, and told as that
        plan = read_faults(file.read(), faults)
    log.warning("this broker errs on purpose, as %s says", faults)
    disk: Disk | None = None
    if plan.disk is not None:
        from kbroker.runtime.switched_disk import DiskSwitch, SwitchedDisk

        switch = DiskSwitch()
        plan.disk.put_on(switch)
        disk = SwitchedDisk(switch)
    if console:
        from kbroker.console.start import BrokerConsole

        made = BrokerConsole(console, plan.faults, remembers=True)
        return made.make_core(), disk, made
    return scripted(plan.faults), disk, None


def _run(start: Start, static: dict[str, Given], began: float, secured: Secured | None) -> int:
    from kbroker.runtime.main import run_process  # after the settings: a typo is told at once
    from kbroker.runtime.node import StartupError
    from kbroker.usage import UsageError

    as_json = start.log_format == "json"

    console_at = static["console.listener"].text.strip() if "console.listener" in static else ""

    def started(node: Node) -> None:
        if secured is not None:
            from kbroker.runtime.secure import renew

            node.renew_by(lambda: renew(secured.folder))
        text = _summary_line if as_json else _summary
        announce(text(node, time.monotonic() - began, secured, console.url if console is not None else None))
        if start.ready_lines:
            announce("\n".join(_ready_lines(node, as_json=as_json)))

    console: BrokerConsole | None = None
    try:
        bars = _bars() if sys.stderr.isatty() and not as_json else None
        make_core, disk, console = _core_and_disk(start.faults, console_at)
        begin_console = console.start_process if console is not None else None
        return run_process(static, started, make_core, bars, disk, begin_console)
    except (StartupError, UsageError) as error:
        return _cannot([f"{error}{_instead(error, start)}"], as_json=as_json)


def _instead(error: Exception, start: Start) -> str:
    """What to type where the address or the directory of a start is another process's."""
    from kbroker.runtime.node import AddressInUseError, NoDirectoryError

    if isinstance(error, NoDirectoryError):
        return f"; another directory: {_again(start, '--data', 'DIR')}"
    if not isinstance(error, AddressInUseError):
        return ""
    if error.port is None:
        return f"; write another port into {error.key}"
    port = error.port + 1 if error.port < LAST_PORT else 0
    if error.key == "listeners":
        return f"; another port: {_again(start, '--port', str(port))}"
    return f"; another port: {_again(start, '--override', f'{error.key}={error.host}:{port}')}"


def _again(start: Start, option: str, value: str) -> str:
    """The command that was typed, with another value of one option: ready to be typed, but for passwords."""
    from shlex import join

    valued = {"--port": None if start.port is None else str(start.port), "--data": start.data, "--faults": start.faults}
    replaced = ("log.dirs", "log.dir") if option == "--data" else (value.partition("=")[0],)
    overrides = [_shown(each) for each in start.overrides if each.partition("=")[0].strip() not in replaced]
    if option == "--override":
        overrides.append(value)
    else:
        valued[option] = value
    words = ["kbroker", "start", *([start.properties] if start.properties else [])]
    for name, text in (*valued.items(), *(("--override", each) for each in overrides)):
        words += [name, text] if text is not None else []
    flags = {"--secure": start.secure, "--console": start.console, "--ready-lines": start.ready_lines}
    words += [name for name, is_given in flags.items() if is_given]
    for name, text, default in (
        ("--log-format", start.log_format, LOG_FORMATS[0]),
        ("--log-level", start.log_level, LOG_LEVEL),
    ):
        words += [name, text] if text != default else []
    return join(words)


def _shown(override: str) -> str:
    """An override as it was typed, without a value that may be a secret."""
    from kbroker.config import foreign
    from kbroker.config.broker import BrokerConfig

    key = override.partition("=")[0].strip()
    base = foreign.base_of(key)
    known = BrokerConfig.KEYS.get(base) or foreign.KNOWN.get(base)
    return override if known is not None and not known.sensitive else f"{key}=[hidden]"


def _bars() -> Show:
    """Bars for a long start, loaded if there is one."""
    shown: list[Show] = []

    def show(load: DirectoryLoad) -> None:
        if not shown:
            from kbroker.cli._loading import LoadingBars

            shown.append(LoadingBars())
        shown[0](load)

    return show


def _summary(node: Node, seconds: float, secured: Secured | None, console: str | None) -> str:
    """Where it is, and the first thing to try: nothing wider than it has to be."""
    from kbroker.runtime.interpreter import describe_interpreter
    from kbroker.runtime.logs import may_colour

    bound = [f"{each.name}://{_address(each.host, node.ports[each.name])}" for each in node.listeners.bound]
    told = [f"{each.listener}://{_address(each.host, each.port)}" for each in node.endpoints]
    rows = [("broker", f"{node.node_id}, of cluster {node.cluster_id}")]
    rows += [("listening on", each) for each in bound]
    rows += [("clients use", each) for each in told if each not in bound]
    if "listeners" in node.layers.static and node.layers.static["listeners"].where == NO_FILE:
        rows.append(("reached by", "this machine alone; others: kbroker start server.properties"))
    rows += [("data in", path) for path in node.paths]
    rows.append(("runs on", describe_interpreter()))
    if node.tls_by:
        rows.append(("TLS by", node.tls_by))
    if node.metrics_port:
        host = node.config.kbroker_metrics_listener.rpartition(":")[0]
        rows.append(("metrics at", f"http://{host or '*'}:{node.metrics_port}/metrics, and /health"))
    if console:
        rows.append(("console at", console))
    title = f"kbroker {__version__} is ready after {seconds:.2f} s"
    if may_colour(sys.stdout):
        title = f"\x1b[1;32m{title}\x1b[0m"
    lines = [title, *(f"  {name:12} {value}" for name, value in rows)]
    if node.endpoints:
        first = _first(node, secured)
        address, who = _address(first.host, first.port), " --command-config FILE" if first.security_protocol else ""
        if secured is not None:
            from kbroker.cli._secure import recipes_of

            lines += recipes_of(secured, address)
            who = f" --command-config {secured.admin_file}"
        topic = f"-b {address}{who} -t quickstart"
        lines += ["  try:", *_extra(), f"    kbroker produce {topic}", f"    kbroker consume {topic} -o beginning"]
    return "\n".join(lines)


def _extra() -> list[str]:
    """How to install the commands that are to be tried, where they are not."""
    from importlib.util import find_spec

    from kbroker.usage import installed_by

    return [] if find_spec("confluent_kafka") else [f"    {installed_by('cli')}, and then"]


def _ready_lines(node: Node, *, as_json: bool) -> list[str]:
    """What Apache's broker logs when it serves, with ZooKeeper or KRaft: programs that start one wait for these."""
    from kbroker.runtime.logs import json_line

    number = node.node_id
    lines = [
        f"[KafkaServer id={number}] started (kafka.server.KafkaServer)",
        f"[KafkaRaftServer nodeId={number}] Kafka Server started (kafka.server.KafkaRaftServer)",
        f"[BrokerLifecycleManager id={number}] The broker has been unfenced. Transitioning from RECOVERY to RUNNING."
        " (kafka.server.BrokerLifecycleManager)",
    ]
    if as_json:
        return [json_line("info", time.time(), {"logger": "kbroker", "message": each}) for each in lines]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    return [f"[{stamp},000] INFO {each}" for each in lines]


def _first(node: Node, secured: Secured | None) -> Endpoint:
    """Where a reader begins: at an address of plain text, or of what was secured; of this machine if there is one."""
    from kbroker.config.broker import SECURITY_PROTOCOLS

    wanted = 0 if secured is None else SECURITY_PROTOCOLS.index(secured.protocol)
    return min(node.endpoints, key=lambda each: (each.security_protocol != wanted, each.host not in THIS_MACHINE))


def _address(host: str, port: int) -> str:
    """host: empty for every interface."""
    from kbroker.config.listeners import bracketed

    return f"{bracketed(host) or '*'}:{port}"


def _summary_line(node: Node, seconds: float, secured: Secured | None, console: str | None) -> str:
    """The same for machines: one JSON object."""
    from kbroker.runtime.interpreter import describe_interpreter
    from kbroker.runtime.logs import json_line

    fields: dict[str, object] = {
        "logger": "kbroker",
        "message": f"kbroker {__version__} is ready",
        "version": __version__,
        "broker_id": node.node_id,
        "cluster_id": node.cluster_id,
        "listeners": {each.name: _address(each.host, node.ports[each.name]) for each in node.listeners.bound},
        "advertised": {each.listener: _address(each.host, each.port) for each in node.endpoints},
        "log_dirs": list(node.paths),
        "python": describe_interpreter(),
        "tls": node.tls_by or None,
        "metrics_port": node.metrics_port or None,
        "console": console,
        "seconds": round(seconds, 3),
    }
    if secured is not None:
        first = _first(node, secured)
        secured.write_recipe(_address(first.host, first.port))
        fields["client_properties"] = secured.admin_file
    return json_line("info", time.time(), fields)
