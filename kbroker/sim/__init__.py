"""The broker in a simulated world: ports implemented in memory, with faults on demand. The core never imports it."""
