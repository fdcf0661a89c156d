"""Parses the options of a probe by the types of its fields.

The type of a field is `str`, `int`, `float` or `bool`, or `Annotated` with a function that converts a TOML value and
raises `InvalidValueError` for an invalid one. Common functions are below; a kind may have its own.
"""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.option_types import byte_size, duration, find_option_type, one_of, option_type, show_url, whole_number
from svcnode.core.redaction import MASK, redacted
from svcnode.core.text import MAX_REASON_CHARS, TYPE_NAMES, suggestion, truncate, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_WRITE_TARGET = "svcnode_write"
# Options that are URLs: variables in them are percent-encoded.
URL_OPTIONS = ("primary",)


def parse_options(kind: type, given: Mapping[str, object]) -> dict[str, Any]:
    """The keyword arguments of a kind. Raises `OptionError` with the name of the option, and the `others` that are
    wrong."""
    options = {field.name: field for field in dataclasses.fields(kind) if field.init and field.name != "url"}
    hints = _type_hints(kind) if given else {}
    parsed: dict[str, Any] = {}
    errors: list[OptionError] = []
    for name, value in given.items():
        if name not in options:
            hint = suggestion(name, options) if options else "; this kind has no options"
            errors.append(OptionError(name, f"unknown option{hint}"))
            continue
        try:
            parsed[name] = _parse_option(name, value, hints[name])
        except OptionError as exc:
            errors.append(exc)
    missing = [name for name, field in options.items() if is_required(field) and name not in given]
    raise_first([*errors, *(OptionError(name, "required") for name in missing)])
    return parsed


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def raise_first(errors: Sequence[ProbeError]) -> None:
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]


def _type_hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception as exc:
        raise ProbeError(f"cannot evaluate the field types of {kind.__name__}: {exc}") from exc


def _parse_option(name: str, value: object, hint: Any) -> Any:  # noqa: ANN401  a type hint
    hint = _strip_optional(hint)
    if get_origin(hint) is Annotated:
        _, convert = get_args(hint)
        try:
            return convert(value)
        except InvalidValueError as exc:
            raise OptionError(name, truncate(redacted(str(exc)), MAX_REASON_CHARS)) from exc
    if type(value) is int and hint is float:
        return float(value)
    if hint not in TYPE_NAMES:
        raise OptionError(
            name, f"cannot be parsed: the field type {hint} is not supported; use Annotated with a function"
        )
    if type(value) is not hint:
        raise OptionError(name, f"must be {TYPE_NAMES[hint]}, not {type_name(value)}")
    return value


def _strip_optional(hint: Any) -> Any:  # noqa: ANN401  a type hint
    if isinstance(hint, types.UnionType) or str(get_origin(hint)) == "typing.Union":
        args = [arg for arg in get_args(hint) if arg is not types.NoneType]
        return args[0] if len(args) == 1 else hint
    return hint


# ---- options that may be shown


def public_options(probe: object) -> dict[str, Any]:
    """The options of a probe that are not the defaults, as in TOML. Those that may hold a secret are masked."""
    if not dataclasses.is_dataclass(probe):
        return {}
    try:
        hints = _type_hints(type(probe))
    except ProbeError:
        hints = {}  # everything is masked
    return {
        field.name: _public_value(getattr(probe, field.name), _strip_optional(hints.get(field.name)))
        for field in dataclasses.fields(probe)
        if field.init and field.name != "url" and getattr(probe, field.name) != _default_value(field)
    }


def _default_value(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _public_value(value: object, hint: Any) -> object:  # noqa: ANN401  a type hint
    if get_origin(hint) is Annotated:
        show = find_option_type(get_args(hint)[1]).show
        return MASK if show is None else show(value)
    return value if hint in (bool, int, float) else MASK


# ---- functions that convert a TOML value


seconds = duration()
size = byte_size()
_BYTES_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"hex": {"type": "string", "pattern": r"^\s*([0-9A-Fa-f]{2}\s*)*$"}},
            "required": ["hex"],
            "additionalProperties": False,
        },
    ]
}


@option_type(_BYTES_SCHEMA)
def raw_bytes(value: object) -> bytes:
    """Text as UTF-8, or `{ hex = "00 ff" }`."""
    match value:
        case str():
            return value.encode()
        case {"hex": str(digits), **others} if not others:
            try:
                return bytes.fromhex(digits)
            except ValueError:
                raise InvalidValueError(f'"{digits}" is not a sequence of pairs of hexadecimal digits') from None
        case _:
            raise InvalidValueError(f'must be a string or {{ hex = "00 ff" }}, not {type_name(value)}')


def _show_bytes(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex(" ")}


@option_type(_BYTES_SCHEMA, show=_show_bytes)
def public_bytes(value: object) -> bytes:
    return raw_bytes(value)


@option_type({"type": "array", "items": {"type": "string"}})
def strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidValueError(f"must be a list of strings, not {type_name(value)}")
    return tuple(value)


@option_type(
    {"type": "array", "items": {"type": "string", "pattern": "^https?://"}, "uniqueItems": True},
    show=lambda urls: [*map(show_url, urls)],
)
def web_urls(value: object) -> tuple[str, ...]:
    urls = strings(value)
    if not all(url.startswith(("http://", "https://")) for url in urls):
        raise InvalidValueError("must be a list of URLs that begin with http:// or https://")
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise InvalidValueError("has one URL twice; each counts once")
    return urls


@option_type({"type": "object"})
def table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"must be a table, not {type_name(value)}")
    return value


non_negative_int = whole_number(0)


@option_type(
    {"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 1}]},
    show=lambda value: value == DEFAULT_WRITE_TARGET or value,
)
def write_target(value: object) -> str:
    """`true` for the default name of what the check writes to, or another name; "" for no write."""
    if isinstance(value, bool):
        return DEFAULT_WRITE_TARGET if value else ""
    if not isinstance(value, str) or not value:
        raise InvalidValueError(f"must be true, false or a name, not {_display(value)}")
    return value


def _display(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else type_name(value)


Seconds = Annotated[float, seconds]
PositiveSeconds = Annotated[float, duration(is_positive=True)]
Size = Annotated[int, size]
RawBytes = Annotated[bytes, raw_bytes]
PublicBytes = Annotated[bytes, public_bytes]  # no secret, such as an expected response
Strings = Annotated[tuple[str, ...], strings]
WebUrls = Annotated[tuple[str, ...], web_urls]  # http and https
Table = Annotated[dict[str, Any], table]
Count = Annotated[int, non_negative_int]
# What a check writes to, such as a table, a key or a queue; "" for no write.
WriteTarget = Annotated[str, write_target]
# The required role of a replicated server; "" for any.
Role = Annotated[str, one_of("primary", "replica")]
