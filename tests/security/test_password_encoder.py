"""Passwords as they are enciphered: what comes back, what is refused. Judged by Apache's class in tests/judges."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.broker import PASSWORD_CIPHERS
from kbroker.security.password_encoder import KEY_FACTORY, EncoderError, PasswordEncoder

ENCODERS = [PasswordEncoder("a secret", KEY_FACTORY, cipher, 128, 1024) for cipher in PASSWORD_CIPHERS]
BOTH = [(encoder, encoder.encode("sesame", random.Random(1).randbytes)) for encoder in ENCODERS]


@pytest.mark.parametrize("encoder", ENCODERS)
@given(st.text())
@settings(max_examples=25, deadline=None)
def test_what_is_enciphered_comes_back(encoder: PasswordEncoder, password: str) -> None:
    assert encoder.decode(encoder.encode(password, os.urandom)) == password


@pytest.mark.parametrize(("encoder", "text"), BOTH)
def test_each_value_says_itself_how_it_was_made(encoder: PasswordEncoder, text: str) -> None:
    assert "sesame" not in text
    assert "a secret" not in text
    for other in ENCODERS:
        assert other._replace(key_bits=256, iterations=2048).decode(text) == "sesame"


@pytest.mark.parametrize(("encoder", "text"), BOTH)
def test_another_secret_reads_nothing_of_it(encoder: PasswordEncoder, text: str) -> None:
    for number in range(20):
        with pytest.raises(EncoderError) as caught:
            encoder._replace(secret=f"secret {number}").decode(text)
        assert "secret " + str(number) not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "instead", "said"),
    [
        ("keyFactoryAlgorithm", "PBKDF1", "keyFactoryAlgorithm:PBKDF1; allowed: PBKDF2WithHmacSHA1, "),
        (
            "cipherAlgorithm",
            "DES/CBC/PKCS5Padding",
            "cipherAlgorithm:DES/CBC/PKCS5Padding; allowed: AES/CBC/PKCS5Padding, ",
        ),
        ("keyLength", "129", "keyLength:129; allowed: 128, 192, 256"),
        ("iterations", "2000000000", "iterations:2000000000; allowed: 1 to 1000000"),
        ("iterations", "many", "a value in it makes no sense"),
        ("salt", "%", "a value in it makes no sense"),
        ("initializationVector", "AAAA", "a value in it makes no sense"),
        ("encryptedPassword", "AAAA", "a value in it makes no sense"),
        ("passwordLength", "7", "another password.encoder.secret made it"),
        ("salt", None, "salt is missing"),
    ],
)
@pytest.mark.parametrize(("encoder", "text"), BOTH, ids=PASSWORD_CIPHERS)
def test_a_value_that_makes_no_sense_is_refused_in_a_line(
    encoder: PasswordEncoder, text: str, part: str, instead: str | None, said: str
) -> None:
    values = dict(each.split(":", 1) for each in text.split(","))
    if instead is None:
        del values[part]
    else:
        values[part] = instead
    with pytest.raises(EncoderError) as caught:
        encoder.decode(",".join(f"{name}:{value}" for name, value in values.items()))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(("encoder", "text"), BOTH, ids=PASSWORD_CIPHERS)
def test_no_text_does_more_than_be_refused(encoder: PasswordEncoder, text: str) -> None:
    rng = random.Random(2)
    for _ in range(300):
        at = rng.randrange(len(text))
        damaged = rng.choice((text[:at], text[:at] + rng.choice("%,:A") + text[at + 1 :], text[at:]))
        try:
            encoder.decode(damaged)
        except EncoderError:
            continue
