"""Connections as the pair of streams that asyncio's drivers speak over.

Drivers can open their own, but would resolve names in the few threads that the event loops have for it, and leave TLS
handshakes that are cut off to the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from svcnode.probes.tools.budget import MAX_HEARD_BYTES, too_much
from svcnode.probes.tools.tls_layer import connected_under_tls, upgraded_to_tls

if TYPE_CHECKING:
    import ssl

    from svcnode.probes.tools.connect import Endpoint

LIMIT_BYTES = 64 * 1024


class Reader(asyncio.StreamReader):
    """Hears no more in one look than an answer can take."""

    heard_bytes = 0
    transport: asyncio.Transport | None = None

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # no more than asyncio feeds it with
        self.heard_bytes += len(data)
        if self.heard_bytes <= MAX_HEARD_BYTES:
            super().feed_data(data)
            return
        if self.exception() is None:
            self.set_exception(too_much())
        if self.transport is not None:
            self.transport.abort()


class Streams(NamedTuple):
    reader: Reader
    writer: asyncio.StreamWriter

    def renew(self) -> None:
        """A new look begins."""
        self.reader.heard_bytes = 0

    @property
    def unread(self) -> bytes:
        """What has come and was not read yet; asyncio does not show it, and forgets it when the connection is lost."""
        return bytes(self.reader._buffer)  # type: ignore[attr-defined]

    def abort(self) -> None:
        """At once: closing would wait for a peer that may never answer again."""
        self.writer.transport.abort()


async def open_streams(
    endpoint: Endpoint, tls: ssl.SSLContext | None = None, server_name: str = "", *, limit_bytes: int = LIMIT_BYTES
) -> Streams:
    """A fresh connection; whoever asked for it aborts it."""
    protocol = _protocol(limit_bytes)
    if tls is None:
        transport, _ = await endpoint.connect(lambda: protocol)
    else:
        transport, _ = await connected_under_tls(endpoint.connect, lambda: protocol, tls, server_name)
        protocol.connection_made(transport)
    return _streams(transport, protocol)


async def upgraded(streams: Streams, tls: ssl.SSLContext, server_name: str) -> Streams:
    """The same connection, under TLS from here on."""
    protocol = _protocol(LIMIT_BYTES)
    protocol.plain = streams.writer
    plain = cast("asyncio.Transport", streams.writer.transport)
    transport = await upgraded_to_tls(plain, protocol, tls, server_name)
    protocol.connection_made(transport)
    return _streams(transport, protocol)


class _Protocol(asyncio.StreamReaderProtocol):
    reader: Reader
    plain: asyncio.StreamWriter  # kept: one that nobody has any more closes its connection, also under TLS


def _protocol(limit_bytes: int) -> _Protocol:
    reader = Reader(limit=limit_bytes)
    protocol = _Protocol(reader)
    protocol.reader = reader
    return protocol


def _streams(transport: asyncio.Transport, protocol: _Protocol) -> Streams:
    protocol.reader.transport = transport
    writer = asyncio.StreamWriter(transport, protocol, protocol.reader, asyncio.get_running_loop())
    return Streams(protocol.reader, writer)
