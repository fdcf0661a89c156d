"""WebSocket connections (RFC 6455) for probes.

The library websockets parses and builds frames. Connections are opened like those of every probe, and messages are
received by the event loop itself: a connection that is kept between checks needs no task. The library belongs to an
extra, so this module is loaded only when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import WebSocketURI

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import peer_address, send
from svcnode.net.os_errors import CodedOSError
from svcnode.net.trace import step

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.net.http1 import Http1Client

W = TypeVar("W", bound="WebSocket")

MAX_MESSAGE_BYTES = 1024 * 1024
# From one check to the next: whatever a server sends, it can take neither the memory nor the time of this process.
MAX_RECEIVED_BYTES = 16 * 1024 * 1024
MAX_FRAMES = 10_000
_SLICE_BYTES = 4096  # parsed at once: the shortest frame has two bytes
_UNUSED_URI = WebSocketURI(secure=False, host="", port=0, path="/", query="")  # the request is our own
# The library would log headers, which may hold a password. No configuration reaches a logger without a parent.
_SILENT = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001


class HandshakeStatusError(CodedOSError):
    """The server answered the request for an upgrade with another status than 101."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status} instead of a WebSocket connection", ReasonCode.UNEXPECTED_RESPONSE)
        self.status = status


class WebSocket(asyncio.Protocol, ABC):
    """One connection. A subclass handles its messages."""

    def __init__(self) -> None:
        self._protocol = ClientProtocol(_UNUSED_URI, max_size=MAX_MESSAGE_BYTES, logger=_SILENT)
        self._transport: asyncio.Transport | None = None
        self._upgrade: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._upgrade.add_done_callback(_retrieve_exception)
        self._message = bytearray()
        self.error: OSError | None = None  # why the connection can no longer be used
        self.reset_limits()

    @abstractmethod
    def message_received(self, message: bytes) -> None: ...

    @abstractmethod
    def connection_failed(self, error: OSError) -> None:
        """Nothing more is received."""

    def reset_limits(self) -> None:
        """A new check begins."""
        self._received_bytes = self._frames = 0

    async def upgrade(self, transport: asyncio.Transport, request: bytes) -> None:
        self._transport = transport
        send(transport, request)
        await self._upgrade

    def raise_if_failed(self) -> None:
        """Raise why the connection can no longer be used."""
        if self.error is not None:
            raise self.error

    def send_text(self, text: bytes) -> None:
        self.raise_if_failed()
        self._protocol.send_text(text)
        self._flush()

    @property
    def key(self) -> str:
        """Of the request for the upgrade."""
        return self._protocol.key

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def peer_address(self) -> str:
        return peer_address(self.transport)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self.error is not None:
                return
            self._receive(data[start : start + _SLICE_BYTES])

    def connection_lost(self, exc: Exception | None) -> None:
        closed = CodedOSError("the server closed the connection", ReasonCode.CONNECTION_CLOSED)
        self.fail(exc if isinstance(exc, OSError) else closed)

    def _receive(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._received_bytes += len(data)
        self._frames += len(events)
        if not self._upgrade.done() and self._protocol.state is State.OPEN:
            self._upgrade.set_result(None)
        for event in events:
            if isinstance(event, Frame):
                self._frame_received(event)
        self._flush()
        if self._received_bytes > MAX_RECEIVED_BYTES or self._frames > MAX_FRAMES:
            self.fail(CodedOSError("the server sent more messages than a check reads", ReasonCode.UNEXPECTED_RESPONSE))
        elif self._protocol.state is not State.OPEN and (error := self._protocol_error()) is not None:
            self.fail(error)

    def _frame_received(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) or self.error is not None:
            return
        self._message += frame.data
        if frame.fin:
            message, self._message = bytes(self._message), bytearray()
            self.message_received(message)

    def _protocol_error(self) -> OSError | None:
        match self._protocol.handshake_exc or self._protocol.parser_exc:
            case InvalidStatus() as exc:
                return HandshakeStatusError(exc.response.status_code)
            case InvalidMessage():
                return CodedOSError("not an HTTP response", ReasonCode.PROTOCOL_ERROR)
            case None if self._protocol.close_rcvd is None:
                return None  # during the upgrade
            case None:
                return CodedOSError("the server closed the connection", ReasonCode.CONNECTION_CLOSED)
            case exc:
                return CodedOSError(f"not a WebSocket connection: {exc}", ReasonCode.PROTOCOL_ERROR)

    def _flush(self) -> None:
        for part in self._protocol.data_to_send():
            if part and self._transport is not None:  # an empty one marks the end
                send(self._transport, part)

    def fail(self, error: OSError) -> None:
        """Close the connection for this reason."""
        if self.error is not None:
            return
        self.error = error
        if not self._upgrade.done():
            self._upgrade.set_exception(error)
        self.connection_failed(error)
        self.abort()


def _retrieve_exception(upgrade: asyncio.Future[None]) -> None:
    """Mark it as retrieved: a cancelled check no longer waits for it."""
    if not upgrade.cancelled():
        upgrade.exception()


async def open_websocket(client: Http1Client, make: Callable[[], W]) -> W:
    """A new connection to the URL of the client, with its headers and its login. The caller aborts it."""
    websocket = make()
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", websocket.key),
        ("Sec-WebSocket-Version", "13"),
    ]
    request = client.build_request(client.url.target, keep_alive=True, is_upgrade=True, default_headers=headers)
    transport, _ = await client.connect(request, lambda: websocket)
    try:
        with step("upgrade"):
            await websocket.upgrade(transport, request.payload)
    except BaseException:  # also on cancellation: the caller does not have the connection yet
        transport.abort()
        raise
    return websocket
