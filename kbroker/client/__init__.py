"""Kafka's protocol as a client speaks it: `Connection` has no socket, who uses it moves the bytes.

Used by all that ask a broker something: brokers among themselves, the pipeline, tests, the simulation, benchmarks.
`runtime/blocking.py` puts one over a socket.
"""

from kbroker.client.connection import Answer, Connection, ProtocolError, State, correlation_ids
from kbroker.client.login import ClientLogin, LoginRefusedError

__all__ = [
    "Answer",
    "ClientLogin",
    "Connection",
    "LoginRefusedError",
    "ProtocolError",
    "State",
    "correlation_ids",
]
