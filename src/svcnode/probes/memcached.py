"""`memcached://host:port`: a memcached server that tells its version.

ready      the version is answered
failed     anything else: refused, unreachable, closed, another answer
unknown    no file descriptors or ports left here, or the resolver does not work

One line each way, so without a driver.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import Streams, open_streams
from svcnode.probes.session import SessionProbe, driver_error_text

READY = Verdict.ready()


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
        said = connection.unread  # since an earlier look, or before any: no answer to this one
        if not said:
            connection.writer.write(b"version\r\n")
            said = await _read_line(connection.reader)
            if said.startswith(b"VERSION "):
                return READY
        if said.startswith((b"ERROR ", b"SERVER_ERROR ")):  # such as "ERROR Too many open connections"
            raise ConnectionError(driver_error_text(Exception(said.decode(errors="replace"))))
        raise ConnectionError("it did not tell its version")

    def reset_byte_count(self, connection: Streams) -> None:
        connection.reset_byte_count()

    def abort(self, connection: Streams) -> None:
        connection.abort()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        return b""  # nothing that memcached says is so long
