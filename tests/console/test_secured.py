"""The console of a secured broker: whoever comes logs in, and may do what the cluster's rules let him."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from starlette.requests import Request

from kbroker.console import app
from kbroker.console.app import CHECKED_S, LOGINS_AT_ONCE, Console, Options
from kbroker.console.cluster import ConsoleError, LoginError
from kbroker.properties import parse_properties
from kbroker.runtime.secure import ADMIN_FILE
from kbroker.security.client import ClientSecurity, client_security
from tests.console.pages import Pages
from tests.console.test_wire import free_port
from tests.processes import BrokerProcess

pytestmark = pytest.mark.slow


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_secured_start_has_a_console_where_users_log_in(tmp_path: Path) -> None:
    port = free_port()
    data = tmp_path / "data"
    arguments = ("--secure", "--console", "--data", str(data))
    broker = BrokerProcess(
        tmp_path,
        arguments=arguments,
        listeners="SASL_SSL://127.0.0.1:0",
        console_listener=f"127.0.0.1:{port}",
    )
    with broker:
        login = client_security(parse_properties((data / ADMIN_FILE).read_text())).login
        assert login is not None
        pages = Pages(port)
        asked = pages.get("/topics")
        assert (asked.status, asked.headers["location"]) == (303, "/login?then=%2Ftopics")
        assert pages.post("/login", "", user=login.user, password=login.password).status == 303
        assert pages.get("/access").status == 200
        assert pages.post("/access/users/put", user="alice", password="secret").status == 200
        made = pages.post("/topics/create", name="orders")
        assert made.status == 200, made.text
        assert [each["user"] for each in pages.api("/access", login=basic(login.user, login.password))["users"]] == [
            "admin",
            "alice",
        ]
        alice = basic("alice", "secret")
        assert pages.api("/topics", login=alice)["topics"] == []
        headers = {"Authorization": alice}
        for path in ("/api/wire", "/api/wire/waits", "/api/wire/faults"):
            answer = pages._ask("GET", path, headers=headers)
            assert (answer.status, "may ALTER the cluster" in json.loads(answer.text)["error"]) == (403, True)
        assert pages.api("/wire", login=basic(login.user, login.password))["connections"]
        rule = {"principal": "User:alice", "resource": "topic", "name": "orders", "operation": "describe"}
        assert pages.post("/access/rules/add", **rule).status == 200
        assert [each["name"] for each in pages.api("/topics", login=alice, fresh="true")["topics"]] == ["orders"]
        assert pages.post("/messages/produce", topic="orders", key="k1", value="v").status == 200
        refused = pages._ask("GET", "/api/messages?topic=orders&key=k1", headers=headers)
        assert (refused.status, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (403, True)
        (record,) = pages.api("/messages", login=basic(login.user, login.password), topic="orders", key="k1")["records"]
        assert record["value"]["text"] == "v"
        refused = pages._ask(
            "POST",
            "/api/topics/delete",
            json.dumps({"name": "orders", "typed": "orders"}),
            {**headers, "Content-Type": "application/json"},
        )
        assert (refused.status, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (403, True)
        frames = pages.api("/wire", login=basic(login.user, login.password), own="true")["requests"]
        assert "SaslAuthenticate" not in {each["api"] for each in frames}
        right = {"principal": "User:alice", "resource": "cluster", "name": "kafka-cluster", "operation": "alter"}
        assert pages.post("/access/rules/add", **right).status == 200
        assert pages.api("/wire", login=alice)["connections"]
        assert (
            pages.post("/access/rules/remove", **right, permission="allow", pattern="literal", host="*").status == 200
        )
        assert pages._ask("GET", "/api/wire", headers=headers).status == 403


def test_a_password_that_counts_no_more_is_not_taken_for_longer_than_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a script that has logged in by it, whose connections are still open."""
    now_s = 0.0
    monkeypatch.setattr(app.time, "monotonic", lambda: now_s)
    right = {"alice": "secret"}
    console = Console(Options([("127.0.0.1", 1)], ClientSecurity("SASL_PLAINTEXT")))
    clusters: list[str] = []

    class Known:
        def __init__(self, user: str) -> None:
            self.user = user
            clusters.append("open")

        def close(self) -> None:
            clusters.append("closed")

    def log_in(user: str, password: str) -> Known:
        if right.get(user) != password:
            raise LoginError("no")
        return Known(user)

    monkeypatch.setattr(console, "log_in", log_in)
    asked = Request({"type": "http", "headers": [(b"authorization", basic("alice", "secret").encode())]})
    first = console.session_of_script(asked)
    now_s += CHECKED_S - 1
    assert console.session_of_script(asked) is first
    now_s += 2
    assert console.session_of_script(asked) is first
    assert clusters == ["open", "open", "closed"]
    right.clear()
    assert console.session_of_script(asked) is first
    now_s += CHECKED_S
    with pytest.raises(LoginError):
        console.session_of_script(asked)
    assert clusters[3:] == ["closed"]
    console.close()


def test_who_waits_too_long_for_a_login_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many wrong logins at a time hold up no thread of the others."""
    monkeypatch.setattr(app, "LOGIN_WAIT_S", 0.01)
    console = Console(Options([("127.0.0.1", 1)], ClientSecurity("SASL_PLAINTEXT")))
    for _ in range(LOGINS_AT_ONCE):
        console._logging_in.acquire()
    with pytest.raises(ConsoleError, match="log in now") as caught:
        console.log_in("alice", "secret")
    assert caught.value.status == 503
    console.close()
