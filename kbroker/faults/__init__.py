"""Faults on demand: what a broker does wrong when it is told to, for tests of clients.

- `script`: the language, `faults.on("Produce", topic="orders").fail("NOT_LEADER_OR_FOLLOWER").times(2)`.
- `core`: the core that obeys it, and keeps a history of what was asked. A broker without faults has the plain one.
- `contents`: what a request is about, and answers put together from a good and a refused part.
- `releases`: which versions older releases of Kafka serve. `file`: the same faults, and the disk's, from a file.
"""

from kbroker.faults.core import ScriptedCore, scripted
from kbroker.faults.history import Seen
from kbroker.faults.script import Fault, Faults
from kbroker.usage import UsageError

__all__ = ["Fault", "Faults", "ScriptedCore", "Seen", "UsageError", "scripted"]
