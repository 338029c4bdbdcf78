"""kbroker: a Kafka broker. ARCHITECTURE.md is the map."""

__version__ = "0.1.0"
