"""The broker on an operating system: ports implemented, and the loop that drives the core."""
