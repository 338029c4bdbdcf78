"""What users of Apache's tools and of kcat type: it works as there, or the line that refuses it says what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from tests.cli.asking import Ask, Captured

# ---- names of programs and of options


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("kafka-topics.sh --list", "No such command 'kafka-topics.sh': it is kbroker topics here"),
        ("kafka-get-offsets --topic t", "No such command 'kafka-get-offsets': it is kbroker topics --offsets here"),
        ("console-consumer", "No such command 'console-consumer': it is kbroker consume here"),
        ("consumer-groups --list", "No such command 'consumer-groups': it is kbroker groups here"),
        ("producer-perf-test", "No such command 'producer-perf-test': it is kbroker perf produce here"),
        ("kcat -C", "No such command 'kcat': it is kbroker produce or kbroker consume here"),
        ("-L", "No such option '-L'. kcat's -L is kbroker topics --describe, or kbroker cluster --describe"),
        ("-b localhost:9092 -C -t t", "No such option '-b'. kcat's -C is kbroker consume"),
    ],
)
def test_another_tools_name_is_answered_by_what_does_it_here(capsys: Captured, words: str, line: str) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"kbroker: {line}")


@pytest.mark.parametrize("option", ["--consumer.config", "--producer.config", "--admin.config", "-F"])
def test_a_file_of_settings_goes_by_each_tools_name(ask: Ask, tmp_path: Path, option: str) -> None:
    (file := tmp_path / "f").write_text("retris=3\n")
    assert ask("topics", "--list", option, str(file))[2].startswith("kbroker: retris: no setting of ")


@pytest.mark.parametrize("option", ["--consumer-property", "--producer-property", "--command-property"])
def test_a_setting_goes_by_each_tools_name(ask: Ask, option: str) -> None:
    assert ask("topics", "--list", option, "retris=3", "-X", "retries=3")[2].startswith("kbroker: retris: no setting ")


def test_a_file_of_kcats_serves_commands_that_ask_a_cluster(ask: Ask, tmp_path: Path) -> None:
    (file := tmp_path / "kcat.conf").write_text("socket.keepalive.enable=true\nstatistics.interval.ms=0\n")
    assert ask("topics", "--list", "-F", str(file))[::2] == (0, "")
    assert ask("produce", "-t", "kept-alive", "-F", str(file), stdin=b"1\n") == (0, "", "")


def test_names_that_only_other_tools_have_are_not_in_the_help(capsys: Captured) -> None:
    run(["consume", "--help"])
    assert "--broker-list" not in capsys.readouterr().out
    assert run(["consume", "-t", "t", "--broker-list", "localhost:1", "-X", "bootstrap.timeout.ms=200"]) == 2
    assert capsys.readouterr().err == "kbroker: no broker answers at localhost:1\n"
