"""The HTTP server: listeners, timeouts, shutdown."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from svcnode.api.app import Mount
from svcnode.core.text import os_error_text
from svcnode.server.connection import Connection
from svcnode.server.response_cache import ResponseCache
from svcnode.server.state import ServerLimits, ServerState

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.api.cors import CorsPolicy
    from svcnode.node.node_state import NodeState

log = logging.getLogger("svcnode.server")

BACKLOG = 1024
ACCEPT_RETRY_S = 1.0


class HttpServer:
    """Serves one node on any number of listeners. Create and use it on the thread of the running event loop."""

    def __init__(
        self,
        node: NodeState,
        prefixes: tuple[str, ...],
        limits: ServerLimits | None = None,
        cors: CorsPolicy | None = None,
    ) -> None:
        self.state = ServerState(ResponseCache(node, prefixes, cors=cors), limits or ServerLimits())
        self._listeners: dict[socket.socket, asyncio.Server | _TlsListener] = {}

    def set_routing(self, prefixes: tuple[str, ...], cors: CorsPolicy | None) -> None:
        self.state.cache.set_routing(prefixes, cors)

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None, mount: Mount | None = None) -> None:
        """Accept connections on a bound socket. The server owns the socket from now on."""
        mount = mount or Mount()
        sock.listen(BACKLOG)  # the event loop would close the socket and report nothing if this fails
        if tls is None:
            self._listeners[sock] = await self.state.loop.create_server(
                lambda: Connection(self.state, mount), sock=sock, backlog=BACKLOG
            )
        else:
            self._listeners[sock] = _TlsListener(self.state, sock, tls, mount)

    def stop_listening(self, sock: socket.socket) -> None:
        """Close a listener. Its open connections stay open."""
        self._listeners.pop(sock).close()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, let requests in progress finish, and close every connection."""
        state = self.state
        for sock in list(self._listeners):
            self.stop_listening(sock)
        await state.wait_new_connections()
        state.is_closing = True
        for connection in state.connections():
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await state.wait_all_closed()
        if state.connection_count:
            log.warning(
                "shutdown: %d connections still open after %g s; closing them",
                state.connection_count,
                grace_s,
                extra={"event": "connections_aborted", "connections": state.connection_count},
            )
            self.abort()
            await state.wait_all_closed()
        await state.wait_tasks_done()
        state.cancel_tick()

    def abort(self) -> None:
        """Close every connection, without what is not sent yet."""
        for connection in self.state.connections():
            connection.abort()


class _TlsListener:
    """Accepts connections that begin with a TLS handshake.

    The event loop's own listener reports a connection only after its handshake, so that connections with an unfinished
    handshake would have no limit and no timeout.
    """

    def __init__(self, state: ServerState, sock: socket.socket, tls: ssl.SSLContext, mount: Mount) -> None:
        self._state = state
        self._mount = mount
        self._sock = sock
        self._tls = tls
        self._retry_timer: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._start_accepting()

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._state.loop.remove_reader(self._sock)
        self._sock.close()

    def _start_accepting(self) -> None:
        self._state.loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has already closed
        except OSError as exc:  # usually no file descriptors left; the next attempt would fail at once
            extra = {"event": "accept_failed", "errno": exc.errno}
            log.error("accept failed, retrying in %g s: %s", ACCEPT_RETRY_S, os_error_text(exc), extra=extra)  # noqa: TRY400  no traceback
            self._state.loop.remove_reader(self._sock)
            self._retry_timer = self._state.loop.call_later(ACCEPT_RETRY_S, self._start_accepting)
            return
        sock.setblocking(False)
        Connection(self._state, self._mount).start_tls(sock, self._tls)
