"""What an answer holds, and the words for it. Pure; a body that is wrong is no error here, but what a check tells."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.interface import DOT_IDS
from svcnode.conformance.wording import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.conformance.exchange import Answer


class Document(NamedTuple):
    """What a body holds as JSON, or why it holds none."""

    value: Any
    fault: str


def parsed(answer: Answer) -> Document:
    try:
        text = answer.body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refused)
    except (ValueError, RecursionError) as exc:
        return Document(None, _why_no_json(answer, exc))
    return Document(value, "")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands twice in one object")
    return found


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _why_no_json(answer: Answer, exc: Exception) -> str:
    if not answer.body:
        return "no body"
    why = "too deeply nested" if isinstance(exc, RecursionError) else str(exc)
    return f"{shown(answer.body)}, which is no JSON: {shown(why)}"


def field_of(answer: Answer, name: str) -> Any:  # noqa: ANN401  whatever JSON can hold
    """Of the object that the body holds; None where there is none, or no such field."""
    value = parsed(answer).value
    return value.get(name) if isinstance(value, dict) else None


def items_of(answer: Answer) -> list[Any] | None:
    """The list of services, wrapped as it must be or bare; None where there is none."""
    value = parsed(answer).value if answer.code == 200 else None
    if isinstance(value, dict):
        value = value.get("services")
    return value if isinstance(value, list) else None


def by_id(items: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Those whose id stands once, and can stand in a path, in the order of the list."""
    named = [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    times = Counter(item["id"] for item in named)
    found = {item["id"]: item for item in named if times[item["id"]] == 1}
    return {one: item for one, item in found.items() if one and one not in DOT_IDS and is_text(one)}


def usable_ids(items: Sequence[Any]) -> list[str]:
    return list(by_id(items))


def is_text(text: str) -> bool:
    """JSON can spell halves of characters, which no URL can."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def told(answer: Answer) -> str:
    leads_to = "".join(f", Location: {shown(place)}" for place in answer.values("location")[:1])
    return f"{answer.code} with {f'the body {shown(answer.body)}' if answer.body else 'no body'}{leads_to}"


def content_type_of(answer: Answer) -> str:
    found = answer.values("content-type")
    return f"Content-Type: {shown(' and '.join(found))}" if found else "no Content-Type"


def is_as_if_fine(code: int) -> bool:
    """What load balancers, kubelets and scripts take for a yes."""
    return 200 <= code < 400


def error_fault(answer: Answer) -> str:
    """Why the body of an answer is no error body; empty where it is one."""
    value = parsed(answer).value
    if not isinstance(value, dict):
        return told(answer)
    if not isinstance(value.get("message"), str):
        return f"{told(answer)}, without a string field message"
    return ""
