"""The table of what is served: it says what the modules do, and they come when they are needed."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import kbroker.api
from kbroker.api.forwarding import OF_QUORUM, SERVED_WITH_QUORUM
from kbroker.api.routes import ROUTES, SERVED, NotLoadedError, Routes, Served
from protocol.apis import BY_KEY
from tests.world import World


def test_the_table_says_what_the_modules_serve() -> None:
    found = {}
    for each in iter_modules(kbroker.api.__path__):
        for route in getattr(import_module(f"kbroker.api.{each.name}"), "ROUTES", ()) if each.name != "routes" else ():
            found[route.api] = (BY_KEY[route.api].name, each.name, route.first, route.last)
            assert route.request is BY_KEY[route.api].request
    assert dict(sorted(found.items())) == {api: served[:4] for api, served in SERVED.items()}
    of_a_member = {each.api: (each.name, "forwarding", each.first, each.last) for each in OF_QUORUM}
    assert of_a_member == {api: served[:4] for api, served in SERVED_WITH_QUORUM.items() if api not in SERVED}
    for table in (SERVED, SERVED_WITH_QUORUM):
        assert list(table) == sorted(table)


def test_a_route_comes_with_all_of_its_module_and_stays() -> None:
    routes = Routes()
    heartbeat = routes[12]
    assert heartbeat.name == "Heartbeat"
    assert set(routes) == {api for api, served in SERVED.items() if served.module == "groups"}
    assert routes[12] is heartbeat
    assert routes[11] is ROUTES[11]


def test_what_is_not_served_has_no_route() -> None:
    with pytest.raises(KeyError):
        Routes()[1000]


def test_a_module_that_is_gone_ends_the_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(SERVED, 12, Served("Heartbeat", "gone", 0, 4))
    monkeypatch.delitem(ROUTES, 12, raising=False)
    world = World()
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    world.core.receive(channel, memoryview(b"\0\x0c\0\0\0\0\0\0\xff\xff"), world.clock.now_ms())
    assert channel.closing.startswith("kbroker.api.gone cannot be imported: ")
    assert channel in world.core.effects.writes
    assert caplog.messages == [channel.closing]
    assert world.client().closing == ""


def test_why_a_module_cannot_be_imported_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVED, 12, Served("Heartbeat", "gone", 0, 4))
    with pytest.raises(NotLoadedError) as raised:
        Routes()[12]
    assert isinstance(raised.value.__cause__, ImportError)
