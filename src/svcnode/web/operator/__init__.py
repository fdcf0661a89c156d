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

from svcnode.spec import METHOD_NOT_ALLOWED, METHODS, NOT_FOUND, Answer, error_answer, segments_of
from svcnode.web.operator.shared import CrowdedError
from svcnode.web.visits import Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.web.operator.access import Access
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Visit

    Handler = Callable[[Desk, Visit, str], Awaitable[Answer | Stream]]

ROUTES = {
    "/": "page:page",
    "/badge/{name}": "badges:badge",
    "/details": "details:all_details",
    "/details/{name}": "details:one_in_detail",
    "/events": "events:events",
    "/history": "bars:bars",
    "/metrics": "metrics:metrics",
    "/static/{name}": "static:static_file",
}
# No page of another site may show a picture of ours, and learn from its size what it says.
FOR_OUR_PAGES_ALONE = ("Cross-Origin-Resource-Policy", "same-origin")
CROWDED = error_answer(503, "Too many wait for an answer already; try again later", ("Retry-After", "10"))
_handlers: dict[str, Handler] = {}  # those that were asked for
_NAME = "{name}"
_WANTED = {path: segments_of(path) for path in ROUTES}
_BEGINNINGS = {wanted[1] for wanted in _WANTED.values()}


class Operator:
    """The surface as one listener shows it."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self._desk = desk
        self.access = access

    def takes(self, path: bytes) -> bool:
        segments = segments_of(path)
        return len(segments) > 1 and not segments[0] and segments[1] in _BEGINNINGS

    def refusal(self, visit: Visit) -> Answer | None:
        refusal = self.access.refusal(visit.headers)
        if refusal is None and visit.method not in METHODS:
            refusal = METHOD_NOT_ALLOWED
        return refusal and _for_our_pages(refusal)

    async def answer(self, visit: Visit) -> Answer | Stream:
        found = _find(visit.path)
        if found is None:
            return _for_our_pages(NOT_FOUND)
        path, name = found
        handler = _handlers[path] if path in _handlers else await asyncio.to_thread(_load, path)
        try:
            answer = await handler(self._desk, visit, name)
        except CrowdedError:
            answer = CROWDED
        return (
            replace(answer, head=_for_our_pages(answer.head)) if isinstance(answer, Stream) else _for_our_pages(answer)
        )


def _for_our_pages(answer: Answer) -> Answer:
    return replace(answer, headers=(*answer.headers, FOR_OUR_PAGES_ALONE))


def _find(path: bytes) -> tuple[str, str] | None:
    segments = segments_of(path)
    for candidate, wanted in _WANTED.items():
        if len(wanted) == len(segments) and all(
            want == segment or (want == _NAME and segment) for want, segment in zip(wanted, segments, strict=True)
        ):
            return candidate, (segments[wanted.index(_NAME)] if _NAME in wanted else "") or ""
    return None


def _load(path: str) -> Handler:
    """In a thread: reading modules from the disk would hold up everybody else."""
    module, _, name = ROUTES[path].partition(":")
    handler: Handler = getattr(import_module(f"{__name__}.{module}"), name)
    _handlers[path] = handler
    return handler
