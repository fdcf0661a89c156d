"""`mevboost+http://…`, `mevboost+https://…`: MEV-Boost, or another server with the status of the Builder API.

ready      the status is 200; with `relays`, at least `min_relays` of them say the same of themselves
not ready  the server says that all of its relays are unavailable; fewer of `relays` answer; the certificate expires
           within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer

MEV-Boost asks its relays only if it runs with `-relay-check`, and does not say which ones it has. Without it, its
status is 200 for ever. So the option names the relays, and the probe asks them itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.url import Url, UrlForm
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, time_for_others_s
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.options import Count, WebUrls

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession

STATUS_PATH = "/eth/v1/builder/status"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MevBoostProbe(HttpSessionProbe):
    relays: WebUrls = ()
    min_relays: Count | None = None  # None: 1 of them
    _requests: tuple[tuple[str, PreparedRequest], ...] = field(init=False, compare=False, default=())  # by relay

    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self._status_request()  # reject invalid options when the probe is made
        if self.min_relays is not None and not 1 <= self.min_relays <= len(self.relays):
            count = f"from 1 to {len(self.relays)}, the number of relays"
            raise OptionError("min_relays", f"must be {count}" if self.relays else "only works with relays; set both")
        try:
            object.__setattr__(self, "_requests", tuple(map(self._relay_request, self.relays)))
        except ProbeError as exc:
            raise OptionError("relays", str(exc)) from exc

    def _status_request(self) -> PreparedRequest:
        return self.build_request(f"{self.url.path.rstrip('/')}{STATUS_PATH}", needs="body", keep_alive=True)

    def _relay_request(self, text: str) -> tuple[str, PreparedRequest]:
        """The user name in the URL of a relay is its public key, which MEV-Boost does not send either."""
        url = replace(Url.parse(text), username="", password="")
        return url.host_port, self.build_request(f"{url.path.rstrip('/')}{STATUS_PATH}", url=url, needs="body")

    async def check_session(self, session: HttpSession) -> Verdict | None:
        response = await session.send(self._status_request())
        document = response.document()
        match _status_of(response.status, document), document:
            case 200, _ if _is_status(document) or not response.body:
                return response.certificate_verdict or (await self._relays_verdict() if self._requests else None)
            case 503, {"code": 503, "message": str(message)}:
                return self.not_ready(f"the server reports: {message}", ReasonCode.UPSTREAM_OFFLINE)
            case status, _:
                text = f"the response of {STATUS_PATH} is not a status (HTTP status {status})"
                raise CheckError(text, self.code_for_status(status))

    async def _relays_verdict(self) -> Verdict | None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._relay_problem(name, request)) for name, request in self._requests]
        problems = [problem for task in tasks if (problem := task.result())]
        ready, wanted = len(tasks) - len(problems), self.min_relays or 1
        text = f"{ready} of {len(tasks)} relays are available: {'; '.join(problems)}"
        if ready < wanted:
            return self.not_ready(f"{text}; min_relays is {wanted}", ReasonCode.UPSTREAM_OFFLINE)
        return Verdict.ready(text) if problems else None

    async def _relay_problem(self, name: str, request: PreparedRequest) -> str:
        """ "" if the relay is available."""
        try:
            with step("relay", name):
                async with asyncio.timeout(time_for_others_s()):
                    response = await self.send(request)
        except TimeoutError:
            return f"no response in time: {name}"
        except OSError as exc:
            return verdict_for_os_error(exc, name).reason
        status = _status_of(response.status, response.document())
        return "" if status == 200 else f"HTTP status {status}: {name}"


def _is_status(document: object) -> bool:
    """The Builder API does not say what a good one contains. A code is that of an error, whatever its type."""
    return isinstance(document, dict) and "error" not in document and document.get("code", 200) == 200


def _status_of(status: int, document: object) -> int:
    """With an error of the Builder API, the status in it: a proxy may send 200 with everything."""
    match document:
        case {"code": int(code), "message": str()} if status == 200:
            return code
        case _:
            return status
