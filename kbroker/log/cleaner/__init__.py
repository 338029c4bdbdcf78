"""Compaction: of each key the last record stays, and the segments of a log shrink.

`choice` says which log, from where to where; `compaction` reads and writes files, on the pool, in bounded pieces;
`cleaner` decides what runs, and puts what was written in place. What stays of a batch is decided in
`protocol.records.cleaning`.

Source: Kafka documentation, "Log Compaction"; KIP-58 (min lag), KIP-354 (max lag), KIP-534 (tombstones and markers).
"""
