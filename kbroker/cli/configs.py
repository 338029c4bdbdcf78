"""`kbroker configs`: settings of topics and brokers. Options are those of Apache's kafka-configs.sh.

Unlike it: users are `kbroker users`, quotas `kbroker quotas`. What holds for all brokers (--entity-default) has no
name in the client library: it is asked for by requests of its own, sent through the library's connections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, properties_of, said_by_broker, said_in_text, speaks_to_cluster
from kbroker.cli._described import described_configs
from kbroker.cli._tables import show_done, show_json, show_table

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {"describe": "Show settings.", "alter": "Change settings."}
_ONLY = {
    "show_all": ("describe",),
    "add_config": ("alter",),
    "add_config_file": ("alter",),
    "delete_config": ("alter",),
}
_KINDS = {"topics": "TOPIC", "brokers": "BROKER", "groups": "GROUP"}
_ELSEWHERE = {
    "users": "kbroker users for SCRAM, and kbroker quotas",
    "clients": "kbroker quotas",
    "ips": "kbroker quotas",
}
ALL_BROKERS = ""  # the name of what holds for all brokers
BROKER = 4  # among the types of resources
_OPERATIONS = {"SET": 0, "DELETE": 1}
_COLUMNS = ("entity", "name", "value", "source", "read_only")


class _Kind(click.Choice[str]):
    """A type of entity; of one whose settings another command has, which."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The type. Raises: UsageError, BadParameter."""
        if value in _ELSEWHERE:
            raise click.UsageError(f"--entity-type {value}: it is {_ELSEWHERE[value]} here", ctx)
        return super().convert(value, param, ctx)


@click.command("configs")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--entity-type", type=_Kind(list(_KINDS)), help="Of what.")
@click.option("--entity-name", help="Which one; all of them if it is left out (--describe).")
@click.option("--topic", help="Short for --entity-type topics --entity-name TOPIC.")
@click.option("--broker", help="Short for --entity-type brokers --entity-name ID.")
@click.option("--group", help="Short for --entity-type groups --entity-name GROUP.")
@click.option("--entity-default", is_flag=True, help="What holds for all brokers (--entity-type brokers).")
@click.option("--broker-defaults", is_flag=True, help="Short for --entity-type brokers --entity-default.")
@click.option("--all", "show_all", is_flag=True, help="Describe all settings, not only those made at run time.")
@click.option("--add-config", metavar="K=V,K=[V,V]", help="Settings to make; a list of values in brackets.")
@click.option("--add-config-file", type=click.Path(exists=True, dir_okay=False), help="A properties file of them.")
@click.option("--delete-config", metavar="K,K", help="Settings to take back to their defaults.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def configs(cluster: Cluster, as_json: bool, show_all: bool, **options: Any) -> int:
    """Settings of topics, brokers and groups: describe, alter.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    kind, name = _entity(options)
    admin = cluster.admin()
    try:
        if action == "describe":
            _describe(admin, kind, name, show_all=show_all, as_json=as_json)
        else:
            _alter(admin, kind, name, options, as_json=as_json)
    finally:
        admin.close()
    return 0


def _entity(options: Mapping[str, Any]) -> tuple[str, str | None]:
    """What is meant, and which one."""
    if options["broker_defaults"] or options["entity_default"]:
        return _default_entity(options)
    short = {"topics": options["topic"], "brokers": options["broker"], "groups": options["group"]}
    given = [kind for kind, name in short.items() if name is not None]
    if len(given) + (options["entity_type"] is not None) != 1:
        raise click.UsageError(
            "say whose settings: --topic T, --broker ID, --group G, or --entity-type with --entity-name"
        )
    kind = options["entity_type"] or given[0]
    name = options["entity_name"] if options["entity_type"] else short[kind]
    if kind == "brokers" and name is not None and re.fullmatch("[0-9]{1,20}", name) is None:
        raise click.UsageError(f"broker {name}: a broker's id is a number")
    return kind, name


def _default_entity(options: Mapping[str, Any]) -> tuple[str, str]:
    """What holds for all brokers has an empty name."""
    others = [options[each] for each in ("topic", "broker", "group", "entity_name")]
    kind = options["entity_type"] or ("brokers" if options["broker_defaults"] else None)
    if any(each is not None for each in others) or kind != "brokers":
        raise click.UsageError("--entity-default goes with --entity-type brokers, and with no name")
    return "brokers", ALL_BROKERS


def _describe(admin: KafkaAdminClient, kind: str, name: str | None, *, show_all: bool, as_json: bool) -> None:
    from kafka.admin import ConfigResource

    if name == ALL_BROKERS:
        _show(_defaults(admin), "all brokers", as_json=as_json)
        return
    names = [name] if name is not None else _names(admin, kind)
    resources = [ConfigResource(_KINDS[kind], each) for each in names]
    found = _answered(kind, name, lambda: described_configs(admin, resources))
    if kind == "topics" and name is not None and not found["topic"][name]:  # each has its defaults, at least
        raise click.ClickException(f"there is no topic {name!r}")
    rows = [
        {
            "entity": each,
            "name": key,
            "value": "(sensitive)" if data["is_sensitive"] else data["value"],
            "source": data["config_source"],
            "read_only": data["read_only"],
        }
        for each, settings in sorted(found.get(_KINDS[kind].lower(), {}).items())
        for key, data in sorted(settings.items())
        if show_all or data["config_source"].startswith("DYNAMIC")
    ]
    _show(rows, f"{kind} {', '.join(names)}", as_json=as_json)


def _answered(kind: str, name: str | None, ask: Callable[[], Any]) -> Any:
    """What a question about settings is answered with, which goes to the broker itself where it is about one."""
    from kafka.errors import UnknownBrokerIdError

    try:
        return ask()
    except UnknownBrokerIdError:
        raise click.ClickException(f"there is no {kind.removesuffix('s')} {name}") from None


def _show(rows: list[dict[str, Any]], whose: str, *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    elif rows:
        show_table(_COLUMNS, rows)
    else:
        click.echo(f"Nothing is set for {whose}; --all shows defaults too.", err=True)


def _defaults(admin: KafkaAdminClient) -> list[dict[str, Any]]:
    """What is set for all brokers."""
    from kafka.protocol.admin import DescribeConfigsRequest

    (result,) = _ask(admin, DescribeConfigsRequest(resources=[(BROKER, ALL_BROKERS, None)], min_version=1)).results
    _check(result)
    return [
        {
            "entity": "<default>",
            "name": each.name,
            "value": "(sensitive)" if each.is_sensitive else each.value,
            "source": "DYNAMIC_DEFAULT_BROKER_CONFIG",
            "read_only": each.read_only,
        }
        for each in sorted(result.configs, key=lambda each: each.name)
    ]


def _alter_defaults(admin: KafkaAdminClient, changes: Mapping[str, tuple[str, str | None]]) -> None:
    """Change what holds for all brokers."""
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    entries = [(key, _OPERATIONS[operation], value) for key, (operation, value) in changes.items()]
    request = IncrementalAlterConfigsRequest(resources=[(BROKER, ALL_BROKERS, entries)], validate_only=False)
    (result,) = _ask(admin, request).responses
    _check(result)


def _ask(admin: KafkaAdminClient, request: Any) -> Any:
    return admin._manager.run(admin._manager.send, request)


def _check(result: Any) -> None:
    if result.error_code:
        raise click.ClickException(said_by_broker(result.error_code, result.error_message))


def _names(admin: KafkaAdminClient, kind: str) -> list[str]:
    if kind == "topics":
        return sorted(admin.list_topics())
    if kind == "brokers":
        return [str(each["broker_id"]) for each in admin.describe_cluster()["brokers"]]
    return sorted(each["group_id"] for each in admin.list_groups())


def _alter(admin: KafkaAdminClient, kind: str, name: str | None, options: Mapping[str, Any], *, as_json: bool) -> None:
    from kafka.admin import ConfigResource

    if name is None:
        raise click.UsageError("--alter wants --entity-name or --entity-default")
    changes: dict[str, Any] = {}
    if options["add_config_file"]:
        changes.update({key: ("SET", value) for key, value in properties_of(options["add_config_file"]).items()})
    changes.update({key: ("SET", value) for key, value in pairs(options["add_config"] or "").items()})
    changes.update({key.strip(): ("DELETE", None) for key in (options["delete_config"] or "").split(",") if key})
    if not changes:
        raise click.UsageError("--alter wants --add-config, --add-config-file or --delete-config")
    if name == ALL_BROKERS:
        _alter_defaults(admin, changes)
        sentence = "Completed updating default config for brokers in the cluster."
        show_done(sentence, _changed(kind, "<default>", changes), as_json=as_json)
        return
    resource = ConfigResource(_KINDS[kind], name, changes)
    answers = _answered(kind, name, lambda: admin.alter_configs([resource], raise_on_unknown=False))
    result = answers[_KINDS[kind].lower()][name]
    if result != "OK":
        raise click.ClickException(said_in_text(result))
    sentence = f"Completed updating config for {kind.removesuffix('s')} {name}."
    show_done(sentence, _changed(kind, name, changes), as_json=as_json)


def _changed(kind: str, name: str, changes: Mapping[str, tuple[str, str | None]]) -> dict[str, Any]:
    set_to = {key: value for key, (operation, value) in changes.items() if operation == "SET"}
    deleted = [key for key, (operation, _) in changes.items() if operation == "DELETE"]
    return {"entity_type": kind, "entity": name, "set": set_to, "deleted": deleted}


def pairs(text: str) -> dict[str, str]:
    """`a=1,b=[2,3]`: commas between brackets are a value's own. Raises: UsageError."""
    parts: list[str] = [""]
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    found: dict[str, str] = {}
    for pair in filter(None, parts):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--add-config {pair}: write it as KEY=VALUE")
        found[key.strip()] = value[1:-1] if value[:1] == "[" and value[-1:] == "]" else value
    return found
