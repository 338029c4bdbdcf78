"""What `benchmarks/broker.py` and `scripts/profile` share: brokers as processes, load as bytes, rows, reports."""
