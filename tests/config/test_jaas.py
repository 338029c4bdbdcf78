"""A login as Java writes it down."""

from __future__ import annotations

import pytest

from kbroker.config.broker import LOGIN_EXAMPLE
from kbroker.config.jaas import is_login, read_login, read_module

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


@pytest.mark.parametrize(
    ("text", "login"),
    [
        (f'{MODULE} required username="kafka" password="a b;c";', ("kafka", "a b;c")),
        (f"{MODULE} required\n  username=kafka\n  password='it is \"x\"' ;\n", ("kafka", 'it is "x"')),
        ('DigestLoginModule optional password="" debug=true username="k";', ("k", "")),
        (rf'{MODULE} required username="k" password="a\\b\"c\';";', ("k", "a\\b\"c';")),
        (rf"{MODULE} required username='it\'s' password='\t\x\\';", ("it's", "\tx\\")),
        (rf'{MODULE} required username="\113\10" password="\477\0\1019";', ("K\b", "\x277\0A9")),
        ("", None),
        (LOGIN_EXAMPLE, ("...", "...")),
    ],
)
def test_a_login_is_read(text: str, login: tuple[str, str] | None) -> None:
    assert read_login(text) == login


@pytest.mark.parametrize(
    "text",
    [
        "kafka:secret",
        f'{MODULE} required username="kafka" password="x"',
        f'{MODULE} required username="kafka";',
        f'{MODULE} required password="x";',
        f'{MODULE} username="kafka" password="x";',
        f'{MODULE} required username="" password="x";',
        f'{MODULE} required username="kafka" password="x" and more;',
        f'{MODULE} required username="kafka" password="x;',
        rf'{MODULE} required username="kafka" password="x\";',
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="kafka" password="x";',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    assert not is_login(text)


def test_a_module_is_read_without_its_package() -> None:
    text = 'org.apache.kafka.common.security.scram.ScramLoginModule REQUIRED username="alice" user_a-b="x";'
    assert read_module(text) == ("ScramLoginModule", {"username": "alice", "user_a-b": "x"})


@pytest.mark.parametrize("text", ["sesame", 'M required password="sesame"', 'M required password="sesame" sesame;'])
def test_what_is_wrong_with_a_login_is_said_without_its_words(text: str) -> None:
    with pytest.raises(ValueError, match="Java writes") as caught:
        read_module(text)
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(read_module('M required password="sesame";'))
