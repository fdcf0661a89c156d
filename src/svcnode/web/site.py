"""Everything a node answers over HTTP: the interface under its prefixes, and the few paths beside it."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import TYPE_CHECKING

from svcnode import spec
from svcnode.core.model import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.spec import Answer, Request, View

log = logging.getLogger("svcnode.web")

_LIVE = spec.answer_with(200)


def route(request: Request, prefixes: tuple[str, ...]) -> Callable[[View], Answer]:
    beside = _BESIDE_THE_INTERFACE.get(request.path)
    if beside is None:
        return spec.route(request, prefixes)
    if request.method not in spec.METHODS:
        return spec.FixedReply(spec.METHOD_NOT_ALLOWED)
    return beside(request, prefixes)


def noted(answer: Answer) -> Answer:
    """The answer; where making it failed, the cause is in the log, and only there."""
    if answer.cause is not None:
        log.error("answering failed; the client got %d", answer.code, exc_info=answer.cause)
    return answer


def is_under(path: bytes, prefixes: tuple[str, ...]) -> bool:
    """Whether a path belongs to the interface at all, known or not."""
    segments = spec.segments_of(path)
    return any(segments[: len(wanted)] == wanted for wanted in map(spec.segments_of, prefixes))


def _livez(request: Request, prefixes: tuple[str, ...]) -> Callable[[View], Answer]:
    return spec.FixedReply(_LIVE)


def _readyz(request: Request, prefixes: tuple[str, ...]) -> Callable[[View], Answer]:
    is_strict = "strict" in spec.parse_query(request.query)
    partial_is = Health.UNHEALTHY if is_strict else Health.HEALTHY

    def reply(view: View) -> Answer:
        try:
            health = view.health
        except Exception as exc:  # noqa: BLE001  not knowing is not being ready
            unhealthy = spec.HEALTH_ANSWERS[Health.UNHEALTHY]
            return spec.Answer(unhealthy.code, unhealthy.body, unhealthy.headers, cause=exc)
        return spec.HEALTH_ANSWERS[partial_is if health is Health.PARTIAL else health]

    return reply


def _openapi(request: Request, prefixes: tuple[str, ...]) -> Callable[[View], Answer]:
    return spec.FixedReply(spec.answer_with(200, openapi_document(prefixes)))


_BESIDE_THE_INTERFACE = {b"/livez": _livez, b"/readyz": _readyz, b"/openapi.json": _openapi}


@cache
def openapi_document(prefixes: tuple[str, ...]) -> bytes:
    """The OpenAPI description of the interface, naming the prefixes it is served under."""
    from importlib import resources

    document = json.loads(resources.files("svcnode").joinpath("openapi.json").read_bytes())
    document["servers"] = [{"url": prefix or "/"} for prefix in prefixes]
    return json.dumps(document, indent=2).encode()
