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
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.session import SessionProbe, told
from svcnode.probes.tools.streams import Streams, open_streams

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemcachedProbe(SessionProbe[Streams]):
    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.refuse_path()
        self.url.refuse_user()
        self.check_tls_options(is_used=False)
        object.__setattr__(self, "_endpoint", Endpoint.of(self.url.need_host(), self.url.port or 11211))

    async def open(self) -> Streams:
        return await open_streams(self._endpoint, limit_bytes=1024)

    async def ask(self, connection: Streams) -> Verdict:
        said = connection.unread  # since an earlier look, or before any: no answer to this one
        if not said:
            connection.writer.write(b"version\r\n")
            said = await _line(connection.reader)
            if said.startswith(b"VERSION "):
                return READY
        if said.startswith((b"ERROR ", b"SERVER_ERROR ")):  # such as "ERROR Too many open connections"
            raise ConnectionError(told(Exception(said.decode(errors="replace"))))
        raise ConnectionError("it did not tell its version")

    def renew(self, connection: Streams) -> None:
        connection.renew()

    def drop(self, connection: Streams) -> None:
        connection.abort()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        return b""  # nothing that memcached says is so long
