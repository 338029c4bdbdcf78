"""Client quotas and SCRAM credentials in /config: this broker's copy of what `/config` says of them.

SCRAM credentials and quotas are kept there. `broker/config_changes.py` fills it when a session with the metadata store
begins, and keeps it right by the notices in `/config/changes`. Who depends on an entity takes the fact that it changed.

An entity is named by its path under `/config`, as notices name it:

| path | whose settings |
|---|---|
| `users/U` | the user's; a user named `<default>` stands for all that have none |
| `users/U/clients/C` | of one client id of that user |
| `clients/C` | of a client id |
| `ips/A` | of an address |

U and C are written as Kafka's Sanitizer writes them (`sanitized`), so that a name with a slash is one node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("users", "clients", "ips")
DEFAULT_ENTITY = "<default>"
GROUPS = "groups"  # not kept here: see Configs

_PATH = re.compile(
    r"(?:users/(?!\.{1,2}(?:/|$))[^/\0]+(?:/clients/(?!\.{1,2}$)[^/\0]+)?|(?:clients|ips)/(?!\.{1,2}$)[^/\0]+)"
)


class EntitiesChanged(NamedTuple):
    """The fact that something else is set for these now. paths: as above."""

    paths: tuple[str, ...]


class Entities:
    """settings: by path, of entities for which something is set."""

    def __init__(self) -> None:
        self.settings: dict[str, Mapping[str, str]] = {}

    def of(self, path: str) -> Mapping[str, str]:
        """What is set for an entity."""
        return self.settings.get(path, {})

    def put(self, path: str, settings: Mapping[str, str]) -> bool:
        """Something is set for an entity, or nothing any more. Returns: whether it is another thing than before."""
        if self.of(path) == settings:
            return False
        if settings:
            self.settings[path] = settings
        else:
            del self.settings[path]
        return True


def is_entity(path: str) -> bool:
    """Whether this is the path of a user, a client or an address: a notice may name anything."""
    return _PATH.fullmatch(path) is not None


def user_path(user: str) -> str:
    """The path of a user."""
    return f"users/{sanitized(user)}"


def sanitized(name: str) -> str:
    """A name as one node of the store. Source: Sanitizer of Apache Kafka 3.9 (java.net.URLEncoder, by its rules)."""
    from urllib.parse import quote  # it loads ipaddress, which most brokers never need

    return quote(name, safe="", encoding="utf-8", errors="replace").replace("~", "%7E")


def group_node(group_id: str) -> str:
    """A group's name as one node of the store: any text may be one, but no node is `.` or `..`."""
    return group_id.replace(".", "%2E") if group_id in (".", "..") else sanitized(group_id)


def desanitized(node: str) -> str:
    """The name that a node stands for."""
    from urllib.parse import unquote

    return unquote(node, encoding="utf-8", errors="replace")
