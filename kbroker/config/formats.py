"""Which message format a topic's log has: what `message.format.version` comes to, under Kafka's own condition.

Source: KIP-724. From inter.broker.protocol.version 3.0 on Kafka ignores the setting and stores v2; below, it is heeded.
"""

from __future__ import annotations

V0, V1, V2 = 0, 1, 2  # magic
_V1_SINCE, _V2_SINCE, _IGNORED_SINCE = (0, 10, 0), (0, 11, 0), (3, 0, 0)


def stored_format(format_version: str, protocol_version: str) -> int:
    """The magic of what is to be stored.

    format_version, protocol_version: message.format.version and inter.broker.protocol.version, such as 0.10.2-IV0.
    """
    if _release(protocol_version) >= _IGNORED_SINCE:
        return V2
    wanted = _release(format_version)
    return V2 if wanted >= _V2_SINCE else V1 if wanted >= _V1_SINCE else V0


def _release(version: str) -> tuple[int, int, int]:
    major, minor, patch, *_ = (*map(int, version.partition("-")[0].split(".")), 0)
    return major, minor, patch
