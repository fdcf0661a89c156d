"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that is in sync.

ready      `/eth/v1/node/health` has status 200, and the node is at most `max_slot_lag` slots behind if that is set
not ready  the status is 206 (syncing); the node is further behind; the certificate expires within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.model import Verdict
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.json_pointer import resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.net.http_response import HttpResponse

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeaconProbe(HttpClientProbe):
    max_slot_lag: Count | None = None
    _health: PreparedRequest = field(init=False, compare=False)
    _syncing: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.reject_query()
        base = self.url.path.rstrip("/")
        health = self.build_request(f"{base}/eth/v1/node/health", keep_alive=self.max_slot_lag is not None)
        syncing = self.build_request(f"{base}/eth/v1/node/syncing", needs="body", keep_alive=True)
        object.__setattr__(self, "_health", health)
        object.__setattr__(self, "_syncing", syncing)

    async def check(self) -> Verdict:
        try:
            if self.max_slot_lag is None:
                return self._health_verdict(await self.send(self._health)) or READY
            with self.session() as session:
                health = await session.send(self._health)
                if (verdict := self._health_verdict(health)) is not None:
                    return verdict
                return self._lag_verdict(await session.send(self._syncing), self.max_slot_lag) or READY
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    def _health_verdict(self, health: HttpResponse) -> Verdict | None:
        """None if the node is healthy."""
        match health.status:
            case 200:
                return health.certificate_verdict
            case 206:
                return Verdict.not_ready(f"syncing: {self.url}", code=ReasonCode.SYNCING)
            case 503:
                return Verdict.failed(
                    f"the node reports that it is not initialized or has issues (HTTP status 503): {self.url}",
                    code=ReasonCode.UNHEALTHY,
                )
            case status:
                return Verdict.failed(
                    f"HTTP status {status} is not a health status of a beacon node: {self.url}",
                    code=code_for_http_status(status),
                )

    def _lag_verdict(self, syncing: HttpResponse, max_slot_lag: int) -> Verdict | None:
        try:
            lag = int(str(resolve_pointer(syncing.document(), "/data/sync_distance")))
        except ValueError:
            lag = -1
        if lag < 0:
            return Verdict.failed(
                f"/eth/v1/node/syncing has no valid sync_distance (HTTP status {syncing.status}): {self.url}",
                code=code_for_http_status(syncing.status),
            )
        if lag > max_slot_lag:
            return Verdict.not_ready(
                f"{lag} slots behind; max_slot_lag is {max_slot_lag}: {self.url}", code=ReasonCode.LAGGING
            )
        return None
