"""The metadata server of a dev-cluster by itself, as a process: python -m benchmarks.harness.metadata_server FOLDER.

Started by `clusters.py`. Says its port on a line of its own once it listens, and serves until it is ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kbroker.runtime.loop import Loop
from kbroker.runtime.metadata_server.server import MetadataServer


def main() -> int:
    """Serve; 1 if the file cannot be written any more."""
    loop, failures = Loop(), list[OSError]()
    server = MetadataServer(loop, str(Path(sys.argv[1]) / "metadata.db"), failed=failures.append)
    print(server.port, flush=True)
    loop.run_until(lambda: failures)
    return 1


if __name__ == "__main__":
    sys.exit(main())
