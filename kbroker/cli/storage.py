"""`kbroker storage`: format the log directories of a member of a quorum's cluster, as Apache's kafka-storage does.

A broker that is alone, or in a cluster on ZooKeeper, needs none of it. Exit code 0 all well, 1 something is wrong with
a directory, 2 it could not be done.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click

from kbroker.cli import complain
from kbroker.cli._broker import say
from kbroker.config import ConfigError, check_file, parse_properties, resolve_broker, static_values
from kbroker.config.quorum import quorum_settings
from kbroker.config.resolve import BrokerLayers
from kbroker.log.checkpoints import format_uuid
from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.formatting import format_directories, new_directory_id
from kbroker.log.log_loader import whose
from kbroker.log.metaproperties import MetaProperties, check_agreement, format_meta_properties
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.files import SystemDisk

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
CONFIG = click.option(
    "-c", "--config", "path", required=True, type=click.Path(exists=True, dir_okay=False), help="The server.properties."
)


@click.group("storage")
def storage() -> None:
    """Log directories of a broker with process.roles=broker: format them, show whose they are.

    Such a broker is a member of an Apache Kafka cluster with a metadata quorum (KRaft). Directories that Apache's
    kafka-storage.sh has formatted are taken as they are.
    """


@storage.command("format")
@CONFIG
@click.option("-t", "--cluster-id", required=True, help="The id of the cluster that is there.")
@click.option("-g", "--ignore-formatted", is_flag=True, help="Leave directories alone that are formatted already.")
@click.option(
    "-N", "--no-initial-controllers", is_flag=True, help="As Apache's tool has it; nothing else is done here."
)
def format_storage(path: str, cluster_id: str, ignore_formatted: bool, no_initial_controllers: bool) -> int:
    """Write down in each log directory which cluster and node it belongs to.

    The cluster's id is what Apache's `kafka-cluster.sh cluster-id` says, or meta.properties of another node. Nothing is
    changed in a directory that is formatted already.
    """
    if CLUSTER_ID.fullmatch(cluster_id) is None:
        return complain(
            f"--cluster-id {cluster_id}: allowed: letters, digits, - and _, as kafka-storage random-uuid has"
        )
    try:
        config = _config(path)
        if quorum_settings(config) is None:
            return complain(f"{path}: process.roles is not broker: log directories of other brokers need no formatting")
        lines = format_directories(
            SystemDisk(),
            SystemRandom(),
            _paths(config),
            cluster_id,
            config.broker_id,
            ignore_formatted=ignore_formatted,
        )
    except ConfigError as error:
        for line in error.lines[:-1]:
            complain(line)
        return complain(error.lines[-1])
    except DirectoryRefusedError as error:
        return complain(str(error))
    for line in lines:
        print(line)
    return 0


@storage.command("info")
@CONFIG
def info(path: str) -> int:
    """Show what the log directories say of themselves. Exit code: 0 nothing wrong, 1 something is."""
    try:
        config = _config(path)
        metas, failed = whose(SystemDisk(), _paths(config))
    except ConfigError as error:
        return complain("; ".join(error.lines))
    except DirectoryRefusedError as error:
        return complain(str(error))
    found = {each: meta for each, meta in metas.items() if os.path.isdir(each)}
    faults = [f"{each}: {error.strerror}" for each, error in failed.items()]
    faults += [f"{each}: there is no such directory" for each in metas if each not in found]
    faults += [f"{each}: is not formatted" for each, meta in found.items() if meta == MetaProperties()]
    print("Found log director" + ("y:" if len(found) == 1 else "ies:"))
    for each, meta in found.items():
        print(f"  {each}" + ("" if meta == MetaProperties() else f"  {_shown(meta)}"))
    disagreement = check_agreement(found, node_id=config.broker_id if config.broker_id >= 0 else None)
    for fault in [*faults, *([] if disagreement is None else [str(disagreement)])]:
        say(f"kbroker: {fault}")
    return 1 if faults or disagreement is not None else 0


@storage.command("random-uuid")
def random_uuid() -> int:
    """Print an id, for a cluster or a directory."""
    print(format_uuid(new_directory_id(SystemRandom())))
    return 0


def _shown(meta: MetaProperties) -> str:
    lines = format_meta_properties(meta).splitlines()
    return "{" + ", ".join(sorted(line for line in lines if not line.startswith("#"))) + "}"


def _config(path: str) -> BrokerConfig:
    """Raises: ConfigError, OSError."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        text = file.read()
    check_file(parse_properties(text, path), path)
    static = static_values(text, file_name=path, environment=os.environ)
    return resolve_broker(BrokerLayers(static=static))


def _paths(config: BrokerConfig) -> list[str]:
    """All directories of logs, and that of the metadata log, from the root on."""
    wanted = [*(config.log_dirs or [config.log_dir]), config.metadata_log_dir or ""]
    return list(dict.fromkeys(os.path.abspath(each) for each in wanted if each))
