"""The log of a partition: segments, indices, append, read, recovery. Reaches the disk only through `kbroker.ports`.

`open_log` gives a `Log`; what it cannot do itself without waiting comes out as `FlushJob` and `DeleteJob`.
"""

from kbroker.log.append import AppendPlan, UnexpectedOffsetError
from kbroker.log.config import LogConfig
from kbroker.log.epochs import EpochEnd
from kbroker.log.folder import OpenFiles
from kbroker.log.jobs import DeleteJob, FlushJob
from kbroker.log.log import Log
from kbroker.log.producers import Marker, Origin
from kbroker.log.reads import Fetched
from kbroker.log.recovery import RecoveryProgress, open_log

__all__ = [
    "AppendPlan",
    "DeleteJob",
    "EpochEnd",
    "Fetched",
    "FlushJob",
    "Log",
    "LogConfig",
    "Marker",
    "OpenFiles",
    "Origin",
    "RecoveryProgress",
    "UnexpectedOffsetError",
    "open_log",
]
