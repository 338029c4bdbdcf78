"""Users of a broker that does not run: the first one has to be there before anybody can log in.

What Apache's kafka-storage does by `format --add-scram`, here on the metadata of a broker that is alone. Users of a
cluster are made at its ensemble, by Apache's kafka-configs with --zookeeper, or by any broker that runs.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import closing
from typing import TYPE_CHECKING

from kbroker.metadata.entities import user_path
from kbroker.metadata.store import decode_config, encode_config
from kbroker.metadata.tree import NO_SESSION, ancestors
from kbroker.ports import Create, SetData
from kbroker.runtime.store_file import find_store
from kbroker.runtime.tree_file import TreeFile
from kbroker.security.scram import (
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    credential_of,
    make_credential,
    write_credential,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.ports import Disk, Random

SALT_BYTES = 32
_WRITTEN = re.compile(r"(?P<mechanism>[\w-]+)=\[(?P<options>.*)\]", re.S)
_OPTIONS = ("name", "password", "iterations", "salt", "saltedpassword")


class NewUser(NamedTuple):
    """A user and what is kept of the password. credential: as a setting."""

    name: str
    mechanism: str
    credential: str


def read_user(text: str, random: Random) -> NewUser:
    """A user as kafka-storage takes one: SCRAM-SHA-256=[name=admin,password=...]. Raises: ValueError, in one line.

    The line says nothing of what is in the text. A value is in quotes if it has a comma.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or found["mechanism"] not in HASHES:
        raise ValueError(f"allowed: {' or '.join(HASHES)}=[name=NAME,password=PASSWORD], iterations=N if you like")
    mechanism = found["mechanism"]
    pairs = re.findall(r'\s*(\w+)=("(?:[^"])*"|[^,]*)(?:,|$)', found["options"])
    options = {key.lower(): value.strip('"') for key, value in pairs}
    if options.keys() - set(_OPTIONS) or not options.get("name"):
        raise ValueError(f"allowed in {mechanism}=[...]: {', '.join(_OPTIONS)}; name is not left out")
    if ("password" in options) == ("saltedpassword" in options) or not options.get("password", "x"):
        raise ValueError(f"user {options['name']}: allowed: password or saltedpassword, one of them")
    given = options.get("iterations", str(LEAST_ITERATIONS))
    if not re.fullmatch("[0-9]{1,9}", given) or not LEAST_ITERATIONS <= int(given) <= MOST_ITERATIONS:
        raise ValueError(f"iterations={given}: allowed: {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    try:
        salt = base64.b64decode(options["salt"], validate=True) if "salt" in options else random.token(SALT_BYTES)
        salted = base64.b64decode(options.get("saltedpassword", ""), validate=True)
    except binascii.Error:
        raise ValueError(f"user {options['name']}: salt and saltedpassword are base64") from None
    if "password" in options:
        credential = make_credential(mechanism, options["password"].encode(), salt, int(given))
    elif "salt" not in options or not salted:
        raise ValueError(f"user {options['name']}: saltedpassword goes with its salt")
    else:
        credential = credential_of(mechanism, salted, salt, int(given))
    return NewUser(options["name"], mechanism, write_credential(credential))


def add_users(disk: Disk, paths: Sequence[str], users: Sequence[NewUser], *, only_missing: bool = False) -> str:
    """Put users into the metadata of the broker with these log directories. Returns: the file.

    only_missing: leave a user alone that is there with this mechanism. Raises: StoreMissingError; OSError, also if a
    broker uses it.
    """
    path = find_store(disk, paths)
    with closing(TreeFile(path)) as file:
        for user in users:
            node = f"/config/{user_path(user.name)}"
            found = file.tree.nodes.get(node)
            settings = decode_config(found.data) if found is not None else {}
            if only_missing and user.mechanism in settings:
                continue
            data = encode_config({**settings, user.mechanism: user.credential})
            for above in ancestors(node):
                file.tree.apply(Create(above), NO_SESSION)  # it may be there
            outcome = file.tree.apply(Create(node, data) if found is None else SetData(node, data), NO_SESSION)
            assert outcome.fault is None, outcome
        file.save(file.session)
    return path
