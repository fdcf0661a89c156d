"""The base class of probes that send HTTP requests."""

from __future__ import annotations

from dataclasses import dataclass

from svcnode.net.http1 import Http1Client
from svcnode.probes.session import TlsProbe


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpClientProbe(Http1Client, TlsProbe):
    """A probe with the options of HTTP and TLS. A kind builds its requests with `build_request` and calls `send`."""
