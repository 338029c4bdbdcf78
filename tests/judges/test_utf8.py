"""Strings that are no UTF-8: Apache's classes read them as we do."""

from __future__ import annotations

from itertools import product

import pytest

from protocol.messages.metadata import MetadataRequest
from tests.judges.java import Judge
from tests.judges.trees import tree

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars

# The first and last byte of every range that UTF-8 treats alike.
BOUNDARIES = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 ff")
FEWER = bytes.fromhex("41 80 90 a0 c2 e0 ed f0 f4 ff")


def metadata_request(names: list[bytes]) -> bytes:
    """Version 1: an array of strings, and nothing else."""
    return len(names).to_bytes(4, "big") + b"".join(len(name).to_bytes(2, "big") + name for name in names)


@pytest.mark.parametrize(
    ("alphabet", "length"), [(BOUNDARIES, 1), (BOUNDARIES, 2), (BOUNDARIES, 3), (FEWER, 4)], ids=str
)
def test_apache_reads_what_is_no_utf8_as_we_do(apache: Judge, alphabet: bytes, length: int) -> None:
    request = metadata_request([bytes(name) for name in product(alphabet, repeat=length)])
    ((theirs, left),) = apache.decode([("MetadataRequest", 1, request)])
    ours = [topic["name"] for topic in tree(MetadataRequest.decode(request, 1), 1)["topics"]]
    assert (left, [topic["name"] for topic in theirs["topics"]]) == (0, ours)
