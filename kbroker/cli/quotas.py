"""`kbroker quotas`: how much users, client ids and addresses may do. Options are those of Apache's kafka-configs.sh.

A quota is set for a user, a client id, both together, or an address; the default of each counts for those that have
none of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._tables import show_done, show_json, show_table
from kbroker.cli.configs import pairs

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {"describe": "Show quotas.", "alter": "Set and remove quotas."}
KINDS = {"users": "user", "clients": "client-id", "ips": "ip"}
DEFAULT = "<default>"
EXACT, IS_DEFAULT, ANY = range(3)
_COLUMNS = ("entity", "quota", "value")

Parts = dict[str, str | None]
"""By type of an entity its name; None is the default."""


@click.command("quotas")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--user", help="A user.")
@click.option("--user-defaults", is_flag=True, help="All users without a quota of their own.")
@click.option("--client", help="A client id; with a user, of that user alone.")
@click.option("--client-defaults", is_flag=True, help="All client ids without a quota of their own.")
@click.option("--ip", help="An address.")
@click.option("--ip-defaults", is_flag=True, help="All addresses without a quota of their own.")
@click.option(
    "--entity-type", "types", type=click.Choice(list(KINDS)), multiple=True, help="As kafka-configs.sh has it."
)
@click.option("--entity-name", "names", multiple=True, help="One for each --entity-type; left out: all (--describe).")
@click.option("--entity-default", is_flag=True, help="The default of the --entity-type that has no name.")
@click.option(
    "--add-config",
    metavar="K=V,...",
    help="Quotas: producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage (of one thread), "
    "controller_mutation_rate (partitions a second); connection_creation_rate (a second, of an address).",
)
@click.option("--delete-config", metavar="K,K", help="Quotas to remove.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def quotas(cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Quotas of users, client ids and addresses: describe, alter.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS)
    named, of_any = _entity(options)
    changes = _changes(options)
    if action == "describe" and changes:
        raise click.UsageError("--add-config and --delete-config go with --alter")
    if action == "alter" and (not named or of_any):
        raise click.UsageError("--alter wants to know whose: --user, --client or --ip, or their defaults")
    if action == "alter" and not changes:
        raise click.UsageError("--alter wants --add-config or --delete-config")
    admin = cluster.admin()
    try:
        if action == "describe":
            _show(_described(admin, named, of_any), as_json=as_json)
            return 0
        _alter(admin, named, changes)
    finally:
        admin.close()
    facts = {
        "entity": named,
        "set": {key: value for key, value in changes.items() if value is not None},
        "deleted": [key for key, value in changes.items() if value is None],
    }
    show_done(f"Completed updating quotas for {_said(named)}.", facts, as_json=as_json)
    return 0


def _entity(options: Mapping[str, Any]) -> tuple[Parts, list[str]]:
    """Parts with a name or the default, and types of which any is meant."""
    named: Parts = {}
    for option, kind in (("user", "user"), ("client", "client-id"), ("ip", "ip")):
        if options[option] is not None and options[f"{option}_defaults"]:
            raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
        if options[option] is not None:
            named[kind] = options[option]
        elif options[f"{option}_defaults"]:
            named[kind] = None
    types, names = options["types"], list(options["names"])
    if len(names) > len(types):
        raise click.UsageError("--entity-name goes with an --entity-type each")
    of_any = []
    for at, each in enumerate(types):
        if KINDS[each] in named:
            raise click.UsageError(f"--entity-type {each}: said twice")
        if at < len(names):
            named[KINDS[each]] = names[at]
        elif options["entity_default"]:
            named[KINDS[each]] = None
        else:
            of_any.append(KINDS[each])
    if "ip" in {*named, *of_any} and len(named) + len(of_any) > 1:
        raise click.UsageError("an address has its quotas by itself, without users and client ids")
    return named, of_any


def _changes(options: Mapping[str, Any]) -> dict[str, float | None]:
    """Quotas to be set; None: to be removed."""
    changes: dict[str, float | None] = {}
    for key, value in pairs(options["add_config"] or "").items():
        try:
            changes[key] = float(value)
        except ValueError:
            raise click.UsageError(f"--add-config {key}={value}: allowed: a number") from None
    return changes | {key.strip(): None for key in (options["delete_config"] or "").split(",") if key.strip()}


def _described(admin: KafkaAdminClient, named: Parts, of_any: list[str]) -> list[dict[str, Any]]:
    from kafka.protocol.admin import DescribeClientQuotasRequest

    components = [(kind, IS_DEFAULT if name is None else EXACT, name) for kind, name in named.items()]
    components += [(kind, ANY, None) for kind in of_any]
    request = DescribeClientQuotasRequest(components=components, strict=bool(components))
    answer = admin._manager.run(admin._manager.send, request)
    _check(answer.error_code, answer.error_message)
    return [
        {
            "entity": {part.entity_type: part.entity_name for part in entry.entity},
            "quota": each.key,
            "value": each.value,
        }
        for entry in answer.entries
        for each in sorted(entry.values, key=lambda each: each.key)
    ]


def _alter(admin: KafkaAdminClient, named: Parts, changes: Mapping[str, float | None]) -> None:
    from kafka.protocol.admin import AlterClientQuotasRequest

    operations = [(key, value or 0.0, value is None) for key, value in changes.items()]
    request = AlterClientQuotasRequest(entries=[(list(named.items()), operations)], validate_only=False)
    for entry in admin._manager.run(admin._manager.send, request).entries:
        _check(entry.error_code, entry.error_message)


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    elif rows:
        show_table(_COLUMNS, [{**row, "entity": _said(row["entity"]), "value": f"{row['value']:g}"} for row in rows])
    else:
        click.echo("No quotas are set.", err=True)


def _said(named: Mapping[str, str | None]) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in named.items())


def _check(code: int, text: str | None) -> None:
    if code:
        raise click.ClickException(said_by_broker(code, text))
