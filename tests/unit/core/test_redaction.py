"""What was kept secret is shown nowhere, in none of the forms it can take."""

from __future__ import annotations

import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svcnode.core.redaction import HIDDEN, MIN_CHARS, keep_secret, redacted

ODD = 'p/w "d\\é\n🙂'


def test_with_nothing_to_hide_a_text_stays_as_it_is() -> None:
    assert redacted("hunter2") == "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hunter2", "***"),
        ("wrong: hunter2!", "wrong: ***!"),
        ("hunter2 hunter2hunter2", "*** ******"),
        ("hunter", "hunter"),
        ("Hunter2", "Hunter2"),
        ("", ""),
        ("hu", "hu"),
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text: str, shown: str) -> None:
    keep_secret("hunter2")
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "form",
    [
        ODD,
        quote(ODD),
        quote(ODD, safe=""),
        quote_plus(ODD),
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        repr(ODD)[1:-1],
    ],
)
def test_a_secret_is_hidden_in_every_form_it_can_take(form: str) -> None:
    keep_secret(ODD)
    assert redacted(f"<{form}>") == "<***>"


def test_each_line_of_a_secret_is_one() -> None:
    keep_secret("first line\r\n  second line  \n}")
    assert redacted("it said: first line") == "it said: ***"
    assert redacted("it said: second line}") == "it said: ***}"


@pytest.mark.parametrize("short", ["", "a", "abc"])
def test_what_is_too_short_would_blot_out_half_of_every_text(short: str) -> None:
    keep_secret(short)
    assert redacted("abc a") == "abc a"
    assert len(short) < MIN_CHARS


def test_half_a_character_can_be_kept_secret() -> None:
    keep_secret("pass\udcffword")
    assert redacted("pass\udcffword") == HIDDEN


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("secrets", "text", "shown"),
    [
        (["abcd", "abcdefgh"], "abcdefgh", "***"),
        (["abcd", "abcdefgh"], "abcdefg", "***efg"),
        (["efgh", "abcdefgh"], "abcdefgh", "***"),
        (["abcdef", "defghi"], "<abcdefghi>", "<***>"),
        (["abcdefghi", "cdef"], "<abcdefghi>", "<***>"),
        (["abcd", "efgh"], "abcdefgh", "******"),
        (["abab"], "ababab", "***"),
    ],
)
def test_where_secrets_overlap_nothing_of_either_is_left(order: int, secrets: list[str], text: str, shown: str) -> None:
    for secret in secrets[::order]:
        keep_secret(secret)
    assert redacted(text) == shown


@given(st.lists(st.text("ab1", min_size=MIN_CHARS, max_size=8), max_size=4), st.text("ab1c", max_size=40))
@example(["aaaa", "aaab"], "aaaab")
def test_no_secret_is_left_and_nothing_else_is_lost(secrets: list[str], text: str) -> None:
    for secret in secrets:
        keep_secret(secret)
    shown = redacted(text)
    assert shown.count("c") == text.count("c")  # which no secret of these holds
    for part in shown.split(HIDDEN):
        assert part in text


def test_thousands_of_secrets_are_kept_and_hidden_without_delay() -> None:
    began_s = time.process_time()
    for number in range(5000):
        keep_secret(f"secret/{number:06}")
    for _ in range(200):
        assert redacted("answered 401 to secret/004321, twice: secret%2F000007") == "answered 401 to ***, twice: ***"
    assert time.process_time() - began_s < 5  # some 0.1 s; where each new one costs a walk over all, far more
