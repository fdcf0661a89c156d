"""JSON pointers, as RFC 6901 and its own examples have them."""

from __future__ import annotations

import datetime
import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.probes.json_pointer import expectations, find_mismatch, resolve_pointer

# Section 5 of the RFC.
DOCUMENT = json.loads(r"""
{
  "foo": ["bar", "baz"],
  "": 0,
  "a/b": 1,
  "c%d": 2,
  "e^f": 3,
  "g|h": 4,
  "i\\j": 5,
  "k\"l": 6,
  " ": 7,
  "m~n": 8
}
""")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_the_rfc_hold(pointer: str, value: object) -> None:
    assert resolve_pointer(DOCUMENT, pointer) == value
    assert find_mismatch(DOCUMENT, {pointer: value}) is None


def test_an_escaped_tilde_is_not_the_beginning_of_another_escape() -> None:
    assert resolve_pointer({"~1": "right", "/": "wrong"}, "/~01") == "right"


@pytest.mark.parametrize(
    "pointer",
    ["/bar", "/foo/2", "/foo/-1", "/foo/-", "/foo/00", "/foo/01", "/foo/\u0660", "/foo/ 0", "/foo/0/0", "/foo/"],
)
def test_what_is_not_there_is_said_not_to_be(pointer: str) -> None:
    assert find_mismatch(DOCUMENT, {pointer: "bar"}) == f"there is no {pointer}"


def test_an_index_of_absurd_length_is_not_even_counted() -> None:
    pointer = "/foo/" + "1" * 10_000
    assert find_mismatch(DOCUMENT, {pointer: "bar"}) == f"there is no {pointer}"


@given(document=JSON, keys=st.lists(st.text(), max_size=4))
def test_every_value_can_be_pointed_at(document: Any, keys: list[str]) -> None:
    value = document
    for key in reversed(keys):
        document = {key: document, f"not {key}": None}
    pointer = "".join(f"/{escaped(key)}" for key in keys)
    assert find_mismatch(document, {pointer: value}) is None


@given(document=JSON, pointer=st.text(st.sampled_from("/~01ab")).map("/".__add__))
def test_any_pointer_finds_a_value_or_says_that_there_is_none(document: Any, pointer: str) -> None:
    said = find_mismatch(document, {pointer: "expected"})
    assert said is None or said == f"there is no {pointer}" or said.startswith(f"{pointer} is ")


# ---- what was expected


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (True, True, True),
        (False, 0, False),
        (None, False, False),
        ("1", 1, False),
        ([1, [True]], [1, [True]], True),
        ([1, [True]], [1, [1]], False),
        ([1], [1, 2], False),
        ({"a": {"b": 0}}, {"a": {"b": 0}}, True),
        ({"a": {"b": 0}}, {"a": {"b": False}}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, [1], False),
    ],
)
def test_values_are_the_same_as_json_has_it(found: object, wanted: object, is_same: bool) -> None:
    assert (find_mismatch({"x": found}, {"/x": wanted}) is None) is is_same


def test_a_mismatch_says_what_is_and_what_was_expected() -> None:
    assert find_mismatch({"status": "bad"}, {"/status": "ok"}) == '/status is "bad", expected "ok"'
    assert find_mismatch(True, {"": False}) == "the whole is true, expected false"
    assert find_mismatch([datetime.date(2026, 1, 1)], {"/0": None}) == '/0 is "2026-01-01", expected null'


def test_all_that_is_expected_must_hold() -> None:
    assert find_mismatch({"a": 1, "b": 2}, {"/a": 1, "/b": 3}) == "/b is 2, expected 3"
    assert find_mismatch({"a": 1}, {}) is None


def test_only_so_much_of_a_value_is_shown() -> None:
    said = find_mismatch({"x": "y" * 1000}, {"/x": 1})
    assert said == '/x is "' + "y" * 79 + "…, expected 1"


@pytest.mark.parametrize("length", range(60, 90))
def test_no_part_of_a_secret_is_shown_wherever_the_value_is_cut(length: int) -> None:
    register_secret("hunter2-and-more")
    said = find_mismatch({"x": "y" * length + "hunter2-and-more"}, {"/x": 1})
    assert said is not None
    assert "hun" not in said


def test_a_secret_that_json_escapes_is_not_shown() -> None:
    register_secret('p"w\\d')
    assert find_mismatch({"x": 'p"w\\d'}, {"/x": "p"}) == '/x is "***", expected "p"'


# ---- as an option


def test_expectations_are_a_table_of_pointers() -> None:
    assert expectations({"": 1, "/a": 2}) == {"": 1, "/a": 2}
    with pytest.raises(InvalidValueError, match='"status" is not a JSON pointer; did you mean "/status"'):
        expectations({"status": "ok"})
    with pytest.raises(InvalidValueError, match=r"must be a table such as .*, not a string"):
        expectations("ok")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "2026-01-31", "12:30:00", "2026-01-31T12:30:00Z"])
@pytest.mark.parametrize("place", ["{}", "[1, {}]", "{{ deep = [{}] }}"])
def test_what_no_json_holds_cannot_be_expected(value: str, place: str) -> None:
    read = tomllib.loads(f'"/b" = 1\n"/a" = {place.format(value)}')
    with pytest.raises(InvalidValueError, match=r'^"/a" is to be what no JSON holds: nan, inf, or a date or'):
        expectations(read)


def test_whatever_json_holds_can_be_expected() -> None:
    read = tomllib.loads('"/a" = [1, -1.5, true, "2026-01-31", { b = [] }]')
    assert expectations(read) == read
