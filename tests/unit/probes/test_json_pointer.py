"""JSON pointers with the examples of RFC 6901, and comparing values."""

from __future__ import annotations

import asyncio
import datetime
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.probes.conditions import equalities, find_problem
from svcnode.probes.json_pointer import expectations, json_excerpt, resolve_pointer

# Section 5 of the RFC.
DOCUMENT: dict[str, object] = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, 'k"l': 6, " ": 7, "m~n": 8}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def find_mismatch(document: object, expected: dict[str, Any]) -> str | None:
    problem = asyncio.run(find_problem(equalities(expected), document))
    return problem and problem.text


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
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_the_rfc_resolve(pointer: str, value: object) -> None:
    assert resolve_pointer(DOCUMENT, pointer) == value
    assert find_mismatch(DOCUMENT, {pointer: value}) is None


@pytest.mark.parametrize(
    "pointer",
    ["/bar", "/foo/2", "/foo/-1", "/foo/-", "/foo/00", "/foo/01", "/foo/\u0660", "/foo/ 0", "/foo/0/0", "/foo/"],
)
def test_a_missing_value_is_a_mismatch(pointer: str) -> None:
    assert pointer in (find_mismatch(DOCUMENT, {pointer: "bar"}) or "")


@settings(max_examples=30, deadline=None)
@given(document=JSON, keys=st.lists(st.text(), max_size=4))
def test_every_value_has_a_pointer(document: Any, keys: list[str]) -> None:
    value = document
    for key in reversed(keys):
        document = {key: document, f"not {key}": None}
    pointer = "".join(f"/{escaped(key)}" for key in keys)
    assert find_mismatch(document, {pointer: value}) is None


SAME: list[tuple[object, object]] = [(1, 1.0), ([1, [True]], [1, [True]])]
OTHER: list[tuple[object, object]] = [
    *((1, True), (None, False), ("1", 1), ([1, [True]], [1, [1]]), ([1], [1, 2])),
    *(({"a": {"b": 0}}, {"a": {"b": False}}), ({"a": 1}, {"b": 1}), ({"a": 1}, [1])),
]


def test_values_are_compared_as_in_json() -> None:
    for actual, expected in SAME:
        assert find_mismatch({"x": actual}, {"/x": expected}) is None
    for actual, expected in OTHER:
        assert find_mismatch({"x": actual}, {"/x": expected}) is not None, (actual, expected)


def test_a_mismatch_has_the_pointer_and_both_values() -> None:
    for document, expected, parts in (
        ({"status": "bad"}, {"/status": "ok"}, ("/status", '"bad"', '"ok"')),
        (True, {"": False}, ("true", "false")),
        ([datetime.date(2026, 1, 1)], {"/0": None}, ("/0", '"2026-01-01"', "null")),
    ):
        mismatch = find_mismatch(document, expected) or ""
        assert all(part in mismatch for part in parts)


def test_the_value_in_a_mismatch_is_limited_and_no_part_of_a_secret_is_shown() -> None:
    mismatch = find_mismatch({"x": "y" * 1000}, {"/x": 1}) or ""
    assert '"' + "y" * 78 + "…" in mismatch
    assert mismatch.count("y") < 90
    register_secret("hunter2-and-more")
    for length in range(60, 90):
        assert "hun" not in (find_mismatch({"x": "y" * length + "hunter2-and-more"}, {"/x": 1}) or "hun")
    register_secret('p"w\\d')
    assert '"***"' in (find_mismatch({"x": 'p"w\\d'}, {"/x": "p"}) or ""), "escaped in JSON"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "2026-01-31", "12:30:00", "2026-01-31T12:30:00Z"])
@pytest.mark.parametrize("template", ["{}", "[1, {}]", "{{ deep = [{}] }}"])
def test_a_value_that_json_does_not_have_cannot_be_expected(value: str, template: str) -> None:
    read = tomllib.loads(f'"/b" = 1\n"/a" = {template.format(value)}')
    with pytest.raises(InvalidValueError, match=r'^"/a"'):
        expectations(read)


class NotEncodable:
    def __str__(self) -> str:
        raise AssertionError


@pytest.mark.parametrize(
    ("value", "beginning"),
    [
        ("x" * 200_000, '"xxx'),
        (["x" * 200_000, NotEncodable()], '["xxx'),
        ([*range(10_000), NotEncodable()], "[0, 1, 2, "),
        ({"a": ["\x1b" * 10_000]}, '{"a": ["\\u001b'),
    ],
)
def test_only_the_beginning_of_a_large_value_is_encoded_to_show_it(value: object, beginning: str) -> None:
    shown = json_excerpt(value)
    assert shown.startswith(beginning)
    assert len(shown) == 80


def test_a_secret_that_a_large_value_repeats_is_not_shown() -> None:
    register_secret("hunter22" * 20)
    assert json_excerpt("hunter22" * 20_000) == '"***…'
    assert json_excerpt(["hunter22" * 20, 1]) == '["***", 1]'
