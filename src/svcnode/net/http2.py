"""HTTP/2 for probes, over TLS or with prior knowledge: one request at a time on one connection.

Responses have the form of HTTP/1.1 responses. The library h2 belongs to an extra, so this module is loaded only when it
is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import send
from svcnode.net.http_response import MAX_HEAD_BYTES, ResponseProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

_SETTINGS_FRAME_TYPE = b"\x04"  # of the first frame of every server, after three bytes of length
_SLICE_BYTES = 16 * 1024  # parsed at once
_CONNECTION_HEADERS = {"connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"}


def http2_headers(method: str, scheme: str, target: str, headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The head of an HTTP/1.1 request in the form of HTTP/2."""
    fields = [(name.lower(), value) for name, value in headers]
    authority = next((value for name, value in fields if name == "host"), "")
    pseudo = [(":method", method), (":scheme", scheme), (":path", target), (":authority", authority)]
    return pseudo + [(name, value) for name, value in fields if name not in {"host", *_CONNECTION_HEADERS}]


class Http2Protocol(ResponseProtocol):
    """Collects the events of h2 into a response."""

    __slots__ = ("_body", "_data_bytes", "_http2", "_is_checked", "_stream", "_transport", "_unsent")

    max_overhead_bytes = MAX_HEAD_BYTES  # headers and frames around the body; many short frames take long to parse

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")  # decodes any bytes
        self._http2 = h2.connection.H2Connection(config)
        self._http2.initiate_connection()  # first: the server may send frames before the client does
        self._transport: asyncio.Transport | None = None
        self._is_checked = False  # whether the server speaks HTTP/2
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._body = bytearray()
        self._data_bytes = 0
        self._stream = 0
        self._unsent = b""

    @property
    def has_received(self) -> bool:
        """Whether the response to the last request has begun."""
        return bool(self._headers)

    def send_request(self, transport: asyncio.Transport, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self._transport = transport
        if self.response.done():  # the server has sent something that is not HTTP/2
            return
        self._stream = self._http2.get_next_available_stream_id()
        self._http2.send_headers(self._stream, headers, end_stream=not body)
        self._unsent = body
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._is_checked:
            self._is_checked = True
            if data[3:4] not in (b"", _SETTINGS_FRAME_TYPE):  # h2 would wait for the rest of a very long frame
                self._close("the response is not HTTP/2", ReasonCode.PROTOCOL_ERROR)
                return
        for start in range(0, len(data), _SLICE_BYTES):
            if self.response.done() and not self.is_idle:
                return
            self._parse(data[start : start + _SLICE_BYTES])
        self._send()

    def _parse(self, data: bytes) -> None:
        self._received_bytes += len(data)
        try:
            for event in self._http2.receive_data(data):
                self._handle_event(event)
        except h2.exceptions.ProtocolError:
            self._close("the response is not HTTP/2", ReasonCode.PROTOCOL_ERROR)
        if self._received_bytes - self._data_bytes > self.max_overhead_bytes:
            self._close(f"response with more than {self.max_overhead_bytes // 1024} KiB of headers and frames")

    def _handle_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ConnectionTerminated():
                self._close("the server closed the HTTP/2 connection (GOAWAY)", ReasonCode.CONNECTION_CLOSED)
            case h2.events.StreamReset(stream_id=stream) if stream == self._stream:
                self._close("the server reset the HTTP/2 stream", ReasonCode.CONNECTION_CLOSED)
            case h2.events.ResponseReceived() | h2.events.TrailersReceived() if event.stream_id == self._stream:
                self._headers.update(cast("list[tuple[str, str]]", event.headers))
                if self._headers.get("content-type", "").startswith("text/event-stream"):  # it may be silent for long
                    self._complete()
            case h2.events.DataReceived() if event.stream_id == self._stream:
                self._on_data(event)
            case h2.events.StreamEnded(stream_id=stream) if stream == self._stream:
                self.is_idle = not self._unsent and not self.response.done()
                self._complete()

    def _on_data(self, event: h2.events.DataReceived) -> None:
        self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self._data_bytes += len(event.data)
        if self.collects_body:
            self._body += event.data
        if self._data_bytes <= self.max_body_bytes:
            return
        if self.collects_body:
            self._close(f"response body larger than {self.max_body_bytes // 1024} KiB")
        else:  # status and headers are enough, but the connection cannot be reused
            self._complete()

    def _complete(self) -> None:
        if self.response.done():
            return
        status = self._headers.pop(":status", "")
        if status.isdecimal():
            self._set_response(int(status), bytes(self._body))
        else:
            self._close("the response has no status", ReasonCode.PROTOCOL_ERROR)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_idle = False
        if isinstance(exc, OSError) and not self.response.done():
            self._set_error(exc)
        else:
            self._fail("connection closed before the response was complete", ReasonCode.CONNECTION_CLOSED)

    def _close(self, text: str, code: ReasonCode = ReasonCode.UNEXPECTED_RESPONSE) -> None:
        self._fail(text, code)
        self.is_idle = False
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        """Send as much as the server allows."""
        if self._transport is None:
            return
        while self._unsent and not self.response.done():
            window = self._http2.local_flow_control_window(self._stream)
            size = min(window, self._http2.max_outbound_frame_size)
            if size <= 0:
                break
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._http2.send_data(self._stream, part, end_stream=not self._unsent)
        if data := self._http2.data_to_send():
            send(self._transport, data)
