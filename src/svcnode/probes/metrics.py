"""`metrics+http://…`, `metrics+https://…`: values on a page of metrics, of Prometheus or OpenMetrics.

ready      all conditions of `require` hold
not ready  a condition of `starting` holds; a value that must advance has not yet; the certificate expires within
           `min_cert_days`
failed     a condition does not hold, or its series is missing; several series match where one is needed; a series
           occurs twice; a page that is not one of metrics, not complete or too large; another status than 200;
           connection refused, network unreachable, certificate not valid
unknown    no file descriptors, threads or ports left on this machine, or the resolver or the proxy failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from svcnode.core.model import Verdict
from svcnode.net.http1 import PreparedRequest
from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, time_left_s
from svcnode.probes.conditions import ConditionalProbe, judge
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.metrics_page import MAX_PAGE_BYTES, MetricConditions, Selector, read_page

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession

OPENMETRICS_TYPE = "application/openmetrics-text"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MetricsProbe(ConditionalProbe, HttpSessionProbe):
    require: MetricConditions
    starting: MetricConditions = ()  # one of them holds: not ready
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        request = self.build_request(self.url.target, needs="body", max_body_bytes=MAX_PAGE_BYTES)
        object.__setattr__(self, "_request", request)

    async def check_session(self, session: HttpSession) -> Verdict | None:
        response = await session.send(self._request)
        if response.status != 200:
            raise CheckError(f"HTTP status {response.status}", self.code_for_status(response.status))
        read = partial(
            read_page,
            response.body,
            {find for one in (*self.require, *self.starting) if isinstance(find := one.value.find, Selector)},
            is_openmetrics=response.headers.get("content-type", "").lower().startswith(OPENMETRICS_TYPE),
            timeout_s=time_left_s(),
        )
        with step("read"):
            values = await DaemonCall("metrics").call(read)
        if (problem := await judge(self.starting, self.require, values)) is not None:
            return Verdict(problem.outcome, f"{problem.text}: {self.url}", problem.code)
        return response.certificate_verdict
