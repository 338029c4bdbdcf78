"""Who leads what: the controller that every broker carries and one of them runs, and what admins ask for."""

from kbroker.controller.admin import Admin
from kbroker.controller.controller import Controller

__all__ = ["Admin", "Controller"]
