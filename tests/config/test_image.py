"""The Dockerfile, as far as it can be held without an engine: what it copies is there, and its parts fit together."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kbroker.cli.container import ADVERTISED, DATA

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
BUILD, FINAL = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[1:]
SCRIPTS = [*ROOT.glob("docker/etc/*"), *ROOT.glob("docker/bin/*"), ROOT / "docker" / "install"]


def all_of(instruction: str, text: str = DOCKERFILE) -> list[str]:
    """What follows this word at the beginning of lines."""
    return re.findall(rf"^{instruction} +(.*)$", text, flags=re.MULTILINE)


def copied() -> list[str]:
    """What comes from the repository."""
    lines = [line.split() for line in all_of("COPY") if not line.startswith("--from")]
    return [source for words in lines for source in words[:-1]]


@pytest.mark.parametrize("source", copied())
def test_what_is_copied_is_there_and_not_ignored(source: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert ((ROOT / source).exists(), source.split("/")[0] in kept) == (True, True)


def test_what_a_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {"pyproject.toml", "hatch_build.py", "constraints.txt", "kbroker", "protocol"}
    assert needed | {project["project"]["readme"]} <= set(copied())


def test_no_compiled_walker_of_another_python_gets_in() -> None:
    dropped = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith(("!", "#"))]
    assert any(fnmatch("protocol/records/_walker.cpython-311-x86_64-linux-gnu.so", line) for line in dropped[1:])


def test_what_it_runs_is_installed_and_it_runs_as_a_normal_user(tmp_path: Path) -> None:
    install(tmp_path)
    (entry,), (user,), (health,) = all_of("ENTRYPOINT", FINAL), all_of("USER", FINAL), all_of("HEALTHCHECK", FINAL)
    for path in (entry.strip('[]"'), re.findall(r'\["(.*)"\]', health)[0]):
        assert os.access(f"{tmp_path}{path}", os.X_OK), path
    assert user == "kbroker"


def test_its_data_lie_in_the_volume_and_its_port_is_exposed() -> None:
    (volume,), (port,) = all_of("VOLUME", FINAL), all_of("EXPOSE", FINAL)
    assert DATA.startswith(volume + "/")
    assert ADVERTISED.endswith(f":{port}")


def test_both_stages_have_the_same_python() -> None:
    assert len({line.split()[0] for line in all_of("FROM")}) == 1


def install(root: Path) -> None:
    subprocess.run(["bash", str(ROOT / "docker" / "install"), str(root)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given to the image's user")
def test_scripts_are_where_programs_that_start_other_images_call_them(tmp_path: Path) -> None:
    install(tmp_path)
    for folder in ("kafka", "confluent"):
        names = {path.name for path in (tmp_path / "etc" / folder / "docker").iterdir()}
        assert names == {"run", "configure", "launch", "ensure", "bash-config"}
    for path in ("usr/local/bin/kafka-storage", "usr/local/bin/cub", "opt/bitnami/scripts/kafka/run.sh"):
        assert (tmp_path / path).is_symlink(), path
    assert (tmp_path / "opt" / "kafka" / "bin" / "kafka-topics.sh").readlink() == Path("/usr/local/bin/kafka-tool")
    assert (tmp_path / "etc" / "confluent" / "docker").stat().st_uid == 1000  # a module edits what is in it


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True).stderr == ""


@pytest.mark.skipif(shutil.which("dash") is None, reason="there is no dash")
def test_what_is_sourced_is_for_every_shell() -> None:
    """Testcontainers' module for Python runs its script by sh, which is dash in Debian's images."""
    command = f". {ROOT}/docker/etc/bash-config; echo done"
    assert subprocess.run(["dash", "-c", command], capture_output=True, text=True).stdout == "done\n"


# -- tools by the names of Apache's


def called(tmp_path: Path, tool: str, *words: str) -> list[str]:
    """What a tool of the image runs."""
    (tmp_path / "bin").mkdir()
    for name in ("kbroker", "python"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\nprintf "%s\\n" {name} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    link = tmp_path / tool
    link.symlink_to(ROOT / "docker" / "bin" / "kafka-tool")
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run([str(link), *words], env=path, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else [done.stderr.strip()]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("kafka-topics.sh --list", "kbroker topics --list"),
        (
            "kafka-configs --alter --bootstrap-server BROKER://b:9092 --entity-type brokers",
            "kbroker configs --alter --bootstrap-server b:9092 --entity-type brokers",
        ),
        ("kafka-configs --entity-type users --describe", "kbroker users --entity-type users --describe"),
        ("kafka-configs --entity-type=clients --describe", "kbroker quotas --entity-type=clients --describe"),
        (
            "kafka-console-producer --broker-list b:1 --topic t --property parse.key=true --property key.separator=:",
            "kbroker produce -b b:1 -t t -K :",
        ),
        (
            "kafka-console-consumer.sh --bootstrap-server=b:1 --topic t --from-beginning --max-messages 3",
            "kbroker consume -q -b b:1 -t t -o beginning -c 3",
        ),
        ("kafka-storage random-uuid", "python -I -m kbroker.cli.container storage random-uuid"),
        ("zookeeper-server-start zoo.cfg", "python -I -m kbroker.cli.container zookeeper zoo.cfg"),
        ("kafka-console-consumer --nonsense 1", "kafka-console-consumer: --nonsense: not an option of this image's "
         "kafka-console-consumer"),
        ("kafka-mirror-maker", "kafka-mirror-maker: not a tool that this image has"),
    ],
)  # fmt: skip
def test_a_tool_is_a_command_of_kbroker(words: str, runs: str, tmp_path: Path) -> None:
    assert " ".join(called(tmp_path, *words.split())) == runs
