"""Transactions: atomic writes to many partitions and offsets; kept in __transaction_state."""

from kbroker.txn.coordinator import TransactionCoordinator, transaction_shards
from kbroker.txn.rules import Producer
from kbroker.txn.shard import TransactionShard, WriteMarkers
from kbroker.txn.state import Transaction

__all__ = [
    "Producer",
    "Transaction",
    "TransactionCoordinator",
    "TransactionShard",
    "WriteMarkers",
    "transaction_shards",
]
