"""What the answers of the operator surface are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.core.encoding import compact_json
from svcnode.core.times import iso_time
from svcnode.spec import Answer, answer_with

if TYPE_CHECKING:
    from svcnode.history import Transition


def json_answer(document: Any, code: int = 200) -> Answer:  # noqa: ANN401  whatever JSON can hold
    return answer_with(code, compact_json(document).encode())


def typed_answer(body: bytes, content_type: str, *more_headers: tuple[str, str]) -> Answer:
    """Never kept by anybody in between: what it says may be another thing a second later."""
    headers = (
        ("Content-Type", content_type),
        *more_headers,
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    )
    return Answer(200, body, headers)


def transition_document(transition: Transition) -> dict[str, Any]:
    """The same wherever one is told."""
    document = {"id": transition.id, "at": iso_time(transition.at_s), **transition._asdict()}
    del document["at_s"]
    return document
