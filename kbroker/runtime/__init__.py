"""The broker on an operating system: ports implemented, the loop that drives the core, which never imports it."""
