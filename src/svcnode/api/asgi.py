"""The node as an ASGI application, to be mounted in someone's app or run under any ASGI server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from svcnode.api import routing
from svcnode.api.raw_path import path_below
from svcnode.api.spec import DEFAULT_PREFIX, Request, Response, parse_prefixes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from svcnode.node import Node

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("svcnode.server")


def asgi(
    node: Node, *, prefix: str | Sequence[str] = DEFAULT_PREFIX, fallback: AsgiApplication | None = None
) -> AsgiApplication:
    """An application that answers for the node.

    With `fallback`, only paths under the prefix are answered and every other one is handed to that application.
    Run by itself, it starts and stops the looking with the server; mounted inside another application, that one's
    lifespan does: `FastAPI(lifespan=node.lifespan)`.
    """
    return _AsgiApp(node, parse_prefixes(prefix), fallback)


class _AsgiApp:
    def __init__(self, node: Node, prefixes: tuple[str, ...], fallback: AsgiApplication | None) -> None:
        self._node = node
        self._prefixes = prefixes
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
            return
        path = path_below(scope.get("root_path", ""), scope["path"], scope.get("raw_path"), self._prefixes)
        if self._fallback is not None and not routing.is_under_prefix(path, self._prefixes):
            await self._fallback(scope, receive, send)
        elif scope["type"] == "http":
            request = Request(scope["method"], path, scope.get("query_string", b""))
            await _send_response(routing.log_failure(routing.route(request, self._prefixes)(self._node)), request, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan of the other application with the looking around it, or our own where it has none."""
        is_taken_part_in = False

        async def hear() -> Message:
            nonlocal is_taken_part_in
            is_taken_part_in = True
            return await receive()

        async with self._node.probing():
            if self._fallback is not None:
                try:
                    await self._fallback(scope, hear, send)
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


async def _send_response(response: Response, request: Request, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
    body = b"" if request.method == "HEAD" else response.body
    await send({"type": "http.response.start", "status": response.code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
