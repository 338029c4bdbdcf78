"""A bounded live campaign at every run: damaged requests into a broker process, and a client that must not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.live import fuzz_clients_apis, fuzz_control_apis


def quiet(report: object) -> None:
    """Nobody watches."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_damaged_requests_harm_nobody_but_their_sender(tmp_path: Path) -> None:
    assert fuzz_clients_apis(tmp_path, 2_500, 1, quiet).findings == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_damaged_requests_of_controllers_are_answered_or_hung_up_on(tmp_path: Path) -> None:
    assert fuzz_control_apis(tmp_path, 5_000, 1, quiet).findings == []
