"""A ZooKeeper with TLS and logins, and the files that its clients need."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

from compat_tests.apache import SMALL_JVM, ZooKeeper, free_port

USER, PASSWORD = "kafka", "sesame"
LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
LOGIN = f'{LOGIN_MODULE} required username="{USER}" password="{PASSWORD}";'
ODD_USER, ODD_PASSWORD = "odd", r"\\s\"é\163ame\\"  # as a JAAS file has it
ODD_LOGIN = f'{LOGIN_MODULE} required username="{ODD_USER}" password="{ODD_PASSWORD}";'
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def missing() -> str | None:
    """Why there are no certificates here; None if they can be made."""
    return None if shutil.which("openssl") else "no openssl on this machine"


class Certificates:
    """An authority of its own in a folder. authority: its certificate, a PEM file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = folder / "authority.key"
        self.authority = folder / "authority.pem"
        self._openssl("-subj", "/CN=authority", "-keyout", self._key, "-out", self.authority)

    def of(self, name: str, *, host: str = "127.0.0.1") -> Path:
        """A key and a certificate for a name, valid at an address: one PEM file."""
        key, certificate, both = (self._folder / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
        signed = ("-CA", self.authority, "-CAkey", self._key, "-addext", f"subjectAltName=IP:{host}")
        self._openssl("-subj", f"/CN={name}", *signed, "-keyout", key, "-out", certificate)
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        """What a client of Python's needs to trust it; own: the file it shows."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if own is not None:
            context.load_cert_chain(own)
        return context

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", "req", "-x509", *_NEW_KEY, *map(str, arguments)], check=True, capture_output=True)


class SecuredZooKeeper(ZooKeeper):
    """A ZooKeeper that takes the login of USER, and speaks TLS at `secure`.

    certificates: of the authority that it trusts, and that vouches for it.
    """

    def __init__(self, folder: Path, *, wants_login: bool = False, wants_certificate: bool = False) -> None:
        """wants_login: nobody may do anything without. wants_certificate: clients have to show one."""
        self.certificates = Certificates(folder / "certificates")
        self._secure_port = free_port()
        users = f'user_{USER}="{PASSWORD}" user_{ODD_USER}="{ODD_PASSWORD}"'
        jaas = write_jaas(folder, "Server", f"{LOGIN_MODULE} required {users};")
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self._secure_port),
            "secureClientPortAddress": self.host,
            "ssl.keyStore.location": str(self.certificates.of("zookeeper")),
            "ssl.trustStore.location": str(self.certificates.authority),
            "ssl.clientAuth": "need" if wants_certificate else "none",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "sessionRequireClientSASLAuth": "true" if wants_login else "false",
        }
        super().__init__(folder, settings=settings, jvm=(*SMALL_JVM, f"-Djava.security.auth.login.config={jaas}"))

    @property
    def secure(self) -> str:
        """`host:port` at which it speaks TLS."""
        return f"{self.host}:{self._secure_port}"


def write_jaas(folder: Path, section: str, login: str) -> Path:
    """A JAAS file with one section."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jaas.conf"
    path.write_text(f"{section} {{ {login} }};\n")
    return path
