"""Connections as a pair of asyncio streams, for drivers that use streams.

A driver that opens its own connection resolves names in the small thread pool of the event loop, and leaves a cancelled
TLS handshake to the loop. Reading is limited: a response that never ends would fill the memory, or block the event loop
past every deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import peer_address, send
from svcnode.net.os_errors import CodedOSError
from svcnode.net.tls import connect_tls, upgrade_transport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from svcnode.net.connect import Endpoint

MAX_RECEIVED_BYTES = 64 * 1024  # in one check
BUFFER_LIMIT_BYTES = 64 * 1024


class ResponseTooLargeError(CodedOSError, ConnectionError):
    def __init__(self, limit_bytes: int = MAX_RECEIVED_BYTES) -> None:
        super().__init__(f"response larger than {limit_bytes // 1024} KiB", ReasonCode.UNEXPECTED_RESPONSE)


class LimitedStreamReader(asyncio.StreamReader):
    """Accepts at most `MAX_RECEIVED_BYTES` per check, then aborts the connection."""

    received_bytes = 0
    transport: asyncio.Transport | None = None

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # asyncio passes bytes only
        self.received_bytes += len(data)
        if self.received_bytes <= MAX_RECEIVED_BYTES:
            super().feed_data(data)
            return
        if self.exception() is None:
            self.set_exception(ResponseTooLargeError())
        if self.transport is not None:
            self.transport.abort()

    async def _wait_for_data(self, func_name: str) -> None:
        """asyncio would not see an error that is set after the data that ended the wait."""
        await super()._wait_for_data(func_name)  # type: ignore[misc]  # private
        if (error := self.exception()) is not None:
            raise error


class _StreamWriter(asyncio.StreamWriter):
    """Sends nothing on a lost connection: reading from it raises the error."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        send(self.transport, data)

    def writelines(self, data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(data))


class ConnectionStreams(NamedTuple):
    reader: LimitedStreamReader
    writer: asyncio.StreamWriter

    def reset_byte_count(self) -> None:
        """A new check begins on this connection."""
        self.reader.received_bytes = 0

    @property
    def unread(self) -> bytes:
        """Received but not yet read. asyncio has no public way to get it once the connection is lost."""
        return bytes(self.reader._buffer)  # type: ignore[attr-defined]

    @property
    def peer_address(self) -> str:
        return peer_address(self.writer.transport)

    def abort(self) -> None:
        """Close at once; `close()` would wait until the peer has received everything."""
        self.writer.transport.abort()


async def open_streams(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    *,
    limit_bytes: int = BUFFER_LIMIT_BYTES,
) -> ConnectionStreams:
    """A new connection. The caller aborts it."""
    protocol = _make_protocol(limit_bytes)
    if tls is None:
        transport, _ = await endpoint.connect(lambda: protocol)
    else:
        transport, _ = await connect_tls(endpoint.connect, lambda: protocol, tls, server_name)
        protocol.connection_made(transport)
    return _make_streams(transport, protocol)


async def upgrade_streams(streams: ConnectionStreams, tls: ssl.SSLContext, server_name: str) -> ConnectionStreams:
    """Start TLS on an open connection."""
    protocol = _make_protocol(BUFFER_LIMIT_BYTES)
    protocol.plain_writer = streams.writer
    plain = cast("asyncio.Transport", streams.writer.transport)
    transport = await upgrade_transport(plain, protocol, tls, server_name)
    protocol.connection_made(transport)
    return _make_streams(transport, protocol)


class _StreamProtocol(asyncio.StreamReaderProtocol):
    reader: LimitedStreamReader
    plain_writer: (
        asyncio.StreamWriter
    )  # referenced here, since a StreamWriter closes its connection when it is collected


def _make_protocol(limit_bytes: int) -> _StreamProtocol:
    reader = LimitedStreamReader(limit=limit_bytes)
    protocol = _StreamProtocol(reader)
    protocol.reader = reader
    return protocol


def _make_streams(transport: asyncio.Transport, protocol: _StreamProtocol) -> ConnectionStreams:
    protocol.reader.transport = transport
    writer = _StreamWriter(transport, protocol, protocol.reader, asyncio.get_running_loop())
    return ConnectionStreams(protocol.reader, writer)
