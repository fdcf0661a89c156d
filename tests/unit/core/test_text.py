from __future__ import annotations

import datetime
import errno
import socket

import pytest

from svcnode.core.text import (
    closest_match,
    error_text,
    excerpt,
    join_first,
    one_line,
    os_error_text,
    suggestion,
    type_name,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "a string"),
        (1, "a whole number"),
        (1.5, "a number"),
        (True, "true or false"),
        ([], "a list"),
        ({}, "a table"),
        (datetime.date(2026, 1, 1), "a date or time"),
        (datetime.time(1), "a date or time"),
    ],
)
def test_a_value_is_called_what_toml_calls_it(value: object, words: str) -> None:
    assert type_name(value) == words


def test_the_nearest_name_is_the_one_that_was_probably_meant() -> None:
    assert closest_match("htpp", ["tcp", "http", "https"]) == "http"
    assert closest_match("xyz", ["tcp", "http"]) is None
    assert closest_match("tcp", []) is None


def test_a_name_that_is_not_known_is_offered_the_nearest_one() -> None:
    assert suggestion("htpp", iter(["tcp", "http"])) == '; did you mean "http"?'


def test_where_no_name_is_near_all_are_listed_in_order() -> None:
    assert suggestion("xyz", iter(["tcp", "http"])) == "; known ones: http, tcp"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (OSError("It said so itself"), "It said so itself"),
    ],
)
def test_the_words_of_the_system_start_no_sentence(error: OSError, words: str) -> None:
    assert os_error_text(error) == words


class _Mute(Exception):  # noqa: N818  it is one
    def __str__(self) -> str:
        raise RuntimeError("not a word")


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError(" bad \n"), "ValueError: bad"), (ValueError(), "ValueError"), (_Mute(), "_Mute")],
)
def test_an_error_is_told_by_its_kind_and_its_words(error: Exception, words: str) -> None:
    assert error_text(error) == words


def test_what_would_break_a_line_is_shown_instead() -> None:
    assert one_line("a\nb\x1b[31m ü\u202e") == "a\\nb\\x1b[31m ü\\u202e"


def test_of_many_names_the_first_are_told() -> None:
    assert join_first([], 2) == ""
    assert join_first(["a", "b"], 2) == "a, b"
    assert join_first(["a", "b", "c"], 2) == "a, b and 1 more"


def test_of_a_strangers_text_one_line_of_fair_length_is_shown() -> None:
    assert excerpt("all\n  is\twell") == "all is well"
    assert excerpt(b"\x1b[2Jgone\xff") == r"\x1b[2Jgone\xff"
    assert excerpt("x" * 80) == "x" * 80
    assert excerpt("x" * 81) == "x" * 79 + "…"
