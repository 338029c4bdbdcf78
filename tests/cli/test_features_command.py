"""`kbroker features` on a broker in this process."""

from __future__ import annotations

import json

import pytest

from kbroker.metadata.features import SUPPORTED, TRANSACTION_VERSION, newest
from tests.cli.asking import Ask

NAME = TRANSACTION_VERSION


def levels(ask: Ask) -> dict[str, int]:
    code, out, _ = ask("features", "describe", "--json")
    assert code == 0
    return {each["feature"]: each["finalized_version_level"] for each in json.loads(out)}


def test_what_is_supported_and_finalized_is_shown(ask: Ask) -> None:
    rows = json.loads(ask("features", "describe", "--json")[1])
    found = {
        each["feature"]: (each["supported_min_version"], each["supported_max_version"], each["finalized_version_level"])
        for each in rows
    }
    assert found == {name: (first, last, last) for name, first, last in SUPPORTED}
    assert "transaction.version" in ask("features", "describe")[1]


def test_levels_go_down_and_up_again(ask: Ask) -> None:
    assert ask("features", "downgrade", "--feature", f"{NAME}=1") == (0, f"{NAME} to 1 was downgraded.\n", "")
    assert levels(ask)[NAME] == 1
    assert ask("features", "disable", "--feature", NAME) == (0, f"{NAME} was disabled.\n", "")
    assert levels(ask)[NAME] == 0
    assert ask("features", "upgrade", "--feature", f"{NAME}=2") == (0, f"{NAME} to 2 was upgraded.\n", "")
    assert levels(ask) == newest()


def test_a_dry_run_changes_nothing(ask: Ask) -> None:
    code, out, err = ask("features", "disable", "--feature", NAME, "--dry-run", "--unsafe", "--json")
    assert (code, json.loads(out), err) == (0, {"dry_run": True, "disabled": {NAME: 0}}, "")
    assert levels(ask) == newest()


def test_what_the_controller_refuses_is_said_in_its_words(ask: Ask) -> None:
    code, out, err = ask("features", "upgrade", "--feature", f"{NAME}=9")
    assert (code, out) == (2, "")
    assert "INVALID_UPDATE_VERSION: The update failed for all features since" in err
    assert err.rstrip().endswith("only supports versions 0-2")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("upgrade", "--feature", NAME), "allowed: NAME=LEVEL"),
        (("upgrade", "--feature", f"{NAME}=-1"), "allowed: NAME=LEVEL"),
        (("upgrade", "--feature", f"{NAME}=1", "--feature", f"{NAME}=2"), "said twice"),
        (("downgrade",), "--feature"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: tuple[str, ...], why: str) -> None:
    code, out, err = ask("features", *words)
    assert (code, out) == (2, "")
    assert why in err
