"""Base classes of probes that use a connection: TLS options, opening and reusing a connection, login.

By default each check opens a new connection, as a new client would. With `reuse` one connection is kept between checks.
"""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import PublicText
from svcnode.core.redaction import register_secret
from svcnode.core.text import excerpt, one_line, truncate
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.connect import REUSE_STEP_DETAIL, ConnectionCache, TcpEndpoint, peer_address
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.streams import BUFFER_LIMIT_BYTES, ConnectionStreams, open_streams
from svcnode.net.tls import TlsOptions, sent_certificates
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.options import Count

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from svcnode.core.url import Url

C = TypeVar("C")

READY = Verdict.ready()
_S_PER_DAY = 86_400
_MAX_SHOWN_CHARS = 300
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, kw_only=True, repr=False)
class TlsProbe(TlsOptions, UrlProbe):
    """A probe that can use TLS."""

    __slots__ = ()  # as in UrlProbe

    min_cert_days: Count = 0

    url_form: ClassVar = UrlForm()

    def validate_tls_options(self, *, uses_tls: bool) -> None:
        super().validate_tls_options(uses_tls=uses_tls)
        self.require_tls("min_cert_days", uses_tls=uses_tls)

    def certificate_verdict(self, transport: asyncio.BaseTransport) -> Verdict | None:
        """`not_ready` if a certificate that the server sent expires within `min_cert_days`, else None."""
        if not self.min_cert_days:
            return None
        first = min(sent_certificates(transport), key=_expiry_s)
        days_left = (_expiry_s(first) - time.time()) / _S_PER_DAY
        if days_left >= self.min_cert_days:
            return None
        return Verdict.not_ready(
            f"certificate{_subject_text(first)} expires in {days_left:.1f} days, but min_cert_days is "
            f"{self.min_cert_days}",
            code=ReasonCode.TLS_EXPIRES_SOON,
        )


def _expiry_s(certificate: dict[str, Any]) -> float:
    return ssl.cert_time_to_seconds(certificate["notAfter"])


def _subject_text(certificate: dict[str, Any]) -> str:
    """The common name, or the last part of the subject, in quotes."""
    parts = {name: text for part in certificate.get("subject", ()) for name, text in part}
    text = parts.get("commonName") or next(reversed(parts.values()), "")
    return f' "{truncate(one_line(text), _MAX_NAME_CHARS)}"' if text else ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionProbe(TlsProbe, ABC, Generic[C]):
    reuse: bool = False
    _connections: ConnectionCache[C] = field(init=False, compare=False, default_factory=ConnectionCache)

    default_port: ClassVar[int | None] = None  # None: the URL must have a port
    tls_schemes: ClassVar[tuple[str, ...]] = ()

    @property
    def uses_tls(self) -> bool:
        """By the scheme. A kind that has an option for it overrides this."""
        return self.url.scheme in self.tls_schemes

    def endpoint(self) -> TcpEndpoint:
        port = self.url.port or self.default_port or self.url.require_port()
        return TcpEndpoint.of(self.url.require_host(), port)

    def validate_connection(self) -> None:
        """Raise if no connection can be made with the URL and the TLS options."""
        self.validate_tls_options(uses_tls=self.uses_tls)
        self.endpoint()

    @abstractmethod
    async def open(self) -> C:
        """Connect and log in. If this fails or is cancelled, it closes everything that it opened."""

    @abstractmethod
    async def check_connection(self, connection: C) -> Verdict | None:
        """Check the service over the open connection; None if it is ready."""

    @abstractmethod
    def abort(self, connection: C) -> None:
        """Close the connection at once, in any state, without waiting."""

    def transport(self, connection: C) -> asyncio.BaseTransport | None:
        """The transport, which has the address and the certificate of the server."""
        return None

    def peer_address(self, connection: C) -> str:
        """The IP address of the server. If it is known, `reuse` notices that the name has moved."""
        transport = self.transport(connection)
        return "" if transport is None else peer_address(transport)

    def reset_byte_count(self, connection: C) -> None:
        """A new check begins on a reused connection."""

    async def disconnect(self, connection: C) -> None:
        """Log out in the way of the protocol, if the server would otherwise log an error. `abort` follows."""

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        """The verdict on an error that the driver raised."""
        if isinstance(exc, CheckError):
            return exc.verdict(self.url)
        return Verdict.failed(f"{driver_error_text(exc)}: {self.url}")

    async def open_streams(self, *, limit_bytes: int = BUFFER_LIMIT_BYTES) -> ConnectionStreams:
        """A new connection, with TLS if the probe uses it."""
        endpoint = self.endpoint()
        tls = await self.tls_context() if self.uses_tls else None
        return await open_streams(endpoint, tls, self.server_name or endpoint.host, limit_bytes=limit_bytes)

    @contextmanager
    def abort_on_error(self, connection: C) -> Iterator[None]:
        """Abort the connection if the login fails or is cancelled: nothing else would close it."""
        try:
            yield
        except BaseException:
            self.abort(connection)
            raise

    async def check(self) -> Verdict:
        try:
            reused = self._take_connection()
            if reused is not None and (verdict := await self._check_reused(reused)) is not None:
                return verdict
            return await self._check_and_release(await self.open())
        except (MemoryError, ProbeError):
            raise  # a fault on this machine, such as a missing file
        except Exception as exc:  # noqa: BLE001  drivers raise any type for an unexpected response
            return self._verdict_for_error(exc)

    def _take_connection(self) -> C | None:
        """The connection of an earlier check, unless its host has moved since."""
        connection = self._connections.take()
        if connection is None or not self._connections.has_moved(self.url.host, self.peer_address(connection)):
            return connection
        self.abort(connection)  # the old host may not respond any more
        return None

    async def _check_reused(self, connection: C) -> Verdict | None:
        """None if the connection failed: the server may have closed it, and only a new connection shows its state."""
        try:
            with step("reuse", REUSE_STEP_DETAIL):
                self.reset_byte_count(connection)
            return await self._check_and_release(connection)
        except Exception:  # noqa: BLE001  as above
            return None

    async def _check_and_release(self, connection: C) -> Verdict:
        is_kept = False
        try:
            with step("exchange"):
                verdict = await self.check_connection(connection) or READY
                transport = self.transport(connection) if self.uses_tls else None
                if verdict.outcome is Outcome.READY and transport is not None:
                    verdict = self.certificate_verdict(transport) or verdict
            if self.reuse and verdict.outcome is Outcome.READY:
                self.close()  # another check may have stored a connection at the same time
                self._connections.put(connection)
                is_kept = True
            elif verdict.outcome in (Outcome.READY, Outcome.NOT_READY):  # the connection works
                with suppress(Exception):  # the verdict is known
                    await self.disconnect(connection)
            return verdict
        finally:
            if not is_kept:
                self.abort(connection)

    def _verdict_for_error(self, exc: Exception) -> Verdict:
        cause: BaseException | None = exc
        while cause is not None:  # drivers wrap errors of the operating system
            if isinstance(cause, OSError):
                return verdict_for_os_error(cause, str(self.url))
            if isinstance(cause, EOFError):
                return Verdict.failed(
                    f"connection closed before the response was complete: {self.url}", code=ReasonCode.CONNECTION_CLOSED
                )
            cause = cause.__cause__
        return self.verdict_for_driver_error(exc)

    def close(self) -> None:
        """Close the connection that is kept between checks."""
        self._connections.close(self.abort)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoginProbe(SessionProbe[C]):
    """A session with a user name and a password, from the options or from the URL."""

    username: PublicText = ""
    password: str = ""

    def credentials(self) -> tuple[str, str]:
        login = resolve_credentials(self.url, self.username, self.password)
        for name, text in zip(("username", "password"), login, strict=True):
            if "\0" in text:
                raise OptionError(name, "must not contain a null character")
        return login

    def database_name(self) -> str:
        """The path of the URL."""
        name = unquote(self.url.path.removeprefix("/"))
        if "\0" in name:
            raise UrlError("path", "the name of a database must not contain a null character")
        return name


def resolve_credentials(url: Url, username: str, password: str) -> tuple[str, str]:
    """User name and password, each from the URL or from an option."""
    for name, text in (("username", username), ("password", password)):
        if text and getattr(url, name):
            raise OptionError(name, f"the URL has a {name} too; remove one of them")
    register_secret(password)
    return username or url.username, password or url.password


def driver_error_text(error: object) -> str:
    """A message of a driver or a server on one line, without secrets and control characters, at a limited length."""
    exc = error if isinstance(error, Exception) else Exception(error)
    return excerpt(str(exc), _MAX_SHOWN_CHARS) or type(exc).__name__
