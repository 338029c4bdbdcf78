"""SQLite for metadata: what `tree_file.py` needs of `sqlite3`, from the extension behind it.

The module itself loads `datetime`, for columns that hold dates: half a megabyte, and 3 ms of a start.
"""

from __future__ import annotations

__all__ = ["SQLITE_BUSY", "SQLITE_CORRUPT", "SQLITE_NOTADB", "Connection", "Error", "connect"]

try:
    from _sqlite3 import SQLITE_BUSY, SQLITE_CORRUPT, SQLITE_NOTADB, Connection, Error, connect
except ImportError:  # laid out differently than expected
    from sqlite3 import SQLITE_BUSY, SQLITE_CORRUPT, SQLITE_NOTADB, Connection, Error, connect
