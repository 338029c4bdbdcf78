"""Frames that once broke a decoder, each with the reason why it stays."""

from __future__ import annotations

from protocol.messages.control import UpdateMetadataResponse
from tests.fuzz.targets import check_message


def test_an_unknown_tag_of_32_bits_is_written_back() -> None:
    assert check_message(UpdateMetadataResponse, 7, bytes.fromhex("0000 01 8080808008 03 f557f5"))
