"""`tcp://host:port`, `tls://host:port`: a server accepts connections and, if `expect` is set, sends the expected bytes.

ready      connected; for tls, also handshake done and certificate valid; `expect` received, if it is set
not ready  the certificate expires within `min_cert_days`
failed     connection refused, network unreachable, certificate not valid, `expect` not received; for tls, also if the
           server rejects the client after the handshake, as one without a certificate
unknown    no file descriptors or ports left on this machine, or the resolver failed
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line
from svcnode.core.url import NO_PATH, UrlForm
from svcnode.net.batch import BatchCheck
from svcnode.net.connect import TcpEndpoint, send
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.tls import TlsTransport, connect_tls
from svcnode.net.trace import attach_progress, step
from svcnode.probes.base import time_left_s
from svcnode.probes.options import PublicBytes, RawBytes
from svcnode.probes.session import TlsProbe

if TYPE_CHECKING:
    from typing import Never

MAX_RECEIVED_BYTES = 64 * 1024
MAX_REACTION_S = 1.0  # of a server that says nothing after the TLS handshake
MAX_SHOWN_CHARS = 80
_MAX_QUOTED_BYTES = 1024
READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TcpProbe(TlsProbe):
    send: RawBytes = b""
    expect: PublicBytes = b""  # must be in the first 64 KiB
    _endpoint: TcpEndpoint = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(needs_port=True, has_credentials=False, path=NO_PATH, query="")

    def __post_init__(self) -> None:
        host = self.url.require_host()
        self.url.reject_parts(self.url_form)
        self.validate_tls_options(uses_tls=self._uses_tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(host, self.url.require_port()))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "tls"

    def batch_check(self) -> BatchCheck | None:
        # A class that derives from this one may have a `check` of its own.
        is_plain = type(self) is TcpProbe and not (self._uses_tls or self.send or self.expect)
        return _ConnectCheck(self._endpoint) if is_plain and self._endpoint.is_ip_address else None

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
        transport, protocol = await self._connect()
        try:
            certificate_verdict = self.certificate_verdict(transport) if self._uses_tls else None
            if self.send:
                send(transport, self.send)
            if self.expect:
                if not await self._wait_for_expected(protocol):
                    return self._mismatch_verdict(protocol)
            elif isinstance(transport, TlsTransport):
                with step("exchange"):
                    await transport.wait_for_reaction(min(MAX_REACTION_S, time_left_s() / 2))
            return certificate_verdict or READY
        finally:
            transport.abort()

    def _mismatch_verdict(self, protocol: _ExpectProtocol) -> Verdict:
        if not protocol.received_text:
            return Verdict.failed(
                f"connection closed before {_quote(self.expect)} was received: {self._endpoint}",
                code=ReasonCode.CONNECTION_CLOSED,
            )
        return Verdict.failed(
            f"received {protocol.received_text}, expected {_quote(self.expect)}: {self._endpoint}",
            code=ReasonCode.UNEXPECTED_RESPONSE,
        )

    async def _connect(self) -> tuple[asyncio.Transport, _ExpectProtocol]:
        def protocol() -> _ExpectProtocol:
            return _ExpectProtocol(self.expect)

        if not self._uses_tls:
            return await self._endpoint.connect(protocol)
        server_name = self.server_name or self._endpoint.host
        return await connect_tls(self._endpoint.connect, protocol, await self.tls_context(), server_name)

    async def _wait_for_expected(self, protocol: _ExpectProtocol) -> bool:
        def progress() -> str:
            text = protocol.received_text
            return f"received {text}, expected {_quote(self.expect)}" if text else ""

        with step("exchange"), attach_progress(progress):
            return await protocol.matched


class _ConnectCheck(BatchCheck):
    """As `TcpProbe.check` without options: ready as soon as the connection is open, so nothing is ever received."""

    __slots__ = ()

    def on_connected(self) -> Verdict:
        return READY

    def on_data(self, data: bytes) -> Never:
        raise NotImplementedError  # `on_connected` has ended the check

    def on_closed(self) -> Never:
        raise NotImplementedError  # `on_connected` has ended the check

    def on_error(self, exc: OSError) -> Verdict:
        return verdict_for_os_error(exc, str(TcpEndpoint.of(*self.address)))


class _ExpectProtocol(asyncio.Protocol):
    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._received = bytearray()
        self.matched: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def received_text(self) -> str:
        """The beginning of the received bytes, without secrets; empty if there are none."""
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
        if self.matched.done():
            return
        if isinstance(exc, ssl.SSLError):
            self.matched.set_exception(exc)
        else:
            self.matched.set_result(False)


def _quote(data: bytes) -> str:
    """Redacted before it is cut: a secret that is cut in half would not be recognised."""
    text = one_line(redacted(data[:_MAX_QUOTED_BYTES].decode("utf-8", "replace")).strip())
    return f'"{text}"' if len(text) <= MAX_SHOWN_CHARS else f'"{text[:MAX_SHOWN_CHARS]}…"'
