"""JSON as it goes over the wire."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from svcnode.core.text import excerpt

_MAX_DIGITS = 4000  # of a number; of much longer ones, Python makes none

# Made once: an encoder that is made for each text takes longer than most of the texts.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def compact_json(value: Any) -> str:  # noqa: ANN401  whatever JSON can hold
    """Without blanks, and with letters as they are."""
    return _encode(value)


def parse_strict_json(body: bytes) -> Any:  # noqa: ANN401  whatever JSON can hold
    """What every reader reads alike. Raises a ValueError that says why it is no such JSON, for those who wrote it."""
    try:
        return _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as exc:
        raise ValueError(f"byte {exc.start} is not {exc.encoding.upper()}") from None


def json_error_detail(body: bytes, exc: ValueError) -> str:
    """What `strict_json` said of it, where it looks like JSON; of a page or a word, that says nothing."""
    return str(exc) if body.lstrip().startswith((b"{", b"[")) else ""


def _reject_duplicate_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a field that stands there twice, one may say Down and the other Up, and readers differ in which they take."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twin, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {excerpt(twin)} stands there twice")
    return fields


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not of JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_fields, parse_int=_parse_int, parse_constant=_reject_constant
).decode
