"""The operator endpoints of an embedded node.

They run on the event loop of the checks: that of the server, or that of a background thread. While the checks do not
run, there is no such loop.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from svcnode import operator
from svcnode.agent.embed.node import internals_of
from svcnode.agent.embed.options import OperatorOptions
from svcnode.agent.embed.stream import LoopStream
from svcnode.api.app import HANDLER_TIMED_OUT, HANDLER_TIMEOUT_S, StreamingResponse, call_handler
from svcnode.api.spec import error_response
from svcnode.core.address import Address
from svcnode.core.errors import InvalidValueError
from svcnode.net.threads import LoopStoppedError, result_of
from svcnode.operator.auth import OperatorAuth

if TYPE_CHECKING:
    from concurrent.futures import Future

    from svcnode.agent.embed.embedding import Embedding
    from svcnode.agent.embed.node import Node
    from svcnode.agent.embed.options import ConnectionInfo
    from svcnode.api.spec import Request, Response
    from svcnode.operator.context import OperatorContext

NOT_RUNNING = error_response(
    503,
    "The checks of this node are not running, and without them there are no operator endpoints: the program can start "
    "the checks with the lifespan of the node, or with node.start()",
    ("Retry-After", "5"),
)
START_TIMEOUT_S = 2.0  # the first request may start the checks
START_POLL_S = 0.02
# A server waits for open responses when it stops, and does not tell the application. So a stream ends by itself after
# this time, and the client connects again.
MAX_LIVE_S = 10.0
# Clients on this machine, such as browsers and curl, send 1.1 or later. nginx sends 1.0 to the server behind it, with a
# local Host and no other sign of itself, unless it is configured otherwise.
PROXY_HTTP_VERSION = "1.0"
LOOP_TIMEOUT_S = HANDLER_TIMEOUT_S + 5.0  # beyond it, the loop of the checks is blocked


def make_operator_app(
    node: Node, given: object, prefixes: tuple[str, ...], *, has_fallback: bool
) -> EmbeddedOperatorApp:
    options = OperatorOptions() if given is True else given
    if not isinstance(options, OperatorOptions):
        raise InvalidValueError(f"operator must be True, False or OperatorOptions(…), not {type(given).__name__}")
    if has_fallback and not options.prefix:
        raise InvalidValueError(
            'the operator page and the fallback application are both at "/"; '
            'give the page a path: operator=OperatorOptions(path="/status")'
        )
    return EmbeddedOperatorApp(internals_of(node).embedding, options, prefixes)


class EmbeddedOperatorApp:
    def __init__(self, embedding: Embedding, options: OperatorOptions, prefixes: tuple[str, ...]) -> None:
        self._embedding = embedding
        self._options = options
        self.root = options.prefix.encode()
        self._guard = operator.RequestGuard()
        for prefix in prefixes:
            if self.matches(f"{prefix}/node".encode()):
                raise InvalidValueError(f'prefix "{prefix}" is a path of the operator page; choose another')

    def matches(self, path: bytes) -> bool:
        return path == self.root or (path.startswith(self.root + b"/") and operator.matches(self._path_below(path)))

    def _path_below(self, path: bytes) -> bytes:
        return path[len(self.root) :]

    def rejection(self, request: Request, connection: ConnectionInfo) -> Response | None:
        return self._guard.rejection(request, None if self._options.unrestricted else self._auth(connection))

    def _auth(self, connection: ConnectionInfo) -> OperatorAuth:
        return OperatorAuth(
            Address("https" if connection.uses_tls else "http", connection.client_host, connection.server_port),
            self._options.token,
            trusts_loopback=self._options.trusts_loopback and connection.http_version != PROXY_HTTP_VERSION,
            is_embedded=True,
        )

    async def handle(self, request: Request) -> Response | LoopStream:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._embedding.runtime is None and time.monotonic() < deadline_s:  # noqa: ASYNC110  of another loop
            await asyncio.sleep(START_POLL_S)
        try:
            async with asyncio.timeout(LOOP_TIMEOUT_S):
                return await result_of(self._start_handler(request))
        except LoopStoppedError:
            return NOT_RUNNING
        except TimeoutError:
            return HANDLER_TIMED_OUT

    def handle_blocking(self, request: Request, *, is_multithread: bool) -> Response | LoopStream:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._embedding.runtime is None and time.monotonic() < deadline_s:
            time.sleep(START_POLL_S)
        try:
            return self._start_handler(request, in_thread=True, can_wait=is_multithread).result(LOOP_TIMEOUT_S)
        except (LoopStoppedError, CancelledError):
            return NOT_RUNNING
        except TimeoutError:
            return HANDLER_TIMED_OUT

    def _start_handler(
        self, request: Request, *, in_thread: bool = False, can_wait: bool = True
    ) -> Future[Response | LoopStream]:
        """Raises `LoopStoppedError`."""
        runtime = self._embedding.runtime
        if runtime is None:
            raise LoopStoppedError
        request = request._replace(path=self._path_below(request.path))
        handler = self._run_handler(runtime.context, request, in_thread=in_thread, can_wait=can_wait)
        try:
            return asyncio.run_coroutine_threadsafe(handler, runtime.loop)
        except RuntimeError:  # closed in the meantime
            handler.close()
            raise LoopStoppedError from None

    async def _run_handler(
        self, context: OperatorContext, request: Request, *, in_thread: bool, can_wait: bool
    ) -> Response | LoopStream:
        response = await call_handler(partial(operator.handle, context, request))
        if not isinstance(response, StreamingResponse):
            return response
        streams = self._embedding.open_streams
        if in_thread:
            can_wait = can_wait and sum(stream.in_thread for stream in streams) < self._options.wsgi_streams
        stream = LoopStream(response, max_live_s=MAX_LIVE_S if can_wait else 0.0, in_thread=in_thread and can_wait)
        streams.add(stream)
        stream.task.add_done_callback(lambda _: streams.discard(stream))
        return stream
