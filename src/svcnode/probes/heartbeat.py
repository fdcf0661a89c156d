"""`heartbeat:30s`: the service sends heartbeats, by the control socket or `Node.beat(id)`; it is not checked.

ready      a heartbeat within `ttl`
not ready  before the first heartbeat, for at most `ttl`
failed     no heartbeat within `ttl`
"""

from __future__ import annotations

from dataclasses import dataclass

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.units import parse_duration_s
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeartbeatProbe(UrlProbe):
    ttl: Seconds | None = None  # or in the URL

    def __post_init__(self) -> None:
        if bool(self.url.path) == (self.ttl is not None):
            raise ProbeError('set the ttl once: "heartbeat:30s", or "heartbeat:" with ttl = "30s"')
        if not self.ttl_s > 0:
            raise ProbeError("the ttl must be more than 0 s")

    @property
    def ttl_s(self) -> float:
        if self.ttl is not None:
            return self.ttl
        try:
            return parse_duration_s(self.url.path)
        except InvalidValueError as exc:
            raise ProbeError(str(exc)) from exc

    async def check(self) -> Verdict:
        return Verdict.unknown("a heartbeat cannot be checked; a running node receives it", code=ReasonCode.NO_EVIDENCE)
