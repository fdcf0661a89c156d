"""One client of the wire server: reads requests through httptools, answers them in order.

There is one shortcut. A load balancer sends the same bytes for ever, so the raw bytes of a whole request are remembered
with what they parsed to. The shortcut is taken only between requests, and only bytes that were seen to be exactly one
request, without a body, on a connection that stays open, are remembered: it cannot answer what the parser would not.

A client that does not read its answers is not read from either.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

import httptools

from svcnode.spec import INTERNAL_ERROR, Answer, error_answer
from svcnode.web.rooms import Room

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.web.answers import LargeResponse, Target
    from svcnode.web.wire import WireServer

log = logging.getLogger("svcnode.web")

BAD_REQUEST = error_answer(400, "Bad request: not well-formed HTTP/1.1")
BAD_HOST = error_answer(400, "Bad request: HTTP/1.1 asks for exactly one Host header")
TIMEOUT = error_answer(408, "Request timeout: the request did not arrive whole in time")
BODY_TOO_LARGE = error_answer(413, "Content too large: no endpoint takes a body")
LINE_TOO_LONG = error_answer(414, "URI too long")
HEAD_TOO_LARGE = error_answer(431, "Request header fields too large")
VERSION_NOT_SUPPORTED = error_answer(505, "HTTP version not supported; use HTTP/1.1 or HTTP/1.0")

BYTES_PER_TURN = 4096

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WIRE_BYTES_PER_BODY_BYTE = 8  # more than the smallest chunks need; the rest is padding, to fill our memory
_NOWHERE = Room(0.0)
# A request line that is well-formed but for a method that the parser has never heard of.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S{1,4096}) HTTP/1\.[01]\r?\n")


class _RefusedError(Exception):
    """Raised in a callback of the parser to end the reading."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.code)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class _Asked:
    """A whole request that waits for its answer."""

    target: Target
    stays_open: bool
    is_http_1_0: bool


class _Head:
    """What is kept of a request while it arrives."""

    __slots__ = (
        "byte_count",
        "has_body",
        "header_count",
        "host_count",
        "is_complete",
        "url",
        "wants_continue",
    )

    def __init__(self) -> None:
        self.url = b""
        self.byte_count = 0
        self.header_count = 0
        self.host_count = 0
        self.has_body = False
        self.wants_continue = False
        self.is_complete = False


class Connection(asyncio.Protocol):
    __slots__ = (
        "_arrived_bytes",
        "_asked",
        "_body_bytes",
        "_can_recall",
        "_handshake",
        "_head",
        "_is_ending",
        "_is_reading",
        "_is_write_paused",
        "_last_word",
        "_parser",
        "_server",
        "_socket_number",
        "_transport",
        "_unread",
        "active_at_s",
        "room",
    )

    def __init__(self, server: WireServer) -> None:
        self.room = _NOWHERE
        self.active_at_s = monotonic()
        self._server = server
        self._handshake: asyncio.Task[None] | None = None  # until there is a transport
        self._transport: asyncio.Transport
        self._socket_number: int | None = None  # where plain bytes may be sent to
        self._parser: httptools.HttpRequestParser | None = None
        self._head = _Head()
        self._body_bytes = 0
        self._arrived_bytes = 0  # of the request that is arriving
        self._asked: deque[_Asked] = deque()
        self._can_recall = True  # between requests, and more of them are welcome
        self._is_ending = False  # nothing more is read as a request
        self._last_word: Answer | None = None
        self._is_write_paused = False
        self._is_reading = True
        self._unread = b""  # has arrived, and waits for its turn

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in deed, not by name
        if self._handshake is None:
            self._socket_number = transport.get_extra_info("socket").fileno()
            self._server.admit(self)
        self._handshake = None

    def data_received(self, data: bytes) -> None:
        self.active_at_s = now_s = monotonic()
        if self._can_recall:
            response = self._server.answers.recall(data, now_s)
            if response is not None:
                if type(response) is bytes:
                    self._transport.write(response)
                else:
                    self._send_large(cast("LargeResponse", response))
                if self.room is not self._server.idle and not self._is_write_paused:
                    self._settle_down()
                return
        if not self._is_ending:  # what a refused client still sends is not looked at
            self._read(data)

    def eof_received(self) -> bool:
        # A client may close its half and still read: what it has asked for is answered first.
        self._stop_reading_requests()
        return bool(self._asked)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._read_no_more_than_wanted()
        self._server.sending.enter(self, monotonic())

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._server.receiving.enter(self, monotonic())
        self._answer()
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._asked.clear()
        self._unread = b""
        self._server.leave(self)

    # ---- called by the server

    def shake_hands(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Begin with TLS. Who never ends it counts as a connection all the same."""
        self._handshake = self._server.loop.create_task(self._shake_hands(sock, tls))
        self._handshake.add_done_callback(partial(self._after_handshake, sock))
        self._server.admit(self)

    def finish(self) -> None:
        """Close, unless a request is under way: its answer will be the last."""
        if self._can_recall and not self._is_write_paused:
            self.close()

    def close(self) -> None:
        """Close when everything is sent; who does not take it is cut like any other that has stopped reading."""
        if self._handshake is None:
            self._server.sending.enter(self, monotonic())
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        if self._handshake is None:
            self._transport.abort()
        else:
            self._handshake.cancel()

    def time_out(self) -> None:
        """Give up on the request that is arriving. A client that has not begun one is not told of any."""
        if self._can_recall or self._is_ending:
            self.close()
        else:
            self._refuse(TIMEOUT)
            self._answer()

    # ---- reading

    async def _shake_hands(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._server.loop.connect_accepted_socket(
                lambda: self, sock, ssl=tls, ssl_shutdown_timeout=self._server.limits.linger_s
            )
        except OSError as exc:  # an SSLError is one, too
            log.debug("TLS handshake failed: %s", exc)

    def _after_handshake(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        if self._handshake is not None:  # it led to nothing, and nobody else will say so
            sock.close()
            self._server.leave(self)

    def _read(self, data: bytes) -> None:
        """Read a little at a time: who sends thousands of requests at once must not keep the others waiting."""
        self._parse(data[:BYTES_PER_TURN])
        self._unread = b"" if self._is_ending else data[BYTES_PER_TURN:]
        if self._unread:
            self._server.loop.call_soon(self._read_on)
        self._read_no_more_than_wanted()

    def _read_on(self) -> None:
        if not self._is_write_paused:  # or else when that is over
            if self._unread:
                self._read(self._unread)
            self._read_no_more_than_wanted()

    def _read_no_more_than_wanted(self) -> None:
        is_wanted = not (self._is_write_paused or self._unread)
        if is_wanted != self._is_reading:
            self._is_reading = is_wanted
            if is_wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        was_between_requests = self._can_recall
        asked_before = len(self._asked)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_reading_requests()  # the request stands; the other protocol is not spoken here
        except httptools.HttpParserCallbackError as exc:
            self._refuse(_refusal_behind(exc))
        except httptools.HttpParserInvalidMethodError:
            is_first_in_data = was_between_requests and len(self._asked) == asked_before
            self._refuse(self._answer_to_strange_method(data) if is_first_in_data else BAD_REQUEST)
        except httptools.HttpParserError:
            if not self._is_ending:  # what follows a "Connection: close" is of no concern
                self._refuse(BAD_REQUEST)
        asked_now = len(self._asked) - asked_before
        if not (self._can_recall or self._is_ending):
            self._wait_for_more(len(data), is_behind_another=asked_now > 0)
        elif asked_now == 1 and was_between_requests and self._can_recall:
            self._remember(data)
        self._answer()

    def _wait_for_more(self, byte_count: int, *, is_behind_another: bool) -> None:
        """See to it that the rest of a request comes in time and is not too much."""
        if is_behind_another or self.room is self._server.idle:
            self._server.receiving.enter(self, self.active_at_s)
        if not is_behind_another:  # how many of these bytes are its own is not known then
            self._arrived_bytes += byte_count
        head, limits = self._head, self._server.limits
        body_bytes = _WIRE_BYTES_PER_BODY_BYTE * limits.body_bytes if head.is_complete else 0
        if self._arrived_bytes > limits.head_bytes + body_bytes:
            self._refuse(BODY_TOO_LARGE if head.is_complete else HEAD_TOO_LARGE)

    def _remember(self, raw: bytes) -> None:
        asked = self._asked[-1]
        if not (self._head.has_body or asked.is_http_1_0 or self._server.is_closing):
            self._server.answers.remember(raw, asked.target)

    def _refuse(self, answer: Answer) -> None:
        self._stop_reading_requests()
        self._last_word = answer

    def _stop_reading_requests(self) -> None:
        self._is_ending = True
        self._can_recall = False

    def _answer_to_strange_method(self, data: bytes) -> Answer:
        found = _REQUEST_LINE.match(data)
        if found is None:
            return BAD_REQUEST
        method, raw_target = found.groups()
        return self._server.answers.answer(self._target(method.decode("ascii"), raw_target))

    def _target(self, method: str, raw_target: bytes) -> Target:
        path, _, query = _origin_form(raw_target).partition(b"?")
        return self._server.answers.target(method, path, query)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        self._can_recall = False
        self._head = _Head()
        self._body_bytes = 0
        self._arrived_bytes = 0

    def on_url(self, part: bytes) -> None:
        head = self._head
        head.url += part
        line_bytes = len(self._parser_now.get_method()) + len(head.url) + len("  HTTP/1.1")
        if line_bytes > self._server.limits.request_line_bytes:
            raise _RefusedError(LINE_TOO_LONG)
        head.byte_count = line_bytes + len("\r\n\r\n")  # its own end and that of the head

    def on_header(self, name: bytes, value: bytes) -> None:
        head, limits = self._head, self._server.limits
        head.header_count += 1
        head.byte_count += len(name) + len(value) + len(": \r\n")
        if head.header_count > limits.headers or head.byte_count > limits.head_bytes:
            raise _RefusedError(HEAD_TOO_LARGE)
        if head.is_complete:
            return  # a trailer
        match name.lower():
            case b"host":
                head.host_count += 1
            case b"content-length":  # the parser lets only digits through
                length = int(value.lstrip(b"0") or b"0")
                head.has_body = length > 0
                if length > limits.body_bytes:
                    raise _RefusedError(BODY_TOO_LARGE)
            case b"transfer-encoding":
                head.has_body = True
            case b"expect":
                head.wants_continue = value.lower() == b"100-continue"
            case _:
                pass

    def on_headers_complete(self) -> None:
        self._head.is_complete = True
        version = self._parser_now.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _RefusedError(VERSION_NOT_SUPPORTED)
        if version == "1.0":
            self._head.wants_continue = False  # it has no such thing
        elif self._head.host_count != 1:
            raise _RefusedError(BAD_HOST)

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._server.limits.body_bytes:
            raise _RefusedError(BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        parser = self._parser_now
        stays_open = parser.should_keep_alive() and not parser.should_upgrade()
        target = self._target(parser.get_method().decode("ascii"), self._head.url)
        self._asked.append(_Asked(target, stays_open, parser.get_http_version() == "1.0"))
        if stays_open:
            self._can_recall = True
        else:
            self._stop_reading_requests()

    @property
    def _parser_now(self) -> httptools.HttpRequestParser:
        assert self._parser is not None, "only the parser itself leads here"
        return self._parser

    # ---- answering

    def _answer(self) -> None:
        """Answer what has been asked, as far as the client reads on."""
        while self._asked and not self._is_write_paused:
            self._transport.write(self._response_to(self._asked.popleft()))
        if self._is_write_paused:
            return  # the rest follows when the client has read
        if self._last_word is not None:
            self._say(self._last_word)
        elif self._is_ending or (self._can_recall and self._server.is_closing):
            self.close()
        elif self._can_recall:
            self._settle_down()
        else:
            self._invite_body()

    def _send_large(self, response: LargeResponse) -> None:
        """Straight from memory to the socket, if nothing is before it in the queue; what is left takes the long way."""
        sent_bytes = 0
        if self._socket_number is not None and not self._transport.get_write_buffer_size():
            with suppress(OSError):  # full, or gone: the transport will find out which
                sent_bytes = os.sendfile(self._socket_number, response.file, 0, len(response))
        if sent_bytes < len(response):
            self._transport.write(memoryview(response)[sent_bytes:])

    def _response_to(self, asked: _Asked) -> bytes:
        stays_open = asked.stays_open and not self._server.is_closing
        if not stays_open:
            self._stop_reading_requests()
            self._asked.clear()
            self._last_word = None
        elif not asked.is_http_1_0:
            return self._server.answers.response(asked.target)
        return self._server.answers.response(asked.target, "keep-alive" if stays_open else "close")

    def _say(self, last_word: Answer) -> None:
        """Refuse, and leave the line open for a moment: a reset would destroy the answer before it is read."""
        self._last_word = None
        self._transport.write(self._server.answers.encode(last_word, connection="close"))
        if self._transport.can_write_eof():  # TLS has no such half-way house
            self._transport.write_eof()
        self._server.lingering.enter(self, monotonic())

    def _invite_body(self) -> None:
        if self._head.wants_continue and self._head.is_complete:
            self._head.wants_continue = False
            self._transport.write(_CONTINUE)

    def _settle_down(self) -> None:
        self._server.idle.enter(self, self.active_at_s)


def _refusal_behind(exc: BaseException) -> Answer:
    cause = exc.__context__
    if isinstance(cause, _RefusedError):
        return cause.answer
    log.error("reading a request failed", exc_info=cause)
    return INTERNAL_ERROR


def _origin_form(raw_target: bytes) -> bytes:
    """Path and query of a target in absolute form; any other form stays as it is."""
    if raw_target.startswith(b"/") or b"://" not in raw_target:
        return raw_target
    try:
        url = httptools.parse_url(raw_target)
    except httptools.HttpParserInvalidURLError:
        return raw_target
    return (url.path or b"/") + (b"?" + url.query if url.query else b"")
