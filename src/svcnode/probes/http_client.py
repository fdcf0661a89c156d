"""The base classes of probes that send HTTP requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.model import Verdict
from svcnode.net.http1 import Http1Client
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.base import CheckError
from svcnode.probes.session import TlsProbe

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpClientProbe(Http1Client, TlsProbe):
    """A probe with the options of HTTP and TLS. A kind builds its requests with `build_request` and calls `send`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpSessionProbe(HttpClientProbe, ABC):
    """A probe that sends its requests on one connection."""

    @abstractmethod
    async def check_session(self, session: HttpSession) -> Verdict | None:
        """None if the service is ready. May raise `CheckError` and `OSError`."""

    async def check(self) -> Verdict:
        try:
            with self.session() as session:
                return await self.check_session(session) or READY
        except CheckError as exc:
            return exc.verdict(self.url)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
