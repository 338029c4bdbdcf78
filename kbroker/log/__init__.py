"""The log of a partition: segments, indices, append, read, recovery. Reaches the disk only through `kbroker.ports`."""
