"""The console as an ASGI app: addresses to screens, sessions, logins, and what keeps a browser safe.

A page is made on a thread of Starlette's pool, for what it shows is asked over connections that wait. Nothing of a
record, a topic or a client becomes a script: templates escape every value, and the policy that goes with each page
lets no script run but the console's own file. Forms carry their session's token. The host that a browser asks for must
be one that the console is told of, or another site's name could lead to it (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kbroker.console import drawings, shapes
from kbroker.console.cluster import Cluster, ConsoleError, LoginError
from kbroker.console.messages import StarvedError, gives_way
from kbroker.console.overview import BrokersCurves, Curves, count_records
from kbroker.console.screens import MENU, SCREENS, Screen, open_api
from kbroker.console.values import Values
from kbroker.security.client import PLAIN, SCRAM, ClientSecurity, Login
from protocol.namedtuple import NamedTuple

log = logging.getLogger("kbroker.console")

COOKIE = "kbroker_console_{}"  # the port: a browser sends the cookies of a host to all its ports
MOST_SESSIONS = 200
IDLE_S = 1800.0
CHECKED_S = 60.0  # how long a script's user and password are taken without asking the cluster again
LOGIN_WAIT_S = 1.0  # for one's turn to log in
BODY_BYTES = 2 << 20
QUERY_BYTES = 32 << 10
SEARCHES_AT_ONCE = 3
LOGINS_AT_ONCE = 4
FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # none at all would hide from us, too, whether a form is our own
    "Cache-Control": "no-store",
}


class Options(NamedTuple):
    """What a console is to be.

    bootstrap: where to begin. security: of its connections; without a login in it, and a protocol that wants one,
    users log in. hosts: names that browsers may ask for; empty for any. read_only: nothing is changed. registry: of
    schemas, its URL or empty. gives_way: searches have a processor only while the broker and its clients want none.
    """

    bootstrap: Sequence[tuple[str, int]]
    security: ClientSecurity
    hosts: Sequence[str] = ()
    read_only: bool = False
    registry: str = ""
    gives_way: bool = False


class Session:
    """One browser's, or one script's: whose connections, and the token that its forms carry."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.token = secrets.token_urlsafe(32)
        self.used_s = self.checked_s = time.monotonic()


class Sessions:
    """Sessions by the value of their cookie. Those that are not used end; where there are too many, the oldest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_cookie: dict[str, Session] = {}

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, unless it has ended."""
        with self._lock:
            found = self._by_cookie.get(cookie)
        if found is not None and time.monotonic() - found.used_s > IDLE_S:
            self.end(cookie)
            return None
        if found is not None:
            found.used_s = time.monotonic()
        return found

    def add(self, session: Session) -> str:
        """The cookie of a new one."""
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            now_s = time.monotonic()
            ended = [key for key, each in self._by_cookie.items() if now_s - each.used_s > IDLE_S]
            if len(self._by_cookie) - len(ended) >= MOST_SESSIONS:
                ended.append(min(self._by_cookie, key=lambda key: self._by_cookie[key].used_s))
            self._by_cookie[cookie] = session
        for key in ended:
            self.end(key)
        return cookie

    def end(self, cookie: str) -> None:
        """Log out."""
        with self._lock:
            found = self._by_cookie.pop(cookie, None)
        if found is not None and found.cluster.user:
            found.cluster.close()


class Console:
    """The app's state. inside: what the broker that has started it tells of itself; None for another cluster."""

    def __init__(self, options: Options, inside: Any = None, screens: Sequence[Screen] = SCREENS) -> None:
        self.options = options
        self.inside = inside
        self.screens = tuple(screens)
        self.values = Values(options.registry)
        self.sessions = Sessions()
        security = options.security
        self.wants_login = security.protocol.startswith("SASL") and security.login is None
        self._shared = None if self.wants_login else Cluster(options.bootstrap, security)
        self._scripts: dict[bytes, Session] = {}
        self._searching = threading.BoundedSemaphore(SEARCHES_AT_ONCE)
        self._searchers = (
            ThreadPoolExecutor(SEARCHES_AT_ONCE, "search", initializer=gives_way) if options.gives_way else None
        )
        self._logging_in = threading.BoundedSemaphore(LOGINS_AT_ONCE)
        self._curves: Curves | BrokersCurves | None = None
        self.templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {**shapes.FILTERS, **drawings.FILTERS}
        self.templates.globals |= {"address": _address}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Hang up."""
        if self._curves is not None:
            self._curves.close()
        if self._shared is not None:
            self._shared.close()
        if self._searchers is not None:
            self._searchers.shutdown(wait=False, cancel_futures=True)

    def curves(self, cluster: Cluster) -> Curves | BrokersCurves:
        """Of the broker's own counters, or else of the records that have come into the topics of a cluster."""
        with self._lock:
            if self._curves is None:
                if self.inside is not None:
                    self._curves = BrokersCurves(self.inside)
                else:
                    self._curves = Curves(lambda: count_records(cluster))
            return self._curves

    # -- who asks

    def session_of(self, request: Request) -> tuple[Session, str]:
        """The session, and its cookie if it has just begun. Raises: LoginError."""
        found = self.sessions.find(request.cookies.get(_cookie_name(request), ""))
        if found is not None:
            return found, ""
        if self._shared is None:
            raise LoginError("log in with a user of the cluster")
        session = Session(self._shared)
        return session, self.sessions.add(session)

    def session_of_script(self, request: Request) -> Session:
        """The session of a request to the API: its user stands in it (HTTP Basic). Raises: LoginError."""
        if self._shared is not None:
            return Session(self._shared)
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.casefold() != "basic":
            raise LoginError("this cluster wants a login: send it as HTTP Basic")
        name = hashlib.sha256(text.encode()).digest()  # passwords are not kept
        with self._lock:
            known = self._scripts.get(name)
        if known is not None and time.monotonic() - known.checked_s < CHECKED_S:
            return known
        try:
            user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise LoginError("this is no HTTP Basic") from None
        try:
            session = Session(self.log_in(user, password))
        except LoginError:
            with self._lock:
                old = self._scripts.pop(name, None)
            if old is not None:  # another password counts now, or the user is gone
                old.cluster.close()
            raise
        if known is not None:
            session.cluster.close()
            known.checked_s = session.checked_s
            return known
        with self._lock:
            if len(self._scripts) >= MOST_SESSIONS:
                self._scripts.pop(next(iter(self._scripts))).cluster.close()
            self._scripts[name] = session
        return session

    def log_in(self, user: str, password: str) -> Cluster:
        """Connections of a user, by the first mechanism that the broker and this user have. Raises: ConsoleError."""
        if not user or not password:
            raise LoginError("a login has a user and a password")
        if not self._logging_in.acquire(timeout=LOGIN_WAIT_S):
            raise ConsoleError(f"{LOGINS_AT_ONCE} users log in now: try again", 503)
        try:
            offers_scram = False
            refusal: LoginError | None = None
            for mechanism in (SCRAM[1], SCRAM[0], PLAIN):
                if mechanism == PLAIN and offers_scram:
                    break  # the password itself is not sent to a broker that can do without
                login = Login(mechanism, user, password)
                cluster = Cluster(self.options.bootstrap, self.options.security._replace(login=login))
                try:
                    cluster.described()
                    return cluster
                except LoginError as error:
                    refusal = refusal or error
                    is_offered = "does not take sasl.mechanism" not in str(error)
                    offers_scram = offers_scram or is_offered
                    refusal = error if is_offered else refusal
                cluster.close()
            assert refusal is not None
            raise refusal
        finally:
            self._logging_in.release()

    # -- to show

    def values_of(self, screen: Screen, session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a screen shows. Raises: ConsoleError."""
        if screen.changes and self.options.read_only:
            raise ConsoleError("this console is read-only", 403)
        arguments = screen.arguments(given)
        if screen.wire:
            self._check_wire(session)
        wanted = screen.does.__code__.co_varnames[: screen.does.__code__.co_argcount]
        for name in ("cluster", "values", "curves", "inside"):
            if name in wanted:
                arguments[name] = (
                    session.cluster
                    if name == "cluster"
                    else self.values
                    if name == "values"
                    else self.inside
                    if name == "inside"
                    else self.curves(session.cluster)
                )
        if not screen.searches:
            return screen.does(**arguments)
        if not self._searching.acquire(timeout=1):
            raise ConsoleError(f"{SEARCHES_AT_ONCE} searches run now: try again", 503)
        try:
            if self._searchers is None or not any(arguments.get(name) for name in screen.searches):
                return screen.does(**arguments)
            try:
                return self._searchers.submit(screen.does, **arguments).result()
            except StarvedError:
                return screen.does(**arguments)  # at the priority of this process, which gets its share
        finally:
            self._searching.release()

    def _check_wire(self, session: Session) -> None:
        if self.inside is None:
            raise ConsoleError(
                "what happens on the wire is shown by the console of a kbroker: start it with kbroker start --console",
                404,
            )
        if not session.cluster.may_alter_cluster():  # each time: the right may be taken away
            raise ConsoleError("requests hold other users' records: who sees them may ALTER the cluster", 403)

    def page(self, template: str, request: Request, session: Session | None, values: Mapping[str, Any]) -> str:
        """A template with these values; only its own part where a page asks for a part of itself."""
        is_part = request.headers.get("x-part") == "1"
        return self.templates.get_template(f"{template}.html").render(
            frame="part.html" if is_part else "frame.html",
            menu=[each for each in MENU if each[0] != "wire" or self.inside is not None],
            read_only=self.options.read_only,
            can_see_wire=self.inside is not None,
            session=session,
            given=dict(request.query_params),
            path=request.url.path,
            here=f"{request.url.path}{'?' + request.url.query if request.url.query else ''}",
            **values,
        )


def _address(path: str, /, **parameters: Any) -> str:
    """A path with parameters, those that are None left out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def make_app(console: Console) -> Starlette:
    """The ASGI app."""
    routes: list[Any] = [
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
        Route("/login", _Login(console), methods=["GET", "POST"]),
        Route("/logout", _Logout(console), methods=["POST"]),
        Route("/api", _Description(console), methods=["GET"]),
        Route("/api/openapi.json", _Description(console), methods=["GET"]),
    ]
    for each in console.screens:
        method = "POST" if each.changes else "GET"
        routes.append(Route(each.path, _Page(console, each), methods=[method]))
        api_path = f"/api{each.path}" if each.path != "/" else "/api/overview"
        routes.append(Route(api_path, _Api(console, each), methods=[method]))
    return Starlette(routes=routes)


class _Endpoint:
    """What all answers have in common: the host is checked, the headers are there, a failure is one line."""

    is_api = False

    def __init__(self, console: Console) -> None:
        self.console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            self._check(request)
            given = await self._given(request)
            response = await run_in_threadpool(self.respond, request, given)
        except ConsoleError as error:
            response = await run_in_threadpool(self.refusal, request, error)
        except Exception:
            log.exception("%s cannot be shown", request.url.path)
            failure = ConsoleError("the console itself has failed: its log says how", 500)
            response = await run_in_threadpool(self.refusal, request, failure)
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        """On a thread. Raises: ConsoleError."""
        raise NotImplementedError

    def refusal(self, request: Request, error: ConsoleError) -> Response:
        """What says why not."""
        if self.is_api:
            headers = {"WWW-Authenticate": 'Basic realm="kbroker"'} if error.status == 401 else None
            return JSONResponse({"error": str(error)}, error.status, headers)
        is_part = request.headers.get("x-part") == "1"
        if isinstance(error, LoginError) and not is_part:
            query = f"?{request.url.query}" if request.url.query else ""
            here = f"{request.url.path}{query}" if request.method == "GET" else "/"
            return RedirectResponse(_address("/login", then=here), 303)
        text = self.console.page("error", request, None, {"title": "It cannot be", "part": "", "error": str(error)})
        return HTMLResponse(text, error.status)

    def _check(self, request: Request) -> None:
        hosts = self.console.options.hosts
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if hosts and name not in hosts:
            raise ConsoleError(f"this console is not {host[:100]!r}: ask for {hosts[0]}", 421)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise ConsoleError("another site's page has asked for this", 403)
        if len(request.url.query) > QUERY_BYTES:
            raise ConsoleError(f"an address has at most {QUERY_BYTES} characters", 414)

    async def _given(self, request: Request) -> Mapping[str, Any]:
        if request.method != "POST":
            return dict(request.query_params)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
        wanted = "application/json" if self.is_api else "application/x-www-form-urlencoded"
        if kind != wanted:
            raise ConsoleError(f"the content is {kind or 'of no type'}: send {wanted}", 415)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES:
                raise ConsoleError(f"at most {BODY_BYTES} bytes are taken", 413)
        try:
            if self.is_api:
                found = json.loads(body or b"{}")
                if not isinstance(found, dict):
                    raise ValueError("no object")
                return found
            pairs = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=200, errors="strict")
            return {name: values[-1] for name, values in pairs.items()}
        except ValueError as error:
            raise ConsoleError(f"the content cannot be read: {error}") from None

    def check_token(self, session: Session, given: Mapping[str, Any]) -> None:
        """Raises: ConsoleError for a form that is not the session's own."""
        if not secrets.compare_digest(str(given.get("token", "")).encode(), session.token.encode()):
            raise ConsoleError("this form is not of this session: load the page again", 403)


class _Page(_Endpoint):
    def __init__(self, console: Console, screen: Screen) -> None:
        super().__init__(console)
        self.screen = screen

    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        screen, console = self.screen, self.console
        session, cookie = console.session_of(request)
        if screen.changes:
            self.check_token(session, given)
        found = console.values_of(screen, session, given)
        page = screen.page or "done"
        about = {"title": screen.title, "part": screen.part_of, "data": found}
        response = HTMLResponse(console.page(page, request, session, about))
        if cookie:
            _set_cookie(response, request, cookie)
        return response


class _Api(_Endpoint):
    is_api = True

    def __init__(self, console: Console, screen: Screen) -> None:
        super().__init__(console)
        self.screen = screen

    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        session = self.console.session_of_script(request)
        return JSONResponse(self.console.values_of(self.screen, session, given))


class _Description(_Endpoint):
    is_api = True

    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        return JSONResponse(open_api(self.console.screens))


class _Login(_Endpoint):
    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        console = self.console
        then = str(given.get("then", "/"))
        then = then if then.startswith("/") and not then.startswith(("//", "/\\")) else "/"
        if request.method == "GET":
            about = {"title": "Log in", "part": "", "then": then, "error": ""}
            return HTMLResponse(console.page("login", request, None, about))
        try:
            cluster = console.log_in(str(given.get("user", "")), str(given.get("password", "")))
        except LoginError as error:
            about = {"title": "Log in", "part": "", "then": then, "error": str(error)}
            return HTMLResponse(console.page("login", request, None, about), 401)
        console.sessions.end(request.cookies.get(_cookie_name(request), ""))
        response = RedirectResponse(then, 303)
        _set_cookie(response, request, console.sessions.add(Session(cluster)))
        return response


class _Logout(_Endpoint):
    def respond(self, request: Request, given: Mapping[str, Any]) -> Response:
        session, _ = self.console.session_of(request)
        self.check_token(session, given)
        self.console.sessions.end(request.cookies.get(_cookie_name(request), ""))
        response = RedirectResponse("/", 303)
        response.delete_cookie(_cookie_name(request))
        return response


def _cookie_name(request: Request) -> str:
    return COOKIE.format(request.url.port or "")


def _set_cookie(response: Response, request: Request, cookie: str) -> None:
    is_secure = request.url.scheme == "https"
    response.set_cookie(_cookie_name(request), cookie, httponly=True, samesite="strict", secure=is_secure, path="/")
