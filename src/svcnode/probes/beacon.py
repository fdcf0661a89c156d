"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that is in sync.

ready      `/eth/v1/node/health` has status 200, and `/eth/v1/node/syncing` reports neither an offline execution client
           nor an optimistic head; the node is at most `max_slot_lag` slots behind if that is set
not ready  the status is 206 (syncing); the execution client is offline; the head is optimistic, which means that the
           execution client has not verified it; the node is further behind; the certificate expires within
           `min_cert_days`
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
    from collections.abc import Mapping

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
        health = self.build_request(f"{base}/eth/v1/node/health", keep_alive=True)
        syncing = self.build_request(f"{base}/eth/v1/node/syncing", needs="body", keep_alive=True)
        object.__setattr__(self, "_health", health)
        object.__setattr__(self, "_syncing", syncing)

    async def check(self) -> Verdict:
        try:
            with self.session() as session:
                health = await session.send(self._health)
                if (verdict := self._health_verdict(health)) is not None:
                    return verdict
                return self._syncing_verdict(await session.send(self._syncing)) or READY
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

    def _syncing_verdict(self, syncing: HttpResponse) -> Verdict | None:
        """None if the node can do its work. Older clients lack the flags; some gateways do not offer the path."""
        if self.max_slot_lag is None and 400 <= syncing.status < 500:
            return None
        data = resolve_pointer(syncing.document(), "/data") if syncing.status == 200 else None
        if not isinstance(data, dict):
            return self._unusable(syncing, "is not the sync status of a beacon node")
        if data.get("el_offline") is True:
            return Verdict.not_ready(
                f"the execution client of the node is offline: {self.url}", code=ReasonCode.UPSTREAM_OFFLINE
            )
        if data.get("is_optimistic") is True:
            return Verdict.not_ready(
                f"the execution client has not verified the head of the chain yet: {self.url}",
                code=ReasonCode.SYNCING,
            )
        return None if self.max_slot_lag is None else self._lag_verdict(syncing, data, self.max_slot_lag)

    def _lag_verdict(self, syncing: HttpResponse, data: Mapping[str, object], max_slot_lag: int) -> Verdict | None:
        try:
            lag = int(str(data.get("sync_distance")))
        except ValueError:
            lag = -1
        if lag < 0:
            return self._unusable(syncing, "has no valid sync_distance")
        if lag > max_slot_lag:
            return Verdict.not_ready(
                f"{lag} slots behind; max_slot_lag is {max_slot_lag}: {self.url}", code=ReasonCode.LAGGING
            )
        return None

    def _unusable(self, syncing: HttpResponse, what: str) -> Verdict:
        return Verdict.failed(
            f"/eth/v1/node/syncing {what} (HTTP status {syncing.status}): {self.url}",
            code=code_for_http_status(syncing.status),
        )
