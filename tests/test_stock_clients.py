"""What becomes of a test whose stock client cannot be had: it says why, and in CI it is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.clients import Client, running
from compat_tests.environments import NoClientError


def _absent() -> list[str]:
    raise NoClientError("no registry answers")


@pytest.mark.parametrize(("in_ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_client_that_cannot_be_had_fails_in_ci_and_skips_elsewhere(
    in_ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", in_ci)
    with pytest.raises(outcome, match="no registry answers"), running("h:1", tmp_path, Client("none", "1", _absent)):
        pass
