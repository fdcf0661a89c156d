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

from svcnode.discovery.known import KNOWN
from svcnode.discovery.speech import WordlessError
from svcnode.probes.tools.budget import TooMuchError
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.faults import words_of
from svcnode.probes.tools.http_answer import ExchangeError
from svcnode.probes.tools.steps import step_cut_short
from svcnode.probes.tools.tls_layer import connected_under_tls

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from svcnode.discovery.known import Known

HOSTS = ("127.0.0.1", "::1")
DEADLINE_S = 1.0
TLS_DEADLINE_S = 0.5
# Nobody listens there, or this host does not have that address.
_NOBODY = {
    errno.ECONNREFUSED,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
}


@dataclass(frozen=True, slots=True)
class Found:
    """Confirmed: it said what only this service says."""

    known: Known
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    known: Known
    endpoint: Endpoint
    reason: str  # as the rest of a sentence that begins with the port

    def __str__(self) -> str:
        return f"port {self.endpoint.port} {self.reason}"


@dataclass(frozen=True, slots=True)
class Search:
    """In the order of the table."""

    found: tuple[Found, ...] = ()
    unconfirmed: tuple[Unconfirmed, ...] = ()


async def search(ports: Mapping[str, Collection[int]] | None = None, deadline_s: float = DEADLINE_S) -> Search:
    """`ports` names, by kind, where to look instead of at the usual ports."""
    ports = ports or {}
    places = [(known, port) for known in KNOWN for port in ports.get(known.kind, known.ports)]
    results = await asyncio.gather(*(_asked(known, port, deadline_s) for known, port in places))
    found = tuple(result for result in results if isinstance(result, Found))
    taken = {one.endpoint for one in found}
    # What is known by one name need not be told to be nothing else.
    unconfirmed = [one for one in results if isinstance(one, Unconfirmed) and one.endpoint not in taken]
    return Search(found, tuple(unconfirmed))


async def _asked(known: Known, port: int, deadline_s: float) -> Found | Unconfirmed | None:
    for host in HOSTS:
        endpoint = Endpoint.of(host, port)
        try:
            async with asyncio.timeout(deadline_s):
                is_it = await known.speech.is_heard(endpoint)
        except OSError as exc:
            if exc.errno in _NOBODY:
                continue
            return await _unconfirmed(known, endpoint, _fault(exc, known, deadline_s))
        if is_it:
            return Found(known, endpoint)
        return await _unconfirmed(known, endpoint, _another(known))
    return None


def _fault(exc: OSError, known: Known, deadline_s: float) -> str:
    match exc:
        case TimeoutError() if step_cut_short(exc.__cause__) == "connect":
            return f"took no connection within {deadline_s:g} s"
        case TimeoutError():
            return f"is open, but did not answer within {deadline_s:g} s"
        case ExchangeError() | TooMuchError():
            return _another(known)
        case WordlessError():
            return "is open, but closed the connection without a word"
        case ConnectionResetError():
            return "is open, but reset the connection"
        case _:
            return f"could not be asked: {words_of(exc)}"


def _another(known: Known) -> str:
    return f"is open, but what answers there is not {known.spoken}"


async def _unconfirmed(known: Known, endpoint: Endpoint, reason: str) -> Unconfirmed:
    if await _speaks_tls(endpoint):
        reason = f"is open and speaks TLS, under which {known.spoken} is not looked for"
    return Unconfirmed(known, endpoint, reason)


async def _speaks_tls(endpoint: Endpoint) -> bool:
    """Whoever it is: all that is said to it is hello."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(TLS_DEADLINE_S):
            transport, _ = await connected_under_tls(endpoint.connect, asyncio.Protocol, context, endpoint.host)
    except OSError:
        return False
    transport.abort()
    return True
