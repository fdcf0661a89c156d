"""One client of the wire server: reads requests through httptools, answers them in order.

There is one shortcut. A load balancer sends the same bytes for ever, so the raw bytes of a whole request are remembered
with what they parsed to. The shortcut is taken only between requests, and only bytes that were seen to be exactly one
request, without a body, on a connection that stays open, are remembered: it cannot answer what the parser would not.

A client that does not read its answers is not read from either, nor one that visits a surface until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from svcnode.api import routing
from svcnode.api.app import OperatorRequest
from svcnode.api.spec import INTERNAL_ERROR, NOT_FOUND, Response, StaticResponse, error_response
from svcnode.clock import monotonic_s
from svcnode.server.parser import ParsedRequest, RequestParser
from svcnode.server.timeouts import TimeoutList

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.api.app import App, Mount
    from svcnode.server.response_cache import MemfdResponse
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode.server")

REQUEST_TIMEOUT = error_response(408, "Request timeout: the request did not arrive whole in time")
HANDLER_TIMED_OUT = error_response(503, "The answer could not be made in time")
NOT_FOUND_HANDLER = StaticResponse(NOT_FOUND)

HANDLER_TIMEOUT_S = 30.0  # what is beyond the interface

MAX_PARSE_BYTES = 4096

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNLISTED = TimeoutList(0.0)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_can_use_cache",
        "_drain_waiter",
        "_fd",
        "_final_response",
        "_handler_task",
        "_handshake",
        "_is_input_closed",
        "_is_reading",
        "_is_streaming",
        "_is_write_paused",
        "_mount",
        "_parser",
        "_pending",
        "_server",
        "_transport",
        "_unparsed",
        "active_at_s",
        "timeout_list",
    )

    def __init__(self, server: HttpServer, mount: Mount) -> None:
        self.timeout_list = _UNLISTED
        self.active_at_s = monotonic_s()
        self._server = server
        self._mount = mount
        self._handshake: asyncio.Task[None] | None = None  # until there is a transport
        self._transport: asyncio.Transport
        self._fd: int | None = None  # where plain bytes may be sent to
        self._parser: RequestParser | None = None  # from the first request that has to be parsed
        self._pending: deque[ParsedRequest] = deque()
        self._can_use_cache = True  # between requests, and more of them are welcome
        self._is_input_closed = False  # nothing more is read as a request
        self._final_response: Response | None = None
        self._is_write_paused = False
        self._is_reading = True
        self._unparsed = b""  # has arrived, and waits for its turn
        self._handler_task: asyncio.Task[None] | None = None  # while an answer is being made that takes its time
        self._is_streaming = False
        self._drain_waiter: asyncio.Future[None] | None = None  # what a stream waits for

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in deed, not by name
        if self._handshake is None:
            self._fd = transport.get_extra_info("socket").fileno()
            self._server.add_connection(self)
        self._handshake = None

    def data_received(self, data: bytes) -> None:
        self.active_at_s = now_s = monotonic_s()
        if self._can_use_cache:
            response = self._server.cache.get(data, now_s)
            if response is not None:
                if type(response) is bytes:
                    self._transport.write(response)
                else:
                    self._send_memfd(cast("MemfdResponse", response))
                if self.timeout_list is not self._server.idle and not self._is_write_paused:
                    self._become_idle()
                return
        if not self._is_input_closed:  # what a refused client still sends is not looked at
            self._read(data)

    def eof_received(self) -> bool:
        # A client may close its half and still read: what it has asked for is answered first.
        self._close_input()
        return bool(self._pending) or (self._handler_task is not None and not self._is_streaming)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._update_read_flow()
        self._server.sending.add(self, monotonic_s())

    def resume_writing(self) -> None:
        if self._handler_task is not None:
            self._resume_stream()
        else:
            # Not in here: asyncio's transport, when it is closed by the one that it tells this, ends twice.
            self._server.loop.call_soon(self._resume_sending)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.clear()
        self._unparsed = b""
        self._server.remove_connection(self)
        if self._handler_task is not None:
            self._handler_task.cancel()

    # ---- called by the server

    def start_tls(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Begin with TLS. Who never ends it counts as a connection all the same."""
        self._handshake = self._server.loop.create_task(self._run_handshake(sock, tls))
        self._handshake.add_done_callback(partial(self._on_handshake_done, sock))
        self._server.add_connection(self)

    def shutdown(self) -> None:
        """Close, unless a request is under way: its answer will be the last."""
        if self._is_streaming or (self._can_use_cache and not self._is_write_paused):
            self.close()

    def close(self) -> None:
        """Close when everything is sent; who does not take it is cut like any other that has stopped reading."""
        if self._handler_task is not None:
            self._handler_task.cancel()
        if self._handshake is None:
            self._server.sending.add(self, monotonic_s())
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        if self._handshake is None:
            self._transport.abort()
        else:
            self._handshake.cancel()

    def handle_timeout(self) -> None:
        """Give up on the request that is arriving. A client that has not begun one is not told of any."""
        if self._can_use_cache or self._is_input_closed:
            self.close()
        else:
            self._close_input()
            self._final_response = REQUEST_TIMEOUT
            self._send_pending()

    # ---- reading

    async def _run_handshake(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._server.loop.connect_accepted_socket(
                lambda: self, sock, ssl=tls, ssl_shutdown_timeout=self._server.limits.linger_s
            )
        except OSError as exc:  # an SSLError is one, too
            log.debug("TLS handshake failed: %s", exc)

    def _on_handshake_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        if self._handshake is not None:  # it led to nothing, and nobody else will say so
            sock.close()
            self._server.remove_connection(self)

    def _read(self, data: bytes) -> None:
        """Read a little at a time: who sends thousands of requests at once must not keep the others waiting."""
        if self._handler_task is not None:
            self._unparsed += data
            self._update_read_flow()
            return
        self._parse(data[:MAX_PARSE_BYTES])
        self._unparsed = b"" if self._is_input_closed else data[MAX_PARSE_BYTES:]
        if self._unparsed:
            self._server.loop.call_soon(self._resume_parsing)
        self._update_read_flow()

    def _resume_parsing(self) -> None:
        if not self._is_write_paused and self._handler_task is None:  # or else when that is over
            if self._unparsed:
                self._read(self._unparsed)
            self._update_read_flow()

    def _update_read_flow(self) -> None:
        is_wanted = not (self._is_write_paused or self._unparsed)
        if is_wanted != self._is_reading:
            self._is_reading = is_wanted
            if is_wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = RequestParser(self._server, self._mount)
        reader, was_between_requests = self._parser, self._can_use_cache
        asked = reader.feed(data)
        self._pending.extend(asked)
        self._final_response = reader.error_response
        if reader.is_done:
            self._close_input()
        else:
            self._can_use_cache = reader.is_between_requests
        if reader.is_mid_request and (asked or self.timeout_list is self._server.idle):
            self._server.receiving.add(self, self.active_at_s)
        elif len(asked) == 1 and was_between_requests and self._can_use_cache:
            self._cache_request(data, asked[0])
        self._send_pending()

    def _cache_request(self, raw_request: bytes, parsed: ParsedRequest) -> None:
        if (
            parsed.has_body
            or parsed.is_http_1_0
            or self._server.is_closing
            or isinstance(parsed.target, OperatorRequest)
        ):
            return
        if parsed.target.handler != NOT_FOUND_HANDLER:  # here and now: another listener may have a surface there
            self._server.cache.put(raw_request, parsed.target)

    def _close_input(self) -> None:
        self._is_input_closed = True
        self._can_use_cache = False

    # ---- answering

    def _send_pending(self) -> None:
        """Answer what has been asked, as far as the client reads on."""
        while self._pending and not self._is_write_paused and self._handler_task is None:
            asked = self._pending.popleft()
            if isinstance(asked.target, OperatorRequest):
                self._dispatch(asked, asked.target)
            else:
                self._transport.write(self._server.cache.encoded_response(asked.target, self._connection_header(asked)))
        if self._is_write_paused or self._handler_task is not None:
            return  # the rest follows when the client has read, or has its answer
        if self._final_response is not None:
            self._send_final(self._final_response)
        elif self._is_input_closed or (self._can_use_cache and self._server.is_closing):
            self.close()
        elif self._can_use_cache:
            self._become_idle()
        elif self._parser is not None and self._parser.take_continue():
            self._transport.write(_CONTINUE)

    def _resume_sending(self) -> None:
        self._is_write_paused = False
        if not self._transport.is_closing():
            self._server.receiving.add(self, monotonic_s())
            self._send_pending()
            self._resume_parsing()

    def _send_memfd(self, response: MemfdResponse) -> None:
        """Straight from memory to the socket, if nothing is before it in the queue; what is left takes the long way."""
        sent_bytes = 0
        if self._fd is not None and not self._transport.get_write_buffer_size():
            try:
                sent_bytes = os.sendfile(self._fd, response.fd, 0, len(response))
            except OSError:
                sent_bytes = 0  # full, or gone: the transport will find out which
        if sent_bytes < len(response):
            self._transport.write(memoryview(response)[sent_bytes:])

    def _connection_header(self, parsed: ParsedRequest) -> str:
        """What is said of the connection in an answer; nothing where it stays, as it does by itself in HTTP/1.1."""
        if parsed.keep_alive and not self._server.is_closing:
            return "keep-alive" if parsed.is_http_1_0 else ""
        self._close_input()
        self._pending.clear()
        self._final_response = None
        return "close"

    def _send_final(self, response: Response) -> None:
        """Refuse, and leave the line open for a moment: a reset would destroy the answer before it is read."""
        self._final_response = None
        is_head = self._parser is not None and self._parser.is_head_request
        self._transport.write(self._server.cache.encode(response, is_head=is_head, connection="close"))
        if self._transport.can_write_eof():  # TLS has no such half-way house
            self._transport.write_eof()
        self._server.lingering.add(self, monotonic_s())

    def _become_idle(self) -> None:
        self._server.idle.add(self, self.active_at_s)

    # ---- visits to a surface

    def _dispatch(self, parsed: ParsedRequest, request: OperatorRequest) -> None:
        surface = self._mount.app
        refusal = NOT_FOUND if surface is None else surface.rejection(request)
        if surface is None or refusal is not None:
            self._send_response(refusal or NOT_FOUND, parsed, request)
            return
        self._can_use_cache = False
        self._handler_task = self._server.start_handler(self._run_handler(surface, parsed, request))
        self._handler_task.add_done_callback(self._on_handler_done)
        self._server.handling.add(self, monotonic_s())

    async def _run_handler(self, app: App, parsed: ParsedRequest, request: OperatorRequest) -> None:
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S) as deadline:
                answer = await app.handle(request)
        except Exception as exc:  # noqa: BLE001  a client gets a plain failure, the log gets the cause
            failure = HANDLER_TIMED_OUT if deadline.expired() else INTERNAL_ERROR
            answer = Response(failure.code, failure.body, failure.headers, cause=exc)
        if isinstance(answer, Response):
            self._send_response(routing.log_failure(answer), parsed, request)
            return
        self._close_input()
        self._pending.clear()
        self._is_streaming = True
        self._transport.write(self._server.cache.encode(answer.head, connection="close"))
        if request.method != "HEAD" and app is self._mount.app and not self._server.is_closing:
            with self._mount.track_stream(self):
                await answer.write_body(self)

    def _send_response(self, response: Response, parsed: ParsedRequest, request: OperatorRequest) -> None:
        connection = self._connection_header(parsed)
        is_head = request.method == "HEAD"
        self._transport.write(self._server.cache.encode(response, is_head=is_head, connection=connection))

    def _on_handler_done(self, task: asyncio.Task[None]) -> None:
        self._handler_task = None
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("a stream ended in the middle", exc_info=exc)
        if task.cancelled() or self._transport.is_closing():  # the client has left, or is about to
            return
        if not self._is_write_paused:
            self._server.receiving.add(self, monotonic_s())  # the next request may have begun to arrive
        self._can_use_cache = not self._is_input_closed and (self._parser is None or self._parser.is_between_requests)
        self._send_pending()
        self._resume_parsing()

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)  # others have their turn, and a stream that never waits is told when its client has left
        if self._is_write_paused:
            self._drain_waiter = self._server.loop.create_future()
            await self._drain_waiter

    def _resume_stream(self) -> None:
        self._is_write_paused = False
        self._server.handling.add(self, monotonic_s())
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)
