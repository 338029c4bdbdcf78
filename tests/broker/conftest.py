"""What a test of a part that clients reach begins with: the same as a handler's."""

from __future__ import annotations

from tests.api.conftest import client as client
