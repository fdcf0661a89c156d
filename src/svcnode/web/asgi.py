"""The node as an ASGI application, to be mounted in someone's app or run under any ASGI server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from svcnode.spec import PREFIX, Answer, Request, prefixes_from
from svcnode.web import site
from svcnode.web.mounting import path_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from svcnode.node import Node

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("svcnode.web")


def asgi(
    node: Node, *, prefix: str | Sequence[str] = PREFIX, otherwise: AsgiApplication | None = None
) -> AsgiApplication:
    """An application that answers for the node.

    With `otherwise`, only paths under the prefix are answered and every other one is handed to that application.
    Run by itself, it starts and stops the looking with the server; mounted inside another application, that one's
    lifespan does: `FastAPI(lifespan=node.lifespan)`.
    """
    return _AsgiNode(node, prefixes_from(prefix), otherwise)


class _AsgiNode:
    def __init__(self, node: Node, prefixes: tuple[str, ...], otherwise: AsgiApplication | None) -> None:
        self._node = node
        self._prefixes = prefixes
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        path = path_below(scope.get("root_path", ""), scope["path"], scope.get("raw_path"), self._prefixes)
        if self._otherwise is not None and not site.is_under(path, self._prefixes):
            await self._otherwise(scope, receive, send)
        elif scope["type"] == "http":
            request = Request(scope["method"], path, scope.get("query_string", b""))
            await _send(site.noted(site.route(request, self._prefixes)(self._node)), request, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan of the other application with the looking around it, or our own where it has none."""
        is_taken_part_in = False

        async def hear() -> Message:
            nonlocal is_taken_part_in
            is_taken_part_in = True
            return await receive()

        async with self._node.supervised():
            if self._otherwise is not None:
                try:
                    await self._otherwise(scope, hear, send)
                except Exception:
                    if is_taken_part_in:
                        raise
                    log.debug("the other application has no lifespan", exc_info=True)  # Django's says so by raising
                if is_taken_part_in:
                    return
            await receive()  # "lifespan.startup", the first there is
            await send({"type": "lifespan.startup.complete"})
            await receive()  # "lifespan.shutdown", the only other one
        await send({"type": "lifespan.shutdown.complete"})


async def _send(answer: Answer, request: Request, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    body = b"" if request.method == "HEAD" else answer.body
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
