"""`kbroker reassign` into log directories, and beside what is being moved already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import run
from kbroker.testing import cluster
from tests.cli.asking import Captured
from tests.processes import BrokerProcess


def asked(capsys: Captured, bootstrap: str, *words: str) -> tuple[int, Any, str]:
    """Exit code, what the JSON says, complaints."""
    capsys.readouterr()
    code = run([*words, "-b", bootstrap, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out or "null"), said.err


def plan(folder: Path, *entries: dict[str, Any]) -> tuple[str, str]:
    (file := folder / "plan.json").write_text(json.dumps({"version": 1, "partitions": entries}))
    return "--reassignment-json-file", str(file)


def entry(topic: str, replicas: list[int], **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": 0, "replicas": replicas, **more}


@pytest.fixture
def two_directories(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A broker's address, and its log directories."""
    directories = [str(tmp_path / "one"), str(tmp_path / "two")]
    running = BrokerProcess(tmp_path, log_dirs=",".join(directories), broker_id="1").await_start()
    yield f"127.0.0.1:{running.port}", directories
    running.process.terminate()
    running.process.wait()


def test_a_replica_moves_into_the_directory_that_a_plan_names(
    two_directories: tuple[str, list[str]], capsys: Captured, tmp_path: Path
) -> None:
    bootstrap, directories = two_directories
    asked(capsys, bootstrap, "topics", "--create", "--topic", "moved")

    def where() -> str:
        (row,) = asked(capsys, bootstrap, "cluster", "--log-dirs", "--topic", "moved")[1]
        return str(row["log_dir"])

    (other,) = {*directories} - {where()}
    wanted = plan(tmp_path, entry("moved", [1], log_dirs=[other]))
    code, (row,), _ = asked(capsys, bootstrap, "reassign", "--verify", *wanted)
    assert (code, row["state"]) == (1, "not as wanted")
    assert asked(capsys, bootstrap, "reassign", "--execute", *wanted)[0] == 0
    while asked(capsys, bootstrap, "reassign", "--verify", *wanted)[0] != 0:
        pass
    assert where() == other
    nowhere = plan(tmp_path, entry("moved", [1], log_dirs=["/no/such"]))
    code, _, err = asked(capsys, bootstrap, "reassign", "--execute", *nowhere)
    assert (code, err.startswith("kbroker: moved-0 on broker 1 into /no/such: LOG_DIR_NOT_FOUND: ")) == (2, True)


@pytest.mark.parametrize("log_dirs", [["any", "any"], "any", [1]])
def test_directories_that_are_not_one_for_each_replica_are_refused(
    capsys: Captured, tmp_path: Path, log_dirs: object
) -> None:
    with cluster(2) as c:
        c.create_topic("odd")
        wanted = plan(tmp_path, entry("odd", [1], log_dirs=log_dirs))
        code, _, err = asked(capsys, c.bootstrap, "reassign", "--execute", *wanted)
        assert (code, err.startswith(f"kbroker: {wanted[1]}: "), "log_dirs" in err) == (2, True, True)


def test_more_is_moved_only_if_it_is_said_to_be_additional(capsys: Captured, tmp_path: Path) -> None:
    with cluster(2) as c:
        bootstrap, here = c.controller.bootstrap, c.brokers.index(c.controller) + 1
        there = 3 - here
        for topic in ("first", "second"):
            asked(capsys, bootstrap, "topics", "--create", "--topic", topic, "--replica-assignment", str(here))
        c.controller.faults.on("Fetch").fail("KAFKA_STORAGE_ERROR")  # nothing is copied from there
        words = ("reassign", "--execute")
        assert asked(capsys, bootstrap, *words, *plan(tmp_path, entry("first", [here, there])))[0] == 0
        code, _, err = asked(capsys, bootstrap, *words, *plan(tmp_path, entry("second", [here, there])))
        assert (code, err) == (
            2,
            "kbroker: 1 partition is being moved already (--list): --additional moves these, too\n",
        )
        more = plan(tmp_path, entry("second", [here, there]))
        assert asked(capsys, bootstrap, *words, "--additional", *more)[0] == 0
