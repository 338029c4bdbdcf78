"""Who did what: a line for each right that was asked for, by the logger that Kafka has for this.

Denied: INFO. Allowed: DEBUG. The text is Kafka's; where the log is JSON, the line has the parts as fields, too.

Unlike Kafka: a right is asked for once for each part of a request, so resourceRefCount is 1; and lines are limited to
so many a second, as all of the broker's are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.acls import OPERATION_NAMES, RESOURCE_NAMES, java_host

if TYPE_CHECKING:
    from kbroker.broker.authorizer import Operation, ResourceType
    from kbroker.broker.session import Session

log = logging.getLogger("kafka.authorizer.logger")


def note(session: Session, operation: Operation, resource: ResourceType, name: str, *, allowed: bool) -> None:
    """A session may, or may not, do this."""
    fields = {
        "principal": str(session.principal),
        "result": "Allowed" if allowed else "Denied",
        "operation": OPERATION_NAMES[operation],
        "host": java_host(session.peer_host),
        "resource": f"{RESOURCE_NAMES[resource]}:LITERAL:{name}",
        "request": session.request,
    }
    log.log(
        logging.DEBUG if allowed else logging.INFO,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s "
        "with resourceRefCount = 1",
        *fields.values(),
        extra={"fields": fields},
    )
