"""Patterns that would take minutes or all memory are refused before they are compiled."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.probes.regex import MAX_PATTERN_CHARS, pattern, pattern_matches


@pytest.mark.parametrize(
    "text",
    [
        "((a{1000}){1000}){1000}",
        "a{1000000000}",
        "(?:[a-z]{200,}){200}",
        "(" * 60 + "a" + "){2}" * 60,
        "a" * (MAX_PATTERN_CHARS + 1),
    ],
)
def test_a_pattern_that_expands_without_end_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        pattern(text)


@pytest.mark.parametrize(
    "text",
    [r"\d{4}-\d{2}", "(a{10}){10}", "a{0,1000000000}", r"[{9999}\]{9999}]{3}", r"\{99999}", "(x(y))*", "a{,5}", ""],
)
def test_an_ordinary_pattern_is_accepted(text: str) -> None:
    assert pattern(text) == text


def test_a_pattern_matches_anywhere_in_the_text_and_is_a_regular_expression() -> None:
    assert asyncio.run(pattern_matches("o{2}", "foo"))
    assert not asyncio.run(pattern_matches("^o", "foo"))
    with pytest.raises(InvalidValueError):
        pattern("a))")
