"""TLS as a client of the service would use it."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.core.wording import system_words
from svcnode.probes.tools.kind import UrlProbe
from svcnode.probes.tools.options import Count
from svcnode.probes.tools.url import is_network_name

if TYPE_CHECKING:
    import asyncio

_S_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsOptions(UrlProbe):
    """The options of every kind that can speak TLS."""

    ca: str = ""  # PEM file; without it, the authorities that this machine trusts
    server_name: str = ""  # without it, the host of the URL
    client_certificate: str = ""
    client_key: str = ""
    min_cert_days: Count = 0

    tls_set_by: ClassVar[str] = ""  # what asks for TLS, where the scheme does not

    def check_tls_options(self, *, is_used: bool) -> None:
        """Refuse at once what no look could use."""
        for name in ("ca", "server_name", "client_certificate", "client_key", "min_cert_days"):
            if getattr(self, name) and not is_used:
                raise OptionError(name, f"has no meaning {self._why_no_tls}")
        if self.client_key and not self.client_certificate:
            raise OptionError("client_certificate", "is missing, and client_key belongs to it")
        if self.server_name and not is_network_name(self.server_name):
            raise OptionError("server_name", "is not a name as the network knows them")
        if is_used:  # made by a look that is out of file descriptors, it would trust nobody, and be kept
            self.tls_context()

    @property
    def _why_no_tls(self) -> str:
        if self.tls_set_by:
            return f"without TLS; set {self.tls_set_by}"
        return f"for {self.url.scheme}, which does not speak TLS"

    def tls_context(self, *, shows_client: bool = True, alpn: str = "") -> ssl.SSLContext:
        """Made anew only when one of its files has changed."""
        files = (self.ca, self.client_certificate, self.client_key) if shows_client else (self.ca, "", "")
        return _context(*files, alpn, tuple(_changed_at_ns(file) for file in files))

    def expiry_verdict(self, transport: asyncio.BaseTransport) -> Verdict | None:
        """`not_ready` when the certificate of the server ends too soon; None when it does not."""
        if not self.min_cert_days:
            return None
        certificate: dict[str, Any] = transport.get_extra_info("peercert")
        days_left = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / _S_PER_DAY
        if days_left >= self.min_cert_days:
            return None
        return Verdict.not_ready(f"its certificate expires in {days_left:.1f} days, before min_cert_days is reached")


def _changed_at_ns(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns if file else 0
    except (OSError, ValueError):
        return 0  # reading it says why


@lru_cache(maxsize=64)
def _context(ca: str, certificate: str, key: str, alpn: str, _changed_at_ns: tuple[int, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as exc:
        raise OptionError("ca", _refusal(exc, ca)) from exc
    try:
        if certificate:
            # Without a password of its own OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key or None, password="")
    except (OSError, ValueError) as exc:
        raise OptionError("client_certificate", _refusal(exc, certificate)) from exc
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def _refusal(exc: OSError | ValueError, file: str) -> str:
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
        return f"cannot use {file}: {system_words(exc)}"
    return f"cannot use {file}: not a PEM file that can be used"
