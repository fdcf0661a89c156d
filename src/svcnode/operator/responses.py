"""What the answers of the operator surface are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.api.spec import Response, make_response
from svcnode.core.strict_json import compact_json
from svcnode.core.units import iso_time

if TYPE_CHECKING:
    from svcnode.history import Transition


def json_response(document: Any, code: int = 200) -> Response:  # noqa: ANN401  whatever JSON can hold
    return make_response(code, compact_json(document).encode())


def typed_response(body: bytes, content_type: str, *more_headers: tuple[str, str]) -> Response:
    """Never kept by anybody in between: what it says may be another thing a second later."""
    headers = (
        ("Content-Type", content_type),
        *more_headers,
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    )
    return Response(200, body, headers)


def transition_document(transition: Transition) -> dict[str, Any]:
    """The same wherever one is told."""
    document = {"id": transition.id, "at": iso_time(transition.at_s), **transition._asdict()}
    del document["at_s"]
    return document
