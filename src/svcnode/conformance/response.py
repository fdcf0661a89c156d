"""The response of a node, as values and as text. Pure; a wrong body is not an error here but a finding of a check.

Text from the node is not trusted: it is shown on one line, truncated, and without secrets and control characters.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.interface import DOT_IDS
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class RawResponse:
    code: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_keep_alive: bool = False  # whether the server keeps the connection open
    excess: bytes = b""  # bytes after the head of a response to HEAD
    duration_s: float = field(default=0.0, compare=False)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: str) -> set[str]:
        return {token.strip().lower() for value in self.values(name) for token in value.split(",")} - {""}

    @property
    def media_type(self) -> str:
        """Without parameters; empty if the header is missing or repeated."""
        values = self.values("content-type")
        return values[0].partition(";")[0].strip().lower() if len(values) == 1 else ""


class ParsedBody(NamedTuple):
    """The JSON value of a body, or why there is none."""

    value: Any
    error: str


def parse_body(response: RawResponse) -> ParsedBody:
    try:
        text = response.body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as exc:
        return ParsedBody(None, _json_error_text(response, exc))
    return ParsedBody(value, "")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice in one object")
    return fields


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _json_error_text(response: RawResponse, exc: Exception) -> str:
    if not response.body:
        return "no body"
    problem = "too deeply nested" if isinstance(exc, RecursionError) else str(exc)
    return f"{safe_text(response.body)}, which is not JSON: {safe_text(problem)}"


def body_field(response: RawResponse, name: str) -> Any:  # noqa: ANN401  any JSON value
    """A field of the object in the body; None if there is no object or no such field."""
    value = parse_body(response).value
    return value.get(name) if isinstance(value, dict) else None


def service_items(response: RawResponse) -> list[Any] | None:
    """The list of services, wrapped or bare; None if there is none."""
    value = parse_body(response).value if response.code == 200 else None
    if isinstance(value, dict):
        value = value.get("services")
    return value if isinstance(value, list) else None


def services_by_id(items: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Services with a unique id that a path can hold, in the order of the list."""
    with_id = [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    counts = Counter(item["id"] for item in with_id)
    return {item["id"]: item for item in with_id if counts[item["id"]] == 1 and _is_addressable(item["id"])}


def _is_addressable(service_id: str) -> bool:
    return bool(service_id) and service_id not in DOT_IDS and has_no_surrogates(service_id)


def addressable_ids(items: Sequence[Any]) -> list[str]:
    return list(services_by_id(items))


def has_no_surrogates(text: str) -> bool:
    """JSON can hold lone surrogates; a URL cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def format_response(response: RawResponse) -> str:
    location = "".join(f", Location: {safe_text(value)}" for value in response.values("location")[:1])
    return f"{response.code} with {f'the body {safe_text(response.body)}' if response.body else 'no body'}{location}"


def format_content_type(response: RawResponse) -> str:
    values = response.values("content-type")
    return f"Content-Type: {safe_text(' and '.join(values))}" if values else "no Content-Type"


def is_success_code(code: int) -> bool:
    """Codes that load balancers, kubelets and scripts read as success."""
    return 200 <= code < 400


def error_body_problem(response: RawResponse) -> str:
    """Why the body is not an error body; empty if it is one."""
    value = parse_body(response).value
    if not isinstance(value, dict):
        return format_response(response)
    if not isinstance(value.get("message"), str):
        return f"{format_response(response)}, without a string field message"
    return ""


# ---- text


def safe_text(text: str | bytes) -> str:
    """Line breaks, terminal control characters and characters that XML cannot hold are escaped."""
    decoded = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    # Redact more than is shown: the end may cut a secret in half.
    visible = one_line(redacted(decoded[: 8 * MAX_SHOWN_CHARS])[:MAX_SHOWN_CHARS])
    unit = "bytes" if isinstance(text, bytes) else "characters"
    return visible if len(decoded) <= MAX_SHOWN_CHARS else f"{visible}… ({len(text)} {unit} total)"


def json_text(value: object) -> str:
    """Compact JSON, as the server may have sent it."""
    return safe_text(json.dumps(value, ensure_ascii=False))


def join_items(items: list[str], limit: int | None = None) -> str:
    """Joined with commas and "and"; beyond `limit`, the rest is counted."""
    if limit is not None and len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit} more"]
    return ", ".join(items[:-1]) + f" and {items[-1]}" if len(items) > 1 else "".join(items)
