"""What a client needs of files and of the net: stores of every kind, tokens; and faults in a line."""

from __future__ import annotations

import json
import threading
from base64 import urlsafe_b64decode
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kbroker.runtime.client_security import Tokens, context_of
from kbroker.security.client import Login, client_security
from tests.certificates import Authority


def of(**settings: str) -> None:
    """Make a context. Raises: ValueError."""
    context_of(client_security({"security.protocol": "SSL", **{k.replace("_", "."): v for k, v in settings.items()}}))


def test_stores_are_read_by_what_is_in_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.make("CN=alice")
    (tmp_path / "own.p12").write_bytes(own.pkcs12("sesame"))
    trust = {"ssl_truststore_location": str(authority.trust)}
    of(**trust, ssl_keystore_location=str(tmp_path / "own.p12"), ssl_keystore_password="sesame")
    of(**trust, ssl_keystore_location=str(authority.store(own)))
    of(ssl_truststore_certificates=authority.trust.read_text())
    of(**trust, ssl_keystore_key=own.key_pem("sesame"), ssl_keystore_certificate_chain=own.certificate_pem,
       ssl_key_password="sesame")  # fmt: skip


def test_what_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.make("CN=alice"), authority.make("CN=bob")
    (tmp_path / "own.p12").write_bytes(own.pkcs12("right"))
    (tmp_path / "none").write_text("sesame")
    for settings, line in (
        ({"ssl_cafile": "/no/such"}, "ssl.cafile=/no/such: No such file"),
        ({"ssl_cafile": str(tmp_path / "none")}, "ssl.cafile="),
        (
            {"ssl_keystore_location": str(tmp_path / "own.p12"), "ssl_keystore_password": "sesame"},
            "ssl.keystore.password: does not fit",
        ),
        (
            {"ssl_keystore_key": other.key_pem(), "ssl_keystore_certificate_chain": own.certificate_pem},
            "ssl.keystore.key: the key does not fit the certificate",
        ),
        (
            {
                "ssl_keystore_key": own.key_pem("right"),
                "ssl_keystore_certificate_chain": own.certificate_pem,
                "ssl_key_password": "sesame",
            },
            "ssl.keystore.key: ssl.key.password does not open the key",
        ),
    ):
        with pytest.raises(ValueError, match=line.partition("=")[0]) as caught:
            of(**settings)
        assert str(caught.value).startswith(line)
        assert "sesame" not in str(caught.value)


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        assert sent == b"grant_type=client_credentials&scope=kafka"
        answer = {"access_token": f"token-{self.headers['Authorization'][-4:]}", "expires_in": 60}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_token_is_fetched_once_while_it_is_fresh() -> None:
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        tokens = Tokens(Login("OAUTHBEARER", "me", "x", endpoint=url, scope="kafka"))
        assert tokens.token() == tokens.token() == "token-eA=="
        assert tokens()[0] == tokens.token()


def test_a_token_comes_from_a_file_or_from_claims(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc.def.ghi\n")
    assert Tokens(Login("OAUTHBEARER", endpoint=f"file:{file}")).token() == "abc.def.ghi"
    middle = Tokens(Login("OAUTHBEARER", unsecured={"sub": "alice"})).token().split(".")[1]
    assert json.loads(urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))["sub"] == "alice"
    with pytest.raises(ValueError, match=r"token\.endpoint\.url=file:/no/such: "):
        Tokens(Login("OAUTHBEARER", endpoint="file:/no/such")).token()
