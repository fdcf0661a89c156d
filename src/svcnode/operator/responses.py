"""Building blocks of operator responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.api.spec import Response, make_response
from svcnode.core.strict_json import compact_json
from svcnode.core.units import iso_time

if TYPE_CHECKING:
    from svcnode.history import Transition


def json_response(document: Any, code: int = 200) -> Response:  # noqa: ANN401  any JSON value
    return make_response(code, compact_json(document).encode())


def typed_response(body: bytes, content_type: str, *more_headers: tuple[str, str]) -> Response:
    headers = (
        ("Content-Type", content_type),
        *more_headers,
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    )
    return Response(200, body, headers)


def transition_document(transition: Transition) -> dict[str, Any]:
    """The form of a transition in `/events` and `/history`."""
    document = {"id": transition.id, "at": iso_time(transition.at_s), **transition._asdict()}
    del document["at_s"]
    return document
