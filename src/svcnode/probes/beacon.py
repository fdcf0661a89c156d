"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that keeps up.

ready      `/eth/v1/node/health` answers 200; it is at most `max_slot_lag` slots behind, where that is set
not ready  206: it is syncing; it is further behind; the certificate ends within `min_cert_days`
failed     any other answer; refused, unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
        is_followed = self.max_slot_lag is not None
        health = self.build_request(f"{base}/eth/v1/node/health", keep_alive=is_followed)
        syncing = self.build_request(f"{base}/eth/v1/node/syncing", needs="body", keep_alive=True)
        object.__setattr__(self, "_health", health)
        object.__setattr__(self, "_syncing", syncing)

    async def check(self) -> Verdict:
        try:
            if self.max_slot_lag is None:
                return self._verdict(await self.send(self._health)) or READY
            with self.session() as conversation:
                health = await conversation.send(self._health)
                if (verdict := self._verdict(health)) is not None:
                    return verdict
                return self._lag_verdict(await conversation.send(self._syncing), self.max_slot_lag) or READY
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    def _verdict(self, health: HttpResponse) -> Verdict | None:
        """None when all is as it should be."""
        match health.status:
            case 200:
                return health.certificate_verdict
            case 206:
                return Verdict.not_ready(f"syncing: {self.url}")
            case 503:
                return Verdict.failed(f"not initialized, or in trouble: {self.url}")
            case status:
                return Verdict.failed(f"answered {status}, which is no answer of a beacon node: {self.url}")

    def _lag_verdict(self, syncing: HttpResponse, max_slot_lag: int) -> Verdict | None:
        try:
            lag = int(str(resolve_pointer(syncing.document(), "/data/sync_distance")))
        except ValueError:
            lag = -1
        if lag < 0:
            return Verdict.failed(f"it does not tell how far behind it is: {self.url}")
        if lag > max_slot_lag:
            return Verdict.not_ready(f"{lag} slots behind, max_slot_lag is {max_slot_lag}: {self.url}")
        return None
