"""From what a configuration says to the fields of a kind.

A field is a plain `str`, `int`, `float` or `bool`, or `Annotated` with the function that makes it from what TOML can
hold and refuses the rest with an `InvalidValueError`. The common ones are here; a kind may bring its own.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.text import TYPE_NAMES, suggestion, type_name
from svcnode.core.units import parse_duration_s, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def parse_options(kind: type, given: Mapping[str, object]) -> dict[str, Any]:
    """The keyword arguments for a kind; raises `OptionError`, which names the option."""
    options = {field.name: field for field in dataclasses.fields(kind) if field.init and field.name != "url"}
    hints = _type_hints(kind) if given else {}
    for name in given:
        if name not in options:
            raise OptionError(name, f"unknown option{suggestion(name, options) if options else '; it takes none'}")
    for name, field in options.items():
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_needed and name not in given:
            raise OptionError(name, "is missing, and is needed here")
    return {name: _parse_option(name, value, hints[name]) for name, value in given.items()}


def _type_hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception as exc:
        raise ProbeError(f"the options of {kind.__name__} cannot be read from its types: {exc}") from exc


def _parse_option(name: str, value: object, hint: Any) -> Any:  # noqa: ANN401  a type hint
    hint = _strip_optional(hint)
    if get_origin(hint) is Annotated:
        _, make = get_args(hint)
        try:
            return make(value)
        except InvalidValueError as exc:
            raise OptionError(name, str(exc)) from exc
    if type(value) is int and hint is float:
        return float(value)
    if hint not in TYPE_NAMES:
        raise OptionError(name, f"cannot be made from a configuration: nothing says how to make a {hint}")
    if type(value) is not hint:
        raise OptionError(name, f"must be {TYPE_NAMES[hint]}, not {type_name(value)}")
    return value


def _strip_optional(hint: Any) -> Any:  # noqa: ANN401  a type hint
    if isinstance(hint, types.UnionType) or str(get_origin(hint)) == "typing.Union":
        (hint,) = (one for one in get_args(hint) if one is not types.NoneType)
    return hint


# ---- common makers; each takes whatever TOML can hold


def seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        raise InvalidValueError(f'must be a string with a unit, not {type_name(value)}; write "{value}s"')
    return parse_duration_s(_require_string(value))


def size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        raise InvalidValueError(f'must be a string with a unit, not a whole number; write "{value}B"')
    return parse_size_bytes(_require_string(value))


def raw_bytes(value: object) -> bytes:
    """Text as UTF-8, or `{ hex = "00 ff" }`."""
    match value:
        case str():
            return value.encode()
        case {"hex": str(digits), **others} if not others:
            try:
                return bytes.fromhex(digits)
            except ValueError:
                raise InvalidValueError(f'"{digits}" is not pairs of hexadecimal digits') from None
        case _:
            raise InvalidValueError(f'must be a string or {{ hex = "00 ff" }}, not {type_name(value)}')


def strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidValueError(f"must be a list of strings, not {type_name(value)}")
    return tuple(value)


def table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"must be a table, not {type_name(value)}")
    return value


def non_negative_int(value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidValueError(
            f"must be a whole number from 0 on, not {value if type(value) is int else type_name(value)}"
        )
    return value


def one_of(*names: str) -> Callable[[object], str]:
    def chosen(value: object) -> str:
        if value not in names:
            known = ", ".join(f'"{name}"' for name in names)
            raise InvalidValueError(f"must be one of {known}, not {_display(value)}")
        return str(value)

    return chosen


def _display(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else type_name(value)


def _require_string(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"must be a string, not {type_name(value)}")
    return value


Seconds = Annotated[float, seconds]
Size = Annotated[int, size]
RawBytes = Annotated[bytes, raw_bytes]
Strings = Annotated[tuple[str, ...], strings]
Table = Annotated[dict[str, Any], table]
Count = Annotated[int, non_negative_int]
# Which of two servers that share their data it must be; "" for whichever.
Role = Annotated[str, one_of("primary", "replica")]
