"""What the tests of the command line call the fixtures that run commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Captured = pytest.CaptureFixture[str]
Ask = Callable[..., tuple[int, str, str]]
