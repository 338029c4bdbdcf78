"""What `test_codec.py` asks of a few values, asked of many: good frames, mutated frames, cut frames."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.explain import write_slowly
from protocol.message import DecodeError, Message
from tests.protocol.test_codec import PAIRS, agree
from tests.protocol.values import messages


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "version"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_fast_and_patient_codec_agree(cls: type[Message], version: int, data: st.DataObject, seed: int) -> None:
    value = data.draw(messages(cls, version))
    encoded = value.encode(version)
    assert cls.decode(encoded, version) == value
    assert b"".join(write_slowly(value, version)) == encoded
    rng = random.Random(seed)
    for _ in range(20):
        broken = bytearray(encoded)
        for _ in range(rng.randrange(1, 4)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.choice([0, 1, 2, 127, 128, 254, 255, rng.randrange(256)])
        agree(cls, version, bytes(broken))
    if encoded:
        with pytest.raises(DecodeError):
            cls.decode(encoded[: rng.randrange(len(encoded))], version)
