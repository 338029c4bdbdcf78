"""`kbroker pipeline NAME` as a user types it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat_tests.waiting import eventually
from kbroker.cli import pipeline as command_line
from kbroker.cli import run
from kbroker.pipeline import session
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

SMALL = ["--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"]
SMALL += ["--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kbroker.cli", "pipeline", *words, *SMALL]


def pipeline(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=280)


def archived(folder: Path) -> int:
    """Records of an archive's manifests."""
    manifests = [json.loads(path.read_text()) for path in folder.glob("_manifest/batch-*.json")]
    return sum(each["records"] for manifest in manifests for each in manifest["records"])


def told(lines: Path) -> int:
    """Records of a job's lines."""
    return sum(json.loads(line)["records"] for line in lines.read_text().splitlines()) if lines.exists() else 0


def test_an_archive_without_an_end_takes_what_comes_until_ctrl_c(
    source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(100)])
    folder = tmp_path / "archive"
    words = command("archive", "--bootstrap", source.bootstrap, "--topics", topic, "--to", str(folder))
    words += ["--trigger", "1s", "--progress", str(tmp_path / "progress")]
    job = subprocess.Popen([*words, "--master", "local[1]"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: told(tmp_path / "progress") == archived(folder) == 100 or job.poll() is not None, 250)
        fill(cluster, topic, [records(50)])
        eventually(lambda: told(tmp_path / "progress") == archived(folder) == 150 or job.poll() is not None, 250)
        job.send_signal(signal.SIGINT)
        said = job.communicate(timeout=120)
    finally:
        job.kill()
    steps = [f"asking the broker at {source.bootstrap} ...", "starting Spark on local[1] ...", "archiving ..."]
    assert (job.returncode, said[1].splitlines()) == (0, steps)
    assert f"topics {topic}: records 150, of these quarantined 0" in said[0]


def test_a_job_prints_its_summary_and_writes_it_as_json(
    source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(100)])
    words = ["archive", "--bootstrap", source.bootstrap, "--topics", topic, "--to", str(tmp_path / "archive")]
    done = pipeline(*words, "--until", "now", "--summary", str(tmp_path / "summary.json"), "--master", "local[2]")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "archiving ...")
    assert f"topics {topic}: records 100, of these quarantined 0" in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["records"] == 100


def test_a_summary_into_a_folder_that_is_not_there_is_told_before_the_job_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", None)
    file = str(tmp_path / "nosuch" / "summary.json")
    code = run(["pipeline", "convert", "--from", str(tmp_path), "--to", str(tmp_path / "new"), "--summary", file])
    said = f"kbroker: --summary {file}: there is no such folder"
    assert (code, capsys.readouterr().err.startswith(said)) == (2, True)


def test_what_a_job_cannot_write_is_told_before_spark_starts(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", None)
    words = ["pipeline", "archive", "--bootstrap", source.bootstrap, "--to", str(tmp_path / "a"), "--until", "now"]
    for more, line in (
        (["--summary", "/proc/summary.json"], "--summary /proc/summary.json: it cannot be written: No such file"),
        (["--progress", str(tmp_path / "none" / "p")], f"--progress {tmp_path}/none/p cannot be written: No such file"),
        (["--metrics", "127.0.0.1:x"], "--metrics 127.0.0.1:x: write HOST:PORT"),
        (["--metrics", source.bootstrap], f"--metrics {source.bootstrap}: Address already in use"),
        (["--topics-pattern", "*"], "--topics-pattern *: no regular expression: nothing to repeat"),
    ):
        assert run([*words, *more]) == 2
        assert capsys.readouterr().err.startswith(f"kbroker: {line}")


def test_a_topic_that_is_not_there_is_told_before_spark_starts(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", None)
    here, folder = source.bootstrap, str(tmp_path)
    for words in (
        ["archive", "--bootstrap", here, "--topics", "absent", "--to", folder, "--until", "now"],
        ["mirror", "--from", here, "--to", here, "--topics", "absent=b"],
        ["audit", "--left", folder, "--right", here, "--topics", "a=absent"],
        ["profile", "--bootstrap", here, "--topics", "absent", "--report", f"{folder}/r.html"],
        ["compact-check", "--from", here, "--topics", "absent"],
    ):
        assert run(["pipeline", *words]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"kbroker: {here} has no topic 'absent'; it has: ")


@pytest.mark.parametrize("there", ["nothing", "a listener that hangs"])
def test_a_broker_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.setattr(session, "start", None)
    monkeypatch.setattr(command_line, "GREETING_S", 1.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if there != "nothing":
            listener.listen()
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
        words = [
            ["archive", "--bootstrap", nobody, "--to", str(tmp_path / "a")],
            ["profile", "--bootstrap", nobody, "--report", str(tmp_path / "r.html")],
            ["replay", "--bootstrap", nobody, "--from", str(tmp_path)],
            ["mirror", "--from", nobody, "--to", nobody, "--topics", "t"],
            ["audit", "--left", str(tmp_path), "--right", nobody, "--topics", "t"],
            ["compact-check", "--from", nobody],
        ]
        for each in words:
            begun_s = time.monotonic()
            assert run(["pipeline", *each]) == 2
            assert time.monotonic() - begun_s < 10
            said = capsys.readouterr().err.splitlines()
            assert said[-2] == f"asking the broker at {nobody} ..."
            assert said[-1].startswith(f"kbroker: no broker answers at {nobody}: ")


def test_a_report_that_cannot_be_written_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", None)
    (tmp_path / "file").touch()
    file = tmp_path / "file" / "report.html"
    assert run(["pipeline", "profile", "--report", str(file)]) == 2
    assert capsys.readouterr().err == f"kbroker: the report {file} cannot be written: Not a directory\n"


def test_the_log_of_a_session_is_there_until_its_job_has_done_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        """As much of a session as ends."""

        def stop(self) -> None: ...

    for done in (True, False):
        log, started = tmp_path / f"{done}.log", Session()
        log.touch()
        session._LOGS[started] = str(log)  # type: ignore[index]
        session.stop(started, done=done)
        assert log.exists() != done


def test_without_spark_a_broker_installs_and_the_command_says_what_to_do() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from kbroker.cli import run; sys.exit(run(sys.argv[1:]))"
    words = ["pipeline", "profile", "--report", "x.html"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "kbroker: the pipeline needs pyspark: type pip install 'kbroker[pipeline]'\n",
    )


def test_a_summary_has_a_line_for_each_topic_and_each_of_its_changes() -> None:
    from kbroker.cli.pipeline import _lines

    changes = [{"change": "retention.ms=1", "records": 1000}, {"change": "format v0", "saves": "2.0 %"}]
    summary = {"job": "compact-check", "topics": {"t": {"records": 2000, "changes": changes}}, "groups": {"g": "none"}}
    assert list(_lines(summary)) == [
        "compact-check",
        "  topics t: records 2,000",
        "    change retention.ms=1, records 1,000",
        "    change format v0, saves 2.0 %",
        "  groups g: none",
    ]


def test_where_spark_runs_is_its_settings_affair_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session.master_of(None, {}) == "local[*]"
    assert session.master_of("spark://here:7077", {}) == "spark://here:7077"
    assert session.master_of(None, {"spark.master": "local[1]"}) == "local[1]"
    (tmp_path / "spark-defaults.conf").write_text("# spark.master none\nspark.app.name x\n")
    assert session.master_of(None, {}) == "local[*]"
    (tmp_path / "spark-defaults.conf").write_text("spark.app.name x\nspark.master  yarn\n")
    assert session.master_of(None, {}) is None
    monkeypatch.setenv("SPARK_CONF_DIR", "/nosuch")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master k8s://there pyspark-shell")
    assert session.master_of(None, {}) is None


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ((), "security.protocol=TLS: allowed: PLAINTEXT, SSL"),
        (("--option", "security.protocol=SASL_SSL"), "security.protocol=SASL_SSL wants sasl.mechanism: PLAIN"),
    ],
)
def test_client_settings_come_from_a_file_and_an_option_beats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], line: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=TLS\n")
    words = ["pipeline", "profile", "--topics", "t", "--report", f"{tmp_path}/r.html", "--command-config", str(file)]
    assert run([*words, *more]) == 2
    assert f"kbroker: {line}" in capsys.readouterr().err
