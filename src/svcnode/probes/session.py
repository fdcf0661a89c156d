"""Dates that another machine wrote, read by our clock.

A connection that is kept from one look to the next, for those who ask for it with `reuse`.

The shape of a kind: a frozen dataclass whose first field is the URL, and whose other fields are its options.

TLS as a client of the service would use it.

The shape of a kind that talks to its service over a connection: open it, ask, and let it go.

By default each look opens a fresh connection, as a new client would. With `reuse` one is kept from look to look. A
driver's connection is only ever used through the three methods below, so that a look that is cut off at its deadline
leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted, register_secret
from svcnode.core.text import os_error_text
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.net.url import is_valid_hostname
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.net.url import Url

C = TypeVar("C")

REUSE_STEP_DETAIL = "the connection of an earlier look"  # what a step of such a look says


class ConnectionSlot(Generic[C]):
    """At most one connection that waits for its next use."""

    __slots__ = ("_connection", "_loop")

    def __init__(self) -> None:
        self._connection: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, connection: C) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    def take(self) -> C | None:
        """None as well when it belongs to an event loop that is gone, as after a fork."""
        connection = self._connection if self._loop is asyncio.get_running_loop() else None
        self._connection = self._loop = None
        return connection

    def close(self, abort: Callable[[C], None]) -> None:
        connection = self.take()
        if connection is not None:
            abort(connection)


_S_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsOptions(UrlProbe):
    """The options of every kind that can speak TLS."""

    ca: str = ""  # PEM file; without it, the authorities that this machine trusts
    server_name: str = ""  # without it, the host of the URL
    client_certificate: str = ""
    client_key: str = ""
    min_cert_days: Count = 0

    tls_enabled_by: ClassVar[str] = ""  # what asks for TLS, where the scheme does not

    def validate_tls_options(self, *, uses_tls: bool) -> None:
        """Refuse at once what no look could use."""
        for name in ("ca", "server_name", "client_certificate", "client_key", "min_cert_days"):
            if getattr(self, name) and not uses_tls:
                raise OptionError(name, f"has no meaning {self._no_tls_reason}")
        if self.client_key and not self.client_certificate:
            raise OptionError("client_certificate", "is missing, and client_key belongs to it")
        if self.server_name and not is_valid_hostname(self.server_name):
            raise OptionError("server_name", "is not a name as the network knows them")
        if uses_tls:  # made by a look that is out of file descriptors, it would trust nobody, and be kept
            self.tls_context()

    @property
    def _no_tls_reason(self) -> str:
        if self.tls_enabled_by:
            return f"without TLS; set {self.tls_enabled_by}"
        return f"for {self.url.scheme}, which does not speak TLS"

    def tls_context(self, *, with_client_certificate: bool = True, alpn: str = "") -> ssl.SSLContext:
        """Made anew only when one of its files has changed."""
        files = (self.ca, self.client_certificate, self.client_key) if with_client_certificate else (self.ca, "", "")
        return _make_context(*files, alpn, tuple(_mtime_ns(file) for file in files))

    def certificate_verdict(self, transport: asyncio.BaseTransport) -> Verdict | None:
        """`not_ready` when the certificate of the server ends too soon; None when it does not."""
        if not self.min_cert_days:
            return None
        certificate: dict[str, Any] = transport.get_extra_info("peercert")
        days_left = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / _S_PER_DAY
        if days_left >= self.min_cert_days:
            return None
        return Verdict.not_ready(f"its certificate expires in {days_left:.1f} days, before min_cert_days is reached")


def _mtime_ns(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns if file else 0
    except (OSError, ValueError):
        return 0  # reading it says why


@lru_cache(maxsize=64)
def _make_context(ca: str, certificate: str, key: str, alpn: str, _mtimes_ns: tuple[int, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as exc:
        raise OptionError("ca", _file_error_text(exc, ca)) from exc
    try:
        if certificate:
            # Without a password of its own OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key or None, password="")
    except (OSError, ValueError) as exc:
        raise OptionError("client_certificate", _file_error_text(exc, certificate)) from exc
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def _file_error_text(exc: OSError | ValueError, file: str) -> str:
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
        return f"cannot use {file}: {os_error_text(exc)}"
    return f"cannot use {file}: not a PEM file that can be used"


_MAX_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionProbe(TlsOptions, ABC, Generic[C]):
    reuse: bool = False
    _slot: ConnectionSlot[C] = field(init=False, compare=False, default_factory=ConnectionSlot)

    @abstractmethod
    async def open(self) -> C:
        """Connect and log in. Cut off or failing, it closes what it had opened."""

    @abstractmethod
    async def check_connection(self, connection: C) -> Verdict:
        """What the look is for."""

    @abstractmethod
    def abort(self, connection: C) -> None:
        """End the connection at once, whatever state it is in."""

    def reset_byte_count(self, connection: C) -> None:
        """A new look begins on a connection that was kept."""

    async def disconnect(self, connection: C) -> None:
        """Say goodbye, to those who would note it in their log otherwise. `drop` follows."""

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        """What it means that the driver raised this."""
        if isinstance(exc, CheckError):
            return exc.verdict(self.url)
        return Verdict.failed(f"{driver_error_text(exc)}: {self.url}")

    async def check(self) -> Verdict:
        try:
            kept = self._slot.take()
            if kept is not None and (verdict := await self._check_reused(kept)) is not None:
                return verdict
            return await self._check_and_release(await self.open())
        except (MemoryError, ProbeError):
            raise  # our own fault, such as a file that is gone
        except Exception as exc:  # noqa: BLE001  whatever a driver makes of what a server says
            return self._verdict_for_error(exc)

    async def _check_reused(self, connection: C) -> Verdict | None:
        """None when the connection was of no use any more; only a new one tells whether that means anything."""
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
                verdict = await self.check_connection(connection)
            if self.reuse and verdict.outcome is Outcome.READY:
                self.close()  # what another look at the same time may have kept
                self._slot.put(connection)
                is_kept = True
            elif verdict.outcome in (Outcome.READY, Outcome.NOT_READY):  # nothing is wrong with the connection
                with suppress(Exception):  # it has said all that matters
                    await self.disconnect(connection)
            return verdict
        finally:
            if not is_kept:
                self.abort(connection)

    def _verdict_for_error(self, exc: Exception) -> Verdict:
        cause: BaseException | None = exc
        while cause is not None:  # drivers wrap what the system said in errors of their own
            if isinstance(cause, OSError):
                return verdict_for_os_error(cause, str(self.url))
            if isinstance(cause, EOFError):
                return Verdict.failed(f"it closed the connection before it had answered: {self.url}")
            cause = cause.__cause__
        return self.verdict_for_driver_error(exc)

    def close(self) -> None:
        """Nobody will look for a while: what was kept is not needed any more."""
        self._slot.close(self.abort)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoginProbe(SessionProbe[C]):
    """With a user name and a password, which may stand in the URL as well."""

    username: str = ""
    password: str = ""

    def credentials(self) -> tuple[str, str]:
        login = resolve_credentials(self.url, self.username, self.password)
        for name, text in zip(("username", "password"), login, strict=True):
            if "\0" in text:
                raise OptionError(name, "holds a null character, where many servers would take it for ended")
        return login

    def database_name(self) -> str:
        """What the path of the URL names."""
        name = unquote(self.url.path.removeprefix("/"))
        if "\0" in name:
            raise ProbeError("the name of a database holds no null character")
        return name


def resolve_credentials(url: Url, username: str, password: str) -> tuple[str, str]:
    """Each of the two from the URL or from an option."""
    for name, text in (("username", username), ("password", password)):
        if text and getattr(url, name):
            raise OptionError(name, f"stands in the URL as well; only one {name} can count")
    register_secret(password)
    return username or url.username, password or url.password


def driver_error_text(exc: Exception) -> str:
    """A driver's words on one line, and not too many of them; some are the server's, and could upset a terminal."""
    words = "".join(char if char.isprintable() else " " for char in redacted(str(exc)))
    text = " ".join(words.split()) or type(exc).__name__
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
