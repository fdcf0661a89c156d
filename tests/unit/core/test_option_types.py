"""The types of options and keys: what they accept, and that their JSON Schema accepts the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import (
    byte_size,
    duration,
    find_option_type,
    flag,
    one_of,
    public_text,
    schema_of,
    show_url,
    url_text,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: list[tuple[Callable[[object], Any], list[object], list[object]]] = [
    (duration(), ["0s", "1.5s", "100d"], [1, 0.5, True, "5", None]),
    (duration(is_positive=True), ["1ms"], ["0s", "0.0m"]),
    (duration(at_most="1h"), ["0s", "60m", "1.0h", "0.5h", "3600s"], ["61m", "1.5h", "2d"]),
    (duration(at_least="2s"), ["2s", "1d", "2.5s", "19s"], ["1s", "0s"]),
    (duration(at_least="9s", at_most="90s"), ["9s", "89.9s", "90s", "1.5m"], ["8s", "91s"]),
    (duration(at_least="1m", zero="none"), ["0s", "1m", "2h"], ["59s", "1s"]),
    (byte_size(), ["0B", "5 GiB"], [5, True, "5 apples", []]),
    (byte_size(at_least="1MiB"), ["1MiB", "1024KiB", "2GiB"], ["1023KiB", "0B"]),
    (whole_number(1), [1, 10_000], [0, True, 1.5, "1"]),
    (whole_number(1, 7), [1, 7], [0, 8]),
    (one_of("Up", "Down"), ["Up"], ["up", "sideways", 1]),
    (one_of("only"), ["only"], ["other"]),
    (flag, [True, False], ["true", 1]),
]


@pytest.mark.parametrize(("convert", "valid", "invalid"), CASES)
def test_the_function_and_the_schema_refuse_a_value_outside_of_its_type_or_bounds(
    convert: Callable[[object], Any], valid: list[object], invalid: list[object]
) -> None:
    schema = jsonschema_rs.validator_for(schema_of(convert))
    assert [value for value in valid if not schema.is_valid(value)] == []
    assert [value for value in invalid if schema.is_valid(value)] == []
    for value in valid:
        convert(value)
    for value in invalid:
        with pytest.raises(InvalidValueError):
            convert(value)


@pytest.mark.parametrize(
    ("convert", "value", "shown"),
    [(duration(), "1.50m", "90s"), (byte_size(), "1KiB", "1024B"), (flag, True, True), (public_text, "a b", "a b")],
)
def test_a_value_is_shown_as_in_the_file(convert: Callable[[object], Any], value: object, shown: object) -> None:
    show = find_option_type(convert).show
    assert show is not None
    assert show(convert(value)) == shown
    assert find_option_type(str) == ({}, None), "not described: accepts all and shows nothing"


@pytest.mark.parametrize("convert", [public_text, url_text])
def test_a_text_is_a_string(convert: object) -> None:
    assert convert("a") == "a"  # type: ignore[operator]
    with pytest.raises(InvalidValueError):
        convert(1)  # type: ignore[operator]


def test_a_url_is_shown_without_secrets() -> None:
    assert show_url("http://me:pass-word@h:1/x?key=1") == "http://me:***@h:1/x?***"
    assert show_url("not a URL") == "***"
