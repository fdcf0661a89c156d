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
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.url import UrlForm
from svcnode.net.http1 import PreparedRequest
from svcnode.probes.base import CheckError
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.json_pointer import resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeaconProbe(HttpSessionProbe):
    max_slot_lag: Count | None = None
    _health: PreparedRequest = field(init=False, compare=False)
    _syncing: PreparedRequest = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        base = self.url.path.rstrip("/")
        health = self.build_request(f"{base}/eth/v1/node/health", keep_alive=True)
        syncing = self.build_request(f"{base}/eth/v1/node/syncing", needs="body", keep_alive=True)
        object.__setattr__(self, "_health", health)
        object.__setattr__(self, "_syncing", syncing)

    async def check_session(self, session: HttpSession) -> Verdict | None:
        health = await session.send(self._health)
        match health.status:
            case 200:
                return health.certificate_verdict or self._syncing_verdict(await session.send(self._syncing))
            case 206:
                return self.not_ready("syncing", ReasonCode.SYNCING)
            case 503:
                text = "the node reports that it is not initialized or has issues (HTTP status 503)"
                return self.failed(text, ReasonCode.UNHEALTHY)
            case status:
                text = f"HTTP status {status} is not a health status of a beacon node"
                return self.failed(text, code_for_http_status(status))

    def _syncing_verdict(self, syncing: HttpResponse) -> Verdict | None:
        """None if the node can do its work. Older clients lack the flags; some gateways do not offer the path."""
        if self.max_slot_lag is None and 400 <= syncing.status < 500:
            return None
        data = resolve_pointer(syncing.document(), "/data") if syncing.status == 200 else None
        if not isinstance(data, dict):
            raise _unusable(syncing, "is not the sync status of a beacon node")
        if data.get("el_offline") is True:
            return self.not_ready("the execution client of the node is offline", ReasonCode.UPSTREAM_OFFLINE)
        if data.get("is_optimistic") is True:
            return self.not_ready("the execution client has not verified the head of the chain yet", ReasonCode.SYNCING)
        if self.max_slot_lag is not None and (lag := _slot_lag(syncing, data)) > self.max_slot_lag:
            return self.not_ready(f"{lag} slots behind; max_slot_lag is {self.max_slot_lag}", ReasonCode.LAGGING)
        return None


def _slot_lag(syncing: HttpResponse, data: dict[str, Any]) -> int:
    try:
        lag = int(str(data.get("sync_distance")))
    except ValueError:
        lag = -1
    if lag < 0:
        raise _unusable(syncing, "has no valid sync_distance")
    return lag


def _unusable(syncing: HttpResponse, what: str) -> CheckError:
    text = f"/eth/v1/node/syncing {what} (HTTP status {syncing.status})"
    return CheckError(text, code_for_http_status(syncing.status))
