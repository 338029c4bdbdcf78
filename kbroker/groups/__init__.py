"""Groups: who reads what, and how far; kept in __consumer_offsets.

Names are imported from its modules: a broker loads them when there is something to coordinate.
"""
