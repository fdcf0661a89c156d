"""The operator surface: what a node shows beyond the interface, to those who run it.

access.py   who may come in
desk.py     what the handlers have at hand
ROUTES      path -> "module:function", loaded when first asked for, so that a node that nobody looks at pays for nothing

A handler is `async (desk, visit, name) -> Answer | Stream`; `name` is what stands in the place of `{…}`, decoded.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import METHOD_NOT_ALLOWED, METHODS, NOT_FOUND, Response, error_response, split_path
from svcnode.operator.single_flight import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.api.app import OperatorRequest
    from svcnode.operator.auth import OperatorAuth
    from svcnode.operator.context import OperatorContext

    RouteHandler = Callable[[OperatorContext, OperatorRequest, str], Awaitable[Response | StreamingResponse]]

ROUTES = {
    "/": "page:page",
    "/badge/{name}": "badges:badge",
    "/details": "details:all_details",
    "/details/{name}": "details:details_of_one",
    "/events": "events:events",
    "/history": "history_api:history",
    "/metrics": "metrics:metrics",
    "/static/{name}": "page:static_file",
}
# No page of another site may show a picture of ours, and learn from its size what it says.
SAME_ORIGIN_ONLY = ("Cross-Origin-Resource-Policy", "same-origin")
OVERLOADED = error_response(503, "Too many wait for an answer already; try again later", ("Retry-After", "10"))
_handlers: dict[str, RouteHandler] = {}  # those that were asked for
_NAME = "{name}"
_ROUTE_SEGMENTS = {path: split_path(path) for path in ROUTES}
_FIRST_SEGMENTS = {wanted[1] for wanted in _ROUTE_SEGMENTS.values()}


class OperatorApp:
    """The surface as one listener shows it."""

    def __init__(self, context: OperatorContext, auth: OperatorAuth) -> None:
        self._context = context
        self.auth = auth

    def matches(self, path: bytes) -> bool:
        segments = split_path(path)
        return len(segments) > 1 and not segments[0] and segments[1] in _FIRST_SEGMENTS

    def rejection(self, request: OperatorRequest) -> Response | None:
        refusal = self.auth.rejection(request.headers)
        if refusal is None and request.method not in METHODS:
            refusal = METHOD_NOT_ALLOWED
        return refusal and _with_same_origin_policy(refusal)

    async def handle(self, request: OperatorRequest) -> Response | StreamingResponse:
        found = _match_route(request.path)
        if found is None:
            return _with_same_origin_policy(NOT_FOUND)
        path, name = found
        handler = _handlers[path] if path in _handlers else await asyncio.to_thread(_load_handler, path)
        try:
            answer = await handler(self._context, request, name)
        except OverloadedError:
            answer = OVERLOADED
        return (
            replace(answer, head=_with_same_origin_policy(answer.head))
            if isinstance(answer, StreamingResponse)
            else _with_same_origin_policy(answer)
        )


def _with_same_origin_policy(response: Response) -> Response:
    return replace(response, headers=(*response.headers, SAME_ORIGIN_ONLY))


def _match_route(path: bytes) -> tuple[str, str] | None:
    segments = split_path(path)
    for candidate, wanted in _ROUTE_SEGMENTS.items():
        if len(wanted) == len(segments) and all(
            want == segment or (want == _NAME and segment) for want, segment in zip(wanted, segments, strict=True)
        ):
            return candidate, (segments[wanted.index(_NAME)] if _NAME in wanted else "") or ""
    return None


def _load_handler(path: str) -> RouteHandler:
    """In a thread: reading modules from the disk would hold up everybody else."""
    module, _, name = ROUTES[path].partition(":")
    handler: RouteHandler = getattr(import_module(f"{__name__}.{module}"), name)
    _handlers[path] = handler
    return handler
