"""`/events`: every transition as a server-sent event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import error_response, parse_known_query
from svcnode.core.errors import InvalidValueError
from svcnode.operator.streams import STREAM_HEAD, TOO_MANY_STREAMS

if TYPE_CHECKING:
    from svcnode.api.spec import Request, Response
    from svcnode.operator.context import OperatorContext

INVALID_EVENT_ID = error_response(400, "Invalid Last-Event-ID or after: the id of an event is a whole number")


async def events(context: OperatorContext, request: Request, name: str) -> Response | StreamingResponse:
    try:
        after = _last_event_id(request)
    except InvalidValueError as exc:
        return error_response(400, str(exc))
    if not (after is None or (after.isascii() and after.isdigit() and len(after) < 20)):
        return INVALID_EVENT_ID
    if context.events.is_full:
        return TOO_MANY_STREAMS
    return StreamingResponse(
        STREAM_HEAD, lambda writer: context.events.stream_to(writer, None if after is None else int(after))
    )


def _last_event_id(request: Request) -> str | None:
    query = parse_known_query(request.query, ("after",))
    if b"last-event-id" in request.headers:
        return request.headers[b"last-event-id"].decode("latin-1")
    # A browser cannot set the header on its first connection, so the page uses the query.
    return query.get("after", [None])[0]
