"""A real ZooKeeper for the contracts that one takes part in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests import secured
from compat_tests.apache import NoApacheError, ZooKeeper, missing
from compat_tests.secured import SecuredZooKeeper


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


@pytest.fixture(scope="session")
def secured_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    """The same, by TLS and with a login."""
    if reason := missing() or secured.missing():
        pytest.skip(reason)
    try:
        server = SecuredZooKeeper(tmp_path_factory.mktemp("secured"), wants_login=True)
    except NoApacheError as error:
        pytest.skip(str(error))
    with server:
        yield server
