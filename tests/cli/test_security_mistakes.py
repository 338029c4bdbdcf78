"""What may be wrong about security at a start: each mistake is one line that names the setting and what would be right.

What is wrong in the metadata store, or at run time, is looked at where it is read: tests/broker/test_acl_authorizer.py,
tests/security/test_logins.py, tests/api/test_dynamic_passwords.py, tests/runtime/test_tls_settings.py. A secret is in
no line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from tests.certificates import Authority

SECRET = "sesame"
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
GSSAPI = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"
BEARER = "listener.name.sasl_plaintext.oauthbearer."
KEYS = "sasl.oauthbearer.jwks.endpoint.url"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def refusal(capsys: pytest.CaptureFixture[str], settings: dict[str, str]) -> str:
    code = run(["start", *(f"--override={key}={value}" for key, value in settings.items())])
    out, err = capsys.readouterr()
    assert (code, out) == (1, ""), (out, err)
    assert SECRET not in err
    (line,) = [each for each in err.splitlines() if each.startswith("kbroker: ")]
    return line.removeprefix("kbroker: ")


MISTAKES = {
    "a listener of TLS without a certificate": (
        {"listeners": "SSL://127.0.0.1:0"},
        "ssl.keystore.location: not set, and a listener of TLS needs a certificate",
    ),
    "a listener of logins without any": (
        SASL | {"sasl.enabled.mechanisms": "PLAIN"},
        f"{JAAS}: allowed: a PlainLoginModule with user_NAME",
    ),
    "no mechanism": (
        SASL | {"sasl.enabled.mechanisms": ""},
        "sasl.enabled.mechanisms=: allowed: at least one of PLAIN",
    ),
    "an unknown mechanism": (
        SASL | {"sasl.enabled.mechanisms": "SCRAM-SHA-1"},
        "sasl.enabled.mechanisms=SCRAM-SHA-1: 'SCRAM-SHA-1'; allowed: PLAIN, SCRAM-SHA-256",
    ),
    "a login module that is none": (
        SASL | {"sasl.enabled.mechanisms": "PLAIN", JAAS: f"x.PlainLoginModule required user_a={SECRET}"},
        f"{JAAS}=[hidden]: ",
    ),
    "half a login module": (
        SASL | {"sasl.enabled.mechanisms": "PLAIN", JAAS: f'x.PlainLoginModule required user_a="{SECRET};'},
        f"{JAAS}=[hidden]: ",
    ),
    "Kerberos without a keytab": (
        SASL | {"sasl.enabled.mechanisms": "GSSAPI", GSSAPI: "x.Krb5LoginModule required;"},
        f"{GSSAPI}: allowed: com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true",
    ),
    "Kerberos without the name of the service": (
        SASL | {"sasl.enabled.mechanisms": "GSSAPI", GSSAPI: 'x.Krb5 required keyTab="/k" principal="kafka/h@R";'},
        "sasl.kerberos.service.name: allowed: kafka, which stands first in the principal of",
    ),
    "tokens that nothing checks": (
        SASL | {"sasl.enabled.mechanisms": "OAUTHBEARER"},
        f"{KEYS}: allowed: where the keys are that sign tokens",
    ),
    "keys by no address": (
        SASL | {"sasl.enabled.mechanisms": "OAUTHBEARER", KEYS: "ftp://example/keys"},
        f"{KEYS}=ftp://example/keys: allowed: ",
    ),
    "a validator that is not there": (
        SASL
        | {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{BEARER}sasl.server.callback.handler.class": "a.B",
            KEYS: "file:/k",
        },
        f"{BEARER}sasl.server.callback.handler.class=B: allowed for OAUTHBEARER: module:function",
    ),
    "a function that is not there": (
        SASL | {"sasl.enabled.mechanisms": "PLAIN", "sasl.server.callback.handler.class": "no.such:check"},
        "sasl.server.callback.handler.class=no.such:check: ",
    ),
    "a time that is none": (
        SASL | {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "connections.max.reauth.ms": "soon"},
        "connections.max.reauth.ms=soon: allowed: a 64-bit integer, at least 0",
    ),
    "an authorizer of a user's own": (
        {"authorizer.class.name": "some.Authorizer"},
        "authorizer.class.name=some.Authorizer: allowed: ",
    ),
    "a cipher of passwords": (
        {"password.encoder.cipher.algorithm": "DES/CBC/PKCS5Padding", "password.encoder.secret": SECRET},
        "password.encoder.cipher.algorithm=DES/CBC/PKCS5Padding: allowed: text, one of AES/CBC/PKCS5Padding",
    ),
    "a length of the key of passwords": (
        {"password.encoder.key.length": "100", "password.encoder.secret": SECRET},
        "password.encoder.key.length=100: allowed: a 32-bit integer, one of 128, 192, 256",
    ),
    "rounds for passwords": (
        {"password.encoder.iterations": "1", "password.encoder.secret": SECRET},
        "password.encoder.iterations=1: allowed: a 32-bit integer, 1024 to 1000000",
    ),
    "a listener's own limit": (
        {"listener.name.plaintext.max.connections": "many"},
        "listener.name.plaintext.max.connections=many: allowed: a 32-bit integer, at least 0",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, line = MISTAKES[mistake]
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **settings}
    assert refusal(capsys, given).startswith(line)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"type": "JKS"}, "ssl.keystore.type: JKS, but the file is PEM; allowed: PEM"),
        ({"location": "/no/such"}, "ssl.keystore.location: /no/such: No such file or directory"),
        ({"password": SECRET}, "ssl.keystore.password: set; allowed with a PEM store: none"),
        ({"type": "FOO"}, "ssl.keystore.type=FOO: allowed: text, one of JKS, PKCS12, PEM"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_line(
    changed: dict[str, str], line: str, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "listeners": "SSL://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.broker),
        **{f"ssl.keystore.{key}": value for key, value in changed.items()},
    }
    assert refusal(capsys, given).startswith(line)
