"""Every screen of any cluster: it is shown, it is safe, and scripts get the same."""

from __future__ import annotations

import base64
import json

import pytest

from kbroker.console import CLIENT_ID
from kbroker.console.app import Console, Options
from kbroker.console.screens import SCREENS, open_api
from kbroker.faults.core import OWN_CLIENTS
from kbroker.security.client import ClientSecurity
from kbroker.testing import Broker, broker
from tests.console.conftest import EVIL, options
from tests.console.pages import Pages, Running, scripts_in

ARGUMENTS: dict[str, dict[str, object]] = {
    "/topic": {"name": "orders"},
    "/topic/groups": {"name": "orders"},
    "/messages": {"topic": "orders"},
    "/message": {"topic": "orders", "partition": 0, "offset": 1},
    "/tail": {"topic": "orders"},
    "/producers": {"topic": "orders"},
    "/group": {"name": "billing"},
    "/group/reset": {"group": "billing", "topic": "orders", "how": "earliest"},
}
SHOWN = [each for each in SCREENS if not each.changes]


@pytest.fixture(scope="module", autouse=True)
def groups(pages: Running) -> None:
    for name, topic in (("billing", "orders"), (EVIL, "evil")):
        answer = pages.change("/groups/reset", group=name, topic=topic, how="earliest")
        assert answer.status == 200, answer.text


@pytest.mark.parametrize("screen", SHOWN, ids=[each.path for each in SHOWN])
def test_a_screen_is_a_page_and_json(pages: Running, screen: object) -> None:
    path = screen.path  # type: ignore[attr-defined]
    page = pages.get(path, **ARGUMENTS.get(path, {}))
    assert page.status == 200
    assert page.text.startswith("<!doctype html>")
    assert scripts_in(page.text) == []
    part = pages.get(path, part=True, **ARGUMENTS.get(path, {}))
    assert "<html" not in part.text
    assert isinstance(pages.api(path if path != "/" else "/overview", **ARGUMENTS.get(path, {})), dict)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/messages", {"topic": "evil"}),
        ("/messages", {"topic": "evil", "key": EVIL, "value": EVIL, "at": EVIL, "path": "$['" + EVIL + "']"}),
        ("/message", {"topic": "evil", "partition": 0, "offset": 0}),
        ("/groups", {}),
        ("/groups", {"search": EVIL}),
        ("/group", {"name": EVIL}),
        ("/topics", {"search": EVIL}),
        ("/topic", {"name": EVIL}),
        ("/settings", {"search": EVIL}),
        ("/login", {"then": EVIL}),
        ("/transactions", {"search": EVIL}),
    ],
)
def test_a_hostile_value_is_text(pages: Running, path: str, given: dict[str, object]) -> None:
    page = pages.get(path, **given)
    assert scripts_in(page.text) == []
    assert "<script>alert" not in page.text


def test_every_answer_forbids_scripts_but_the_own_one(pages: Running) -> None:
    for path in ("/", "/nothing", "/topic?name=none", "/api", "/static/console.js"):
        headers = pages.get(path).headers
        if path != "/nothing" and not path.startswith("/static"):
            assert "script-src 'self'" in headers["content-security-policy"], path
            assert "unsafe" not in headers["content-security-policy"], path
            assert headers["x-content-type-options"] == "nosniff"


def test_a_form_without_the_token_of_its_session_changes_nothing(pages: Running, shop: Broker) -> None:
    pages.get("/topics")
    for token in ("", "x" * 43):
        answer = pages.post("/topics/create", token, name="forged")
        assert answer.status == 403
    stranger = Pages(pages.port)
    assert stranger.post("/topics/create", pages.token, name="forged").status == 403
    assert "forged" not in pages.get("/topics", fresh="true").text


def test_the_api_takes_changes_as_json_alone(pages: Running) -> None:
    answer = pages._ask("POST", "/api/topics/create", "name=forged", {"Content-Type": "text/plain"})
    assert (answer.status, json.loads(answer.text)) == (
        415,
        {"error": "the content is text/plain: send application/json"},
    )


def test_another_sites_form_is_refused_the_login_too(pages: Running) -> None:
    own = f"http://127.0.0.1:{pages.port}"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for origin, status in (("https://evil.example", 403), ("null", 403), (own, 401)):
        answer = pages._ask("POST", "/login", "user=&password=", {**kind, "Origin": origin})
        assert answer.status == status


def test_another_name_than_its_own_leads_nowhere(pages: Running) -> None:
    rebound = Pages(pages.port, "evil.example")
    answer = rebound.get("/api/topics")
    assert answer.status == 421
    assert "evil.example" in answer.text


def test_read_only_shows_no_form_that_changes_and_takes_none(shop: Broker) -> None:
    with Running(Console(options(shop, read_only=True))) as pages:
        assert 'action="/topics/create"' not in pages.get("/topics").text
        assert 'method="post"' not in pages.get("/topic", name="orders").text
        answer = pages.change("/topics/create", name="forbidden")
        assert (answer.status, json.loads(answer.text)["error"]) == (403, "this console is read-only")


def test_a_wrong_parameter_is_told_in_one_line(pages: Running) -> None:
    for path, given, said in (
        ("/message", {"topic": "orders", "partition": "x", "offset": 1}, "partition=x: write a number"),
        ("/message", {"topic": "orders"}, "partition is missing"),
        ("/messages", {"topic": "orders", "start": "soon"}, "start=soon: allowed: newest, oldest, offset, time, ago"),
        ("/messages", {"topic": "none"}, "there is no topic &#39;none&#39;"),
        ("/group/reset", {"group": "g", "topic": "orders", "how": "ago", "value": "x"}, "write how long ago as"),
    ):
        page = pages.get(path, **given)  # type: ignore[arg-type]
        assert page.status in (400, 404)
        assert said in page.text


def test_openapi_tells_every_screen_with_its_parameters() -> None:
    found = open_api()
    assert found["openapi"].startswith("3.1")
    assert len(found["paths"]) == len(SCREENS)
    messages = found["paths"]["/api/messages"]["get"]
    assert {"name": "topic", "in": "query", "required": True, "schema": {"type": "string"}} in messages["parameters"]
    assert found["paths"]["/api/topics/create"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "required"
    ] == ["name"]


def test_faults_do_not_meet_the_console() -> None:
    assert CLIENT_ID in OWN_CLIENTS


def test_where_users_log_in_each_has_the_rights_of_the_protocol() -> None:
    with broker(security="sasl_plaintext") as running:
        recipe = running.clients
        security = ClientSecurity("SASL_PLAINTEXT")
        with Running(Console(Options([("127.0.0.1", running.port)], security))) as pages:
            asked = pages.get("/topics", search="x")
            assert (asked.status, asked.headers["location"]) == (303, "/login?then=%2Ftopics%3Fsearch%3Dx")
            refused = pages.post("/login", "", user=recipe.user, password="wrong")
            assert refused.status == 401
            assert "does not let" in refused.text
            assert "wrong" not in refused.text
            answer = pages.post("/login", "", user=recipe.user, password=recipe.password, then="//evil.example")
            assert (answer.status, answer.headers["location"]) == (303, "/")
            assert recipe.user in pages.get("/topics").text
            login = base64.b64encode(f"{recipe.user}:{recipe.password}".encode()).decode()
            assert pages.api("/overview", login=f"Basic {login}")["user"] == recipe.user
            assert Pages(pages.port).get("/api/topics").status == 401
            assert pages.post("/logout").status == 303
            assert pages.get("/topics").status == 303


def test_a_session_that_is_not_used_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbroker.console import app
    from kbroker.console.cluster import Cluster

    sessions = app.Sessions()

    def begun() -> str:
        return sessions.add(app.Session(Cluster([("127.0.0.1", 1)], ClientSecurity())))

    cookie = begun()
    assert sessions.find(cookie) is not None
    assert sessions.find("another") is None
    monkeypatch.setattr(app, "MOST_SESSIONS", 2)
    others = [begun() for _ in range(2)]
    assert [sessions.find(each) is not None for each in (cookie, *others)] == [False, True, True]
    monkeypatch.setattr(app, "IDLE_S", -1)
    assert sessions.find(others[1]) is None
