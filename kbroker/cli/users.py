"""`kbroker users`: who may log in by SCRAM. Beside its own options it takes those of Apache's kafka-configs.sh.

A password is typed at a prompt, or read from a file or from standard input, so that it is in no list of processes and
in no history of a shell. What leaves this process is salted and hashed, as Kafka's protocol has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._tables import show_done, show_json, show_table
from kbroker.cli.configs import pairs
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {
    "list": "Users and their mechanisms.",
    "describe": "The same, of one user.",
    "create": "Make a user, with a password.",
    "alter": "Give a user another password.",
    "delete": "Take a user's password away: its mechanisms, or the one of --mechanism.",
}
_MADE = ("create", "alter")
_ONLY = {"mechanism": (*_MADE, "delete"), "iterations": _MADE, "password_file": _MADE}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FEWEST, MOST = 4096, 16384  # iterations that a broker takes
_COLUMNS = ("user", "mechanism", "iterations")
_OF_CONFIGS = re.compile(r"(?:iterations=(?P<iterations>[0-9]+),)?password=(?P<password>.*)", re.DOTALL)


@click.command("users")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--user", "--entity-name", "user", help="Its name.")
@click.option("--mechanism", type=click.Choice(MECHANISMS, case_sensitive=False), help="By which it logs in.")
@click.option("--iterations", type=Number(FEWEST, MOST), default=FEWEST, show_default=True, help="Of the hash.")
@click.option(
    "--password-file", type=click.Path(dir_okay=False), help="A file whose first line is it; -: standard input."
)
@click.option("--add-config", metavar="MECHANISM=[iterations=N,password=P]", help="As kafka-configs.sh has it.")
@click.option("--delete-config", metavar="MECHANISM,...", help="As kafka-configs.sh has it.")
@click.option("--entity-type", type=click.Choice(["users"]), help="As kafka-configs.sh has it; may be left out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def users(cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Who may log in by SCRAM: list, create, alter, delete.

    A password is asked for, unless --password-file names one. Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    user = options["user"]
    if user is None and action not in ("list", "describe"):
        raise click.UsageError(f"--{action} wants --user")
    made, gone = _of_configs(action, options)
    admin = cluster.admin()
    try:
        found = _found(admin, user)
        if action in ("list", "describe"):
            _show(found, user, as_json=as_json)
            return 0
        if not made and not gone:
            has = [each["mechanism"] for each in found]
            mechanisms = _meant(action, user, options["mechanism"], has)
            if action == "delete":
                gone = mechanisms
            else:
                password = _password(user, options["password_file"])
                made = dict.fromkeys(mechanisms, (password, options["iterations"]))
        _change(admin, user, made, gone)
    finally:
        admin.close()
    facts = {"user": user, "set": list(made), "deleted": gone}
    show_done(f"Completed updating config for user {user}.", facts, as_json=as_json)
    return 0


def _of_configs(action: str, options: Mapping[str, Any]) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """What --add-config and --delete-config say: mechanisms with passwords and iterations, mechanisms to delete."""
    gone = [each.strip() for each in (options["delete_config"] or "").split(",") if each.strip()]
    given = pairs(options["add_config"] or "")
    if (gone or given) and action != "alter":
        raise click.UsageError("--add-config and --delete-config go with --alter")
    for each in (*given, *gone):
        if each not in MECHANISMS:
            raise click.UsageError(
                f"{each}: allowed for users here: {', '.join(MECHANISMS)}; for quotas: kbroker quotas"
            )
    made: dict[str, tuple[str, int]] = {}
    for mechanism, value in given.items():
        found = _OF_CONFIGS.fullmatch(value)
        if found is None:
            raise click.UsageError(f"--add-config {mechanism}=...: write it as {mechanism}=[iterations=N,password=P]")
        iterations = int(found["iterations"] or FEWEST)
        if not FEWEST <= iterations <= MOST:
            raise click.UsageError(f"iterations={iterations}: allowed: {FEWEST} to {MOST}")
        made[mechanism] = (found["password"], iterations)
    return made, gone


def _meant(action: str, user: str, mechanism: str | None, has: Sequence[str]) -> list[str]:
    """The mechanisms that something is to be done to. has: the user's. Raises: ClickException."""
    wanted = [mechanism] if mechanism else list(has) if action != "create" else [MECHANISMS[-1]]
    if action == "create":
        if twice := [each for each in wanted if each in has]:
            raise click.ClickException(
                f"there is a user {user!r} with {twice[0]} already; --alter gives another password"
            )
    elif not wanted or any(each not in has for each in wanted):
        of = f" with {mechanism}" if mechanism and has else ""
        raise click.ClickException(f"there is no user {user!r}{of}")
    return wanted


def _password(user: str, path: str | None) -> str:
    """What is typed, twice, or the first line of a file or of standard input. Raises: ClickException."""
    if path is None and sys.stdin.isatty():
        return str(click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True))
    if path in (None, "-"):
        data = sys.stdin.buffer.readline()
    else:
        assert path is not None
        with open(path, "rb") as file:
            data = file.readline()
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.ClickException("the password: allowed: text in UTF-8") from None
    if not password:
        raise click.ClickException(f"no password for {user}: type it at a terminal, pipe it in, or use --password-file")
    return password


def _found(admin: KafkaAdminClient, user: str | None) -> list[dict[str, Any]]:
    """A row for each user and mechanism; none for a user that is not there."""
    from kafka.protocol.admin import DescribeUserScramCredentialsRequest

    request = DescribeUserScramCredentialsRequest(users=None if user is None else [(user,)])
    answer = admin._manager.run(admin._manager.send, request)
    _check(answer.error_code, answer.error_message)
    rows = []
    for result in sorted(answer.results, key=lambda each: each.user):
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            _check(result.error_code, result.error_message)
        rows += [
            {"user": result.user, "mechanism": MECHANISMS[each.mechanism - 1], "iterations": each.iterations}
            for each in result.credential_infos
        ]
    return rows


def _show(rows: list[dict[str, Any]], user: str | None, *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    elif rows:
        show_table(_COLUMNS, rows)
    elif user is not None:
        raise click.ClickException(f"there is no user {user!r}")
    else:
        click.echo("There are no users that log in by SCRAM.", err=True)


def _change(admin: KafkaAdminClient, user: str, made: Mapping[str, tuple[str, int]], gone: Sequence[str]) -> None:
    """The client's own call would send it to any broker, and take an error without words for none."""
    from kafka.admin import UserScramCredentialUpsertion
    from kafka.protocol.admin import AlterUserScramCredentialsRequest

    changes: list[tuple[list[Any], list[Any]]] = [([(user, MECHANISMS.index(each) + 1)], []) for each in gone]
    for mechanism, how in made.items():
        hashed = UserScramCredentialUpsertion(user, mechanism, *how)
        changes.append(([], [(user, int(hashed.mechanism), hashed.iterations, hashed.salt, hashed.salted_password)]))
    for deletions, upsertions in changes:  # one after the other: a user may be only once in a request
        request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
        answer = admin._manager.run(admin._send_request_to_controller, request, _errors, False)
        for result in answer.results:
            _check(result.error_code, result.error_message)


def _errors(answer: Any) -> list[type[Exception]]:
    """Of an answer, as the client's own functions have them: it looks for the controller again where one says so."""
    from kafka import errors

    return [errors.for_code(each.error_code) for each in answer.results]


def _check(code: int, text: str | None) -> None:
    if code:
        raise click.ClickException(said_by_broker(code, text))
