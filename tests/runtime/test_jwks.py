"""Keys that sign tokens, from a file and from an address of the web."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kbroker.runtime.jwks import MOST_BYTES, fetch


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "some keys"
    path.write_bytes(b"{}")
    assert fetch(path.as_uri()) == fetch(f"file:{path}".replace(" ", "%20")) == b"{}"
    path.write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        fetch(path.as_uri())
    with pytest.raises(OSError, match="No such file"):
        fetch(f"{path.as_uri()}x")


def test_keys_come_from_an_address_of_the_web() -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/keys" else 404)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert fetch(f"{url}/keys") == b"{}"
            with pytest.raises(OSError, match="404"):
                fetch(f"{url}/others")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(OSError, match="refused"):
        fetch(f"{url}/keys")
