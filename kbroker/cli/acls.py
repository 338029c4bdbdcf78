"""`kbroker acls`: access rules, who may do what. Options are those of Apache's kafka-acls.sh.

Unlike it: rules are changed through brokers alone, not in ZooKeeper beside them. What is listed is a table, or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.broker.acls import (
    ALL,
    ANY,
    OPERATION_NAMES,
    PERMISSION_NAMES,
    RESOURCE_NAMES,
    WILDCARD,
    Filter,
    Pattern,
    PatternType,
    Permission,
    Rule,
    principal_fault,
)
from kbroker.broker.authorizer import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._tables import show_done, show_json, show_table

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {"list": "Show rules.", "add": "Add rules.", "remove": "Remove rules."}
_OF_RULES = (
    "operation", "allow_principal", "deny_principal", "allow_host", "deny_host", "producer", "consumer", "idempotent",
)  # fmt: skip
_ONLY = {**dict.fromkeys(_OF_RULES, ("add", "remove")), "principal": ("list",), "force": ("remove",)}
_OPTIONS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
_KINDS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED, "any": ANY, "match": PatternType.MATCH}
_NUMBERS = {name.lower(): number for number, name in OPERATION_NAMES.items()}
_COLUMNS = ("resource", "pattern", "name", "principal", "host", "operation", "permission")
_PRODUCER = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER = (Operation.READ, Operation.DESCRIBE)
_ROLES: dict[str, dict[ResourceType, tuple[int, ...]]] = {
    "producer": {ResourceType.TOPIC: _PRODUCER, ResourceType.TRANSACTIONAL_ID: _PRODUCER[:2]},
    "consumer": {ResourceType.TOPIC: _CONSUMER, ResourceType.GROUP: _CONSUMER[:1]},
}
_CLUSTER = Filter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, None, None, ANY, ANY)


@click.command("acls")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--topic", multiple=True, help="A topic; * for all.")
@click.option("--group", multiple=True, help="A consumer group; * for all.")
@click.option("--transactional-id", multiple=True, help="A transactional id; * for all.")
@click.option("--delegation-token", multiple=True, help="A delegation token.")
@click.option("--user-principal", multiple=True, help="A user, for --operation CreateTokens or DescribeTokens.")
@click.option("--cluster", "of_cluster", is_flag=True, help="The cluster itself.")
@click.option(
    "--resource-pattern-type",
    type=click.Choice(list(_KINDS), case_sensitive=False),
    default="literal",
    show_default=True,
    help="How names are meant; any and match for --list and --remove.",
)
@click.option("--operation", multiple=True, default=("All",), show_default=True, help=", ".join(_NUMBERS))
@click.option("--allow-principal", multiple=True, metavar="User:NAME", help="Who may; User:* is each client.")
@click.option("--deny-principal", multiple=True, metavar="User:NAME", help="Who may not.")
@click.option("--allow-host", multiple=True, help="Address, or network (10.0.0.0/8), of who may; * without it.")
@click.option("--deny-host", multiple=True, help="Address, or network, of who may not; * without it.")
@click.option("--producer", is_flag=True, help="What a producer needs: Write, Describe and Create of topics, ids.")
@click.option("--consumer", is_flag=True, help="What a consumer needs: Read, Describe of topics, Read of groups.")
@click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite of the cluster, too.")
@click.option("--principal", multiple=True, metavar="User:NAME", help="List the rules of this principal alone.")
@click.option("--force", is_flag=True, help="Remove without a question.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def acls(cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Access rules: list, add, remove.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    for each in (*options["allow_principal"], *options["deny_principal"], *options["principal"]):
        if principal_fault(each):
            raise click.UsageError(f"{each}: write a principal as User:NAME")
    filters = list(_filters(options))
    if not filters and action != "list":
        raise click.UsageError(
            f"--{action} wants a resource: --topic, --group, --transactional-id, --cluster, --delegation-token or "
            "--user-principal"
        )
    rules = [] if action == "list" else _rules(filters, options)
    if action == "add":
        _check_added(rules, options)
    admin = cluster.admin()
    try:
        if action == "list":
            _list(admin, filters, options["principal"], as_json=as_json)
        elif action == "add":
            _add(admin, rules, as_json=as_json)
        else:
            _remove(admin, rules, as_json=as_json, force=options["force"])
    finally:
        admin.close()
    return 0


# -- what the options mean


def _filters(options: Mapping[str, Any]) -> Iterator[Filter]:
    """The patterns that are named."""
    kind = _KINDS[options["resource_pattern_type"].lower()]
    for option, resource in _OPTIONS.items():
        for name in options[option]:
            yield Filter(resource, name.strip(), kind, None, None, ANY, ANY)
    if options["of_cluster"] or (options["idempotent"] and options["producer"]):
        yield _CLUSTER


def _rules(filters: Sequence[Filter], options: Mapping[str, Any]) -> list[tuple[Filter, Rule | None]]:
    """Rules of the patterns; None where no principal is named: all that the pattern has."""
    found: dict[tuple[Filter, Rule | None], None] = {}
    for each in filters:
        resource = ResourceType(each.resource)
        for operation in _operations(resource, options):
            rules: list[Rule | None] = [*_of_principals(operation, options)]
            found |= dict.fromkeys((each, rule) for rule in rules or [None])
    return list(found)


def _operations(resource: ResourceType, options: Mapping[str, Any]) -> tuple[int, ...]:
    roles = [role for role in _ROLES if options[role]]
    if roles:
        meant = [operation for role in roles for operation in _ROLES[role].get(resource, ())]
        if resource is ResourceType.CLUSTER and options["idempotent"]:
            meant.append(Operation.IDEMPOTENT_WRITE)
        return tuple(meant)
    return tuple(_operation(each, resource) for each in options["operation"])


def _operation(text: str, resource: ResourceType) -> int:
    number = _NUMBERS.get(text.strip().replace("_", "").lower())
    if number is None or number not in (ALL, *OPERATIONS[resource]):
        allowed = ", ".join(OPERATION_NAMES[each] for each in (ALL, *OPERATIONS[resource]))
        raise click.UsageError(f"--operation {text}: allowed for {RESOURCE_NAMES[resource]}: {allowed}")
    return number


def _of_principals(operation: int, options: Mapping[str, Any]) -> Iterator[Rule]:
    for word, permission in (("allow", Permission.ALLOW), ("deny", Permission.DENY)):
        for principal in options[f"{word}_principal"]:
            for host in options[f"{word}_host"] or (WILDCARD,):
                yield Rule(principal.strip(), host.strip(), operation, permission)


def _check_added(rules: Sequence[tuple[Filter, Rule | None]], options: Mapping[str, Any]) -> None:
    if any(rule is None for _, rule in rules) or not rules:
        raise click.UsageError("--add wants --allow-principal or --deny-principal")
    if options["resource_pattern_type"].lower() not in ("literal", "prefixed"):
        raise click.UsageError("--add goes with --resource-pattern-type literal or prefixed")


# -- what is asked of a broker


def _list(admin: KafkaAdminClient, filters: Sequence[Filter], principals: Sequence[str], *, as_json: bool) -> None:
    from kafka.protocol.admin import DescribeAclsRequest

    everything = Filter(ANY, None, ANY, None, None, ANY, ANY)
    found: dict[tuple[Pattern, Rule], None] = {}
    for each in filters or [everything]:
        answer = _ask(admin, DescribeAclsRequest(**_fields(each), min_version=1))
        _check(answer)
        for resource in answer.resources:
            pattern = Pattern(resource.resource_type, resource.resource_name, resource.pattern_type)
            for rule in resource.acls:
                found[pattern, Rule(rule.principal, rule.host, rule.operation, rule.permission_type)] = None
    shown = [(pattern, rule) for pattern, rule in sorted(found) if not principals or rule.principal in principals]
    if as_json:
        show_json([_row(*each) for each in shown])
    elif shown:
        show_table(_COLUMNS, [_row(*each) for each in shown])
    else:
        click.echo("There is no such rule.", err=True)


def _row(pattern: Pattern, rule: Rule) -> dict[str, Any]:
    """A rule for people; numbers that are not known here are shown as such."""
    kinds: dict[int, str] = {each: each.name.title() for each in PatternType}
    return {
        "resource": RESOURCE_NAMES.get(pattern.resource, pattern.resource),
        "pattern": kinds.get(pattern.kind, pattern.kind),
        "name": pattern.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": OPERATION_NAMES.get(rule.operation, rule.operation),
        "permission": PERMISSION_NAMES.get(rule.permission, rule.permission),
    }


def _add(admin: KafkaAdminClient, rules: Sequence[tuple[Filter, Rule | None]], *, as_json: bool) -> None:
    from kafka.protocol.admin import CreateAclsRequest

    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=each.resource,
            resource_name=each.name,
            resource_pattern_type=each.kind,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for each, rule in rules
        if rule is not None
    ]
    for result in _ask(admin, CreateAclsRequest(creations=creations, min_version=1)).results:
        _check(result)
    rows = [_row(_pattern(each), rule) for each, rule in rules if rule is not None]
    _show_changed("Added", rows, as_json=as_json)


def _pattern(wanted: Filter) -> Pattern:
    return Pattern(ResourceType(wanted.resource), wanted.name or "", PatternType(wanted.kind))


def _remove(
    admin: KafkaAdminClient, rules: Sequence[tuple[Filter, Rule | None]], *, as_json: bool, force: bool
) -> None:
    from kafka.protocol.admin import DeleteAclsRequest

    filters = [each if rule is None else each._replace(**rule._asdict()) for each, rule in rules]
    if not force:
        names = ", ".join(dict.fromkeys(f"{RESOURCE_NAMES[each.resource]} {each.name}" for each in filters))
        whose = "all rules" if any(rule is None for _, rule in rules) else f"{len(rules)} rules"
        if not click.confirm(f"Remove {whose} of {names}?", err=True):
            return
    wanted = [DeleteAclsRequest.DeleteAclsFilter(**_fields(each)) for each in dict.fromkeys(filters)]
    rows = []
    for result in _ask(admin, DeleteAclsRequest(filters=wanted, min_version=1)).filter_results:
        _check(result)
        for rule in result.matching_acls:
            _check(rule)
            pattern = Pattern(rule.resource_type, rule.resource_name, rule.pattern_type)
            rows.append(_row(pattern, Rule(rule.principal, rule.host, rule.operation, rule.permission_type)))
    _show_changed("Removed", rows, as_json=as_json)


def _show_changed(word: str, rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    show_done(f"{word} {len(rows)} rule{'s' * (len(rows) != 1)}.", rows, as_json=as_json)


def _fields(wanted: Filter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.kind,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _ask(admin: KafkaAdminClient, request: Any) -> Any:
    return admin._manager.run(admin._manager.send, request)


def _check(result: Any) -> None:
    if result.error_code:
        raise click.ClickException(said_by_broker(result.error_code, result.error_message))
