"""TLS for clients: the options, and the protocol between a plain connection and the application protocol.

The event loops have TLS of their own, but uvloop leaks memory when a handshake is cancelled, as it is when a check
exceeds its deadline.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from svcnode.core.errors import OptionError
from svcnode.core.option_types import PublicText  # noqa: TC001  options are parsed by the types of the fields
from svcnode.core.text import os_error_text
from svcnode.core.url import Url, is_valid_hostname
from svcnode.net.connect import send
from svcnode.net.files import MAX_PEM_BYTES, READ_TIMEOUT_S, file_version, read_small_file
from svcnode.net.threads import DaemonCall, call_with_timeout
from svcnode.net.trace import READ_FILES_STEP, interrupts, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.core.model import Verdict
    from svcnode.net.files import FileVersion

    Connect = Callable[[Callable[[], "TlsProtocol"]], Awaitable[tuple[asyncio.Transport, "TlsProtocol"]]]

P = TypeVar("P", bound=asyncio.Protocol)

TICKETS_WITHIN_S = 0.1  # of the end of the handshake
_READ_BYTES = 64 * 1024


class _TlsFiles(NamedTuple):
    """Paths of PEM files; "" for none."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


class _ContextLoader:
    """Loads the TLS contexts of one client, not on the event loop: a file may be on a mount that hangs."""

    def __init__(self) -> None:
        self._thread = DaemonCall("TLS files")
        self._is_validated = False

    def validate(self, files: _TlsFiles) -> None:
        """Raise `OptionError` if a context cannot be made, once: a later check finds errors by itself."""
        if self._is_validated:
            return
        if any(files):
            try:
                call_with_timeout(partial(_load_context, files, ""), READ_TIMEOUT_S)
            except TimeoutError as exc:
                option, file = next((_OPTIONS[name], file) for name, file in files._asdict().items() if file)
                raise OptionError(option, f"cannot read {file}: {exc}") from exc
        else:
            _load_context(files, "")
        self._is_validated = True

    async def load(self, files: _TlsFiles, alpn: str) -> ssl.SSLContext:
        if not any(files) and (context := _system_contexts.get(alpn)):
            return context
        with interrupts(READ_FILES_STEP):
            return await self._thread.call_in_turn(partial(_load_context, files, alpn))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsOptions:
    """A URL and the TLS options of the client that connects to it."""

    url: Url = field(kw_only=False)
    ca: PublicText = ""  # PEM file; default: the certificate authorities of the system
    server_name: PublicText = ""  # default: the host of the URL
    client_certificate: PublicText = ""
    client_key: PublicText = ""  # PEM file
    _context_loader: _ContextLoader = field(init=False, compare=False, default_factory=_ContextLoader)

    tls_enabled_by: ClassVar[str] = ""  # the option that enables TLS, where the scheme does not

    def validate_tls_options(self, *, uses_tls: bool) -> None:
        """Raise `OptionError` for options that no connection can use."""
        for name in ("ca", "server_name", "client_certificate", "client_key"):
            self.require_tls(name, uses_tls=uses_tls)
        if self.client_key and not self.client_certificate:
            raise OptionError("client_certificate", "required by client_key")
        if self.server_name and not is_valid_hostname(self.server_name):
            raise OptionError("server_name", "not a valid host name")
        if uses_tls:
            # Created later, with no file descriptors left, the context would trust no certificate, and would be cached.
            self._context_loader.validate(self._tls_files())

    def require_tls(self, option: str, *, uses_tls: bool) -> None:
        """Raise `OptionError` if the option is set but the connection does not use TLS."""
        if getattr(self, option) and not uses_tls:
            hint = f"; set {self.tls_enabled_by}" if self.tls_enabled_by else f"; {self.url.scheme} does not use it"
            raise OptionError(option, f"requires TLS{hint}")

    async def tls_context(self, *, with_client_certificate: bool = True, alpn: str = "") -> ssl.SSLContext:
        """Cached until one of the files changes. `alpn` may be several protocols, separated by commas."""
        files = self._tls_files() if with_client_certificate else _TlsFiles(ca=self.ca)
        return await self._context_loader.load(files, alpn)

    def _tls_files(self) -> _TlsFiles:
        return _TlsFiles(ca=self.ca, certificate=self.client_certificate, key=self.client_key)

    def certificate_verdict(self, _transport: asyncio.BaseTransport) -> Verdict | None:
        """A verdict that replaces `ready`, for example on a certificate that expires soon. Probes override this."""
        return None


_OPTIONS = {"ca": "ca", "certificate": "client_certificate", "key": "client_key"}
_system_contexts: dict[str, ssl.SSLContext] = {}  # by ALPN; without files of options


def _load_context(files: _TlsFiles, alpn: str) -> ssl.SSLContext:
    if any(files):
        return _context_of_files(files, alpn, tuple(map(file_version, files)))
    context = _system_contexts[alpn] = _make_context(files, alpn)
    return context


@lru_cache(maxsize=256)
def _context_of_files(files: _TlsFiles, alpn: str, _versions: tuple[FileVersion, ...]) -> ssl.SSLContext:
    for name, file in files._asdict().items():
        if file:
            _require_small_file(_OPTIONS[name], file)
    return _make_context(files, alpn)


def _require_small_file(option: str, file: str) -> None:
    """OpenSSL would wait for the other end of a pipe, and read a device without end."""
    try:
        read_small_file(file, MAX_PEM_BYTES)
    except OSError as exc:
        raise OptionError(option, _file_error_text(exc, file)) from None  # the cause shows the path, maybe a secret


def _make_context(files: _TlsFiles, alpn: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca or None)
    except (OSError, ValueError) as exc:
        raise OptionError("ca", _file_error_text(exc, files.ca)) from exc
    try:
        if files.certificate:
            # Without a password argument, OpenSSL asks for one on the terminal.
            context.load_cert_chain(files.certificate, files.key or None, password="")
    except (OSError, ValueError) as exc:
        raise OptionError("client_certificate", _file_error_text(exc, files.certificate)) from exc
    if alpn:
        context.set_alpn_protocols(alpn.split(","))
    return context


def _file_error_text(exc: OSError | ValueError, file: str) -> str:
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
        return f"cannot read {file}: {os_error_text(exc)}"
    return f"cannot use {file}: not a valid PEM file"


class TlsProtocol(asyncio.Protocol):
    """Decrypts and encrypts between a plain connection and the application protocol."""

    def __init__(self, inner: asyncio.Protocol, context: ssl.SSLContext, server_name: str) -> None:
        self._inner = inner
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._received, self._to_send, server_hostname=server_name)
        self.handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handshake.add_done_callback(_retrieve_exception)
        self._reaction: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # to the end of the handshake
        self._reaction.add_done_callback(_retrieve_exception)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start_handshake(self) -> None:
        self._advance()

    def data_received(self, data: bytes) -> None:
        was_open = self._is_open
        self._received.write(data)
        self._advance()
        if was_open:
            self._set_reaction()

    def eof_received(self) -> None:
        self._received.write_eof()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_reaction(exc)
        if not self.handshake.done():
            self.handshake.set_exception(exc or ConnectionResetError("connection closed during the TLS handshake"))
        elif self._is_open:
            self._inner.connection_lost(exc)

    async def wait_for_reaction(self, timeout_s: float) -> None:
        """Wait for the first thing that the server does after the handshake. Raises `ssl.SSLError` if it is an alert,
        and `OSError` if it is a reset.

        With TLS 1.3, the client has finished when the server begins to judge its certificate. If it accepts it, most
        servers send session tickets; all others react to the end of the session, which is sent here. It is sent late:
        what is sent to a server that has closed the connection may destroy its alert, which is not read yet.
        """
        if self.tls.version() != "TLSv1.3":
            return
        await asyncio.wait([self._reaction], timeout=min(TICKETS_WITHIN_S, timeout_s / 2))
        if not self._reaction.done():
            with suppress(ssl.SSLWantReadError):
                self.tls.unwrap()
            self._send()
            await asyncio.wait([self._reaction], timeout=timeout_s)
        if self._reaction.done():
            self._reaction.result()

    def _set_reaction(self, exc: Exception | None = None) -> None:
        if self._reaction.done():
            return
        if exc is None:
            self._reaction.set_result(None)
        else:
            self._reaction.set_exception(exc)

    @property
    def _is_open(self) -> bool:
        """Whether the handshake succeeded, so that the application protocol is in use."""
        return self.handshake.done() and not self.handshake.cancelled() and self.handshake.exception() is None

    def write(self, data: bytes) -> None:
        self.tls.write(data)
        self._send()

    def _advance(self) -> None:
        """Continue the handshake or decrypt, as far as the received bytes allow."""
        if self.handshake.done() and not self._is_open:
            return
        try:
            if not self.handshake.done():
                self.tls.do_handshake()
                self.handshake.set_result(None)
            while data := self.tls.read(_READ_BYTES):
                self._inner.data_received(data)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError) as exc:
            self._fail(exc, inner_exc=None)
        except ssl.SSLError as exc:
            self._fail(exc, inner_exc=exc)
        self._send()

    def _send(self) -> None:
        if data := self._to_send.read():
            send(self._transport, data)

    def _fail(self, exc: ssl.SSLError, inner_exc: Exception | None) -> None:
        if not self.handshake.done():
            self.handshake.set_exception(exc)
        elif self._is_open:
            self._set_reaction(None if inner_exc is None else exc)
            self._inner.connection_lost(inner_exc)


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Mark it as retrieved: a cancelled check no longer waits for it."""
    if not future.cancelled():
        future.exception()


class TlsTransport(asyncio.Transport):
    """The transport that the application protocol uses."""

    def __init__(self, plain: asyncio.Transport, layer: TlsProtocol) -> None:
        super().__init__()
        self._plain = plain
        self._layer = layer

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._layer.write(bytes(data))

    async def wait_for_reaction(self, timeout_s: float) -> None:
        await self._layer.wait_for_reaction(timeout_s)

    def abort(self) -> None:
        self._plain.abort()

    def close(self) -> None:
        """Without a TLS close_notify: a finished check does not wait for the peer."""
        self._plain.abort()

    def is_closing(self) -> bool:
        return self._plain.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._plain.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():  # data that arrived before the end is still read
            self._plain.resume_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401  as in asyncio
        if name == "ssl_object":
            return self._layer.tls
        return self._layer.tls.getpeercert() if name == "peercert" else self._plain.get_extra_info(name, default)


def sent_certificates(transport: asyncio.BaseTransport) -> list[dict[str, Any]]:
    """Every certificate that the server sent, its own first, in the form of `getpeercert`.

    Other clients may need every one of them. From Python 3.13 on, ssl has a public method that returns them, but
    encoded, and ssl cannot decode them.
    """
    tls = transport.get_extra_info("ssl_object")
    return [certificate.get_info() for certificate in tls._sslobj.get_unverified_chain()]


async def connect_tls(
    connect: Connect, protocol: Callable[[], P], context: ssl.SSLContext, server_name: str
) -> tuple[TlsTransport, P]:
    """Connect with `connect` and start TLS. The caller aborts the connection."""
    inner = protocol()
    plain, layer = await connect(lambda: TlsProtocol(inner, context, server_name))
    return await _handshake(plain, layer, server_name), inner


async def upgrade_transport(
    plain: asyncio.Transport, inner: asyncio.Protocol, context: ssl.SSLContext, server_name: str
) -> TlsTransport:
    """Start TLS on an open connection."""
    layer = TlsProtocol(inner, context, server_name)
    layer.connection_made(plain)
    plain.set_protocol(layer)
    return await _handshake(plain, layer, server_name)


async def _handshake(plain: asyncio.Transport, layer: TlsProtocol, server_name: str) -> TlsTransport:
    try:
        with step("handshake", server_name):
            layer.start_handshake()
            await layer.handshake
    except BaseException:  # also on cancellation: the caller does not have the connection yet
        plain.abort()
        raise
    return TlsTransport(plain, layer)
