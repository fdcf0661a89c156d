from __future__ import annotations

import datetime

import pytest

from svcnode.core.wording import kind_of, nearest, suggestion


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
    assert kind_of(value) == words


def test_the_nearest_name_is_the_one_that_was_probably_meant() -> None:
    assert nearest("htpp", ["tcp", "http", "https"]) == "http"
    assert nearest("xyz", ["tcp", "http"]) is None
    assert nearest("tcp", []) is None


def test_a_name_that_is_not_known_is_offered_the_nearest_one() -> None:
    assert suggestion("htpp", iter(["tcp", "http"])) == '; did you mean "http"?'


def test_where_no_name_is_near_all_are_listed_in_order() -> None:
    assert suggestion("xyz", iter(["tcp", "http"])) == "; known ones: http, tcp"
