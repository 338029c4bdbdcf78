"""How a broker speaks to others: connections, and all that is the same on a real network and on a simulated one.

`runtime/peers.py` and `sim/peers.py` are `BrokerConnections` that know how to connect; both pass
`tests/contracts/test_peers.py`.
"""

from kbroker.peers.broker_connection import BrokerConnection, Link
from kbroker.peers.broker_connections import OF_SASL, PLAINTEXT, BrokerConnections

__all__ = ["OF_SASL", "PLAINTEXT", "BrokerConnection", "BrokerConnections", "Link"]
