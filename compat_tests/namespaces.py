"""Hosts on one machine: network namespaces behind a bridge of their own, whose links a test cuts, slows and mends.

Used by test_namespaces.py. Owns what `ip` and `tc` make here: everything bears one name that nobody else has, and goes
with the block. The machine's own network is never touched, for the bridge, too, is in a namespace.

    host a    10.77.0.1 eth0 --- to-a +--------+
    host b    10.77.0.2 eth0 --- to-b | bridge |
    host c    10.77.0.3 eth0 --- to-c +--------+

A cut between two hosts is silent: what one sends to the other goes to an Ethernet address that nobody has. Connections
neither end nor are refused, they hang, which is the worst that a network does.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from compat_tests.apache import ZooKeeper
from compat_tests.brokers import KbrokerProcess

_SUBNET = "10.77.0"
_NOBODY = "02:00:00:00:00:fe"  # an Ethernet address that no host has
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_QUEUE_BYTES = 20_000  # of a slow link: no more, or what matters to a session would wait behind it for too long


class NoNamespacesError(RuntimeError):
    """Network namespaces cannot be made here; the text says why."""


class Host:
    """One namespace with one address."""

    def __init__(self, network: str, name: str, number: int) -> None:
        self.name = name
        self.namespace = f"{network}-{name}"
        self.address = f"{_SUBNET}.{number}"
        self.port = f"to-{name}"  # its end of the cable at the bridge

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs this one here; the process has the same id."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def connect(self, address: str, port: int, timeout_s: float = 5) -> socket.socket:
        """A connection from here, for a test that is somewhere else. Raises OSError."""
        with ThreadPoolExecutor(1) as thread:  # a namespace is a thread's: this one comes and goes
            return thread.submit(self._connect, address, port, timeout_s).result()

    def _connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        place = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            if libc.setns(place, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"the namespace {self.namespace} cannot be entered")
        finally:
            os.close(place)
        return socket.create_connection((address, port), timeout=timeout_s)


class Network:
    """Hosts by name, all of which reach each other at first; a context manager."""

    def __init__(self, *names: str) -> None:
        self._name = f"kb{os.urandom(3).hex()}"
        self._switch = f"{self._name}-switch"
        self.hosts = {name: Host(self._name, name, number) for number, name in enumerate(names, 1)}
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()
        self._unplugged: set[str] = set()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Self:
        """Raises NoNamespacesError."""
        absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if absent:
            raise NoNamespacesError(f"not installed: {', '.join(absent)}")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNamespacesError(f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def cut(self, one: str, *others: str) -> None:
        """Let `one` and each of the others hear nothing of each other any more."""
        for other in others:
            for host, peer in ((one, other), (other, one)):
                where = ["lladdr", _NOBODY, "nud", "permanent", "dev", "eth0"]
                _ip("-n", self[host].namespace, "neigh", "replace", self[peer].address, *where)
            self._cuts.add((one, other))

    def unplug(self, name: str) -> None:
        """Take a host's only cable out."""
        self._cable(name, "down")
        self._unplugged.add(name)

    def slow(self, name: str, bits_per_s: int) -> None:
        """Let no more than so much through to a host; what comes faster waits in a short queue, then is lost."""
        shape = ["rate", f"{bits_per_s}bit", "burst", "4000", "limit", str(_QUEUE_BYTES)]
        _run("tc", "-n", self._switch, "qdisc", "replace", "dev", self[name].port, "root", "tbf", *shape)
        self._slow.add(name)

    def mend(self) -> None:
        """Let all be as it was at first."""
        for one, other in self._cuts:
            for host, peer in ((one, other), (other, one)):
                _ip("-n", self[host].namespace, "neigh", "del", self[peer].address, "dev", "eth0")
        for name in self._slow:
            _run("tc", "-n", self._switch, "qdisc", "del", "dev", self[name].port, "root")
        for name in self._unplugged:
            self._cable(name, "up")
        self._cuts, self._slow, self._unplugged = set(), set(), set()

    def _cable(self, name: str, state: str) -> None:
        _ip("-n", self._switch, "link", "set", self[name].port, state)

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in self.hosts.values():
            _ip("netns", "add", host.namespace)
            here = ("-n", host.namespace)
            _ip(*here, "link", "add", "eth0", "type", "veth", "peer", "name", host.port, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", host.port, "master", "bridge", "up")
            _ip(*here, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _ip(*here, "link", "set", interface, "up")

    def _remove(self) -> None:
        for namespace in (*(host.namespace for host in self.hosts.values()), self._switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)  # one that was not made is no loss


class ZooKeeperOn(ZooKeeper):
    """Apache's ZooKeeper on a host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._on, self.host = host, host.address
        super().__init__(folder, port=2181)
        self.command = host.command(self.command)

    def _connect(self) -> socket.socket:
        return self._on.connect(self.host, self.port)


class BrokerOn(KbrokerProcess):
    """`kbroker start` on a host."""

    def __init__(self, host: Host, folder: Path, settings: dict[str, str]) -> None:
        self._on, self.host = host, host.address
        super().__init__(folder, settings=settings, port=9092)

    def _command(self) -> list[str]:
        return self._on.command(super()._command())

    def _connect(self) -> socket.socket:
        return self._on.connect(self.host, self.port)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    """Raises subprocess.CalledProcessError."""
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
