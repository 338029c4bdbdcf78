"""Transactions: atomic writes to many partitions and offsets; kept in __transaction_state.

Names are imported from its modules, which a broker loads when there is something to coordinate; but for the value by
which all parts say who a producer is.
"""

from protocol.namedtuple import NamedTuple


class Producer(NamedTuple):
    """Who a producer says it is."""

    producer_id: int
    epoch: int
