"""The types of options and keys: what they accept, and that their JSON Schema accepts the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import (
    byte_size,
    duration,
    find_option_type,
    flag,
    one_of,
    option_type,
    public_text,
    schema_of,
    show_url,
    url_text,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CASES: list[tuple[Callable[[object], Any], list[object], list[object]]] = [
    (duration(), ["0s", "1.5s", "100d"], [1, 0.5, True, "5", None]),
    (duration(is_positive=True), ["1ms"], ["0s", "0.0m"]),
    (duration(at_most="1h"), ["0s", "60m", "1.0h", "0.5h", "3600s"], ["61m", "1.5h", "2d"]),
    (duration(at_least="2s"), ["2s", "1d", "2.5s", "19s"], ["1s", "0s"]),
    (duration(at_least="9s", at_most="90s"), ["9s", "89.9s", "90s", "1.5m"], ["8s", "91s"]),
    (duration(at_least="1m", zero="none"), ["0s", "1m", "2h"], ["59s", "1s"]),
    (byte_size(), ["0B", "5 GiB"], [5, True, "5 apples", []]),
    (byte_size(at_least="1MiB"), ["1MiB", "1024KiB", "2GiB"], ["1023KiB", "0B"]),
    (whole_number(1), [1, 10_000], [0, True, 1.0, "1"]),
    (whole_number(1, 7), [1, 7], [0, 8]),
    (one_of("Up", "Down"), ["Up"], ["up", "sideways", 1]),
    (one_of("only"), ["only"], ["other"]),
    (flag, [True, False], ["true", 1]),
]


@pytest.mark.parametrize(("convert", "valid", "invalid"), CASES)
def test_a_value_outside_of_its_type_or_bounds_is_refused(
    convert: Callable[[object], Any], valid: list[object], invalid: list[object]
) -> None:
    for value in valid:
        convert(value)
    for value in invalid:
        with pytest.raises(InvalidValueError):
            convert(value)


@pytest.mark.parametrize(("convert", "valid", "invalid"), CASES)
def test_the_schema_accepts_every_valid_value_and_refuses_the_others(
    convert: Callable[[object], Any], valid: list[object], invalid: list[object]
) -> None:
    schema = schema_of(convert)
    assert [value for value in valid if not is_accepted(schema, value)] == []
    assert [value for value in invalid if is_accepted(schema, value)] == []


def is_accepted(schema: Mapping[str, Any], value: object) -> bool:
    """By the few words of JSON Schema that these types use."""
    if "anyOf" in schema:
        return any(is_accepted(one, value) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "type" not in schema:
        return re.search(schema["pattern"], str(value)) is not None
    kind = {"string": str, "integer": int, "boolean": bool}[schema["type"]]
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        patterns = [schema["pattern"], *(one["pattern"] for one in schema.get("allOf", ()))]
        is_excluded = "not" in schema and re.search(schema["not"]["pattern"], value) is not None
        return all(re.search(pattern, value) for pattern in patterns) and not is_excluded
    assert isinstance(value, int)
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


@pytest.mark.parametrize(
    ("convert", "value", "shown"), [(duration(), "1.50m", "90s"), (byte_size(), "1KiB", "1024B"), (flag, True, True)]
)
def test_a_value_is_shown_as_in_the_file(convert: Callable[[object], Any], value: object, shown: object) -> None:
    show = find_option_type(convert).show
    assert show is not None
    assert show(convert(value)) == shown


def test_a_function_without_a_description_accepts_all_and_shows_nothing() -> None:
    assert find_option_type(str) == ({}, None)


def test_a_described_function_stays_the_same_function() -> None:
    def convert(value: object) -> object:
        return value

    assert option_type({"type": "string"})(convert) is convert
    assert find_option_type(convert).schema == {"type": "string"}


@pytest.mark.parametrize("convert", [public_text, url_text])
def test_a_text_is_a_string(convert: object) -> None:
    assert convert("a") == "a"  # type: ignore[operator]
    with pytest.raises(InvalidValueError):
        convert(1)  # type: ignore[operator]


def test_a_url_is_shown_without_secrets() -> None:
    assert show_url("http://me:pass-word@h:1/x?key=1") == "http://me:***@h:1/x?***"
    assert show_url("not a URL") == "***"


def test_a_text_that_is_no_secret_is_shown_as_it_is() -> None:
    show = find_option_type(public_text).show
    assert show is not None
    assert show("block 812") == "block 812"
