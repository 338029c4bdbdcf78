"""Passwords in the metadata store: what Apache's class enciphers is read here, and what is enciphered here, there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import NoApacheError, jars
from kbroker.config.broker import PASSWORD_CIPHERS, PASSWORD_KEY_BITS, PASSWORD_KEY_FACTORIES
from kbroker.security.password_encoder import KEY_FACTORY, EncoderError, PasswordEncoder

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

RELEASE = "3.9.1"  # the last that has it
SECRETS = ("a secret", "geheim\u00e4\u20ac", "s" * 200)
PASSWORDS = (
    "",
    "x",
    "sesame",
    "sixteen letters!",
    "\u00e4\u20ac\U0001f511",
    "-----BEGIN PRIVATE KEY-----\n" + "QUJD\n" * 300,
)
_SOURCE = Path(__file__).parent / "passwords" / "PasswordJudge.java"


class Judge:
    """Apache's class, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, encoder: PasswordEncoder, **asked: str) -> str:
        """What it makes of a text. Raises: EncoderError."""
        settings: dict[str, Any] = {
            "secret": encoder.secret,
            "factory": encoder.key_factory,
            "cipher": encoder.cipher,
            "bits": encoder.key_bits,
            "iterations": encoder.iterations,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**settings, **asked}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise EncoderError(answer["error"])
        return str(answer["told"])


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    try:
        lib = jars(RELEASE)
    except NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's jars are missing: {reason}")
        pytest.skip(f"no jars of Apache's here: {reason}")
    command = ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", f"{lib}/*", str(_SOURCE)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield Judge(process)
        assert process.stdin is not None
        process.stdin.close()


def test_either_reads_what_the_other_has_enciphered(judge: Judge) -> None:
    for at, (factory, cipher, bits) in enumerate(product(PASSWORD_KEY_FACTORIES, PASSWORD_CIPHERS, PASSWORD_KEY_BITS)):
        iterations = 1024 if at % 7 else 4096
        encoder = PasswordEncoder(SECRETS[at % len(SECRETS)], factory, cipher, bits, iterations)
        for password in (PASSWORDS[at % len(PASSWORDS)], PASSWORDS[-1 - at % 5]):
            assert encoder.decode(judge.ask(encoder, encode=password)) == password
            assert judge.ask(encoder, decode=encoder.encode(password, os.urandom)) == password


@pytest.mark.parametrize("cipher", PASSWORD_CIPHERS)
def test_both_refuse_what_another_secret_has_enciphered(judge: Judge, cipher: str) -> None:
    one, other = (PasswordEncoder(secret, KEY_FACTORY, cipher) for secret in ("one", "other"))
    for text in (judge.ask(one, encode="sesame"), one.encode("sesame", os.urandom)):
        for decode in (other.decode, lambda text: judge.ask(other, decode=text)):
            with pytest.raises(EncoderError):
                decode(text)
