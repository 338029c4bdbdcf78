"""What a cluster says of settings and log directories, with its errors: kafka-python's own calls leave those out, so
that what was refused would look as if there were nothing.

Called by the commands that show or look for either. Asks the cluster, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import said_by_broker
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import ConfigResource, KafkaAdminClient


def described_configs(
    admin: KafkaAdminClient, resources: Sequence[ConfigResource]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Settings by kind of resource in small letters, its name, and their own name; none of a topic that is not there.

    Raises: ClickException.
    """
    of_brokers, others = admin._group_config_resources(resources)
    asked: list[tuple[int | None, Sequence[ConfigResource]]] = [*of_brokers.items()]
    asked += [(None, others)] if others else []
    answers = []
    for broker, some in asked:
        answer = admin._manager.run(admin._manager.send, admin._describe_configs_request(some), broker)
        for each in answer.results:
            if each.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                _check(each.error_code, each.error_message, each.resource_name)
        answers.append(answer)
    found: dict[str, dict[str, dict[str, Any]]] = admin._describe_configs_process_responses(answers, "all")
    return found


def described_log_dirs(admin: KafkaAdminClient) -> list[dict[str, Any]]:
    """The directories of each broker, as kafka-python has them. Raises: ClickException."""
    from kafka.protocol.admin import DescribeLogDirsRequest

    found = []
    for broker in sorted(each.node_id for each in admin._manager.cluster.brokers()):
        answer = admin._manager.run(admin._manager.send, DescribeLogDirsRequest(topics=None), broker)
        _check(getattr(answer, "error_code", 0) or 0, None, f"broker {broker}")  # since version 3
        found.append({"broker": broker, "log_dirs": [each.to_dict() for each in answer.results]})
    return found


def _check(code: int, text: str | None, whose: str) -> None:
    if code:
        raise click.ClickException(f"{whose}: {said_by_broker(code, text)}")
