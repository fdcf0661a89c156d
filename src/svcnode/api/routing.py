"""Everything a node answers over HTTP: the interface under its prefixes, and the few paths beside it."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import TYPE_CHECKING

from svcnode.api import spec
from svcnode.core.model import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.api.spec import NodeView, Request, Response

log = logging.getLogger("svcnode.server")

_LIVEZ_RESPONSE = spec.make_response(200)


def route(request: Request, prefixes: tuple[str, ...]) -> Callable[[NodeView], Response]:
    beside = _UNPREFIXED_ROUTES.get(request.path)
    if beside is None:
        return spec.route(request, prefixes)
    if request.method not in spec.METHODS:
        return spec.StaticResponse(spec.METHOD_NOT_ALLOWED)
    return beside(request, prefixes)


def log_failure(response: Response) -> Response:
    """The answer; where making it failed, the cause is in the log, and only there."""
    if response.cause is not None:
        log.error("answering failed; the client got %d", response.code, exc_info=response.cause)
    return response


def is_under_prefix(path: bytes, prefixes: tuple[str, ...]) -> bool:
    """Whether a path belongs to the interface at all, known or not."""
    segments = spec.split_path(path)
    return any(segments[: len(wanted)] == wanted for wanted in map(spec.split_path, prefixes))


def _livez(request: Request, prefixes: tuple[str, ...]) -> Callable[[NodeView], Response]:
    return spec.StaticResponse(_LIVEZ_RESPONSE)


def _readyz(request: Request, prefixes: tuple[str, ...]) -> Callable[[NodeView], Response]:
    is_strict = "strict" in spec.parse_query(request.query)
    partial_is = Health.UNHEALTHY if is_strict else Health.HEALTHY

    def reply(view: NodeView) -> Response:
        try:
            health = view.health
        except Exception as exc:  # noqa: BLE001  not knowing is not being ready
            unhealthy = spec.HEALTH_RESPONSES[Health.UNHEALTHY]
            return spec.Response(unhealthy.code, unhealthy.body, unhealthy.headers, cause=exc)
        return spec.HEALTH_RESPONSES[partial_is if health is Health.PARTIAL else health]

    return reply


def _openapi(request: Request, prefixes: tuple[str, ...]) -> Callable[[NodeView], Response]:
    return spec.StaticResponse(spec.make_response(200, openapi_document(prefixes)))


_UNPREFIXED_ROUTES = {b"/livez": _livez, b"/readyz": _readyz, b"/openapi.json": _openapi}


@cache
def openapi_document(prefixes: tuple[str, ...]) -> bytes:
    """The OpenAPI description of the interface, naming the prefixes it is served under."""
    from importlib import resources

    document = json.loads(resources.files("svcnode.api").joinpath("openapi.json").read_bytes())
    document["servers"] = [{"url": prefix or "/"} for prefix in prefixes]
    return json.dumps(document, indent=2).encode()
