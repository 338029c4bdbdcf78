"""`kbroker dev-cluster`: some brokers on this machine, for trying things out, in a second or two and without Java.

Its own process is the metadata server (`runtime/metadata_server/`), the brokers are processes as `kbroker start` makes
them. Killing one shows what a failover looks like; its settings file starts it again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.cli import said_by_system
from kbroker.cli._broker import LAST_PORT, announce
from kbroker.cli._dev_brokers import BrokerProcess, all_in_order, free_ports
from kbroker.cli._numbers import Number
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.environment import from_environment
from kbroker.metadata.features import newest
from kbroker.metadata.store import FEATURES, encode_features
from kbroker.metadata.tree import NO_SESSION
from kbroker.ports import Create
from kbroker.runtime.logs import RateLimit
from kbroker.runtime.loop import Loop
from kbroker.runtime.metadata_server.server import HOST, MetadataServer
from kbroker.runtime.store_file import STORE_FILE
from kbroker.usage import UsageError, unknown

if TYPE_CHECKING:
    from kbroker.runtime.secure import Secured

START_S = 60.0  # of all brokers together
STOP_S = 30.0  # before they are killed
MOST = 50  # processes of some 40 MB
DAY_S = 24 * 3600.0
# What makes a broker one of this cluster.
OF_EACH = ("advertised.listeners", "broker.id", "listeners", "log.dirs", "node.id", "zookeeper.connect")

Say = Callable[[str], None]


class DevCluster:
    """A cluster of processes. brokers: all of them, whether they run or not."""

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        port: int,
        metadata_port: int,
        overrides: dict[str, str],
        say: Say,
        is_secure: bool = False,
    ) -> None:
        """Start the metadata server and the brokers. is_secure: as `kbroker start --secure` makes a broker.

        Raises: OSError: a port is taken, a file cannot be used; UsageError.
        """
        self._loop = Loop()
        self._say = say
        self._told: set[int] = set()  # brokers whose end was said
        self._signals: list[int] = []
        self.folder = folder
        self.fault = ""
        ports = free_ports(port, count)
        if metadata_port:
            free_ports(metadata_port, 1, option="--metadata-port")  # which names it where it is taken
        folder.mkdir(parents=True, exist_ok=True)
        self.secured = self._secure() if is_secure else None
        if self.secured is not None:
            overrides = {**self.secured.settings, **overrides}
            del overrides["listeners"]
        self.server = MetadataServer(self._loop, str(folder / STORE_FILE), port=metadata_port, failed=self._broken)
        self.server.tree.apply(Create(FEATURES, encode_features(newest())), NO_SESSION)  # unless they are there
        self.brokers = [BrokerProcess(at + 1, each, folder) for at, each in enumerate(ports)]
        self._loop.on_end(self._signals.append)
        self._next_day = self._loop.timer(self.look_at_certificates)
        if self.secured is not None:
            self._next_day.set(DAY_S)
        for each in self.brokers:
            protocol = "PLAINTEXT" if self.secured is None else self.secured.protocol
            each.configure(f"{HOST}:{self.server.port}", count, overrides, protocol)
            each.start(self._loop)

    def _secure(self) -> Secured:
        """One authority, one certificate, one admin for all: they are of one machine."""
        from kbroker.runtime.secure import put_admin, secure

        secured = secure(str(self.folder), listeners=f"SASL_SSL://{HOST}:0")
        put_admin(str(self.folder), secured)
        return secured

    def look_at_certificates(self) -> None:
        """Once a day, as a broker alone does it: one that ends soon is made again, and all brokers use the new one."""
        from kbroker.runtime.secure import renew

        self._next_day.set(DAY_S)
        try:
            made = renew(str(self.folder))
        except (OSError, UsageError) as error:
            self._say(f"certificates cannot be made again: {error}")
            return
        if made:
            self._say(f"near its end, and made again: {', '.join(made)}")
            for each in self._alive():
                each.read_certificates()

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return ",".join(each.address for each in self.brokers)

    def await_start(self) -> bool:
        """Until all serve clients; whether they do. `fault` says why not, if it is not a signal."""
        self._turn_until(lambda: all_in_order(self.brokers) or self._ended() or self.fault or self._signals, START_S)
        if dead := self._ended():
            self.fault = f"broker {dead[0].node_id} cannot start: {dead[0].last_words()}"
        elif not self._signals and not all_in_order(self.brokers) and not self.fault:
            self.fault = f"no cluster after {START_S:.0f} s; what the brokers say is in {self.folder}"
        return not self.fault and not self._signals

    def serve(self) -> None:
        """Until a signal comes, no broker is left or the metadata server has failed; the end of one broker is said.

        One that was started again is no process of ours, but a client of the metadata server.
        """
        while not self._signals and not self.fault and (self._alive() or self.server.is_used):
            self._loop.turn()
            for each in self._ended():
                if each.node_id not in self._told:
                    self._told.add(each.node_id)
                    said = f"broker {each.node_id} has ended ({each.last_words()})"
                    goes_on = self._alive() or any(other.is_back for other in self.brokers)
                    self._say(f"{said}; it starts again by: kbroker start {each.properties}" if goes_on else said)
        if not self._signals and not self.fault:
            self.fault = "no broker is left"

    def stop(self) -> None:
        """End the brokers, then the metadata server; a second signal, or some time, kills who is left.

        One that was started again is whose who did that: it is only told of.
        """
        for each in self.brokers:
            if each.is_back:
                self._say(f"broker {each.node_id} was started again by hand, and loses its metadata now: end it, too")
        for each in self.brokers:
            each.end()
        before = len(self._signals)
        self._turn_until(lambda: not self._alive() or len(self._signals) > before, STOP_S)
        for each in self._alive():
            each.end(signal.SIGKILL)
        self._turn_until(lambda: not self._alive(), STOP_S)
        self.server.close()
        self._loop.close()

    def _turn_until(self, done: Callable[[], object], seconds: float) -> None:
        late: list[bool] = []
        timer = self._loop.call_later(seconds, lambda: late.append(True))
        self._loop.run_until(lambda: done() or late)
        timer.cancel()

    def _ended(self) -> list[BrokerProcess]:
        return [each for each in self.brokers if each.code is not None]

    def _alive(self) -> list[BrokerProcess]:
        return [each for each in self.brokers if each.code is None]

    def _broken(self, error: OSError) -> None:
        self.fault = f"metadata cannot be written: {error}"


@click.command("dev-cluster")
@click.argument("count", metavar="N", type=Number(1, MOST), default=3)
@click.option("--port", type=Number(0, LAST_PORT), default=9092, show_default=True, help="Of the first; 0: any free.")
@click.option("--data", type=click.Path(file_okay=False), help="Where to keep data.  [default: gone at the end]")
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of all brokers.")
@click.option(
    "--metadata-port", type=Number(0, LAST_PORT), default=0, help="Of the metadata server.  [default: any free]"
)
@click.option("--secure", is_flag=True, help="Make certificates and an admin: TLS, logins, rules of access.")
@click.option("--json", "as_json", is_flag=True, help="Say where it is as one line of JSON.")
def dev_cluster(
    count: int, port: int, data: str | None, overrides: Sequence[str], metadata_port: int, secure: bool, as_json: bool
) -> int:
    """Run N brokers on this machine, for trying things out, until Ctrl-C.

    Their metadata is with one process on the loopback that speaks ZooKeeper's protocol; a cluster to rely on has a real
    ensemble. Exit code: 0 ended by a signal, 1 it could not start or go on, 2 it was asked for wrongly.
    """
    began_s = time.monotonic()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(RateLimit())
    settings = dict(map(_setting, overrides))
    if port + count - 1 > LAST_PORT:
        raise click.UsageError(f"--port {port}: allowed with {count} brokers: up to {LAST_PORT - count + 1}")
    if data is not None and "," in str(Path(data).absolute()):
        raise click.UsageError(f"--data {data}: allowed: a path without commas, which part directories in log.dirs")
    _check_environment()
    with _folder(data) as folder:
        try:
            cluster = DevCluster(
                count,
                folder,
                port=port,
                metadata_port=metadata_port,
                overrides=settings,
                say=_say_on_stderr,
                is_secure=secure,
            )
        except (OSError, UsageError) as error:
            _say_on_stderr(f"kbroker: {said_by_system(error) if isinstance(error, OSError) else error}")
            return 1
        try:
            if cluster.await_start():
                say = _as_json if as_json else _for_people
                announce(say(cluster, time.monotonic() - began_s, is_kept=data is not None))
                cluster.serve()
        finally:
            cluster.stop()
        if cluster.fault:
            _say_on_stderr(f"kbroker: {cluster.fault}")
    return 1 if cluster.fault else 0


def _say_on_stderr(line: str) -> None:
    with suppress(OSError):  # the terminal has gone, and the brokers that are left go on
        click.echo(line, err=True)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not name:
        raise click.UsageError(f"--override {text}: write it as KEY=VALUE")
    if name not in BrokerConfig.KEYS:
        raise click.UsageError(f"--override {text}: {unknown('setting', name, BrokerConfig.KEYS)}")
    if name in OF_EACH:
        raise click.UsageError(f"--override {text}: it is chosen here for each broker; leave it out")
    return name, value


def _check_environment() -> None:
    """Raises: UsageError: the brokers' settings files would not count, for a variable beats them."""
    try:
        variables = from_environment(os.environ)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for key, given in variables.items():
        if key in OF_EACH:
            raise click.UsageError(f"{given.where}: {key} is chosen here for each broker; unset the variable")


@contextmanager
def _folder(data: str | None) -> Iterator[Path]:
    if data is not None:
        yield Path(data).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="kbroker-cluster-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _for_people(cluster: DevCluster, seconds: float, *, is_kept: bool) -> str:
    rows = [(f"broker {each.node_id}", f"{each.address}, process {each.pid}") for each in cluster.brokers]
    rows.append(("metadata", f"{HOST}:{cluster.server.port}, in ZooKeeper's protocol"))
    rows.append(("data in", f"{cluster.folder}{'' if is_kept else ', gone at the end'}"))
    if cluster.secured is not None:
        from kbroker.cli._secure import recipes_of

        said = recipes_of(cluster.secured, cluster.bootstrap)
        who = f" --command-config {cluster.secured.admin_file}"
    else:
        said, who = [], ""
    count = len(cluster.brokers)
    lines = [f"{count} broker{'s' * (count != 1)} ready after {seconds:.2f} s; Ctrl-C ends them"]
    lines += [f"  {name:12} {value}" for name, value in rows]
    first = f"-b {cluster.brokers[0].address}{who}"
    lines += [
        *said,
        "  try:",
        f"    kbroker topics {first} --create --topic orders --partitions {count}",
        f"    kbroker consume {first} -t orders -o beginning",
    ]
    return "\n".join(lines)


def _as_json(cluster: DevCluster, seconds: float, *, is_kept: bool) -> str:
    del is_kept
    secured = cluster.secured
    if secured is not None:
        secured.write_recipe(cluster.bootstrap)
    return json.dumps(
        {
            **({} if secured is None else {"client_properties": secured.admin_file}),
            "bootstrap": cluster.bootstrap,
            "brokers": [{"id": each.node_id, "address": each.address, "pid": each.pid} for each in cluster.brokers],
            "zookeeper": f"{HOST}:{cluster.server.port}",
            "data": str(cluster.folder),
            "seconds": round(seconds, 3),
        }
    )
