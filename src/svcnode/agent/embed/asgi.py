"""The node as an ASGI application, for any ASGI framework or server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import Context
from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.application import EmbeddedApplication
from svcnode.agent.embed.options import ConnectionInfo, retained_headers, slash_redirect
from svcnode.api import routing
from svcnode.api.raw_path import path_below
from svcnode.api.spec import Request, Response, error_response
from svcnode.core.model import DEFAULT_PREFIX
from svcnode.core.text import error_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.agent.embed.node import Node
    from svcnode.agent.embed.operator_app import EmbeddedOperatorApp
    from svcnode.agent.embed.options import OperatorOptions
    from svcnode.agent.embed.stream import LoopStream

# Defined at run time: Litestar evaluates the annotations of an application that it mounts.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

NEEDS_ASYNCIO = error_response(503, "The operator surface needs a server that runs on asyncio")

log = logging.getLogger("svcnode.api")

# Those that a request has started. An event loop does not hold its tasks, and a program may drop the application.
_probing_tasks: set[asyncio.Task[None]] = set()


def asgi(
    node: Node,
    *,
    prefix: str | Sequence[str] = DEFAULT_PREFIX,
    fallback: AsgiApplication | None = None,
    start: bool = True,
    operator: bool | OperatorOptions = False,
) -> AsgiApplication:
    """Return an ASGI application that serves the node's interface.

    With `fallback`, requests outside the prefix are passed to that application.
    With `operator`, it also serves the page, metrics, details, events, history and badges of the node; `True` is for
    clients on this machine only.
    As the main application it starts and stops probing with the server. Mounted inside another application it gets no
    lifespan; use that of the application: `FastAPI(lifespan=node.lifespan)`. If no lifespan starts probing, the first
    request does. With `start=False` only the program starts it.
    """
    return _AsgiApp(node, prefix, fallback, operator, start=start)


class _AsgiApp(EmbeddedApplication[AsgiApplication]):
    _serving_loop: object = "no request yet"  # None is a loop of trio

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
            return
        if self._serving_loop is not (loop := _running_loop()):
            self._serving_loop = loop
            self._on_first_request(loop)
        path = path_below(scope.get("root_path", ""), scope["path"], scope.get("raw_path"), self._prefixes)
        if scope["type"] == "http" and self._operator_app is not None and self._operator_app.matches(path):
            await _respond_from_operator(self._operator_app, path, scope, receive, send)
        elif self._fallback is not None and not routing.is_under_prefix(path, self._prefixes):
            await self._fallback(scope, receive, send)
        elif scope["type"] == "http":
            request = Request(scope["method"], path, scope.get("query_string", b""))
            await _send_response(routing.respond(self._node, request, self._prefixes), request.method, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def _on_first_request(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """In each event loop: a test client may have one per request."""
        if not self._should_start or self._checks.are_running:
            self._checks.warn_if_not_running()
        elif loop is None:
            self._checks.start_or_warn()
        else:
            # Not in the context of the request, which may hold its user or its trace.
            task = loop.create_task(self._probe(), name="svcnode probing", context=Context())
            _probing_tasks.add(task)
            task.add_done_callback(_probing_tasks.discard)

    async def _probe(self) -> None:
        """Until the event loop cancels its tasks at its end."""
        try:
            async with self._checks.running():
                await asyncio.get_running_loop().create_future()
        except Exception as exc:
            log.exception("the checks have stopped", extra={"event": "probing_stopped"})
            self._checks.warn_if_not_running(f"the checks are not running: {error_text(exc)}")

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Probe during the lifespan of the fallback application; without one, answer the lifespan messages here."""
        fallback_has_lifespan = False

        async def receive_for_fallback() -> Message:
            nonlocal fallback_has_lifespan
            fallback_has_lifespan = True
            return await receive()

        async with self._checks.running():
            if self._fallback is not None:
                try:
                    await self._fallback(scope, receive_for_fallback, send)
                except Exception:
                    if fallback_has_lifespan:
                        raise
                    log.debug("fallback application does not support lifespan", exc_info=True)  # Django raises
                if fallback_has_lifespan:
                    return
            await receive()  # "lifespan.startup"
            await send({"type": "lifespan.startup.complete"})
            await receive()  # "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})


async def _respond_from_operator(
    app: EmbeddedOperatorApp, path: bytes, scope: Scope, receive: Receive, send: Send
) -> None:
    headers = retained_headers(scope["headers"])
    request = Request(scope["method"], path, scope.get("query_string", b""), headers)
    response: Response | LoopStream | None
    if path == app.root:
        response = slash_redirect(scope["path"])
    else:
        response = app.rejection(request, _connection_info(scope))
        if response is None:
            response = NEEDS_ASYNCIO if _running_loop() is None else await app.handle(request)
    if isinstance(response, Response):
        await _send_response(response, request.method, send)
    else:
        await _send_stream(response, request.method, receive, send)


def _connection_info(scope: Scope) -> ConnectionInfo:
    """A server may not know the addresses, as with a Unix socket."""
    client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
    return ConnectionInfo(
        client_host=client[0] or "",
        uses_tls=scope.get("scheme") == "https",
        server_port=server[1] or 0,
        http_version=scope.get("http_version", ""),
    )


async def _send_response(response: Response, method: str, send: Send) -> None:
    await send(_start_message(response))
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else response.body})


async def _send_stream(stream: LoopStream, method: str, receive: Receive, send: Send) -> None:
    disconnected = asyncio.create_task(_wait_for_disconnect(receive))
    disconnected.add_done_callback(lambda _: stream.close())
    try:
        await send(_start_message(stream.head))
        if method != "HEAD":
            async for chunk in stream.chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})
    finally:
        disconnected.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """None if the server does not run on asyncio, as Hypercorn with trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _start_message(response: Response) -> Message:
    headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
    return {"type": "http.response.start", "status": response.code, "headers": headers}
