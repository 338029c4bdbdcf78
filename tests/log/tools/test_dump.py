"""What a dump costs; what it says is tested with the command (tests/cli/)."""

from __future__ import annotations

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.tools.dump import DumpOptions, Line, dump
from tests.log.worlds import FOLDER, NOW, batch, new_disk, open_at


@pytest.mark.parametrize("part", ["index", "timeindex"])
def test_an_index_is_compared_with_its_log_by_looking_only_where_it_points(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_at(disk := new_disk(), LogConfig(index_interval_bytes=1))
    for i in range(400):
        log.append_as_leader(batch(size=10_000, timestamp=NOW + i), 0, NOW)
    log.close()
    file = type(log.active.file)
    sizes: list[int] = []
    read = file.read
    monkeypatch.setattr(file, "read", lambda *args: (sizes.append(len(found := read(*args))), found)[1])
    shown = list(dump(disk, f"{FOLDER}/{0:020d}.{part}", DumpOptions()))
    assert all(isinstance(each, Line) for each in shown)
    assert len(shown) >= 399
    assert sum(sizes) < 8 * log.size
