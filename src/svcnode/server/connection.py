"""One client connection: parses requests and sends the responses in order.

The raw bytes of a request are cached, because a load balancer sends the same bytes every time. The cache is used only
between requests, and it stores only bytes that were parsed as exactly one request, without a body, on a connection
that stays open. So the cache never answers bytes that the parser would reject.

The connection stops reading from a client that does not read its responses, and while a handler task runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from svcnode.api import routing
from svcnode.api.app import OperatorRequest
from svcnode.api.spec import INTERNAL_ERROR, NOT_FOUND, Response, error_response
from svcnode.clock import monotonic_s
from svcnode.server.parser import METHOD_CHAR, ParsedRequest, RequestParser
from svcnode.server.timeouts import TimeoutList

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.api.app import App, Mount
    from svcnode.server.response_cache import MemfdResponse, ResolvedRequest
    from svcnode.server.state import ServerState

log = logging.getLogger("svcnode.server")

REQUEST_TIMEOUT = error_response(408, "Request timeout: the request was not received completely in time")
HANDLER_TIMED_OUT = error_response(503, "Timeout: the server did not complete the response in time")

HANDLER_TIMEOUT_S = 30.0
LARGE_BODY_BYTES = 16 * 1024  # is sent without copying it

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_LINES = re.compile(rb"\n\r?\n")
_EMPTY_LINE = re.compile(rb"\r?\n")
_EMPTY_LINES = re.compile(rb"(?:\r?\n)*")
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
        "_is_queued",
        "_is_reading",
        "_is_refused",
        "_is_streaming",
        "_is_write_paused",
        "_mount",
        "_parsed_to",
        "_parser",
        "_pending",
        "_state",
        "_transport",
        "_unparsed",
        "_unread_bytes",
        "active_at_s",
        "timeout_list",
    )

    def __init__(self, state: ServerState, mount: Mount) -> None:
        self.timeout_list = _UNLISTED
        self.active_at_s = monotonic_s()
        self._state = state
        self._mount = mount
        self._handshake: asyncio.Task[None] | None = None  # until the TLS handshake is done
        self._transport: asyncio.Transport
        self._fd: int | None = None  # of a connection without TLS
        self._parser: RequestParser | None = None  # from the first request that is not cached
        self._pending: deque[ParsedRequest] = deque()
        self._can_use_cache = True  # between requests, and the input is open
        self._is_input_closed = False  # no further request is parsed
        self._final_response: Response | None = None
        self._is_refused = False  # the final response is sent; further input is read and discarded
        self._is_write_paused = False
        self._is_reading = True
        self._unparsed = b""  # received; from `_parsed_to` on not yet parsed
        self._parsed_to = 0
        self._is_queued = False  # in the backlog of the server
        self._unread_bytes = 0  # when the client was last seen reading
        self._handler_task: asyncio.Task[None] | None = None  # for a request to the application
        self._is_streaming = False
        self._drain_waiter: asyncio.Future[None] | None = None  # set while a stream waits for the client

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        if self._handshake is None:
            self._fd = transport.get_extra_info("socket").fileno()
            self._state.add_connection(self)
        self._handshake = None

    def data_received(self, data: bytes) -> None:
        self.active_at_s = now_s = monotonic_s()
        if self._can_use_cache:
            response = self._state.cache.get(data, now_s)
            if response is not None:
                if type(response) is bytes:
                    self._transport.write(response)
                else:
                    self._send_memfd(cast("MemfdResponse", response))
                if self.timeout_list is not self._state.idle and not self._is_write_paused:
                    self._become_idle()
                return
        if not self._is_input_closed:  # input after an error response is discarded
            self._receive(data)

    def eof_received(self) -> bool:
        # A client may close its sending side and still read: the pending requests are answered first.
        self._close_input()
        return bool(self._pending) or (self._handler_task is not None and not self._is_streaming)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._update_read_flow()
        self._unread_bytes = self.buffered_bytes
        self._state.sending.add(self, monotonic_s())
        if self._unread_bytes >= LARGE_BODY_BYTES * 16:
            self._state.enforce_unread_limit()

    def resume_writing(self) -> None:
        if self._handler_task is not None:
            self._resume_stream()
        else:
            # Not synchronously: asyncio's transport calls connection_lost twice if it is closed inside this callback.
            self._state.loop.call_soon(self._resume_sending)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.clear()
        self._unparsed, self._parsed_to = b"", 0
        self._state.remove_connection(self)
        if self._handler_task is not None:
            self._handler_task.cancel()

    # ---- called by the server

    def start_tls(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Start the TLS handshake. The connection counts from now on."""
        self._handshake = self._state.loop.create_task(self._run_handshake(sock, tls))
        self._handshake.add_done_callback(partial(self._on_handshake_done, sock))
        self._state.add_connection(self)

    def shutdown(self) -> None:
        """Close, unless a request is in progress; then close after its response."""
        if self._is_streaming or (self._can_use_cache and not self._is_write_paused):
            self.close()

    def close(self) -> None:
        """Close when everything is sent; abort if the client does not read it within `send_s`."""
        if self._handler_task is not None:
            self._handler_task.cancel()
        if self._handshake is None:
            self._state.sending.add(self, monotonic_s())
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        if self._handshake is None:
            self._transport.abort()
        else:
            self._handshake.cancel()

    def is_reading_slowly(self) -> bool:
        """Whether the client has read something since it was last asked."""
        unread_bytes = self.buffered_bytes
        has_progress = unread_bytes < self._unread_bytes
        self._unread_bytes = unread_bytes
        return has_progress

    def handle_timeout(self) -> None:
        """Answer an incomplete request with 408 and close. If no request was started, only close."""
        if self._can_use_cache or self._is_input_closed:
            self.close()
        else:
            self._close_input()
            self._final_response = REQUEST_TIMEOUT
            self._send_pending()

    # ---- reading

    async def _run_handshake(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._state.loop.connect_accepted_socket(
                lambda: self, sock, ssl=tls, ssl_shutdown_timeout=self._state.limits.linger_s
            )
        except OSError as exc:  # includes SSLError
            log.debug("TLS handshake failed: %s", exc)

    def _on_handshake_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        if self._handshake is not None:  # failed: connection_lost will not be called
            sock.close()
            self._state.remove_connection(self)

    def _receive(self, data: bytes) -> None:
        """Answer a single request at once. Pipelined requests wait for the turn of this connection."""
        self._unparsed = self._unparsed[self._parsed_to :] + data if self._unparsed else data
        self._parsed_to = 0
        self._can_use_cache = False
        if self.timeout_list is self._state.silent:
            self._state.receiving.add(self, self.active_at_s)
        if self._can_parse and not self._is_queued:
            is_pipelined = self._is_between_requests and 0 <= data.find(_END_OF_HEAD) < len(data) - len(_END_OF_HEAD)
            if is_pipelined or self._parse_next():
                self._resume_parsing()
        self._update_read_flow()

    def parse_backlog(self, deadline_s: float) -> bool:
        """Called by the server, in turn with other connections."""
        while self._can_parse and self._parse_next():
            if monotonic_s() >= deadline_s:
                break
        self._is_queued = self._can_parse and self._has_unparsed and self._has_next()
        self._update_read_flow()
        return self._is_queued

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._state.enqueue(self)

    def _resume_parsing(self) -> None:
        if self._can_parse and self._has_unparsed:  # otherwise it is called again after that
            self._queue()
        self._update_read_flow()

    @property
    def _can_parse(self) -> bool:
        return not (self._is_write_paused or self._is_input_closed or self._handler_task is not None)

    @property
    def _has_unparsed(self) -> bool:
        return self._parsed_to < len(self._unparsed)

    @property
    def _is_between_requests(self) -> bool:
        return self._parser is None or self._parser.is_between_requests

    def _update_read_flow(self) -> None:
        is_waiting = self._is_queued or (self._handler_task is not None and self._has_unparsed)
        should_read = self._is_refused or not (self._is_write_paused or is_waiting)
        if should_read != self._is_reading:
            self._is_reading = should_read
            if should_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _parse_next(self) -> bool:
        """Parse the next request, or as much of it as is here; False if more bytes must arrive first."""
        if self._is_between_requests and self._respond_from_cache():
            return True
        end = self._next_end()
        if end is None:
            return False
        piece = self._unparsed[self._parsed_to : end]
        self._skip_to(end)
        self._parse(piece)
        return True

    def _skip_to(self, end: int) -> None:
        self._parsed_to = end
        if not self._has_unparsed:
            self._unparsed, self._parsed_to = b"", 0

    def _has_next(self) -> bool:
        return self._next_end() is not None

    def _respond_from_cache(self) -> bool:
        """Answer a pipelined request whose bytes are cached."""
        data, start = self._unparsed, self._parsed_to
        end = data.find(_END_OF_HEAD, start) + len(_END_OF_HEAD)
        is_single = not start and end == len(data)  # it was looked up already
        if is_single or end < len(_END_OF_HEAD) or self._state.is_closing:
            return False
        response = self._state.cache.get(data[start:end], monotonic_s())
        if response is None:
            return False
        self._skip_to(end)
        self._can_use_cache = not self._has_unparsed
        self._transport.write(response)
        if not self._is_write_paused:
            self._become_idle()
        return True

    def _next_end(self) -> int | None:
        """The end of the bytes to parse next: whole lines of one head, or bytes of one body.

        So the response does not depend on how the bytes were divided into segments.
        """
        parser = self._parser
        if parser is None or parser.is_between_requests:
            return self._end_of_new_head()
        if parser.is_receiving_head:
            empty_line = _EMPTY_LINE.match(self._unparsed, self._parsed_to)
            return self._end_of_lines(parser.allowed_bytes) if empty_line is None else empty_line.end()
        missing_bytes = parser.missing_body_bytes
        end = len(self._unparsed)
        return end if missing_bytes is None else min(end, self._parsed_to + missing_bytes)

    def _end_of_new_head(self) -> int | None:
        self._skip_to(_EMPTY_LINES.match(self._unparsed, self._parsed_to).end())  # type: ignore[union-attr]  # always matches
        if not self._has_unparsed:
            self._can_use_cache = True
            return None
        data, start = self._unparsed, self._parsed_to
        max_bytes = self._state.limits.request_line_bytes + len("\r")
        is_empty_line = data[start:] == b"\r"  # its second half has not arrived
        is_rejected_at_once = len(data) - start > max_bytes or not (is_empty_line or METHOD_CHAR.match(data, start))
        if data.find(b"\n", start) >= 0:
            return self._end_of_lines(len(data))
        if is_rejected_at_once:
            return len(data)
        if self.timeout_list is self._state.idle:
            self._state.receiving.add(self, self.active_at_s)
        return None

    def _end_of_lines(self, allowed_bytes: int) -> int | None:
        """The end of the head, or of its last whole line; the end of the data if it is larger than allowed."""
        data, start = self._unparsed, self._parsed_to
        if (found := _END_OF_LINES.search(data, start)) is not None:
            return found.end()
        if (end := data.rfind(b"\n", start) + 1) > 0:
            return end
        return len(data) if len(data) - start > allowed_bytes else None

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = RequestParser(self._state.limits, self._state.cache, self._mount)
        parser, was_between_requests = self._parser, self._parser.is_between_requests
        requests = parser.feed(data)
        self._pending.extend(requests)
        self._final_response = parser.error_response
        if parser.is_done:
            self._close_input()
        else:
            self._can_use_cache = parser.is_between_requests and not self._has_unparsed
        if parser.is_mid_request and (requests or self.timeout_list is self._state.idle):
            self._state.receiving.add(self, self.active_at_s)
        elif len(requests) == 1 and was_between_requests and parser.is_between_requests and not parser.is_done:
            self._cache_request(data, requests[0])
        self._send_pending()

    def _cache_request(self, raw_request: bytes, parsed: ParsedRequest) -> None:
        if (
            parsed.has_body
            or parsed.is_http_1_0
            or self._state.is_closing
            or isinstance(parsed.target, OperatorRequest)
        ):
            return
        # A path that is not found may exist in the application of another listener.
        if parsed.target.handler != routing.NOT_FOUND_HANDLER:
            self._state.cache.put(raw_request, parsed.target)

    def _close_input(self) -> None:
        self._is_input_closed = True
        self._can_use_cache = False
        self._unparsed, self._parsed_to = b"", 0

    # ---- writing

    def _send_pending(self) -> None:
        """Send the responses in order, until the client stops reading or a handler task starts."""
        while self._pending and not self._is_write_paused and self._handler_task is None:
            parsed = self._pending.popleft()
            if isinstance(parsed.target, OperatorRequest):
                self._dispatch(parsed, parsed.target)
            else:
                self._respond(parsed, parsed.target)
        if self._is_write_paused or self._handler_task is not None:
            return  # called again when the client has read, or the task is done
        if self._final_response is not None:
            self._send_final(self._final_response)
        elif self._is_refused:
            self._linger()
        elif self._is_input_closed or (self._can_use_cache and self._state.is_closing):
            self.close()
        elif self._is_between_requests:
            self._become_idle()
        elif self._parser is not None and not self._has_unparsed and self._parser.take_continue():
            self._transport.write(_CONTINUE)

    def _respond(self, parsed: ParsedRequest, target: ResolvedRequest) -> None:
        cache, connection = self._state.cache, self._connection_header(parsed)
        if connection:
            self._write_response(cache.current_response(target), is_head=target.is_head, connection=connection)
        else:
            self._transport.write(cache.encoded_response(target))

    def _write_response(self, response: Response, *, is_head: bool, connection: str) -> None:
        """A large body is written apart from its head, so that clients that do not read share one copy of it."""
        is_large = len(response.body) >= LARGE_BODY_BYTES and not is_head
        self._transport.write(self._state.cache.encode(response, is_head=is_head or is_large, connection=connection))
        if is_large:
            self._transport.write(response.body)

    def _resume_sending(self) -> None:
        self._is_write_paused = False
        if not self._transport.is_closing():
            self._state.receiving.add(self, monotonic_s())
            self._send_pending()
            self._resume_parsing()

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

    def _connection_header(self, parsed: ParsedRequest) -> str:
        """The value of the Connection header; empty for keep-alive in HTTP/1.1, where it is the default."""
        if parsed.keep_alive and not self._state.is_closing:
            return "keep-alive" if parsed.is_http_1_0 else ""
        self._close_input()
        self._pending.clear()
        self._final_response = None
        return "close"

    def _send_final(self, response: Response) -> None:
        """Send an error response and keep the connection open: a reset would discard what the client has not read."""
        self._final_response = None
        self._is_refused = True
        is_head = self._parser is not None and self._parser.is_head_request
        self._transport.write(self._state.cache.encode(response, is_head=is_head, connection="close"))
        if self._transport.can_write_eof():  # TLS connections cannot be half-closed
            self._transport.write_eof()
        self._linger()

    def _linger(self) -> None:
        if not self._is_write_paused:  # otherwise it is called again when the client has read
            self._state.lingering.add(self, monotonic_s())
        self._update_read_flow()

    def _become_idle(self) -> None:
        self._state.idle.add(self, self.active_at_s)

    # ---- requests to the application

    def _dispatch(self, parsed: ParsedRequest, request: OperatorRequest) -> None:
        app = self._mount.app  # it may have been replaced since the request was parsed
        rejection = NOT_FOUND if app is None else app.rejection(request)
        if app is None or rejection is not None:
            self._send_response(rejection or NOT_FOUND, parsed, request)
            return
        self._can_use_cache = False
        self._handler_task = self._state.start_handler(self._run_handler(app, parsed, request))
        self._handler_task.add_done_callback(self._on_handler_done)
        self._state.handling.add(self, monotonic_s())

    async def _run_handler(self, app: App, parsed: ParsedRequest, request: OperatorRequest) -> None:
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S) as deadline:
                response = await app.handle(request)
        except Exception as exc:  # noqa: BLE001  the cause goes to the log, not to the client
            failure = HANDLER_TIMED_OUT if deadline.expired() else INTERNAL_ERROR
            response = Response(failure.code, failure.body, failure.headers, cause=exc)
        if isinstance(response, Response):
            self._send_response(routing.log_failure(response), parsed, request)
            return
        self._close_input()
        self._pending.clear()
        self._is_streaming = True
        self._update_read_flow()  # to notice that the client disconnects
        self._transport.write(self._state.cache.encode(response.head, connection="close"))
        if request.method != "HEAD" and app is self._mount.app and not self._state.is_closing:
            with self._mount.track_stream(self):
                await response.write_body(self)

    def _send_response(self, response: Response, parsed: ParsedRequest, request: OperatorRequest) -> None:
        connection = self._connection_header(parsed)
        self._write_response(response, is_head=request.method == "HEAD", connection=connection)

    def _on_handler_done(self, task: asyncio.Task[None]) -> None:
        self._handler_task = None
        if not task.cancelled() and (exc := task.exception()) is not None:
            extra = {"event": "internal_error"}
            log.error("internal error in an event stream; connection closed", exc_info=exc, extra=extra)
        if task.cancelled() or self._transport.is_closing():  # the client has closed, or close() was called
            return
        if not self._is_write_paused:
            self._state.receiving.add(self, monotonic_s())  # part of the next request may be here
        self._can_use_cache = not self._is_input_closed and self._is_between_requests and not self._has_unparsed
        self._send_pending()
        self._resume_parsing()

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)  # let other tasks run, and let the transport report a closed connection
        if self._is_write_paused:
            self._drain_waiter = self._state.loop.create_future()
            await self._drain_waiter

    def _resume_stream(self) -> None:
        self._is_write_paused = False
        self._state.handling.add(self, monotonic_s())
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)
