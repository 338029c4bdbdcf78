"""`kbroker features`: what a cluster has agreed to do. Commands and options are those of kafka-features.sh.

A feature is at a level, which all brokers have to support before it is finalized; 0 is without it (KIP-584).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._tables import show_done, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka.admin import KafkaAdminClient

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
COLUMNS = ("feature", "supported_min_version", "supported_max_version", "finalized_version_level", "epoch")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Have it checked, and change nothing.")
LEVELS = click.option(
    "--feature", "levels", metavar="NAME=LEVEL", multiple=True, required=True, help="A feature; may be said again."
)
UNSAFE = click.option("--unsafe", is_flag=True, help="Also if something is lost by it.")


@click.group("features")
def features() -> None:
    """What a cluster has agreed to do: describe features, upgrade, downgrade and disable them.

    Exit code: 0 done, 2 it could not be done.
    """


@features.command("describe")
@speaks_to_cluster
@AS_JSON
def describe(cluster: Cluster, as_json: bool) -> int:
    """Every feature: the levels that the broker supports, and the level that the cluster has finalized."""
    admin = cluster.admin()
    try:
        found = admin.describe_features()
    finally:
        admin.close()
    rows = [_row(name, found[name]) for name in sorted(found)]
    if as_json:
        show_json(rows)
    elif rows:
        show_table(COLUMNS, rows)
    else:
        print("No features are supported.")
    return 0


def _row(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    first, last = said.get("supported", (None, None))
    return {
        "feature": name,
        "supported_min_version": first,
        "supported_max_version": last,
        "finalized_version_level": said.get("finalized", (0, 0))[1],
        "epoch": said.get("finalized_epoch"),
    }


@features.command("upgrade")
@speaks_to_cluster
@LEVELS
@DRY_RUN
@AS_JSON
def upgrade(cluster: Cluster, levels: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Finalize higher levels; all of them or none."""
    return _update(cluster, _levels(levels), UPGRADE, "upgraded", dry_run=dry_run, as_json=as_json)


@features.command("downgrade")
@speaks_to_cluster
@LEVELS
@UNSAFE
@DRY_RUN
@AS_JSON
def downgrade(cluster: Cluster, levels: Sequence[str], unsafe: bool, dry_run: bool, as_json: bool) -> int:
    """Finalize lower levels; all of them or none."""
    return _update(cluster, _levels(levels), _down(unsafe), "downgraded", dry_run=dry_run, as_json=as_json)


@features.command("disable")
@speaks_to_cluster
@click.option("--feature", "names", metavar="NAME", multiple=True, required=True, help="A feature; may be said again.")
@UNSAFE
@DRY_RUN
@AS_JSON
def disable(cluster: Cluster, names: Sequence[str], unsafe: bool, dry_run: bool, as_json: bool) -> int:
    """Switch features off; all of them or none."""
    return _update(cluster, dict.fromkeys(names, 0), _down(unsafe), "disabled", dry_run=dry_run, as_json=as_json)


def _down(unsafe: bool) -> int:
    return UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE


def _levels(given: Sequence[str]) -> dict[str, int]:
    """Raises: UsageError."""
    levels = {}
    for each in given:
        name, _, level = each.partition("=")
        if not name or not level.isascii() or not level.isdigit() or int(level) > 0x7FFF:
            raise click.UsageError(f"--feature {each}: allowed: NAME=LEVEL, with a level from 0 to {0x7FFF}")
        if name in levels:
            raise click.UsageError(f"--feature {name}: said twice")
        levels[name] = int(level)
    return levels


def _update(cluster: Cluster, levels: Mapping[str, int], kind: int, done: str, *, dry_run: bool, as_json: bool) -> int:
    admin = cluster.admin()
    try:
        _send(admin, levels, kind, dry_run=dry_run)
    finally:
        admin.close()
    said = ", ".join(f"{name} to {level}" if level else name for name, level in levels.items())
    sentence = f"{said} can be {done}." if dry_run else f"{said} was {done}."
    show_done(sentence, {"dry_run": dry_run, done: dict(levels)}, as_json=as_json)
    return 0


def _send(admin: KafkaAdminClient, levels: Mapping[str, int], kind: int, *, dry_run: bool) -> None:
    """Raises: ClickException with the controller's words."""
    from kafka.errors import NotControllerError
    from kafka.protocol.admin import UpdateFeaturesRequest

    key = UpdateFeaturesRequest.FeatureUpdateKey
    request = UpdateFeaturesRequest(
        timeout_ms=60_000,
        feature_updates=[
            key(feature=name, max_version_level=level, allow_downgrade=kind != UPGRADE, upgrade_type=kind)
            for name, level in levels.items()
        ],
        validate_only=dry_run,
        min_version=1,  # since when a request may only be validated
    )

    def moved(answer: Any) -> list[type[Exception]]:
        """What the client asks another broker on."""
        return [NotControllerError] if answer.error_code == NotControllerError.errno else []

    answer = admin._manager.run(admin._send_request_to_controller, request, moved)
    faults = [(answer.error_code, answer.error_message)]
    faults += [(each.error_code, each.error_message) for each in answer.results or ()]
    for code, text in faults:
        if code:
            raise click.ClickException(said_by_broker(code, text))
