"""A real browser: Debian's Chromium without a screen, driven by chromedriver over W3C WebDriver.

As little of that protocol as the tests need. A test that wants one is skipped, with this reason, where there is none.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE_S = 10.0
MISSING = "no chromium and chromedriver here (Debian: chromium, chromium-driver)"


def is_there() -> bool:
    """Whether a browser can be had."""
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Element:
    """Something on a page."""

    def __init__(self, browser: Browser, number: str) -> None:
        self._browser = browser
        self._path = f"/element/{number}"

    def click(self) -> None:
        """As a person does."""
        self._browser.ask("POST", f"{self._path}/click", {})

    def type(self, text: str) -> None:
        """In the place of what is there."""
        self._browser.ask("POST", f"{self._path}/clear", {})
        self._browser.ask("POST", f"{self._path}/value", {"text": text})

    @property
    def text(self) -> str:
        """As it is shown."""
        found: str = self._browser.ask("GET", f"{self._path}/text")
        return found


class Browser:
    """One window. clicks: how many there were since `open`."""

    def __init__(self, *, width: int = 1200, height: int = 800, dark: bool = False) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        port = next(found[1] for line in self._driver.stdout if (found := re.search(r"on port (\d+)\.", line)))
        self._address = f"http://127.0.0.1:{port}"
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--window-size={width},{height}",
            *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
        ]
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._session = f"/session/{made['sessionId']}"
        self.clicks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("DELETE", "")
        self._driver.terminate()
        self._driver.wait()
        assert self._driver.stdout is not None
        self._driver.stdout.close()

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._address}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except HTTPError as error:
            raise LookupError(json.loads(error.read())["value"]["message"]) from None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A command of WebDriver's in this window. Raises: LookupError."""
        return self._send(method, f"{self._session}{path}", body)

    def open(self, address: str) -> None:
        """Go to a page."""
        self.ask("POST", "/url", {"url": address})
        self.clicks = 0

    def find(self, selector: str) -> Element:
        """The first element of a CSS selector, or of a text if it begins with `=`, once there is one.

        Raises: AssertionError.
        """
        how, what = "css selector", selector
        if selector.startswith("="):
            how, what = "xpath", f"//*[self::a or self::button or self::summary][normalize-space()={selector[1:]!r}]"
        found = self.until(lambda: self.ask("POST", "/elements", {"using": how, "value": what}), f"no {selector}")
        return Element(self, found[0][ELEMENT])

    def click(self, selector: str) -> None:
        """Click, once it can be."""
        self.clicks += 1

        def done() -> bool:
            try:
                self.find(selector).click()
            except LookupError:  # replaced meanwhile, or something is above it
                return False
            return True

        self.until(done, f"cannot click {selector}")

    def see(self, text: str, within: str = "main") -> None:
        """Wait until a text is shown. Raises: AssertionError with what is."""

        def shown() -> bool:
            found = self.run("return document.querySelector(arguments[0])?.innerText || ''", within)
            return text in found

        self.until(shown, lambda: f"{text!r} is not in: {self.run('return document.body.innerText')[:3000]}")

    def run(self, script: str, *given: Any) -> Any:
        """What a script gives."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(given)})

    def run_async(self, script: str, *given: Any) -> Any:
        """What a script gives to the function that is its last argument."""
        return self.ask("POST", "/execute/async", {"script": script, "args": list(given)})

    def until(self, look: Any, why: Any) -> Any:
        """What `look` gives, once it is something; it asks the browser each time."""
        end_s = time.monotonic() + PATIENCE_S
        while not (found := look()):
            assert time.monotonic() < end_s, why if isinstance(why, str) else why()
        return found

    def errors(self) -> list[str]:
        """What the page has complained of: scripts that were refused among it."""
        logged = self.ask("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in logged if each["level"] in ("SEVERE", "WARNING")]

    def picture(self, path: Path) -> None:
        """What is to be seen now, as PNG."""
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))
