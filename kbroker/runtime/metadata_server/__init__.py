"""A metadata server for a cluster on one machine: ZooKeeper's wire protocol in front of `metadata/tree.py`."""
