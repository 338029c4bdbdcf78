"""The properties files that come with the repository start a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config import ONE_BROKER, BrokerLayers, resolve_broker, resolve_listeners, static_values

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "bound", "advertised"),
    [("scripts/local.properties", "127.0.0.1", "127.0.0.1"), ("docker.properties", "", "localhost")],
)
def test_a_shipped_file_listens_and_advertises_where_it_says(file: str, bound: str, advertised: str) -> None:
    given = static_values((ROOT / file).read_text(), file_name=file)
    listeners = resolve_listeners(resolve_broker(BrokerLayers(static=given, alone=ONE_BROKER)))
    assert [(one.host, one.port) for one in listeners.bound] == [(bound, 9092)]
    assert [(one.host, one.port) for one in listeners.advertised] == [(advertised, 9092)]


def test_the_image_takes_the_variables_that_its_comment_shows() -> None:
    lines = (ROOT / "docker.properties").read_text().splitlines()
    shown = " ".join(line.removeprefix("#") for line in lines if "KAFKA_" in line and "=" in line)
    environment = dict(word.split("=", 1) for word in shown.split() if word.startswith("KAFKA_") and "=" in word)
    given = static_values("\n".join(lines), environment=environment)
    listeners = resolve_listeners(resolve_broker(BrokerLayers(static=given, alone=ONE_BROKER)))
    assert [(one.name, one.host, one.port) for one in listeners.advertised] == [
        ("HOST", "localhost", 9092),
        ("NET", "broker", 19092),
    ]
