"""All public paths of a node: the interface under its prefixes, and `/livez`, `/readyz` and `/openapi.json`."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from svcnode.api import spec
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Health

if TYPE_CHECKING:
    from svcnode.api.spec import Handler, Headers, Request, Response
    from svcnode.node.node_state import NodeState

log = logging.getLogger("svcnode.api")

NOT_FOUND_HANDLER = spec.StaticResponse(spec.NOT_FOUND)
_LIVEZ_RESPONSE = spec.make_response(200)


def respond(node: NodeState, request: Request, prefixes: tuple[str, ...]) -> Response:
    return log_failure(route(request, prefixes)(node))


def route(request: Request, prefixes: tuple[str, ...], cors_headers: Headers = ()) -> Handler:
    """The handler for a request; the headers are added to the responses of the four endpoints only."""
    unprefixed = _UNPREFIXED_ROUTES.get(request.path)
    if unprefixed is None:
        handler = spec.route(request, prefixes)
        return spec.WithHeaders(handler, cors_headers) if cors_headers and handler != NOT_FOUND_HANDLER else handler
    if request.method not in spec.METHODS:
        return spec.StaticResponse(spec.METHOD_NOT_ALLOWED)
    try:
        spec.parse_known_query(request.query, _PARAMETERS.get(request.path, ()))
    except InvalidValueError as exc:
        return spec.StaticResponse(spec.error_response(400, str(exc)))
    return unprefixed(request, prefixes)


def log_failure(response: Response) -> Response:
    """Log the cause of an internal error. The response itself does not contain it."""
    if response.cause is not None:
        extra = {"event": "internal_error", "http_status": response.code}
        log.error("internal error: responded with %d", response.code, exc_info=response.cause, extra=extra)
    return response


def is_under_prefix(path: bytes, prefixes: tuple[str, ...]) -> bool:
    """True if the path is under one of the prefixes, whether or not an endpoint exists there."""
    segments = spec.split_path(path)
    return any(segments[: len(prefix)] == prefix for prefix in map(spec.split_path, prefixes))


def _livez(request: Request, prefixes: tuple[str, ...]) -> Handler:
    return spec.StaticResponse(_LIVEZ_RESPONSE)


def _readyz(request: Request, prefixes: tuple[str, ...]) -> Handler:
    is_strict = "strict" in spec.parse_query(request.query)
    partial_health = Health.UNHEALTHY if is_strict else Health.HEALTHY

    def handler(node: NodeState) -> Response:
        try:
            health = Health.UNHEALTHY if node.condition.starting else node.health
        except Exception as exc:  # noqa: BLE001  unknown health is not ready
            return replace(spec.HEALTH_RESPONSES[Health.UNHEALTHY], cause=exc)
        return spec.HEALTH_RESPONSES[partial_health if health is Health.PARTIAL else health]

    return handler


def _openapi(request: Request, prefixes: tuple[str, ...]) -> Handler:
    return spec.StaticResponse(spec.make_response(200, openapi_document(prefixes)))


_PARAMETERS = {b"/readyz": ("strict",)}
_UNPREFIXED_ROUTES = {b"/livez": _livez, b"/readyz": _readyz, b"/openapi.json": _openapi}


@cache
def openapi_document(prefixes: tuple[str, ...]) -> bytes:
    """The OpenAPI document, with the prefixes as its servers."""
    from importlib import resources

    document = json.loads(resources.files("svcnode.api").joinpath("openapi.json").read_bytes())
    document["servers"] = [{"url": prefix or "/"} for prefix in prefixes]
    return json.dumps(document, indent=2).encode()
