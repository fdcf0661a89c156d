"""Tries the ports of all known services on this host at the same time.

First on 127.0.0.1, then, if the port is closed there, on ::1. Each port has its own deadline. A port that does not
respond is distinguished from one on which another service responds.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.cli.init.catalog import CATALOG, EmptyResponseError
from svcnode.core.codes import ReasonCode
from svcnode.net.connect import TcpEndpoint
from svcnode.net.http_response import HttpProtocolError
from svcnode.net.os_errors import connection_error_text
from svcnode.net.streams import ResponseTooLargeError
from svcnode.net.tls import connect_tls
from svcnode.net.trace import interrupted_step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from svcnode.cli.init.catalog import CatalogEntry

HOSTS = ("127.0.0.1", "::1")
DEADLINE_S = 1.0
TLS_DEADLINE_S = 0.5
# The port is closed, or this host does not have the address.
_NOT_LISTENING_ERRNOS = {
    errno.ECONNREFUSED,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
}


@dataclass(frozen=True, slots=True)
class FoundService:
    """A service that its fingerprint confirmed."""

    entry: CatalogEntry
    endpoint: TcpEndpoint


@dataclass(frozen=True, slots=True)
class UnconfirmedPort:
    entry: CatalogEntry
    endpoint: TcpEndpoint
    reason: str
    code: ReasonCode

    def __str__(self) -> str:
        return f"port {self.endpoint.port}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ScanResult:
    """In the order of the catalog."""

    found: tuple[FoundService, ...] = ()
    unconfirmed: tuple[UnconfirmedPort, ...] = ()


async def scan(ports: Mapping[str, Collection[int]] | None = None, deadline_s: float = DEADLINE_S) -> ScanResult:
    """`ports`, by kind, replaces the default ports."""
    ports = ports or {}
    candidates = [(entry, port) for entry in CATALOG for port in ports.get(entry.kind, entry.ports)]
    results = await asyncio.gather(*(_identify(entry, port, deadline_s) for entry, port in candidates))
    found = tuple(result for result in results if isinstance(result, FoundService))
    confirmed = {service.endpoint for service in found}
    # Two entries may have the same port; if one is confirmed there, the other needs no report.
    unconfirmed = (
        result for result in results if isinstance(result, UnconfirmedPort) and result.endpoint not in confirmed
    )
    return ScanResult(found, tuple(unconfirmed))


async def _identify(entry: CatalogEntry, port: int, deadline_s: float) -> FoundService | UnconfirmedPort | None:
    for host in HOSTS:
        endpoint = TcpEndpoint.of(host, port)
        try:
            async with asyncio.timeout(deadline_s):
                match = await _matching_entry(entry, endpoint)
        except OSError as exc:
            if exc.errno in _NOT_LISTENING_ERRNOS:
                continue
            return await _unconfirmed(entry, endpoint, *_failure(exc, entry, deadline_s))
        if match is not None:
            return FoundService(match, endpoint)
        return await _unconfirmed(entry, endpoint, *_mismatch(entry))
    return None


async def _matching_entry(entry: CatalogEntry, endpoint: TcpEndpoint) -> CatalogEntry | None:
    """The entry, or its fallback."""
    if await entry.fingerprint.matches(endpoint):
        return entry
    return None if entry.fallback is None else await _matching_entry(entry.fallback, endpoint)


def _failure(exc: OSError, entry: CatalogEntry, deadline_s: float) -> tuple[str, ReasonCode]:
    match exc:
        case TimeoutError() if interrupted_step(exc.__cause__) == "connect":
            return f"timeout: no connection within {deadline_s:g} s", ReasonCode.CONNECT_TIMEOUT
        case TimeoutError():
            return f"timeout: open, but no response within {deadline_s:g} s", ReasonCode.TIMEOUT
        case HttpProtocolError() | ResponseTooLargeError():
            return _mismatch(entry)
        case EmptyResponseError():
            return "open, but closed the connection without a response", ReasonCode.CONNECTION_CLOSED
        case ConnectionResetError():
            return "open, but reset the connection", ReasonCode.CONNECTION_CLOSED
        case _:
            return f"cannot connect: {connection_error_text(exc)}", ReasonCode.OTHER


def _mismatch(entry: CatalogEntry) -> tuple[str, ReasonCode]:
    return f"open, but the response is not from {entry.title_with_article}", ReasonCode.PROTOCOL_ERROR


async def _unconfirmed(entry: CatalogEntry, endpoint: TcpEndpoint, reason: str, code: ReasonCode) -> UnconfirmedPort:
    if await _speaks_tls(endpoint):
        reason, code = "open with TLS; svcnode init finds only services without TLS", ReasonCode.NOT_SUPPORTED
    return UnconfirmedPort(entry, endpoint, reason, code)


async def _speaks_tls(endpoint: TcpEndpoint) -> bool:
    """Whether a TLS handshake succeeds; nothing else is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(TLS_DEADLINE_S):
            transport, _ = await connect_tls(endpoint.connect, asyncio.Protocol, context, endpoint.host)
    except OSError:
        return False
    transport.abort()
    return True
