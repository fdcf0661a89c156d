"""One client connection: receives requests and sends the responses in order.

                   ┌──────────────── requests are answered ────────────────┐
    HANDSHAKE ───► │ IDLE              RECEIVING            QUEUED         │
    (TLS only)     │ nothing is here   part of a request    more than one  │
                   └──┬────────▲──────────────┬────────────────┬───────────┘
         a request to │        │ response     │ invalid, or    │ last response, idle for too long,
      the application ▼        │ sent         ▼ not complete   │ end of input, shutdown
                   HANDLING ───┘          LINGERING in time    │
                      │ it is an event stream │                │
                      ▼                       │                ▼
                   STREAMING ─────────────────┼───────────► CLOSING
                                              │                │
                                              └──► CLOSED ◄────┘

The path of a request: `data_received`, `_receive`, `_answer_next` (parse), `_respond` (route, handle, encode, send,
cache), `_proceed`. A request to the application continues in `_run_handler`, and then in `_proceed`.

The raw bytes of a request are cached, because a load balancer sends the same bytes every time. The cache is used only
between requests, and it stores only bytes that were parsed as exactly one request, without a body, on a connection
that stays open. So the cache never answers bytes that the parser would reject.
"""

from __future__ import annotations

import asyncio
import logging
import os
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, assert_never, cast

from svcnode.api import routing
from svcnode.api.app import StreamingResponse, call_handler
from svcnode.api.spec import METHOD_NOT_ALLOWED, Response, error_response
from svcnode.net.clock import monotonic_s
from svcnode.server.parser import END_OF_HEAD, ParsedRequest, RequestParser
from svcnode.server.streams import EventStream
from svcnode.server.timeouts import TimeoutList

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.api.app import App, Mount
    from svcnode.api.spec import Request
    from svcnode.server.response_cache import MemfdResponse
    from svcnode.server.state import ServerState

log = logging.getLogger("svcnode.server")

REQUEST_TIMEOUT = error_response(408, "Request timeout: the request was not received completely in time")

LARGE_BODY_BYTES = 16 * 1024  # is sent without copying it

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNLISTED = TimeoutList(0.0)


class Phase(Enum):
    HANDSHAKE = auto()  # there is no transport yet
    IDLE = auto()  # every request is answered; only here the next bytes may be in the cache
    RECEIVING = auto()  # part of a request is here
    QUEUED = auto()  # pipelined requests wait for the turn of this connection; reading is paused
    HANDLING = auto()  # the application makes the response; further requests wait
    STREAMING = auto()  # the application writes an event stream; input is discarded
    LINGERING = auto()  # an error response is sent, and the client may still read it; input is discarded
    CLOSING = auto()  # closes when everything is sent
    CLOSED = auto()


_IDLE = Phase.IDLE  # in Python 3.11 it takes a tenth of the time to look up this name, for every cached request
_ANSWERING = (Phase.IDLE, Phase.RECEIVING, Phase.QUEUED)
_DISCARDING = (Phase.STREAMING, Phase.LINGERING, Phase.CLOSING, Phase.CLOSED)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_cache",
        "_fd",
        "_has_eof",
        "_is_write_paused",
        "_mount",
        "_parser",
        "_state",
        "_stream",
        "_task",
        "_transport",
        "_unread_bytes",
        "_user",
        "active_at_s",
        "phase",
        "timeout_list",
    )

    def __init__(self, state: ServerState, mount: Mount) -> None:
        self.phase = Phase.IDLE
        self.timeout_list = _UNLISTED
        self.active_at_s = monotonic_s()  # when the client last sent or read, or the application responded
        self._state = state
        self._cache = state.cache
        self._mount = mount
        self._transport: asyncio.Transport
        self._fd: int | None = None  # of a connection without TLS
        limits, max_body_bytes = state.limits, mount.max_body_bytes
        if max_body_bytes is not None:
            limits = limits._replace(body_bytes=max_body_bytes)
        self._parser = RequestParser(limits, mount.kept_body_bytes)
        self._task: asyncio.Task[None] | None = None  # the TLS handshake, or the handler of the application
        self._stream: EventStream | None = None
        # Not phases: the transport reports both in several phases, which go on.
        self._is_write_paused = False  # the client does not read its responses; until it does, no request is answered
        self._has_eof = False  # the client has closed its sending side, and waits for the response of the application
        self._unread_bytes = 0  # when the client was last seen reading
        self._user = ""  # of the client, if the application asks for it

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        if self.phase is Phase.HANDSHAKE:
            self.phase, self._task = Phase.IDLE, None
        else:
            sock = transport.get_extra_info("socket")
            self._fd = sock.fileno()
            self._state.add_connection(self)
            if self._mount.peer_user is not None:
                self._identify(self._mount.peer_user(sock))

    def _identify(self, user: str | None) -> None:
        if user is None:
            self.abort()
        else:
            self._user = user

    def data_received(self, data: bytes) -> None:
        self.active_at_s = now_s = monotonic_s()
        if self.phase is _IDLE:
            response = self._cache.get(data, now_s)
            if response is not None:
                if type(response) is bytes:
                    self._transport.write(response)
                else:
                    self._send_memfd(cast("MemfdResponse", response))
                if self.timeout_list is not self._state.idle:
                    self._enter(Phase.IDLE)
                return
        if self.phase not in _DISCARDING:
            self._receive(data)

    def eof_received(self) -> bool:
        """A client may close its sending side and still read. True keeps the transport open."""
        if self.phase is Phase.HANDLING:
            self._has_eof = True
            return True
        self.phase = Phase.CLOSING  # the transport closes when everything is sent
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._unread_bytes = self.buffered_bytes
        self._enter(self.phase)
        if self._stream is not None:
            self._stream.pause()
        if self._unread_bytes >= LARGE_BODY_BYTES * 16:
            self._state.enforce_unread_limit()

    def resume_writing(self) -> None:
        if self.phase in (Phase.HANDLING, Phase.STREAMING):
            self._resume()
        else:
            # Not synchronously: asyncio's transport calls connection_lost twice if it is closed inside this callback.
            self._state.loop.call_soon(self._resume)

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase = Phase.CLOSED
        self._state.remove_connection(self)
        if self._task is not None:
            self._task.cancel()

    # ---- called by the server

    def start_tls(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Start the TLS handshake. The connection counts from now on."""
        self.phase = Phase.HANDSHAKE
        self._task = self._state.start_task(self._run_handshake(sock, tls))
        self._task.add_done_callback(partial(self._on_handshake_done, sock))
        self._state.add_connection(self)

    def answer_queued(self, deadline_s: float) -> bool:
        """Answer pipelined requests until the deadline; whether more are left. Connections take turns."""
        while self.phase is Phase.QUEUED and not self._is_write_paused:
            self._answer_next()
            if monotonic_s() >= deadline_s:
                break
        if self.phase is Phase.QUEUED and self._is_write_paused:
            self._enter(Phase.RECEIVING)  # queued again when the client reads
        return self.phase is Phase.QUEUED

    def shutdown(self) -> None:
        """Close, unless a request is in progress; then close after its response."""
        is_idle = self.phase is Phase.IDLE and not self._is_write_paused
        if is_idle or self.phase in (Phase.HANDSHAKE, Phase.STREAMING):
            self.close()

    def close(self) -> None:
        """Close when everything is sent; abort if the client does not read it within `send_s`."""
        if self.phase is Phase.HANDSHAKE:
            self.abort()
        elif self.phase is not Phase.CLOSED:
            if self._task is not None:
                self._task.cancel()
            self._enter(Phase.CLOSING)
            self._transport.close()

    def abort(self) -> None:
        if self.phase is Phase.HANDSHAKE and self._task is not None:
            self._task.cancel()
        else:
            self._transport.abort()

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_reading_slowly(self) -> bool:
        """Whether the client has read something since it was last asked."""
        unread_bytes = self.buffered_bytes
        has_progress = unread_bytes < self._unread_bytes
        self._unread_bytes = unread_bytes
        return has_progress

    def handle_timeout(self) -> None:
        """Answer an incomplete request with 408 and close. If no request was started, only close."""
        if self.phase is Phase.RECEIVING:
            self._refuse(REQUEST_TIMEOUT)
        else:
            self.close()

    # ---- TLS

    async def _run_handshake(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._state.loop.connect_accepted_socket(
                lambda: self, sock, ssl=tls, ssl_shutdown_timeout=self._state.limits.linger_s
            )
        except OSError as exc:  # includes SSLError
            log.debug("TLS handshake failed: %s", exc)

    def _on_handshake_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        if self.phase is Phase.HANDSHAKE:  # failed: connection_lost will not be called
            sock.close()
            self._state.remove_connection(self)

    # ---- one request, from the received bytes to the response

    def _receive(self, data: bytes) -> None:
        """Answer a single request at once. Pipelined requests wait for the turn of this connection."""
        end = data.find(END_OF_HEAD) + len(END_OF_HEAD)
        is_pipelined = self._parser.is_between_requests and len(END_OF_HEAD) <= end < len(data)
        self._parser.add(data)
        if self.phase in (Phase.QUEUED, Phase.HANDLING) or self._is_write_paused:
            self._transport.pause_reading()
        elif is_pipelined or self._answer_next():
            self._proceed()

    def _answer_next(self) -> bool:
        """Parse and answer the next request; False if more bytes must arrive first."""
        if self.phase is Phase.QUEUED and self._answer_from_cache():
            return True
        parsed = self._parser.next_request()
        if parsed is None:
            if self.phase is not Phase.IDLE or self._parser.is_mid_request:  # otherwise only empty lines were received
                self._wait()
            return False
        if isinstance(parsed, Response):
            self._refuse(parsed)
        else:
            self._respond(parsed)
        return True

    def _answer_from_cache(self) -> bool:
        """Answer a pipelined request whose bytes are cached."""
        head = None if self._state.is_closing else self._parser.next_head()
        response = None if head is None else self._cache.get(head, monotonic_s())
        if head is None or response is None:
            return False
        self._parser.skip(len(head))
        self._transport.write(response)
        return True

    def _respond(self, parsed: ParsedRequest) -> None:
        app, cache = self._mount.app_for(parsed.request), self._cache
        if app is not None:
            self._respond_from_app(app, parsed)
            return
        target = cache.resolve(parsed.request)
        if not parsed.has_known_method:
            self._refuse(cache.current_response(target))
        elif parsed.connection or self._state.is_closing:
            self._send(cache.current_response(target), parsed)
        else:
            self._transport.write(cache.encoded_response(target))
            # A path that is not found may exist in the application of another listener.
            if parsed.cacheable_bytes is not None and target.handler != routing.NOT_FOUND_HANDLER:
                cache.put(parsed.cacheable_bytes, target)

    def _send(self, response: Response, parsed: ParsedRequest) -> None:
        """A large body is written apart from its head, so that clients that do not read share one copy of it."""
        connection = "close" if self._state.is_closing else parsed.connection
        is_head = parsed.request.method == "HEAD"
        is_large = len(response.body) >= LARGE_BODY_BYTES and not is_head
        self._transport.write(self._cache.encode(response, is_head=is_head or is_large, connection=connection))
        if is_large:
            self._transport.write(response.body)
        if connection == "close":
            self.close()

    def _send_memfd(self, response: MemfdResponse) -> None:
        """Send from the memory file if the transport's buffer is empty; the transport sends the rest."""
        sent_bytes = 0
        if self._fd is not None and not self._transport.get_write_buffer_size():
            try:
                sent_bytes = os.sendfile(self._fd, response.fd, 0, len(response))
            except OSError:
                sent_bytes = 0  # socket buffer full, or connection closed: the transport handles both
        if sent_bytes < len(response):
            self._transport.write(memoryview(response)[sent_bytes:])

    def _refuse(self, response: Response) -> None:
        """Send an error response and keep the connection open: a reset would discard what the client has not read."""
        is_head = self._parser.is_head_method
        self._transport.write(self._cache.encode(response, is_head=is_head, connection="close"))
        if self._transport.can_write_eof():  # TLS connections cannot be half-closed
            self._transport.write_eof()
        self._enter(Phase.LINGERING)

    # ---- requests to the application

    def _respond_from_app(self, app: App, parsed: ParsedRequest) -> None:
        if not parsed.has_known_method:
            self._refuse(METHOD_NOT_ALLOWED)  # before its headers are here, which may be needed for access
        elif (rejection := app.rejection(parsed.request)) is not None:
            self._send(rejection, parsed)
        else:
            self._task = self._state.start_task(self._run_handler(app, parsed))
            self._enter(Phase.HANDLING)

    async def _run_handler(self, app: App, parsed: ParsedRequest) -> None:
        request = parsed.request._replace(user=self._user) if self._user else parsed.request
        response = await call_handler(partial(app.handle, request))
        if isinstance(response, StreamingResponse):
            await self._run_stream(response, app, parsed.request)
            self._task = None
            self.close()
        elif not self._transport.is_closing():
            self._task = None
            self.active_at_s = monotonic_s()
            self._enter(Phase.RECEIVING)
            self._send(response, parsed)
            self._proceed()

    async def _run_stream(self, response: StreamingResponse, app: App, request: Request) -> None:
        self._stream = EventStream(self._transport, self.close)
        self._enter(Phase.STREAMING)
        self._transport.write(self._cache.encode(response.head, connection="close"))
        if request.method != "HEAD" and app is self._mount.app and not self._state.is_closing:
            await self._stream.run(response, self._mount)

    # ---- from one phase to the next

    def _proceed(self) -> None:
        """After a response: queue the next requests, or wait for them."""
        if self._is_write_paused or self.phase not in _ANSWERING:
            return  # called again when the client has read, or the application has responded
        if self._has_eof:
            self.close()
        elif not self._parser.unparsed_bytes:
            self._wait()
        elif self.phase is not Phase.QUEUED:
            self._enter(Phase.QUEUED)
            self._state.enqueue(self)

    def _wait(self) -> None:
        """Wait for the next request, or for the rest of one."""
        if self._parser.is_mid_request:
            if self.phase is not Phase.RECEIVING:  # otherwise each part would extend its time limit
                self._enter(Phase.RECEIVING)
            if self._parser.take_continue():
                self._transport.write(_CONTINUE)
        elif self._state.is_closing:
            self.close()
        elif self.phase is not Phase.IDLE or self.timeout_list is not self._state.idle:
            self._enter(Phase.IDLE)

    def _resume(self) -> None:
        self._is_write_paused = False
        if self._transport.is_closing():
            return
        self.active_at_s = monotonic_s()
        self._enter(self.phase)
        if self._stream is not None:
            self._stream.resume()
        self._proceed()

    def _enter(self, phase: Phase) -> None:
        """The only place that changes the time limit of the connection, and whether it reads from the client."""
        self.phase = phase
        self._timeout_list_of_phase().add(self, monotonic_s())
        is_waiting = phase is Phase.QUEUED or (phase is Phase.HANDLING and self._parser.unparsed_bytes)
        # The input of a client that was refused is read and discarded: left unread, it would cause a reset.
        if phase is Phase.LINGERING or not (self._is_write_paused or is_waiting):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _timeout_list_of_phase(self) -> TimeoutList:  # noqa: PLR0911  one per list
        state = self._state
        if self._is_write_paused:
            return state.sending
        match self.phase:
            case Phase.HANDSHAKE:
                return state.silent
            case Phase.IDLE | Phase.QUEUED:
                return state.idle
            case Phase.RECEIVING:
                return state.receiving
            case Phase.HANDLING | Phase.STREAMING:
                return state.handling
            case Phase.LINGERING:
                return state.lingering
            case Phase.CLOSING | Phase.CLOSED:
                return state.sending
            case _:
                assert_never(self.phase)
