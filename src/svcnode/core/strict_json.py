"""JSON as it is sent and received: compact output, strict input."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from svcnode.core.text import excerpt

_MAX_DIGITS = 4000  # of an integer; Python refuses to convert much longer ones

# Shared, because creating an encoder takes longer than encoding most values.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def compact_json(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Without spaces and without escapes for non-ASCII characters."""
    return _encode(value)


def parse_strict_json(body: bytes, *, any_text: bool = False) -> Any:  # noqa: ANN401  any JSON value
    """Accept only JSON that every parser reads in the same way. Raises ValueError with the reason.

    With `any_text`, texts may also have control characters that are not escaped, and bytes that are not Unicode.
    """
    try:
        text = body.decode(json.detect_encoding(body), "replace" if any_text else "surrogatepass")
        return (_decode_any_text if any_text else _decode)(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as exc:
        raise ValueError(f"byte {exc.start} is not {exc.encoding.upper()}") from None


def json_error_detail(body: bytes, exc: ValueError) -> str:
    """The text of the error if the body looks like JSON; empty for HTML or plain text, where it would not help."""
    return str(exc) if body.lstrip().startswith((b"{", b"[")) else ""


def _reject_duplicate_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers differ in which of two duplicate fields they use."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((duplicate, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate field {excerpt(duplicate)}")
    return fields


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, the limit is {_MAX_DIGITS}")
    return int(digits)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _decoder(*, strict: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_reject_duplicate_fields, parse_int=_parse_int, parse_constant=_reject_constant, strict=strict
    )


_decode, _decode_any_text = _decoder(strict=True).decode, _decoder(strict=False).decode
