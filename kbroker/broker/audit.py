"""The authorizer log: who did what, a line for each right that was asked for, by the logger that Kafka has for this.

Denied: INFO. Allowed: DEBUG. The text is Kafka's; where the log is JSON, the line has the parts as fields, too.

Unlike Kafka: lines are limited to so many a second, as all of the broker's are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.acls import OPERATION_NAMES, RESOURCE_NAMES, java_host

if TYPE_CHECKING:
    from kbroker.broker.authorizer import Operation, ResourceType
    from kbroker.broker.session import Session

log = logging.getLogger("kafka.authorizer.logger")


def log_decision(
    session: Session, operation: Operation, resource: ResourceType, name: str, times: int, *, allowed: bool
) -> None:
    """A session may, or may not, do this. times: how many parts of its request are about the resource."""
    fields = {
        "principal": str(session.principal),
        "result": "Allowed" if allowed else "Denied",
        "operation": OPERATION_NAMES[operation],
        "host": java_host(session.peer_host),
        "resource": f"{RESOURCE_NAMES[resource]}:LITERAL:{name}",
        "request": session.request,
        "resourceRefCount": times,
    }
    log.log(
        logging.DEBUG if allowed else logging.INFO,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s "
        "with resourceRefCount = %d",
        *fields.values(),
        extra={"fields": fields},
    )
