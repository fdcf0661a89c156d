"""A scripted HTTP/2 server."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.support.backends import Backend, Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    Respond = Callable[[h2.connection.H2Connection, int], None]


class Http2Backend(Backend):
    """Calls `respond` with the connection and the stream when a request is complete."""

    def __init__(self, respond: Respond, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._serve_http2, tls=tls)
        self._respond_to_call = respond
        self.headers: list[dict[bytes, bytes]] = []
        self.bodies: list[bytes] = []

    def _serve_http2(self, peer: Peer) -> None:
        config = h2.config.H2Configuration(
            client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        http2 = h2.connection.H2Connection(config)
        http2.initiate_connection()
        peer.send(http2.data_to_send())
        with suppress(h2.exceptions.ProtocolError):  # the client closed the connection
            while data := peer.sock.recv(65536):
                for event in http2.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self.headers.append(dict(event.headers))
                        self.bodies.append(b"")
                    if isinstance(event, h2.events.DataReceived):
                        self.bodies[-1] += event.data
                        http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if isinstance(event, h2.events.StreamEnded):
                        self._respond_to_call(http2, event.stream_id)
                peer.send(http2.data_to_send())
