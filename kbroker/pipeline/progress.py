"""How far an archive or a mirror has come, for those who watch it: lines of JSON, and metrics as Prometheus has them.

Called by the command line, which hands each batch to `Progress`. The lines are for a job that is scheduled, the
metrics, over HTTP, for one that goes on.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from kbroker.pipeline.errors import PipelineError
from protocol.namedtuple import NamedTuple


class Step(NamedTuple):
    """A batch that is done. records: by topic, the quarantined ones among them. behind: records that are there, and not
    read yet, by topic. renewed: topics that were deleted and made again since the batch before: how far each partition
    had been read of the one that was deleted. seconds: what it took."""

    number: int
    seconds: float
    records: Mapping[str, int]
    quarantined: Mapping[str, int]
    behind: Mapping[str, int]
    renewed: Mapping[str, Mapping[int, int]]


class Pace(NamedTuple):
    """How fast a job reads. max_offsets: records of a batch, at most. min_partitions: tasks of a batch, at least.
    every_s: how long after a batch began the next one does, of a job that goes on."""

    max_offsets: int | None = None
    min_partitions: int | None = None
    every_s: float | None = None


FREE = Pace()


class Progress:
    """What has come of a job's batches. job: its name, `archive` or `mirror`."""

    def __init__(self, job: str, lines: str | None = None, address: str | None = None) -> None:
        """lines: a file that gets a line for each batch. address: HOST:PORT that answers with metrics. Raises
        PipelineError."""
        self._job, self._lock, self._done = job, threading.Lock(), ExitStack()
        self._batches, self._seconds, self._at = 0, 0.0, 0.0
        self._records: Counter[str] = Counter()
        self._quarantined: Counter[str] = Counter()
        self._behind: Mapping[str, int] = {}
        self._lines = self._opened(lines) if lines else None
        self.port = self._served(address) if address else 0

    def _opened(self, path: str) -> Any:
        try:
            return self._done.enter_context(Path(path).open("a", encoding="utf-8", buffering=1))
        except OSError as error:
            raise PipelineError(f"--progress {path} cannot be written: {error.strerror}") from None

    def _served(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        text = self.text

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/metrics"
                body = text().encode() if found else b"metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass  # standard error is for the job's steps

        try:
            server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Answer)
        except (ValueError, OverflowError):
            raise PipelineError(f"--metrics {address}: write HOST:PORT, as 127.0.0.1:9404") from None
        except OSError as error:
            raise PipelineError(f"--metrics {address}: {error.strerror}: write another HOST:PORT") from None
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._done.callback(server.server_close)
        self._done.callback(server.shutdown)
        return server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.close()

    def step(self, step: Step) -> None:
        """A batch is done."""
        now = datetime.now(UTC)
        with self._lock:
            self._batches, self._seconds, self._at = self._batches + 1, self._seconds + step.seconds, now.timestamp()
            self._records.update(step.records)
            self._quarantined.update(step.quarantined)
            self._behind = {**self._behind, **step.behind}
        if self._lines is not None:
            told = {"job": self._job, "at": now.isoformat(timespec="milliseconds"), "batch": step.number}
            told |= {"seconds": round(step.seconds, 3), "records": sum(step.records.values())}
            told |= {"quarantined": sum(step.quarantined.values()), "behind": sum(step.behind.values())}
            told |= {"renewed": step.renewed} if step.renewed else {}
            topics = {
                name: {
                    "records": step.records.get(name, 0),
                    "quarantined": step.quarantined.get(name, 0),
                    "behind": step.behind.get(name, 0),
                }
                for name in sorted({*step.records, *step.behind})
            }
            self._lines.write(json.dumps({**told, "topics": topics}) + "\n")

    def text(self) -> str:
        """The metrics, in Prometheus' format of text."""
        with self._lock:
            plain: list[tuple[str, str, str, Mapping[str, float]]] = [
                ("batches_total", "counter", "Batches that are done.", {"": self._batches}),
                ("batch_seconds_total", "counter", "What batches took.", {"": self._seconds}),
                ("last_batch_timestamp_seconds", "gauge", "When the last batch was done.", {"": self._at}),
            ]
            topics: list[tuple[str, str, str, Mapping[str, float]]] = [
                ("records_total", "counter", "Records that were taken.", dict(self._records)),
                ("quarantined_records_total", "counter", "Records of these that were set apart.", self._quarantined),
                ("behind_records", "gauge", "Records that are there and not read yet.", self._behind),
            ]
            lines = []
            for name, kind, about, values in (*plain, *topics):
                whole = f"kbroker_pipeline_{name}"
                lines += [f"# HELP {whole} {about}", f"# TYPE {whole} {kind}"]
                for topic, value in sorted(values.items()):
                    labels = f'job="{self._job}"' + (f',topic="{topic}"' if topic else "")
                    lines.append(f"{whole}{{{labels}}} {value}")
        return "\n".join(lines) + "\n"
