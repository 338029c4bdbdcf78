"""Apache agrees with records in another format: its own down-conversion, and what it reads of sets and their batches.

Uncompressed, our bytes equal theirs. Compressed, both are read, and hold the same: the codecs' libraries differ.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.records import legacy
from protocol.records.convert import batch_of, down_convert, open_set
from tests.judges.batches import CODECS, Json, Set, build, described, expected_records, sets
from tests.judges.java import Judge, require

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
_SETTINGS = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
_OLD = [pytest.param(magic, codec_id, id=f"v{magic}-{CODECS[codec_id]}") for magic in (0, 1) for codec_id in range(4)]
_DOWN = [
    pytest.param(magic, codec_id, to_magic, id=f"v{magic}-{CODECS[codec_id]}-to-v{to_magic}")
    for magic, to_magic in ((2, 1), (2, 0), (1, 0), (1, 1), (0, 0), (0, 1))
    for codec_id in range(4)
]


@pytest.fixture(scope="session")
def last_to_convert() -> Judge:
    """The last release that has the code."""
    return require("3.9.1")


@pytest.mark.parametrize(("magic", "codec_id", "to_magic"), _DOWN)
def test_old_clients_get_what_apache_gives_them(
    last_to_convert: Judge, magic: int, codec_id: int, to_magic: int
) -> None:
    @_SETTINGS
    @given(st.lists(sets(magic, codec_id), min_size=1, max_size=3), st.integers(0, 3))
    def check(several: list[Set], skipped: int) -> None:
        several = _in_a_row(several)
        data = b"".join(map(build, several))
        from_offset = several[0].records[min(skipped, len(several[0].records) - 1)].offset
        (theirs,) = last_to_convert.down_convert([(data, to_magic, from_offset)])
        assert isinstance(theirs, bytes), theirs
        parts, end = down_convert(memoryview(data), to_magic, from_offset=from_offset)
        ours = b"".join(bytes(part) for part in parts)
        assert end == len(data)
        if codec_id:
            assert legacy.parse_set(ours) == legacy.parse_set(theirs)
            assert _headers(ours) == _headers(theirs)
        else:
            assert ours.hex() == theirs.hex()

    check()


@pytest.mark.parametrize(("magic", "codec_id"), _OLD)
def test_apache_reads_the_same_of_an_old_set_and_of_its_batch(apache: Judge, magic: int, codec_id: int) -> None:
    @_SETTINGS
    @given(sets(magic, codec_id))
    def check(one: Set) -> None:
        batch = bytes(batch_of(open_set(memoryview(build(one)))))
        expected = [dict(record, offset=offset) for offset, record in enumerate(expected_records(one))]
        (answer,) = apache.parse([batch])
        (read,) = answer["batches"]
        assert read["valid"]
        assert (read["magic"], read["codec"], read["producer_id"]) == (2, CODECS[codec_id], -1)
        assert read["max_timestamp"] == max(record["timestamp"] for record in expected)
        assert _without_sequence(read["records"]) == expected

    check()


@pytest.mark.parametrize("magic", [0, 1])
def test_an_uncompressed_set_becomes_the_very_batch_that_apache_builds(apache: Judge, magic: int) -> None:
    @_SETTINGS
    @given(sets(magic, 0), st.none() | st.integers(0, 2**62))
    def check(one: Set, append_time: int | None) -> None:
        one = one._replace(append_time=None)
        ours = batch_of(open_set(memoryview(build(one))), append_time=append_time)
        (theirs,) = apache.build([_as_v2(one, append_time)])
        assert ours.hex() == theirs.hex() if isinstance(theirs, bytes) else theirs

    check()


def _in_a_row(several: list[Set]) -> list[Set]:
    """The same, each behind the one before, as they stand in a log."""
    placed: list[Set] = []
    for one in several:
        start = placed[-1].records[-1].offset + 1 if placed else one.base_offset
        shift = start - one.base_offset
        records = tuple(record._replace(offset=record.offset + shift) for record in one.records)
        placed.append(one._replace(records=records, base_offset=start))
    return placed


def _as_v2(one: Set, append_time: int | None) -> Json:
    records = tuple(
        record._replace(offset=index, timestamp=record.timestamp if one.magic else -1)
        for index, record in enumerate(one.records)
    )
    return described(one._replace(magic=2, records=records, base_offset=0, append_time=append_time))


def _headers(data: bytes) -> list[tuple[int, ...]]:
    """What the messages say of themselves, without sizes and checksums."""
    return [(m.offset, m.magic, m.attributes, m.timestamp) for m in legacy.scan(data)]


def _without_sequence(records: list[Json]) -> list[Json]:
    return [{name: value for name, value in record.items() if name != "sequence"} for record in records]
