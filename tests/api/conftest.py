"""What nearly every handler's test begins with; the world is each file's own."""

from __future__ import annotations

import pytest

from tests.world import Client, World


@pytest.fixture
def client(world: World) -> Client:
    """A connection to the world's broker."""
    return world.client()
