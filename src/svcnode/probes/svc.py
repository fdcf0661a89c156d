"""`svc+http://…`, `svc+https://…`: another node with this interface, or one of its services.

A node whose services are other nodes shows the health of a fleet. If such a node does not answer 200, a second request
asks for its services, so that the reason names those that are Down. Its result changes no verdict, and a node that
does not answer it in time is not asked again for a minute.

ready      the node, or the service, responds with 200
not ready  206: partially healthy, or initializing; the certificate expires within `min_cert_days`
failed     503, or any other response; connection refused, network unreachable, certificate not valid
unknown    no file descriptors or ports left on this machine, or the resolver or the proxy failed
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import DOT_SEGMENTS, Health, Status, Verdict
from svcnode.core.option_types import PublicText
from svcnode.core.redaction import redacted
from svcnode.core.text import excerpt, join_first
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = Verdict.ready()
LIST_TIMEOUT_S = 0.5
LIST_AGAIN_AFTER_S = 60.0  # if the node did not answer in time
MAX_NAMED = 3
MAX_ID_CHARS = 40


class _Inside:
    """What is known of the services of the node; between checks."""

    __slots__ = ("ask_at_s", "down")

    def __init__(self) -> None:
        self.down = 0
        self.ask_at_s = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SvcProbe(HttpClientProbe):
    prefix: PublicText = ""  # default: the path of the URL up to /node, or /svc; "/" for no prefix
    service: PublicText = ""  # default: the node as a whole
    _request: PreparedRequest = field(init=False, compare=False)
    _page_path: str = field(init=False, compare=False)
    _list_request: PreparedRequest = field(init=False, compare=False)
    _inside: _Inside = field(init=False, compare=False, default_factory=_Inside)
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
        # Beside the last segment of the prefix: https://proxy/validator-7/svc has its page at /validator-7/.
        object.__setattr__(self, "_page_path", f"{prefix.rpartition('/')[0]}/")
        object.__setattr__(self, "_request", self.build_request(f"{prefix}/node{service}/health"))
        object.__setattr__(self, "_list_request", self.build_request(f"{prefix}/node/services", needs="body"))

    @property
    def page_url(self) -> str:
        return redacted(f"{self.http_scheme}://{self.url.host_port}{self._page_path}")

    @property
    def down_inside(self) -> int:
        return self._inside.down

    async def check(self) -> Verdict:
        target = f"service {self.service} of {self.url}" if self.service else str(self.url)
        try:
            response = await self.send(self._request)
        except OSError as exc:
            return verdict_for_os_error(exc, target)
        if response.status == Health.HEALTHY:
            self._inside.down = 0
            return response.certificate_verdict or READY
        is_node = not self.service and response.status in (Health.PARTIAL, Health.UNHEALTHY)
        return self._verdict_for_status(response.status, target, await self._names_inside() if is_node else "")

    async def _names_inside(self) -> str:
        """ ", 2 Down: ledger, api"; empty if the node does not say it."""
        inside, now_s = self._inside, asyncio.get_running_loop().time()
        if now_s < inside.ask_at_s:
            return ""
        inside.down, inside.ask_at_s = 0, now_s + LIST_AGAIN_AFTER_S
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                document = (await self.send(self._list_request)).document()
        except OSError:  # also a timeout
            return ""
        inside.ask_at_s = 0.0
        found = {status: list(_ids(document, status)) for status in (Status.DOWN, Status.INITIALIZING)}
        inside.down = len(found[Status.DOWN])
        return next((_named(status, ids) for status, ids in found.items() if ids), "")

    def _verdict_for_status(self, status: int, target: str, inside: str) -> Verdict:
        match status:
            case Health.PARTIAL if self.service:
                return Verdict.not_ready(f"initializing: {target}", code=ReasonCode.STARTING)
            case Health.PARTIAL:
                return Verdict.not_ready(f"partially healthy{inside}: {target}", code=ReasonCode.PARTIALLY_HEALTHY)
            case Health.UNHEALTHY:
                text, code = "down" if self.service else f"unhealthy{inside}", ReasonCode.UNHEALTHY
            case 404:
                text, code = "HTTP status 404; check the prefix and the service id", ReasonCode.NOT_FOUND
            case _:
                text, code = f"HTTP status {status}, expected 200, 206 or 503", self.code_for_status(status)
        return Verdict.failed(f"{text}: {target}", code=code)


def _ids(document: object, status: Status) -> Iterator[str]:
    """Of the services with this status; whatever else the document has is left out."""
    services = document.get("services") if isinstance(document, dict) else None
    for service in services if isinstance(services, list) else ():
        if isinstance(service, dict) and service.get("status") == status.value and isinstance(service.get("id"), str):
            yield service["id"]


def _named(status: Status, ids: list[str]) -> str:
    shown = [excerpt(service_id, MAX_ID_CHARS) for service_id in ids[:MAX_NAMED]]
    return f", {len(ids)} {status.value}: {join_first([*shown, *ids[MAX_NAMED:]], MAX_NAMED)}"


def _prefix_from_path(path: str) -> str:
    """The path may end with an endpoint, as the URL does that a node logs when it starts."""
    if re.search("/node/services(/|$)", path):
        raise UrlError("path", "end the URL at the prefix, as in svc+http://host:8420/svc, and set the option service")
    return re.sub("/node(/health)?$", "", path) if path else "/svc"
