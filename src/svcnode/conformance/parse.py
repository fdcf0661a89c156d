"""What an answer holds, and the words for it. Pure; a body that is wrong is no error here, but what a check tells."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.interface import DOT_IDS
from svcnode.conformance.text import safe_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.conformance.http_client import RawResponse


class ParsedBody(NamedTuple):
    """What a body holds as JSON, or why it holds none."""

    value: Any
    error: str


def parse_body(answer: RawResponse) -> ParsedBody:
    try:
        text = answer.body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as exc:
        return ParsedBody(None, _json_error_text(answer, exc))
    return ParsedBody(value, "")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands twice in one object")
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _json_error_text(answer: RawResponse, exc: Exception) -> str:
    if not answer.body:
        return "no body"
    why = "too deeply nested" if isinstance(exc, RecursionError) else str(exc)
    return f"{safe_text(answer.body)}, which is no JSON: {safe_text(why)}"


def body_field(answer: RawResponse, name: str) -> Any:  # noqa: ANN401  whatever JSON can hold
    """Of the object that the body holds; None where there is none, or no such field."""
    value = parse_body(answer).value
    return value.get(name) if isinstance(value, dict) else None


def service_items(answer: RawResponse) -> list[Any] | None:
    """The list of services, wrapped as it must be or bare; None where there is none."""
    value = parse_body(answer).value if answer.code == 200 else None
    if isinstance(value, dict):
        value = value.get("services")
    return value if isinstance(value, list) else None


def services_by_id(items: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Those whose id stands once, and can stand in a path, in the order of the list."""
    named = [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    times = Counter(item["id"] for item in named)
    found = {item["id"]: item for item in named if times[item["id"]] == 1}
    return {one: item for one, item in found.items() if one and one not in DOT_IDS and has_no_surrogates(one)}


def addressable_ids(items: Sequence[Any]) -> list[str]:
    return list(services_by_id(items))


def has_no_surrogates(text: str) -> bool:
    """JSON can spell halves of characters, which no URL can."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def format_response(answer: RawResponse) -> str:
    leads_to = "".join(f", Location: {safe_text(place)}" for place in answer.values("location")[:1])
    return f"{answer.code} with {f'the body {safe_text(answer.body)}' if answer.body else 'no body'}{leads_to}"


def format_content_type(answer: RawResponse) -> str:
    found = answer.values("content-type")
    return f"Content-Type: {safe_text(' and '.join(found))}" if found else "no Content-Type"


def is_success_code(code: int) -> bool:
    """What load balancers, kubelets and scripts take for a yes."""
    return 200 <= code < 400


def error_body_problem(answer: RawResponse) -> str:
    """Why the body of an answer is no error body; empty where it is one."""
    value = parse_body(answer).value
    if not isinstance(value, dict):
        return format_response(answer)
    if not isinstance(value.get("message"), str):
        return f"{format_response(answer)}, without a string field message"
    return ""
