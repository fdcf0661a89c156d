"""JSON pointers (RFC 6901), such as `/data/items/0`, and comparing a document with expected values."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import option_type, show_as_is
from svcnode.core.redaction import MASK
from svcnode.core.text import sanitize, truncate, type_name

MISSING = object()
_MAX_SHOWN_CHARS = 80
_MAX_READ_CHARS = 4096
_encode_parts = json.JSONEncoder(ensure_ascii=False, default=str).iterencode


@option_type({"type": "object", "propertyNames": {"pattern": "^(/|$)"}}, show=show_as_is)
def expectations(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'must be a table such as {{ "/status" = "ok" }}, not {type_name(value)}')
    for pointer, wanted in value.items():
        if pointer and not pointer.startswith("/"):
            raise InvalidValueError(f'"{pointer}" is not a JSON pointer; did you mean "/{pointer}"?')
        if not is_json_value(wanted):
            raise InvalidValueError(
                f'"{pointer}" is not a JSON value; JSON has no nan, inf, dates and times: write a string'
            )
    return value


def is_json_value(value: object) -> bool:
    """False for dates, times, nan and inf, which TOML has and JSON has not, and for what nobody could decode."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


# The expected value by JSON pointer.
Expectations = Annotated[dict[str, Any], expectations]


def resolve_pointer(document: object, pointer: str) -> object:
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and _is_index(key, document):
            document = document[int(key)]
        else:
            return MISSING
    return document


def _is_index(key: str, items: list[object]) -> bool:
    is_number = key.isascii() and key.isdigit() and (key == "0" or not key.startswith("0"))
    return is_number and len(key) < 10 and int(key) < len(items)


def is_equal(left: object, right: object) -> bool:
    """As in JSON: true is not equal to 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_equal, left, right))
    return left == right


def json_excerpt(value: object) -> str:
    """The beginning of a value of any size: what follows is not even encoded."""
    if isinstance(value, Decimal):
        return truncate(str(value), _MAX_SHOWN_CHARS)
    try:
        text = _beginning(value)
    except RecursionError:
        return "(nested too deeply)"
    shown = sanitize(text)
    if len(shown) < _MAX_SHOWN_CHARS and len(text) > _MAX_READ_CHARS:  # of secrets, and the last one is cut in half
        shown = f"{shown[: shown.rfind(MASK)]}{MASK}…"
    return truncate(shown, _MAX_SHOWN_CHARS)


def _beginning(value: object) -> str:
    """As JSON, cut off after more than is shown."""
    text = ""
    for part in _encode_parts(value[:_MAX_READ_CHARS] if isinstance(value, str) else value):
        text += part
        if len(text) > _MAX_READ_CHARS:
            break
    return text[: _MAX_READ_CHARS + 1]
