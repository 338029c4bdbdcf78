"""The broker on an operating system: ports implemented, and the loop that drives the core."""

from kbroker.usage import why_not_here as _why_not_here

if _why := _why_not_here():  # before a module is missed that Windows does not have
    raise ImportError(_why)
