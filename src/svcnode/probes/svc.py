"""`svc+http://…`, `svc+https://…`: another node with this interface, or one of its services.

A node whose services are other nodes shows the health of a fleet.

ready      the node, or the service, responds with 200
not ready  206: partially healthy, or initializing; the certificate expires within `min_cert_days`
failed     503, or any other response; connection refused, network unreachable, certificate not valid
unknown    no file descriptors or ports left on this machine, or the resolver or the proxy failed
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import quote

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import DOT_SEGMENTS, Health, Verdict
from svcnode.core.option_types import PublicText
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SvcProbe(HttpClientProbe):
    prefix: PublicText = ""  # default: the path of the URL up to /node, or /svc; "/" for no prefix
    service: PublicText = ""  # default: the node as a whole
    _request: PreparedRequest = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        path = self.url.path.rstrip("/")
        if self.prefix and path:
            raise OptionError("prefix", f'cannot be combined with the path "{path}" of the URL')
        prefix = self.prefix.rstrip("/") if self.prefix else _prefix_from_path(path)
        if self.prefix and not self.prefix.startswith("/"):
            raise OptionError("prefix", f'must begin with a slash; did you mean "/{prefix}"?')
        if self.service in DOT_SEGMENTS:
            raise OptionError("service", f'"{self.service}" is not a valid service id in a path')
        service = f"/services/{quote(self.service, safe='')}" if self.service else ""
        object.__setattr__(self, "_request", self.build_request(f"{prefix}/node{service}/health"))

    async def check(self) -> Verdict:
        target = f"service {self.service} of {self.url}" if self.service else str(self.url)
        try:
            response = await self.send(self._request)
        except OSError as exc:
            return verdict_for_os_error(exc, target)
        if response.status == Health.HEALTHY:
            return response.certificate_verdict or READY
        return self._verdict_for_status(response.status, target)

    def _verdict_for_status(self, status: int, target: str) -> Verdict:
        match status:
            case Health.PARTIAL if self.service:
                return Verdict.not_ready(f"initializing: {target}", code=ReasonCode.STARTING)
            case Health.PARTIAL:
                return Verdict.not_ready(f"partially healthy: {target}", code=ReasonCode.PARTIALLY_HEALTHY)
            case Health.UNHEALTHY:
                text, code = "down" if self.service else "unhealthy", ReasonCode.UNHEALTHY
            case 404:
                text, code = "HTTP status 404; check the prefix and the service id", ReasonCode.NOT_FOUND
            case _:
                text, code = f"HTTP status {status}, expected 200, 206 or 503", self.code_for_status(status)
        return Verdict.failed(f"{text}: {target}", code=code)


def _prefix_from_path(path: str) -> str:
    """The path may end with an endpoint, as the URL does that a node logs when it starts."""
    if re.search("/node/services(/|$)", path):
        raise UrlError("path", "end the URL at the prefix, as in svc+http://host:8420/svc, and set the option service")
    return re.sub("/node(/health)?$", "", path) if path else "/svc"
