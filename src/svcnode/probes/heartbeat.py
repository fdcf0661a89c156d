"""`heartbeat:30s`: nobody looks; the service gives a sign of life by itself, through `Node.beat(id)`.

ready      a beat within `ttl`
not ready  before the first beat, for as long as `ttl`
failed     no beat within `ttl`
"""

from __future__ import annotations

from dataclasses import dataclass

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
            raise ProbeError('names how long a beat counts, once: "heartbeat:30s", or ttl = "30s" beside "heartbeat:"')
        if not self.ttl_s > 0:
            raise ProbeError("a beat counts for more than 0 seconds")

    @property
    def ttl_s(self) -> float:
        if self.ttl is not None:
            return self.ttl
        try:
            return parse_duration_s(self.url.path)
        except InvalidValueError as exc:
            raise ProbeError(str(exc)) from exc

    async def check(self) -> Verdict:
        return Verdict.unknown("a heartbeat is heard by a running node, and cannot be looked for")
