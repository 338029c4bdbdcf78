"""What people look at logs with, offline or beside a running broker: dump and verify."""
