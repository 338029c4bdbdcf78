"""Who may have how many files and sockets open."""

from __future__ import annotations

import resource

import pytest

from kbroker.config.limits import MOST_LOG_FILES
from kbroker.runtime.descriptors import Shares, raise_limit


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 20_000, 1 << 20])
def test_logs_and_clients_together_leave_some_over(limit: int) -> None:
    log_files, sockets, fetch_regions = Shares.of(limit)
    assert 2 <= log_files <= MOST_LOG_FILES
    assert limit // 4 <= sockets
    assert 1 <= fetch_regions <= limit // 8 <= limit - log_files - sockets


def test_the_limit_is_raised_to_what_is_allowed() -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 256), most))
        assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_on_a_mac_without_a_limit_as_many_as_it_takes_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = 2**63 - 1

    def mac(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, endless))
    monkeypatch.setattr(resource, "setrlimit", mac)
    assert raise_limit() == 10_240


def test_a_limit_that_may_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "setrlimit", none)
    for limit in (256, 20_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, 1 << 20))
        assert raise_limit() == limit
