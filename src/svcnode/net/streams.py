"""How much a server may say in one look.

The answer to a look is short. One that never ends would fill the memory, or keep the event loop busy past every
deadline, and with it all the looks at others.

Connections as the pair of streams that asyncio's drivers speak over.

Drivers can open their own, but would resolve names in the few threads that the event loops have for it, and leave TLS
handshakes that are cut off to the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from svcnode.net.tls import connect_tls, upgrade_transport

if TYPE_CHECKING:
    import ssl

    from svcnode.net.connect import TcpEndpoint

MAX_RECEIVED_BYTES = 64 * 1024


class ResponseTooLargeError(ConnectionError):
    """It never stops talking; the text says so."""


def response_too_large(limit_bytes: int = MAX_RECEIVED_BYTES) -> ResponseTooLargeError:
    return ResponseTooLargeError(f"it said more than {limit_bytes // 1024} KiB in one look")


BUFFER_LIMIT_BYTES = 64 * 1024


class LimitedStreamReader(asyncio.StreamReader):
    """Hears no more in one look than an answer can take."""

    received_bytes = 0
    transport: asyncio.Transport | None = None

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # no more than asyncio feeds it with
        self.received_bytes += len(data)
        if self.received_bytes <= MAX_RECEIVED_BYTES:
            super().feed_data(data)
            return
        if self.exception() is None:
            self.set_exception(response_too_large())
        if self.transport is not None:
            self.transport.abort()


class Streams(NamedTuple):
    reader: LimitedStreamReader
    writer: asyncio.StreamWriter

    def reset_byte_count(self) -> None:
        """A new look begins."""
        self.reader.received_bytes = 0

    @property
    def unread(self) -> bytes:
        """What has come and was not read yet; asyncio does not show it, and forgets it when the connection is lost."""
        return bytes(self.reader._buffer)  # type: ignore[attr-defined]

    def abort(self) -> None:
        """At once: closing would wait for a peer that may never answer again."""
        self.writer.transport.abort()


async def open_streams(
    endpoint: TcpEndpoint,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    *,
    limit_bytes: int = BUFFER_LIMIT_BYTES,
) -> Streams:
    """A fresh connection; whoever asked for it aborts it."""
    protocol = _make_protocol(limit_bytes)
    if tls is None:
        transport, _ = await endpoint.connect(lambda: protocol)
    else:
        transport, _ = await connect_tls(endpoint.connect, lambda: protocol, tls, server_name)
        protocol.connection_made(transport)
    return _make_streams(transport, protocol)


async def upgrade_streams(streams: Streams, tls: ssl.SSLContext, server_name: str) -> Streams:
    """The same connection, under TLS from here on."""
    protocol = _make_protocol(BUFFER_LIMIT_BYTES)
    protocol.plain_writer = streams.writer
    plain = cast("asyncio.Transport", streams.writer.transport)
    transport = await upgrade_transport(plain, protocol, tls, server_name)
    protocol.connection_made(transport)
    return _make_streams(transport, protocol)


class _StreamProtocol(asyncio.StreamReaderProtocol):
    reader: LimitedStreamReader
    plain_writer: asyncio.StreamWriter  # kept: one that nobody has any more closes its connection, also under TLS


def _make_protocol(limit_bytes: int) -> _StreamProtocol:
    reader = LimitedStreamReader(limit=limit_bytes)
    protocol = _StreamProtocol(reader)
    protocol.reader = reader
    return protocol


def _make_streams(transport: asyncio.Transport, protocol: _StreamProtocol) -> Streams:
    protocol.reader.transport = transport
    writer = asyncio.StreamWriter(transport, protocol, protocol.reader, asyncio.get_running_loop())
    return Streams(protocol.reader, writer)
