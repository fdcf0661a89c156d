"""Asks every known service at once, at its ports on this host, whether it is there.

On 127.0.0.1, and where nobody listens there, on ::1. One deadline for each, so a port that is mute costs no more than
that, and what answers with something else is told apart from what does not answer.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.discovery.catalog import CATALOG
from svcnode.discovery.fingerprint import EmptyResponseError
from svcnode.net.connect import TcpEndpoint
from svcnode.net.http_response import HttpProtocolError
from svcnode.net.os_errors import connection_error_text
from svcnode.net.streams import ResponseTooLargeError
from svcnode.net.tls import connect_tls
from svcnode.net.trace import interrupted_step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from svcnode.discovery.catalog import CatalogEntry

HOSTS = ("127.0.0.1", "::1")
DEADLINE_S = 1.0
TLS_DEADLINE_S = 0.5
# Nobody listens there, or this host does not have that address.
_NOT_LISTENING_ERRNOS = {
    errno.ECONNREFUSED,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
}


@dataclass(frozen=True, slots=True)
class FoundService:
    """Confirmed: it said what only this service says."""

    entry: CatalogEntry
    endpoint: TcpEndpoint


@dataclass(frozen=True, slots=True)
class UnconfirmedPort:
    entry: CatalogEntry
    endpoint: TcpEndpoint
    reason: str  # as the rest of a sentence that begins with the port

    def __str__(self) -> str:
        return f"port {self.endpoint.port} {self.reason}"


@dataclass(frozen=True, slots=True)
class ScanResult:
    """In the order of the table."""

    found: tuple[FoundService, ...] = ()
    unconfirmed: tuple[UnconfirmedPort, ...] = ()


async def scan(ports: Mapping[str, Collection[int]] | None = None, deadline_s: float = DEADLINE_S) -> ScanResult:
    """`ports` names, by kind, where to look instead of at the usual ports."""
    ports = ports or {}
    places = [(known, port) for known in CATALOG for port in ports.get(known.kind, known.ports)]
    results = await asyncio.gather(*(_identify(known, port, deadline_s) for known, port in places))
    found = tuple(result for result in results if isinstance(result, FoundService))
    taken = {one.endpoint for one in found}
    # What is known by one name need not be told to be nothing else.
    unconfirmed = [one for one in results if isinstance(one, UnconfirmedPort) and one.endpoint not in taken]
    return ScanResult(found, tuple(unconfirmed))


async def _identify(known: CatalogEntry, port: int, deadline_s: float) -> FoundService | UnconfirmedPort | None:
    for host in HOSTS:
        endpoint = TcpEndpoint.of(host, port)
        try:
            async with asyncio.timeout(deadline_s):
                is_it = await known.fingerprint.matches(endpoint)
        except OSError as exc:
            if exc.errno in _NOT_LISTENING_ERRNOS:
                continue
            return await _unconfirmed(known, endpoint, _failure_text(exc, known, deadline_s))
        if is_it:
            return FoundService(known, endpoint)
        return await _unconfirmed(known, endpoint, _mismatch_text(known))
    return None


def _failure_text(exc: OSError, known: CatalogEntry, deadline_s: float) -> str:
    match exc:
        case TimeoutError() if interrupted_step(exc.__cause__) == "connect":
            return f"took no connection within {deadline_s:g} s"
        case TimeoutError():
            return f"is open, but did not answer within {deadline_s:g} s"
        case HttpProtocolError() | ResponseTooLargeError():
            return _mismatch_text(known)
        case EmptyResponseError():
            return "is open, but closed the connection without a word"
        case ConnectionResetError():
            return "is open, but reset the connection"
        case _:
            return f"could not be asked: {connection_error_text(exc)}"


def _mismatch_text(known: CatalogEntry) -> str:
    return f"is open, but what answers there is not {known.title_with_article}"


async def _unconfirmed(known: CatalogEntry, endpoint: TcpEndpoint, reason: str) -> UnconfirmedPort:
    if await _speaks_tls(endpoint):
        reason = f"is open and speaks TLS, under which {known.title_with_article} is not looked for"
    return UnconfirmedPort(known, endpoint, reason)


async def _speaks_tls(endpoint: TcpEndpoint) -> bool:
    """Whoever it is: all that is said to it is hello."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(TLS_DEADLINE_S):
            transport, _ = await connect_tls(endpoint.connect, asyncio.Protocol, context, endpoint.host)
    except OSError:
        return False
    transport.abort()
    return True
