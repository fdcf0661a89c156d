"""The operator endpoints: everything a node serves beyond the interface.

ROUTES maps a path to "module:function". A handler module is imported on the first request for its path, so a node
without such requests loads none of them. A handler is `async (context, request, name) -> Response | StreamingResponse`;
`name` is the decoded path segment in the position of `{name}`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import (
    METHOD_NOT_ALLOWED,
    METHODS,
    NOT_FOUND,
    Response,
    error_response,
    parse_known_query,
    split_path,
)
from svcnode.core.errors import InvalidValueError
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.threads import call_in_pool
from svcnode.operator.compression import compressed
from svcnode.operator.single_flight import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.api.spec import Request
    from svcnode.operator.auth import OperatorAuth
    from svcnode.operator.context import OperatorContext

    RouteHandler = Callable[[OperatorContext, Request, str], Awaitable[Response | StreamingResponse]]

log = logging.getLogger("svcnode.operator")

ROUTES = {
    "/": "page:page",
    "/badge/{name}": "badges:badge",
    "/details": "details:all_details",
    "/details/{name}": "details:details_of_one",
    "/events": "events:events",
    "/history": "history_api:history",
    "/metrics": "metrics:metrics",
    "/page/changes": "page:page_changes",
    "/page/events": "page:page_events",
    "/page/timeline": "page:page_timeline",
    "/problems": "problems:problems",
    "/report": "report:report",
    "/static/{name}": "static_files:static_file",
    "/targets": "targets:targets",
}
# The parameters of paths whose handlers do not check them.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "/": (),
    "/badge/{name}": ("service",),
    "/details/{name}": (),
    "/metrics": (),
    "/page/changes": ("after", "id"),
    "/page/events": (),
    "/problems": (),
    "/targets": (),
}
# Pages of other sites must not embed our responses: the size of an image alone tells them the status of a service.
SAME_ORIGIN_ONLY = ("Cross-Origin-Resource-Policy", "same-origin")
OVERLOADED = error_response(503, "Too many requests in progress; retry in 10 seconds", ("Retry-After", "10"))
NO_THREAD = error_response(503, "This host has no free thread; retry in 10 seconds", ("Retry-After", "10"))
_handlers: dict[str, RouteHandler] = {}  # loaded handlers, by path
_NAME = "{name}"
_ROUTE_SEGMENTS = {path: split_path(path) for path in ROUTES}
_FIRST_SEGMENTS = {segments[1] for segments in _ROUTE_SEGMENTS.values() if segments[1]}
_ROOT = split_path("/")


def matches(path: bytes) -> bool:
    """True for every path below an operator path, whether or not it exists."""
    segments = split_path(path)
    return segments == _ROOT or (len(segments) > 1 and not segments[0] and segments[1] in _FIRST_SEGMENTS)


async def handle(context: OperatorContext, request: Request) -> Response | StreamingResponse:
    match = _match_route(request.path)
    if match is None:
        return _with_same_origin_policy(NOT_FOUND)
    path, name = match
    try:
        if request.query and path in PARAMETERS:
            parse_known_query(request.query, PARAMETERS[path])
        handler = _handlers[path] if path in _handlers else await call_in_pool(partial(_load_handler, path))
        response = await handler(context, request, name)
        if isinstance(response, Response):
            response = await compressed(context, request, response)
    except InvalidValueError as exc:
        response = error_response(400, str(exc))
    except OverloadedError:
        response = OVERLOADED
    except ThreadStartError:
        response = NO_THREAD
    return (
        response._replace(head=_with_same_origin_policy(response.head))
        if isinstance(response, StreamingResponse)
        else _with_same_origin_policy(response)
    )


class RequestGuard:
    """Rejects requests that are not allowed."""

    def __init__(self) -> None:
        self._has_logged_proxy = False

    def rejection(self, request: Request, auth: OperatorAuth | None) -> Response | None:
        """Without `auth`, the embedding program restricts access itself."""
        rejection = None if auth is None else self._check_access(request, auth)
        if rejection is None and request.method not in METHODS:
            rejection = METHOD_NOT_ALLOWED
        return rejection and _with_same_origin_policy(rejection)

    def _check_access(self, request: Request, auth: OperatorAuth) -> Response | None:
        if auth.is_open and not self._has_logged_proxy:
            self._log_proxy(request, auth)
        return auth.rejection(request.headers)

    def _log_proxy(self, request: Request, auth: OperatorAuth) -> None:
        """Once: a proxy in front of a trusted listener may open it to every client that sends `Host: localhost`."""
        sign = auth.proxy_sign(request.headers)
        if sign is None:
            return
        self._has_logged_proxy = True
        log.warning(
            "operator page on %s: a request seems to come through a proxy (%s). If the proxy passes the header Host "
            "on, its clients can read the page without a token; %s, or let the proxy forward only the interface",
            auth.address,
            sign,
            auth.token_hint,
            extra={"event": "proxy_on_trusted_listener", "sign": sign},
        )


class OperatorApp:
    """The operator endpoints on one listener."""

    def __init__(self, context: OperatorContext, auth: OperatorAuth) -> None:
        self._context = context
        self.auth = auth
        self._guard = RequestGuard()

    def matches(self, path: bytes) -> bool:
        return matches(path)

    def rejection(self, request: Request) -> Response | None:
        return self._guard.rejection(request, self.auth)

    async def handle(self, request: Request) -> Response | StreamingResponse:
        return await handle(self._context, request)


def _with_same_origin_policy(response: Response) -> Response:
    return replace(response, headers=(*response.headers, SAME_ORIGIN_ONLY))


def _match_route(path: bytes) -> tuple[str, str] | None:
    segments = split_path(path)
    for candidate, pattern in _ROUTE_SEGMENTS.items():
        if len(pattern) == len(segments) and all(
            expected == segment or (expected == _NAME and segment)
            for expected, segment in zip(pattern, segments, strict=True)
        ):
            return candidate, (segments[pattern.index(_NAME)] if _NAME in pattern else "") or ""
    return None


def _load_handler(path: str) -> RouteHandler:
    """Runs in a thread: importing a module from disk would block the event loop."""
    module, _, name = ROUTES[path].partition(":")
    handler: RouteHandler = getattr(import_module(f"{__name__}.{module}"), name)
    _handlers[path] = handler
    return handler
