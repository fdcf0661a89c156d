"""The types of the options of probes and of the keys of the configuration: a function that converts a TOML value.

`option_type` describes such a function: the TOML values that it accepts, as a JSON Schema, and whether a value may be
shown. Without a description, the JSON Schema accepts any value, and the value is never shown: it may hold a secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import MASK
from svcnode.core.text import closest_match, type_name
from svcnode.core.units import BYTES, SECONDS, parse_duration_s, parse_size_bytes
from svcnode.core.url import Url, UrlError

Convert = TypeVar("Convert", bound=Callable[[object], Any])
Schema = dict[str, Any]


class OptionType(NamedTuple):
    schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]]  # a JSON Schema of the TOML values; built when needed
    show: Callable[[Any], object] | None = None  # the value as in TOML; None: it may hold a secret


_types: dict[Callable[[object], Any], OptionType] = {}


def option_type(
    schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]], *, show: Callable[[Any], object] | None = None
) -> Callable[[Convert], Convert]:
    def describe(convert: Convert) -> Convert:
        _types[convert] = OptionType(schema, show)
        return convert

    return describe


def find_option_type(convert: Callable[[object], Any]) -> OptionType:
    return _types.get(convert, OptionType({}))


def schema_of(convert: Callable[[object], Any]) -> Schema:
    schema = find_option_type(convert).schema
    return dict(schema() if callable(schema) else schema)


def show_as_is(value: Any) -> object:  # noqa: ANN401  any TOML value
    return value


def show_url(text: str) -> str:
    """Without password and query."""
    try:
        return str(Url.parse(text, register_secrets=False))
    except UrlError:
        return MASK


# ---- numbers with bounds


def duration(
    *, at_least: str = "0s", at_most: str = "", is_positive: bool = False, zero: str = "", unit: str = "s"
) -> Callable[[object], float]:
    """`zero` is what 0 means, if it is allowed below `at_least`. `unit` is the one that an error suggests for a number
    without a unit."""
    least_s, most_s = parse_duration_s(at_least), parse_duration_s(at_most) if at_most else math.inf
    bounds = f"{f'0s for {zero}, or ' if zero else ''}{_bounds_text(at_least if least_s else '', at_most)}"

    def schema() -> Schema:
        within = quantity_schema(SECONDS, least_s, most_s, is_positive=is_positive)
        return {"anyOf": [quantity_schema(SECONDS, most=0), within]} if zero else within

    @option_type(schema, show=_show_duration)
    def seconds(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            raise InvalidValueError(f'must be a string with a unit, not {type_name(value)}; write "{value}{unit}"')
        found_s = parse_duration_s(_string(value))
        if is_positive and not found_s:
            raise InvalidValueError(f'must be greater than 0, not "{value}"')
        if not least_s <= found_s <= most_s and (found_s or not zero):
            raise InvalidValueError(f"must be {bounds}")
        return found_s

    return seconds


def byte_size(*, at_least: str = "0B") -> Callable[[object], int]:
    least = parse_size_bytes(at_least)

    @option_type(lambda: quantity_schema(BYTES, least, math.inf, separator=" ?"), show=lambda size: f"{size}B")
    def size(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            raise InvalidValueError(f'must be a string with a unit, not a whole number; write "{value}B"')
        found = parse_size_bytes(_string(value))
        if found < least:
            raise InvalidValueError(f"must be at least {at_least}")
        return found

    return size


def whole_number(least: int, most: int | None = None) -> Callable[[object], int]:
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    @option_type({"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most}), show=show_as_is)
    def number(value: object) -> int:
        if type(value) is not int or value < least or (most is not None and value > most):
            raise InvalidValueError(
                f"must be a whole number {bounds}, not {value if type(value) is int else type_name(value)}"
            )
        return value

    return number


def one_of(*names: str) -> Callable[[object], str]:
    @option_type({"enum": list(names)}, show=show_as_is)
    def choose(value: object) -> str:
        if value in names:
            return str(value)
        choices = ", ".join(f'"{name}"' for name in names)
        shown, hint = type_name(value), ""
        if isinstance(value, str):
            near = closest_match(value.lower(), by_lower_case := {name.lower(): name for name in names})
            shown, hint = f'"{value}"', f'; did you mean "{by_lower_case[near]}"?' if near else ""
        raise InvalidValueError(f"must be {'one of ' if len(names) > 1 else ''}{choices}, not {shown}{hint}")

    return choose


@option_type({"type": "boolean"}, show=show_as_is)
def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError(f"must be true or false, not {type_name(value)}")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"must be a string, not {type_name(value)}")
    return value


def _bounds_text(at_least: str, at_most: str) -> str:
    if at_least and at_most:
        return f"from {at_least} to {at_most}"
    return f"at least {at_least}" if at_least else f"at most {at_most}"


def _show_duration(duration_s: float) -> str:
    return f"{duration_s:.9f}".rstrip("0").rstrip(".") + "s"


# ---- bounds as regular expressions: a JSON Schema cannot compare numbers in a string


def quantity_schema(
    units: Mapping[str, float],
    least: float = 0,
    most: float = math.inf,
    *,
    is_positive: bool = False,
    separator: str = "",
) -> Schema:
    """A number and a unit within the bounds. Never rejects a valid one; near a bound, it may accept an invalid one."""

    def pattern(number: Callable[[float], str], limit: float) -> str:
        return rf"^\s*(?:{'|'.join(f'{number(limit / size)}{separator}{unit}' for unit, size in units.items())})\s*$"

    schema: Schema = {"type": "string", "pattern": pattern(_number_at_most, most)}
    if least:
        schema["allOf"] = [{"pattern": pattern(_number_at_least, least)}]
    if is_positive:
        schema["not"] = {"pattern": r"^\s*[0.]+ ?[A-Za-z]"}
    return schema


def _number_at_most(limit: float) -> str:
    if limit == math.inf:
        return r"[0-9]+(?:\.[0-9]+)?"
    whole = int(limit)
    if whole < limit:
        return rf"{integer_at_most(whole)}(?:\.[0-9]+)?"
    below = rf"{integer_at_most(whole - 1)}(?:\.[0-9]+)?|" if whole else ""
    return rf"(?:{below}0*{whole}(?:\.0+)?)"


def _number_at_least(limit: float) -> str:
    return rf"{_integer_at_least(int(limit))}(?:\.[0-9]+)?"


def integer_at_most(limit: int) -> str:
    digits = str(limit)
    shorter = [f"[0-9]{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    smaller = [
        f"{digits[:index]}[0-{int(digit) - 1}][0-9]{{{len(digits) - index - 1}}}"
        for index, digit in enumerate(digits)
        if digit != "0"
    ]
    return f"0*(?:{'|'.join([*shorter, *smaller, digits])})"


def _integer_at_least(limit: int) -> str:
    digits = str(limit)
    larger = [
        f"{digits[:index]}[{int(digit) + 1}-9][0-9]{{{len(digits) - index - 1}}}"
        for index, digit in enumerate(digits)
        if digit != "9"
    ]
    return f"(?:{'|'.join([f'[0-9]{{{len(digits) + 1},}}', *larger, digits])})"


SIZE_SCHEMA = quantity_schema(BYTES, separator=" ?")


# ---- texts


@option_type({"type": "string"}, show=show_as_is)
def public_text(value: object) -> str:
    return _string(value)


@option_type({"type": "string"}, show=show_url)
def url_text(value: object) -> str:
    return public_text(value)


# A text that is no secret: a name, a path, an expected response. A plain `str` may be a secret.
PublicText = Annotated[str, public_text]
UrlText = Annotated[str, url_text]
