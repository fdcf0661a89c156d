"""`svc+http://…`, `svc+https://…`: another node with this interface, or one of its services.

With it, a node whose services are other nodes is a view of a fleet.

ready      the node, or the named service, answers 200
not ready  206: partially healthy, or initializing; the certificate ends within `min_cert_days`
failed     503, or any other answer; refused, unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import DOT_SEGMENTS, Health, Verdict
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SvcProbe(HttpClientProbe):
    prefix: str = ""  # without it, the path of the URL up to /node, and without that /svc; "/" for none
    service: str = ""  # without it, the node as a whole
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("a node is asked without a query; write the URL without what begins with ?")
        path = self.url.path.rstrip("/")
        if self.prefix and path:
            raise OptionError("prefix", f'stands beside the path "{path}" of the URL; only one of the two can count')
        prefix = self.prefix.rstrip("/") if self.prefix else _prefix_from_path(path)
        if self.prefix and not self.prefix.startswith("/"):
            raise OptionError("prefix", f'begins with a slash; did you mean "/{prefix}"?')
        if self.service in DOT_SEGMENTS:
            raise OptionError("service", f'"{self.service}" is no name in a path: the health of the node would answer')
        service = f"/services/{quote(self.service, safe='')}" if self.service else ""
        object.__setattr__(self, "_request", self.build_request(f"{prefix}/node{service}/health"))

    async def check(self) -> Verdict:
        what = f"service {self.service} of {self.url}" if self.service else str(self.url)
        try:
            answer = await self.send(self._request)
        except OSError as exc:
            return verdict_for_os_error(exc, what)
        match answer.status:
            case Health.HEALTHY:
                return answer.certificate_verdict or READY
            case Health.PARTIAL:
                return Verdict.not_ready(f"{'initializing' if self.service else 'partially healthy'}: {what}")
            case Health.UNHEALTHY:
                return Verdict.failed(f"{'down' if self.service else 'unhealthy'}: {what}")
            case 404:
                return Verdict.failed(f"not found there, so it is no such node, prefix or service: {what}")
            case status:
                return Verdict.failed(f"answered {status}, which is no answer of this interface: {what}")


def _prefix_from_path(path: str) -> str:
    """Of a URL that may also end in an endpoint, as the one that a node logs of itself does."""
    if re.search("/node/services(/|$)", path):
        raise ProbeError("write the URL up to the prefix, such as svc+http://host:8420/svc, and the id as service")
    return re.sub("/node(/health)?$", "", path) if path else "/svc"
