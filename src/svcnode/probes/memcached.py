"""`memcached://host:port`: a memcached server that returns its version.

ready      the server returns its version
failed     any other response; connection refused or closed, host unreachable
unknown    no file descriptors or ports left on this machine; the resolver does not answer

The probe needs no driver: the request is one line, and so is the response.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import Streams, open_streams
from svcnode.probes.base import CheckError
from svcnode.probes.session import SessionProbe, driver_error_text

READY = Verdict.ready()
_ERRORS = (  # the protocol has no error numbers
    (b"ERROR Too many open connections", ReasonCode.TOO_MANY_CONNECTIONS),
    (b"CLIENT_ERROR unauthenticated", ReasonCode.AUTH_REQUIRED),
    (b"ERROR ", ReasonCode.SERVER_ERROR),
    (b"SERVER_ERROR ", ReasonCode.SERVER_ERROR),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemcachedProbe(SessionProbe[Streams]):
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.reject_path()
        self.url.reject_credentials()
        self.validate_tls_options(uses_tls=False)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 11211))

    async def open(self) -> Streams:
        return await open_streams(self._endpoint, limit_bytes=1024)

    async def check_connection(self, connection: Streams) -> Verdict:
        line = connection.unread  # sent before this request, so not its response
        if not line:
            connection.writer.write(b"version\r\n")
            line = await _read_line(connection.reader)
            if line.startswith(b"VERSION "):
                return READY
        for beginning, code in _ERRORS:
            if line.startswith(beginning):
                raise CheckError(driver_error_text(Exception(line.decode(errors="replace"))), code)
        raise CheckError("the response is not memcached", ReasonCode.PROTOCOL_ERROR)

    def reset_byte_count(self, connection: Streams) -> None:
        connection.reset_byte_count()

    def peer_address(self, connection: Streams) -> str:
        return connection.peer_address

    def abort(self, connection: Streams) -> None:
        connection.abort()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        return b""  # memcached sends no line that long
