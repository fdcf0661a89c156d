"""`tcp://host:port`, `tls://host:port`: something listens there and, if asked, says the right thing.

ready      connected; for tls, with a handshake and a certificate that is valid; `expect` was heard where it is set
not ready  the certificate ends within `min_cert_days`
failed     refused, unreachable, not trusted, closed or something else said before `expect` was heard
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line
from svcnode.net.connect import TcpEndpoint
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.tls import connect_tls
from svcnode.net.trace import attach_progress, step
from svcnode.probes.options import RawBytes
from svcnode.probes.session import TlsProbe

MAX_RECEIVED_BYTES = 64 * 1024
MAX_SHOWN_CHARS = 80
_MAX_QUOTED_BYTES = 1024
READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TcpProbe(TlsProbe):
    send: RawBytes = b""
    expect: RawBytes = b""  # must stand somewhere in the first 64 KiB of what is said
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        host = self.url.require_host()
        self.url.reject_path()
        self.url.reject_credentials()
        self.validate_tls_options(uses_tls=self._uses_tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(host, self.url.require_port()))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "tls"

    async def check(self) -> Verdict:
        try:
            if self._uses_tls or self.send or self.expect:
                return await self._exchange()
            transport, _ = await self._endpoint.connect(asyncio.Protocol)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self._endpoint))
        transport.abort()
        return READY

    async def _exchange(self) -> Verdict:
        transport, listener = await self._connect()
        try:
            expiring = self.certificate_verdict(transport) if self._uses_tls else None
            if self.send:
                transport.write(self.send)
            if self.expect and not await self._wait_for_expected(listener):
                but = f", but {listener.received_text}" if listener.received_text else ""
                return Verdict.failed(f"it did not say what was expected{but}: {self._endpoint}")
            return expiring or READY
        finally:
            transport.abort()

    async def _connect(self) -> tuple[asyncio.Transport, _ExpectProtocol]:
        def listener() -> _ExpectProtocol:
            return _ExpectProtocol(self.expect)

        if not self._uses_tls:
            return await self._endpoint.connect(listener)
        server_name = self.server_name or self._endpoint.host
        return await connect_tls(self._endpoint.connect, listener, self.tls_context(), server_name)

    async def _wait_for_expected(self, listener: _ExpectProtocol) -> bool:
        def so_far() -> str:
            return f"heard {listener.received_text}, and not {_quote(self.expect)}" if listener.received_text else ""

        with step("exchange"), attach_progress(so_far):
            return await listener.matched


class _ExpectProtocol(asyncio.Protocol):
    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._received = bytearray()
        self.matched: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def received_text(self) -> str:
        """Its beginning, fit to be shown."""
        return _quote(bytes(self._received)) if self._received else ""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.matched.done():
            return
        if self._expected in self._received[:MAX_RECEIVED_BYTES]:
            self.matched.set_result(True)
        elif len(self._received) >= MAX_RECEIVED_BYTES:
            self.matched.set_result(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.matched.done():
            self.matched.set_result(False)


def _quote(said: bytes) -> str:
    """Secrets are hidden before it is cut: nobody would know half of one."""
    text = one_line(redacted(said[:_MAX_QUOTED_BYTES].decode("utf-8", "replace")).strip())
    return f'"{text}"' if len(text) <= MAX_SHOWN_CHARS else f'"{text[:MAX_SHOWN_CHARS]}…"'
