"""The table of what the console serves: each row a function, the page that shows what it gives, and its place.

The same row is a page at its path and JSON under `/api`, with the function's own parameters; OpenAPI is made of this
table. Parameters named `cluster`, `values`, `curves` and `broker_inside` are the session's; all others come from the
address or the form, as their annotations say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker import __version__
from kbroker.console import access, groups, messages, overview, topics, transactions
from kbroker.console.cluster import Cluster, ConsoleError
from kbroker.console.overview import BrokersCurves, Curves
from protocol.namedtuple import NamedTuple

OF_SESSION = ("cluster", "values", "curves", "inside")
MOST_CHARACTERS = 1 << 20  # of a parameter
_KINDS: Mapping[type, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


class Screen(NamedTuple):
    """One row. does: makes the values. page: the template, empty for JSON alone. part_of: the entry of the menu.

    changes: whether it changes the cluster: by POST, and not in read-only mode. searches: parameters of which any one
    makes it a search, which may take seconds; few of those run at once. wire: whether it is of the broker that has
    started the console, and wants ALTER on the cluster. forced: parameters that are not the asker's to choose.
    """

    path: str
    title: str
    does: Callable[..., dict[str, Any]]
    page: str = ""
    part_of: str = ""
    changes: bool = False
    searches: Sequence[str] = ()
    wire: bool = False
    forced: Mapping[str, Any] = {}

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Those of the asker."""
        found = inspect.signature(self.does, eval_str=True).parameters
        return {name: each for name, each in found.items() if name not in OF_SESSION and name not in self.forced}

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, as the function takes it. Raises: ConsoleError for what is missing or of another kind."""
        found: dict[str, Any] = dict(self.forced)
        for name, each in self.parameters().items():
            value = given.get(name)
            if value is None:
                if each.default is each.empty:
                    raise ConsoleError(f"{name} is missing")
                continue
            if value == "" and each.annotation is not str:
                continue
            found[name] = _typed(name, value, each.annotation)
        return found


def _typed(name: str, value: Any, kind: type) -> Any:
    text = value if isinstance(value, str) else str(value)
    if len(text) > MOST_CHARACTERS:
        raise ConsoleError(f"{name} has {len(text)} characters: at most {MOST_CHARACTERS} are taken")
    if kind is bool:
        if text.casefold() not in ("true", "false", "on", "1", "0"):
            raise ConsoleError(f"{name}={text}: allowed: true, false")
        return text.casefold() in ("true", "on", "1")
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise ConsoleError(f"{name}={text[:50]}: write a number") from None


def rates(cluster: Cluster, curves: Curves | BrokersCurves) -> dict[str, Any]:
    """What comes in and goes out in a second: now, over the last minute and over the last hour."""
    del cluster
    return curves.rates()


SCREENS: tuple[Screen, ...] = (
    Screen("/", "Overview", overview.overview, "overview", "overview"),
    Screen("/rates", "Rates", rates, "rates", "overview"),
    Screen("/topics", "Topics", topics.topics, "topics", "topics"),
    Screen("/topic", "Topic", topics.topic, "topic", "topics"),
    Screen("/topic/groups", "Groups of a topic", topics.topic_groups, "topic_groups", "topics"),
    Screen("/topics/create", "Create a topic", topics.create_topic, changes=True, part_of="topics"),
    Screen("/topics/delete", "Delete a topic", topics.delete_topic, changes=True, part_of="topics"),
    Screen("/topics/empty", "Delete a topic's records", topics.empty_topic, changes=True, part_of="topics"),
    Screen("/topics/partitions", "Add partitions", topics.add_partitions, changes=True, part_of="topics"),
    Screen("/messages", "Messages", messages.messages, "messages", "topics", searches=messages.FILTERS),
    Screen("/message", "Message", messages.message, "message", "topics"),
    Screen("/tail", "Live tail", messages.tail, "tail", "topics"),
    Screen("/messages/produce", "Produce", messages.produce, changes=True, part_of="topics"),
    Screen("/producers", "Producers of a topic", transactions.producers, "producers", "transactions"),
    Screen("/groups", "Groups", groups.groups, "groups", "groups"),
    Screen("/group", "Group", groups.group, "group", "groups"),
    Screen("/group/reset", "What a reset would do", groups.reset_group, "reset", "groups", forced={"dry_run": True}),
    Screen(
        "/groups/reset", "Reset offsets", groups.reset_group, changes=True, part_of="groups", forced={"dry_run": False}
    ),
    Screen("/groups/delete", "Delete a group", groups.delete_group, changes=True, part_of="groups"),
    Screen("/groups/forget", "Forget offsets of a topic", groups.forget_offsets, changes=True, part_of="groups"),
    Screen("/transactions", "Transactions", transactions.transactions, "transactions", "transactions"),
    Screen(
        "/transactions/abort",
        "Abort a transaction",
        transactions.abort_transaction,
        changes=True,
        part_of="transactions",
    ),
    Screen(
        "/transactions/abort-hanging",
        "Abort a hanging transaction",
        transactions.abort_hanging,
        changes=True,
        part_of="transactions",
    ),
    Screen("/settings", "Settings", overview.settings, "settings", "settings"),
    Screen("/settings/change", "Change a setting", topics.change_setting, changes=True, part_of="settings"),
    Screen("/log-directories", "Log directories", overview.log_directories, "log_directories", "log-directories"),
    Screen("/access", "Access", access.access, "access", "access"),
    Screen("/access/rules/add", "Add a rule", access.add_rule, changes=True, part_of="access"),
    Screen("/access/rules/remove", "Remove a rule", access.remove_rule, changes=True, part_of="access"),
    Screen("/access/users/put", "Put a user", access.put_user, changes=True, part_of="access"),
    Screen("/access/users/remove", "Remove a user", access.remove_user, changes=True, part_of="access"),
    Screen("/access/quotas/put", "Put a quota", access.put_quota, changes=True, part_of="access"),
)
MENU = (
    ("overview", "/", "Overview", "o"),
    ("topics", "/topics", "Topics", "t"),
    ("groups", "/groups", "Groups", "g"),
    ("transactions", "/transactions", "Transactions", "x"),
    ("wire", "/wire", "Wire", "w"),
    ("settings", "/settings", "Settings", "s"),
    ("log-directories", "/log-directories", "Disks", "d"),
    ("access", "/access", "Access", "a"),
)
"""Part, path, what is shown, and the key that leads there behind g."""


def open_api(screens: tuple[Screen, ...] = SCREENS) -> dict[str, Any]:
    """The description of the API for scripts, as OpenAPI 3.1 has it."""
    paths: dict[str, Any] = {}
    for each in screens:
        text = " ".join((inspect.getdoc(each.does) or each.title).split())
        schemas = {name: _schema(parameter) for name, parameter in each.parameters().items()}
        wanted = [name for name, parameter in each.parameters().items() if parameter.default is parameter.empty]
        operation: dict[str, Any] = {
            "summary": each.title,
            "description": text,
            "operationId": each.does.__name__ + ("_preview" if each.forced.get("dry_run") else ""),
            "responses": {
                "200": {"description": text.partition(". ")[0], "content": {"application/json": {"schema": _ANSWER}}},
                "default": {"description": "Why not", "content": {"application/json": {"schema": _REFUSAL}}},
            },
        }
        if each.changes:
            body = {"type": "object", "properties": schemas, "required": wanted}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        else:
            operation["parameters"] = [
                {"name": name, "in": "query", "required": name in wanted, "schema": schema}
                for name, schema in schemas.items()
            ]
        paths[f"/api{each.path}" if each.path != "/" else "/api/overview"] = {
            "post" if each.changes else "get": operation
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "kbroker console", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"login": {"type": "http", "scheme": "basic"}}},
        "security": [{}, {"login": []}],
    }


_ANSWER = {"type": "object"}
_REFUSAL = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _schema(parameter: inspect.Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _KINDS.get(parameter.annotation, "string")}
    if parameter.default is not parameter.empty:
        found["default"] = parameter.default
    return found
