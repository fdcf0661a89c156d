"""The types of the options of probes: the TOML values that a type accepts, and whether a value may be shown.

A type is `Annotated` with a function that converts a TOML value. `option_type` describes such a function; without a
description, any TOML value is accepted by the JSON Schema, and the value is never shown: it may hold a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import MASK
from svcnode.core.text import type_name
from svcnode.core.units import DURATION_PATTERN, SIZE_PATTERN
from svcnode.core.url import Url, UrlError

Convert = TypeVar("Convert", bound=Callable[[object], Any])


class OptionType(NamedTuple):
    schema: Mapping[str, Any]  # a JSON Schema of the TOML values
    show: Callable[[Any], object] | None = None  # the value as in TOML; None: it may hold a secret


_types: dict[Callable[[object], Any], OptionType] = {}


def option_type(
    schema: Mapping[str, Any], *, show: Callable[[Any], object] | None = None
) -> Callable[[Convert], Convert]:
    def describe(convert: Convert) -> Convert:
        _types[convert] = OptionType(schema, show)
        return convert

    return describe


def find_option_type(convert: Callable[[object], Any]) -> OptionType:
    return _types.get(convert, OptionType({}))


def show_as_is(value: Any) -> object:  # noqa: ANN401  any TOML value
    return value


def show_url(text: str) -> str:
    """Without password and query."""
    try:
        return str(Url.parse(text, register_secrets=False))
    except UrlError:
        return MASK


# The same as core.units accepts.
DURATION_SCHEMA = {"type": "string", "pattern": rf"^\s*{DURATION_PATTERN.pattern}\s*$"}
SIZE_SCHEMA = {"type": "string", "pattern": rf"^\s*{SIZE_PATTERN.pattern}\s*$"}


# ---- texts


@option_type({"type": "string"}, show=show_as_is)
def public_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"must be a string, not {type_name(value)}")
    return value


@option_type({"type": "string"}, show=show_url)
def url_text(value: object) -> str:
    return public_text(value)


# A text that is no secret: a name, a path, an expected response. A plain `str` may be a secret.
PublicText = Annotated[str, public_text]
UrlText = Annotated[str, url_text]
