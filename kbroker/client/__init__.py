"""Kafka's protocol as a client speaks it: `Connection` has no socket, who uses it moves the bytes.

Used by all that ask a broker something: brokers among themselves, the pipeline, tests, the simulation, benchmarks.
`runtime/blocking.py` puts one over a socket.
"""

from kbroker.client.connection import Answer, Connection, ProtocolError, State, correlation_ids

__all__ = ["Answer", "Connection", "ProtocolError", "State", "correlation_ids"]
