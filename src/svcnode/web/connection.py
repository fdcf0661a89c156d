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

from svcnode.clock import steady_s
from svcnode.spec import INTERNAL_ERROR, NOT_FOUND, Answer, FixedReply, error_answer
from svcnode.web import site
from svcnode.web.requests import Asked, RequestReader
from svcnode.web.rooms import Room
from svcnode.web.visits import Visit

if TYPE_CHECKING:
    import socket
    import ssl

    from svcnode.web.answers import LargeResponse
    from svcnode.web.visits import Door, Surface
    from svcnode.web.wire import WireServer

log = logging.getLogger("svcnode.web")

TIMEOUT = error_answer(408, "Request timeout: the request did not arrive whole in time")
TOOK_TOO_LONG = error_answer(503, "The answer could not be made in time")
NOTHING_THERE = FixedReply(NOT_FOUND)

ANSWER_WITHIN_S = 30.0  # what is beyond the interface

BYTES_PER_TURN = 4096

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOWHERE = Room(0.0)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_asked",
        "_can_recall",
        "_door",
        "_drained",
        "_handshake",
        "_is_ending",
        "_is_reading",
        "_is_streaming",
        "_is_write_paused",
        "_last_word",
        "_reader",
        "_server",
        "_socket_number",
        "_transport",
        "_unread",
        "_visit",
        "active_at_s",
        "room",
    )

    def __init__(self, server: WireServer, door: Door) -> None:
        self.room = _NOWHERE
        self.active_at_s = steady_s()
        self._server = server
        self._door = door
        self._handshake: asyncio.Task[None] | None = None  # until there is a transport
        self._transport: asyncio.Transport
        self._socket_number: int | None = None  # where plain bytes may be sent to
        self._reader: RequestReader | None = None  # from the first request that has to be parsed
        self._asked: deque[Asked] = deque()
        self._can_recall = True  # between requests, and more of them are welcome
        self._is_ending = False  # nothing more is read as a request
        self._last_word: Answer | None = None
        self._is_write_paused = False
        self._is_reading = True
        self._unread = b""  # has arrived, and waits for its turn
        self._visit: asyncio.Task[None] | None = None  # while an answer is being made that takes its time
        self._is_streaming = False
        self._drained: asyncio.Future[None] | None = None  # what a stream waits for

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in deed, not by name
        if self._handshake is None:
            self._socket_number = transport.get_extra_info("socket").fileno()
            self._server.admit(self)
        self._handshake = None

    def data_received(self, data: bytes) -> None:
        self.active_at_s = now_s = steady_s()
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
        return bool(self._asked) or (self._visit is not None and not self._is_streaming)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._read_no_more_than_wanted()
        self._server.sending.enter(self, steady_s())

    def resume_writing(self) -> None:
        if self._visit is not None:
            self._go_on_streaming()
        else:
            # Not in here: asyncio's transport, when it is closed by the one that it tells this, ends twice.
            self._server.loop.call_soon(self._go_on_answering)

    def connection_lost(self, exc: Exception | None) -> None:
        self._asked.clear()
        self._unread = b""
        self._server.leave(self)
        if self._visit is not None:
            self._visit.cancel()

    # ---- called by the server

    def shake_hands(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        """Begin with TLS. Who never ends it counts as a connection all the same."""
        self._handshake = self._server.loop.create_task(self._shake_hands(sock, tls))
        self._handshake.add_done_callback(partial(self._after_handshake, sock))
        self._server.admit(self)

    def finish(self) -> None:
        """Close, unless a request is under way: its answer will be the last."""
        if self._is_streaming or (self._can_recall and not self._is_write_paused):
            self.close()

    def close(self) -> None:
        """Close when everything is sent; who does not take it is cut like any other that has stopped reading."""
        if self._visit is not None:
            self._visit.cancel()
        if self._handshake is None:
            self._server.sending.enter(self, steady_s())
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
            self._stop_reading_requests()
            self._last_word = TIMEOUT
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
        if self._visit is not None:
            self._unread += data
            self._read_no_more_than_wanted()
            return
        self._parse(data[:BYTES_PER_TURN])
        self._unread = b"" if self._is_ending else data[BYTES_PER_TURN:]
        if self._unread:
            self._server.loop.call_soon(self._read_on)
        self._read_no_more_than_wanted()

    def _read_on(self) -> None:
        if not self._is_write_paused and self._visit is None:  # or else when that is over
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
        if self._reader is None:
            self._reader = RequestReader(self._server, self._door)
        reader, was_between_requests = self._reader, self._can_recall
        asked = reader.read(data)
        self._asked.extend(asked)
        self._last_word = reader.refusal
        if reader.is_done:
            self._stop_reading_requests()
        else:
            self._can_recall = reader.is_between_requests
        if reader.is_in_the_middle and (asked or self.room is self._server.idle):
            self._server.receiving.enter(self, self.active_at_s)
        elif len(asked) == 1 and was_between_requests and self._can_recall:
            self._remember(data, asked[0])
        self._answer()

    def _remember(self, raw: bytes, asked: Asked) -> None:
        if asked.has_body or asked.is_http_1_0 or self._server.is_closing or isinstance(asked.target, Visit):
            return
        if asked.target.reply != NOTHING_THERE:  # here and now: another listener may have a surface there
            self._server.answers.remember(raw, asked.target)

    def _stop_reading_requests(self) -> None:
        self._is_ending = True
        self._can_recall = False

    # ---- answering

    def _answer(self) -> None:
        """Answer what has been asked, as far as the client reads on."""
        while self._asked and not self._is_write_paused and self._visit is None:
            asked = self._asked.popleft()
            if isinstance(asked.target, Visit):
                self._receive_visit(asked, asked.target)
            else:
                self._transport.write(self._server.answers.response(asked.target, self._connection_after(asked)))
        if self._is_write_paused or self._visit is not None:
            return  # the rest follows when the client has read, or has its answer
        if self._last_word is not None:
            self._say(self._last_word)
        elif self._is_ending or (self._can_recall and self._server.is_closing):
            self.close()
        elif self._can_recall:
            self._settle_down()
        elif self._reader is not None and self._reader.takes_invitation():
            self._transport.write(_CONTINUE)

    def _go_on_answering(self) -> None:
        self._is_write_paused = False
        if not self._transport.is_closing():
            self._server.receiving.enter(self, steady_s())
            self._answer()
            self._read_on()

    def _send_large(self, response: LargeResponse) -> None:
        """Straight from memory to the socket, if nothing is before it in the queue; what is left takes the long way."""
        sent_bytes = 0
        if self._socket_number is not None and not self._transport.get_write_buffer_size():
            try:
                sent_bytes = os.sendfile(self._socket_number, response.file, 0, len(response))
            except OSError:
                sent_bytes = 0  # full, or gone: the transport will find out which
        if sent_bytes < len(response):
            self._transport.write(memoryview(response)[sent_bytes:])

    def _connection_after(self, asked: Asked) -> str:
        """What is said of the connection in an answer; nothing where it stays, as it does by itself in HTTP/1.1."""
        if asked.stays_open and not self._server.is_closing:
            return "keep-alive" if asked.is_http_1_0 else ""
        self._stop_reading_requests()
        self._asked.clear()
        self._last_word = None
        return "close"

    def _say(self, last_word: Answer) -> None:
        """Refuse, and leave the line open for a moment: a reset would destroy the answer before it is read."""
        self._last_word = None
        is_head = self._reader is not None and self._reader.wants_no_body
        self._transport.write(self._server.answers.encode(last_word, is_head=is_head, connection="close"))
        if self._transport.can_write_eof():  # TLS has no such half-way house
            self._transport.write_eof()
        self._server.lingering.enter(self, steady_s())

    def _settle_down(self) -> None:
        self._server.idle.enter(self, self.active_at_s)

    # ---- visits to a surface

    def _receive_visit(self, asked: Asked, visit: Visit) -> None:
        surface = self._door.surface
        refusal = NOT_FOUND if surface is None else surface.refusal(visit)
        if surface is None or refusal is not None:
            self._deliver(refusal or NOT_FOUND, asked, visit)
            return
        self._can_recall = False
        self._visit = self._server.attend(self._attend(surface, asked, visit))
        self._visit.add_done_callback(self._after_visit)
        self._server.visiting.enter(self, steady_s())

    async def _attend(self, surface: Surface, asked: Asked, visit: Visit) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S) as deadline:
                answer = await surface.answer(visit)
        except Exception as exc:  # noqa: BLE001  a client gets a plain failure, the log gets the cause
            failure = TOOK_TOO_LONG if deadline.expired() else INTERNAL_ERROR
            answer = Answer(failure.code, failure.body, failure.headers, cause=exc)
        if isinstance(answer, Answer):
            self._deliver(site.noted(answer), asked, visit)
            return
        self._stop_reading_requests()
        self._asked.clear()
        self._is_streaming = True
        self._transport.write(self._server.answers.encode(answer.head, connection="close"))
        if visit.method != "HEAD" and surface is self._door.surface and not self._server.is_closing:
            with self._door.reading(self):
                await answer.fill(self)

    def _deliver(self, answer: Answer, asked: Asked, visit: Visit) -> None:
        connection = self._connection_after(asked)
        is_head = visit.method == "HEAD"
        self._transport.write(self._server.answers.encode(answer, is_head=is_head, connection=connection))

    def _after_visit(self, task: asyncio.Task[None]) -> None:
        self._visit = None
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("a stream ended in the middle", exc_info=exc)
        if task.cancelled() or self._transport.is_closing():  # the client has left, or is about to
            return
        if not self._is_write_paused:
            self._server.receiving.enter(self, steady_s())  # the next request may have begun to arrive
        self._can_recall = not self._is_ending and (self._reader is None or self._reader.is_between_requests)
        self._answer()
        self._read_on()

    @property
    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        await asyncio.sleep(0)  # others have their turn, and a stream that never waits is told when its client has left
        if self._is_write_paused:
            self._drained = self._server.loop.create_future()
            await self._drained

    def _go_on_streaming(self) -> None:
        self._is_write_paused = False
        self._server.visiting.enter(self, steady_s())
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
