"""The Kafka wire format: bytes to values and back. Touches no socket, no file and no clock."""
