"""Kerberos on the loopback: a realm of its own, with its KDC, for tests of GSSAPI.

By Debian's krb5-kdc and krb5-admin-server; where they are not installed, or python-gssapi is not, `missing` says what.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

REALM = "KBROKER.TEST"
START_S = 20.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def missing(*, library: bool = True) -> str:
    """What there is not of a KDC, or of python-gssapi; empty if all is there."""
    absent = [each for each in ("krb5kdc", "kdb5_util", "kadmin.local") if shutil.which(each, path=PATH) is None]
    if library and find_spec("gssapi") is None:
        absent.append("python-gssapi")
    return f"not installed: {', '.join(absent)}" if absent else ""


class Kdc:
    """A realm and the process that gives tickets. environment: for who wants one, as the principal of a keytab."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.config = folder / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n rdns = false\n dns_canonicalize_hostname = false\n"
            " dns_lookup_kdc = false\n dns_lookup_realm = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n"
        )
        profile = folder / "kdc.conf"
        profile.write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            f"  acl_file = {folder}/acl\n  max_life = 1h\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
        )
        self._environment = {
            **os.environ,
            "PATH": PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(profile),
        }

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of the master")
        self._process = subprocess.Popen(
            ["krb5kdc", "-n"], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while not self._listens():
            assert self._process.poll() is None, "the KDC has ended"
            assert time.monotonic() < until, "the KDC does not listen"
        return self

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def keytab(self, principal: str) -> Path:
        """A new principal's keys, in a file."""
        path = self._folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}@{REALM}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}@{REALM}")
        assert path.exists(), principal
        return path

    def environment(self, keytab: Path | None = None) -> dict[str, str]:
        """Of a process that wants tickets, as the owner of a keytab; they are its own."""
        given = {"KRB5_CONFIG": str(self.config), "KRB5CCNAME": f"MEMORY:{keytab.stem if keytab else 'none'}"}
        return given if keytab is None else {**given, "KRB5_CLIENT_KTNAME": f"FILE:{keytab}"}

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
