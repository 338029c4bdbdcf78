"""The properties file that comes with the repository starts a broker."""

from __future__ import annotations

from pathlib import Path

from kbroker.config import ONE_BROKER, BrokerLayers, resolve_broker, resolve_listeners, static_values

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_listens_on_the_loopback() -> None:
    given = static_values((ROOT / "scripts" / "local.properties").read_text())
    listeners = resolve_listeners(resolve_broker(BrokerLayers(static=given, alone=ONE_BROKER)))
    assert [(one.host, one.port) for one in listeners.bound] == [("127.0.0.1", 9092)]
    assert listeners.advertised == listeners.bound
