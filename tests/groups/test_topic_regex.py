"""Expressions of consumers are RE2's: what it takes, what it matches, and how long that takes at most."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kbroker.groups.topic_regex import BadRegexError, TopicRegex, compile_regex
from protocol.errors import ErrorCode, KafkaError

re2 = pytest.importorskip("re2", reason="google-re2, the judge of these tests, is not installed")

SYNTAX = r"""
a b z . - _ 0 9 | ( ) (?: (?P<n> (?i) (?i: (?-i) [ab] [^a] [a-f0-9] [[:alpha:]] [[:^digit:]] []a] [a-] * + ? *? {2}
{0,2} {1,} {,2} ^ $ \A \z \b \B \d \W \. \x61 \x{62} \Qa.\E \pL \p{Lu} \PN (?= (?! (?<= \1 { } [ ] \ (?s).
(?> [a-\d] A (?m)^ \C
"""
PIECES = st.sampled_from(SYNTAX.split())
NAMES = ["", "a", "b", "ab", "a.b", "orders-1", "A0", "zz", "aab", "_", "aAbB", "payments.eu_1", "0-9"]


def theirs(regex: str) -> object | None:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error:
        return None


@settings(max_examples=1_000, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_an_expression_means_what_it_means_to_re2(regex: str) -> None:
    assume(regex.count("(?P<n>") < 2)  # RE2 takes a name twice if one group is in the other
    assume(re.search(r"\[[^]]*\\Q", regex) is None)
    assume(re.search(r"\(\?[a-z-]*\)[*+?{]", regex) is None)  # RE2 repeats what is before flags that are repeated
    judge = theirs(regex)
    ours: TopicRegex | None = None
    with suppress(BadRegexError):
        ours = TopicRegex(regex)
    assert (ours is None) == (judge is None), regex
    if ours is None:
        return
    for name in NAMES:
        assert ours.matches(name) == bool(judge.fullmatch(name)), (regex, name)  # type: ignore[attr-defined]


@pytest.mark.parametrize("regex", ["(a+)+", "(a|aa)+", "(a*)*b", "(.*){30}x", "((a?){20})(a{20})", "(x+x+)+y"])
def test_an_exploding_expression_takes_steps_as_the_name_has_characters(regex: str) -> None:
    ours = TopicRegex(regex)
    ours.matches("a" * 249)
    before = ours.steps
    ours.matches("a" * 248)
    assert ours.steps - before <= 2_000


@pytest.mark.parametrize(
    "regex",
    ["(?=a)a", "(a)\\1", "a++", "(", "[", "a{1001}", "(a{1000}){1000}", "(" * 300 + ")" * 300, "\\", "x" * 10_001],
)
def test_what_is_no_expression_is_refused_in_one_line(regex: str) -> None:
    with pytest.raises(KafkaError) as caught:
        compile_regex(regex)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 12_000
