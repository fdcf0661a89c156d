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
from svcnode.core.wording import one_line
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.options import RawBytes
from svcnode.probes.tools.steps import step, telling
from svcnode.probes.tools.tls import TlsOptions
from svcnode.probes.tools.tls_layer import connected_under_tls

MAX_ANSWER_BYTES = 64 * 1024
MAX_SHOWN_CHARS = 80
_MAX_QUOTED_BYTES = 1024
READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TcpProbe(TlsOptions):
    send: RawBytes = b""
    expect: RawBytes = b""  # must stand somewhere in the first 64 KiB of what is said
    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        host = self.url.need_host()
        self.url.refuse_path()
        self.url.refuse_user()
        self.check_tls_options(is_used=self._speaks_tls)
        object.__setattr__(self, "_endpoint", Endpoint.of(host, self.url.need_port()))

    @property
    def _speaks_tls(self) -> bool:
        return self.url.scheme == "tls"

    async def look(self) -> Verdict:
        try:
            if self._speaks_tls or self.send or self.expect:
                return await self._converse()
            transport, _ = await self._endpoint.connect(asyncio.Protocol)
        except OSError as exc:
            return verdict_on(exc, str(self._endpoint))
        transport.abort()
        return READY

    async def _converse(self) -> Verdict:
        transport, listener = await self._connect()
        try:
            expiring = self.expiry_verdict(transport) if self._speaks_tls else None
            if self.send:
                transport.write(self.send)
            if self.expect and not await self._is_heard(listener):
                but = f", but {listener.heard}" if listener.heard else ""
                return Verdict.failed(f"it did not say what was expected{but}: {self._endpoint}")
            return expiring or READY
        finally:
            transport.abort()

    async def _connect(self) -> tuple[asyncio.Transport, _Listener]:
        def listener() -> _Listener:
            return _Listener(self.expect)

        if not self._speaks_tls:
            return await self._endpoint.connect(listener)
        server_name = self.server_name or self._endpoint.host
        return await connected_under_tls(self._endpoint.connect, listener, self.tls_context(), server_name)

    async def _is_heard(self, listener: _Listener) -> bool:
        def so_far() -> str:
            return f"heard {listener.heard}, and not {_quoted(self.expect)}" if listener.heard else ""

        with step("exchange"), telling(so_far):
            return await listener.is_heard


class _Listener(asyncio.Protocol):
    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._heard = bytearray()
        self.is_heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def heard(self) -> str:
        """Its beginning, fit to be shown."""
        return _quoted(bytes(self._heard)) if self._heard else ""

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if self.is_heard.done():
            return
        if self._expected in self._heard[:MAX_ANSWER_BYTES]:
            self.is_heard.set_result(True)
        elif len(self._heard) >= MAX_ANSWER_BYTES:
            self.is_heard.set_result(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_heard.done():
            self.is_heard.set_result(False)


def _quoted(said: bytes) -> str:
    """Secrets are hidden before it is cut: nobody would know half of one."""
    text = one_line(redacted(said[:_MAX_QUOTED_BYTES].decode("utf-8", "replace")).strip())
    return f'"{text}"' if len(text) <= MAX_SHOWN_CHARS else f'"{text[:MAX_SHOWN_CHARS]}…"'
