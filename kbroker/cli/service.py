"""`kbroker service`: a systemd unit or a launchd plist that runs this installation's broker, on standard output.

It writes no file and starts nothing: the first lines say where the text belongs and what to type then. Without --user
the service is the user's own, and its data are where `kbroker start` keeps them; with it, it is the machine's.

Source: systemd.service(5), systemd.exec(5); launchd.plist(5). The plist was not tried on a Mac.
"""

from __future__ import annotations

import os
import plistlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from kbroker.cli import complain
from kbroker.cli._own_machine import user_data_directory
from kbroker.config import ConfigError, check_file, parse_properties

KINDS = ("systemd", "launchd")
LABEL = "kbroker"
STATES = {"systemd": "/var/lib/kbroker", "launchd": "/usr/local/var/kbroker"}  # the first is made by StateDirectory
OPEN_FILES = 100_000
STOP_S = 120  # leaders are handed over and logs flushed
_HOMES = ("/home/", "/root/", "/run/user/")  # what ProtectHome hides
_SCRATCH = ("/tmp/", "/var/tmp/")  # what PrivateTmp hides
_CACHES = ("/.cache/", "/Library/Caches/")  # where `uvx` and `pipx run` keep what they remove one day


@click.command("service")
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--kind", type=click.Choice(KINDS), default=KINDS[sys.platform == "darwin"], show_default=True, help="For which."
)
@click.option("--user", help="A service of the machine that runs as this user.  [default: your own service]")
def service(properties: str | None, kind: str, user: str | None) -> int:
    """Print a systemd unit or a launchd plist that runs a broker.

    PROPERTIES is its server.properties; without one it is as `kbroker start` makes it.
    """
    if user is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", user):
        raise click.UsageError(f"--user {user}: allowed: the name of a user")
    command = [sys.executable, "-m", "kbroker", "start"]
    writes: list[str] = []
    if properties is not None:
        properties = os.path.abspath(properties)
        writes = _log_directories(properties)
        command.append(properties)
    elif user is not None:
        writes = [f"{STATES[kind]}/data"]
        command += ["--data", *writes]
    elif kind == "systemd" and os.environ.get("XDG_DATA_HOME"):  # a service does not have a shell's variables
        command += ["--data", user_data_directory(os.environ, "linux")]
    if odd := [word for word in (*command, *writes) if not word.isprintable()]:
        raise click.UsageError(f"{odd[0]!r}: allowed in a service: a path of printable characters")
    if any(each in f"{sys.prefix}/" for each in _CACHES):
        complain(
            f"{sys.prefix} is a cache, and removed one day: install it first: uv tool install PATH, of its checkout"
        )
    click.echo((_unit if kind == "systemd" else _plist)(command, writes, user), nl=False)
    return 0


def _log_directories(properties: str) -> list[str]:
    """What the broker of a file writes to. Raises: UsageError for a file that is no server.properties; OSError."""
    with open(properties, encoding="utf-8-sig", errors="replace") as file:
        given = parse_properties(file.read(), properties)
    try:
        check_file(given, properties)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    texts = [given[key].text for key in ("log.dirs", "log.dir") if key in given] or ["/tmp/kafka-logs"]
    paths = [each.strip() for each in texts[0].split(",") if each.strip()]
    if relative := [each for each in paths if not os.path.isabs(each)]:
        raise click.UsageError(f"{properties}: log.dirs={relative[0]}: allowed for a service: a path from / on")
    return paths


# -- systemd


def _unit(command: Sequence[str], writes: Sequence[str], user: str | None) -> str:
    """The text of a unit. writes: the log directories, as far as they are known."""
    place, ctl = ("/etc/systemd/system", "systemctl") if user else ("~/.config/systemd/user", "systemctl --user")
    lines = [
        f"# {place}/{LABEL}.service; then: {ctl} daemon-reload && {ctl} enable --now {LABEL}",
        "[Unit]",
        "Description=kbroker, a Kafka broker",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        f"ExecStart={' '.join(map(_quoted, command))}",
        "Restart=on-failure",
        "RestartSec=5",
        f"TimeoutStopSec={STOP_S}",
        f"LimitNOFILE={OPEN_FILES}",
    ]
    if user is None:
        return "\n".join([*lines, "", "[Install]", "WantedBy=default.target", ""])
    lines += [
        f"User={user}",
        f"StateDirectory={LABEL}",
        "OOMScoreAdjust=-500",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ]
    lines += [f"ReadWritePaths={_quoted(each)}" for each in writes if not each.startswith(f"{STATES['systemd']}/")]
    if not any(each.startswith(_HOMES) for each in (*command, *writes)):
        lines.append("ProtectHome=yes")
    if not any(f"{each}/".startswith(_SCRATCH) for each in (*command, *writes)):
        lines.append("PrivateTmp=yes")
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def _quoted(word: str) -> str:
    """A word of a command line in a unit: specifiers, variables, quotes and blanks are what they are."""
    word = word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if re.search(r"[^\w@%+=:,./$-]", word) else word


# -- launchd


def _plist(command: Sequence[str], writes: Sequence[str], user: str | None) -> str:
    """The text of a property list. writes: the log directories, as far as they are known."""
    folder, domain = ("/Library/LaunchDaemons", "system") if user else ("~/Library/LaunchAgents", "gui/$(id -u)")
    place = f"{folder}/{LABEL}.plist"
    keys: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": STOP_S,
        "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "StandardErrorPath": f"/var/log/{LABEL}.log" if user else f"{_logs()}/{LABEL}.log",
    }
    if user:
        keys["UserName"] = user
    first = ""
    if user and writes == [f"{STATES['launchd']}/data"]:
        first = f"first: install -d -o {user} {STATES['launchd']}; this is "
    head, _, rest = plistlib.dumps(keys).decode().partition("\n")
    return f"{head}\n<!-- {first}{place}; then: launchctl bootstrap {domain} {place} -->\n{rest}"


def _logs() -> str:
    """Where programs of this user keep their logs, on macOS."""
    library = user_data_directory({"HOME": os.path.expanduser("~")}, "darwin")
    return f"{os.path.dirname(os.path.dirname(library))}/Logs"
