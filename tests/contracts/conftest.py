"""A real ZooKeeper for the contracts that one takes part in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.apache import NoApacheError, ZooKeeper, missing


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One that is there for all tests; each has a folder of its own in it, by chroot."""
    if reason := missing():
        pytest.skip(reason)
    try:
        server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    except NoApacheError as error:
        pytest.skip(str(error))
    with server:
        yield server
