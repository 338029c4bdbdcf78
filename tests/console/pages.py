"""A console on a port of its own, asked as a browser or a script asks it; and what may be in a page."""

from __future__ import annotations

import http.client
import json
import re
import threading
from html.parser import HTMLParser
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import uvicorn

from kbroker.console.app import Console
from kbroker.console.serve import listening, serve


class Answer:
    """status, headers (small letters), text."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()


class Pages:
    """A browser without a screen: it keeps its cookie, and sends the token of the last page with a form."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self.cookie = ""
        self.token = ""

    def get(self, path: str, /, *, part: bool = False, **parameters: object) -> Answer:
        """A page."""
        given = f"?{urlencode(parameters)}" if parameters else ""
        found = self._ask("GET", path + given, headers={"X-Part": "1"} if part else {})
        if token := re.search(r'name="token" value="([^"]+)"', found.text):
            self.token = token[1]
        return found

    def post(self, path: str, token: str | None = None, **form: object) -> Answer:
        """A form."""
        body = urlencode({"token": self.token if token is None else token, **form})
        return self._ask("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})

    def api(self, path: str, /, *, login: str = "", **parameters: object) -> Any:
        """JSON of a screen. Raises: AssertionError for a refusal."""
        given = f"?{urlencode(parameters)}" if parameters else ""
        answer = self._ask("GET", f"/api{path}{given}", headers={"Authorization": login} if login else {})
        assert answer.status == 200, answer.text
        return json.loads(answer.text)

    def change(self, path: str, /, **given: object) -> Answer:
        """A change, as a script asks for it."""
        return self._ask("POST", f"/api{path}", json.dumps(given), {"Content-Type": "application/json"})

    def _ask(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            sent = {"Host": f"{self.host}:{self.port}", **(headers or {})}
            if self.cookie:
                sent["Cookie"] = self.cookie
            connection.request(method, path, body, sent)
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


class Running(Pages):
    """A console in this process, and a browser at it."""

    def __init__(self, console: Console) -> None:
        self._socket = listening("127.0.0.1", 0)
        super().__init__(self._socket.getsockname()[1])
        self._console = console
        self._server: list[uvicorn.Server] = []
        self._thread = threading.Thread(target=serve, args=(console, self._socket, self._server.append))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server[0].should_exit = True
        self._thread.join()
        self._socket.close()


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "script" and given.get("src") != "/static/console.js":
            self.found.append(f"<script {given}>")
        if tag in ("iframe", "object", "embed", "base", "style"):
            self.found.append(f"<{tag}>")
        self.found += [f"<{tag} {name}={value}>" for name, value in attributes if name.startswith("on")]
        self.found += [
            f"<{tag} {name}={value}>"
            for name, value in attributes
            if name in ("href", "src", "action") and (value or "").lstrip().lower().startswith(("javascript:", "data:"))
        ]
        self.found += [f"<{tag} style>" for name, _ in attributes if name == "style"]


def scripts_in(text: str) -> list[str]:
    """What in a page could run, but for the console's own file."""
    parser = _Scripts()
    parser.feed(text)
    return parser.found
