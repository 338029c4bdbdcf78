"""The log of a partition: segments, indices, append, read, recovery. Reaches the disk only through `kbroker.ports`.

`recovery.open_log` gives a `log.Log`; what it cannot do itself without waiting comes out as a `FlushJob` or `DeleteJob`
(`jobs`). Nothing is imported here: who reads files alone, as Spark's workers do, loads no more than that.
"""
