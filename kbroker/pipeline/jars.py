"""The jars of Spark's Kafka connector: got once, kept in a cache, or taken from where they have been put.

Called before a session starts. With Maven on the PATH its own settings (mirrors, proxies) count; without it Spark's
built-in resolver is asked at each start. On a machine without a network, put the four jars that `connector.pom.xml`
names into a folder and name it: `--jars DIR` or KBROKER_PIPELINE_JARS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kbroker.pipeline.errors import PipelineError

RELEASE = "4.2.0"
"""Of pyspark and of the connector: they go together."""
_POM = Path(__file__).with_name("connector.pom.xml")
_WANTED = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


def settings(folder: str | None = None) -> dict[str, str]:
    """Spark's settings that bring the connector. folder: where the jars are, if not in the cache.

    Raises PipelineError.
    """
    folder = folder or os.environ.get("KBROKER_PIPELINE_JARS")
    if folder:
        return _use(Path(folder))
    cached = _cache()
    if _missing(cached):
        if shutil.which("mvn") is None:
            return {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{RELEASE}"}
        _fetch(cached)
    return _use(cached)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "kbroker" / f"spark-kafka-{RELEASE}"


def _use(folder: Path) -> dict[str, str]:
    if missing := _missing(folder):
        raise PipelineError(f"{folder}: there is no {missing[0]}-*.jar; the folder must hold {', '.join(_WANTED)}")
    jars = [str(jar) for name in _WANTED for jar in sorted(folder.glob(f"{name}-[0-9]*.jar"))]
    return {"spark.jars": ",".join(jars)}


def _missing(folder: Path) -> list[str]:
    return [name for name in _WANTED if not any(folder.glob(f"{name}-[0-9]*.jar"))]


def _fetch(folder: Path) -> None:
    """Let Maven copy the jars into a new folder, and put that in its place whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(_POM), *goal], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
            reason = said[0].removeprefix("[ERROR]").strip()[:300] if said else "no reason given"
            raise PipelineError(
                f"Maven found no Kafka connector for Spark {RELEASE} ({reason}): is there a network? Otherwise put the "
                f"jars {', '.join(_WANTED)} into a folder and give it as --jars DIR"
            )
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(f"{scratch}/jars", folder)
