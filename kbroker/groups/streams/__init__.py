"""Streams groups (KIP-1071): tasks of Kafka Streams, assigned by the coordinator."""
