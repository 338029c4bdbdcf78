"""How a broker speaks to others: lines, and all that is the same on a real network and on a simulated one.

`runtime/peers.py` and `sim/peers.py` are `Lines` that know how to connect; both pass `tests/contracts/test_peers.py`.
"""

from kbroker.peers.line import Line, Link
from kbroker.peers.lines import Lines

__all__ = ["Line", "Lines", "Link"]
