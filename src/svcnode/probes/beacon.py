"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that is in sync.

ready      `/eth/v1/node/health` has status 200; `/eth/v1/node/syncing` reports neither that it is syncing, nor an
           offline execution client, nor an optimistic head; the head is at most `max_slot_lag` slots behind, by the
           node and by the clock of this machine; the node has at least `min_peers` peers
not ready  the status is 206 (syncing), or any of the above is not so; an optimistic head is one that the execution
           client has not verified; the certificate expires within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer

What older clients and some gateways do not offer, does not count, unless an option needs it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.url import UrlForm
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.json_pointer import json_excerpt, resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession, PreparedRequest
    from svcnode.net.http_response import Needs


DEFAULT_MAX_SLOT_LAG = 8
MAX_DIGITS = 20


class Chain(NamedTuple):
    genesis_s: float
    slot_s: float

    def slot_at(self, wall_s: float) -> int:
        return math.floor((wall_s - self.genesis_s) / self.slot_s)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeaconProbe(HttpSessionProbe):
    max_slot_lag: Count | None = None  # None: the default, where the node says how far it is
    min_peers: Count | None = None  # None: 1, where the node says how many it has
    _chain: list[Chain | None] = field(init=False, compare=False, default_factory=list)  # once it has been read
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self._request("node/health")  # reject invalid options when the probe is made

    def _request(self, path: str) -> PreparedRequest:
        needs: Needs = "status" if path == "node/health" else "body"
        return self.build_request(f"{self.url.path.rstrip('/')}/eth/v1/{path}", needs=needs, keep_alive=True)

    async def check_session(self, session: HttpSession) -> Verdict | None:
        health = await session.send(self._request("node/health"))
        match health.status:
            case 200:
                return health.certificate_verdict or await self._sync_verdict(session)
            case 206:
                return self.not_ready("syncing", ReasonCode.SYNCING)
            case 503:
                text = "the node reports that it is not initialized or has issues (HTTP status 503)"
                return self.failed(text, ReasonCode.UNHEALTHY)
            case status:
                text = f"HTTP status {status} is not a health status of a beacon node"
                return self.failed(text, code_for_http_status(status))

    async def _sync_verdict(self, session: HttpSession) -> Verdict | None:
        """None if the node can do its work."""
        data = await self._data(session, "node/syncing", is_needed=self.max_slot_lag is not None)
        if data is None:
            return await self._peers_verdict(session)
        if _flag(data, "el_offline"):
            return self.not_ready("the execution client of the node is offline", ReasonCode.UPSTREAM_OFFLINE)
        if _flag(data, "is_syncing"):
            return self.not_ready("syncing", ReasonCode.SYNCING)
        if _flag(data, "is_optimistic"):
            return self.not_ready("the execution client has not verified the head of the chain yet", ReasonCode.SYNCING)
        return await self._lag_verdict(session, data) or await self._peers_verdict(session)

    async def _lag_verdict(self, session: HttpSession, data: Mapping[str, Any]) -> Verdict | None:
        """A node that does not hear from others may count the slots that it has, and not those that it has missed."""
        lag, head = _whole_number(data, "sync_distance"), _whole_number(data, "head_slot")
        limit = DEFAULT_MAX_SLOT_LAG if self.max_slot_lag is None else self.max_slot_lag
        if lag > limit:
            return self.not_ready(f"{lag} slots behind; max_slot_lag is {limit}", ReasonCode.LAGGING)
        chain = await self._read_chain(session)
        if chain is None:
            return None
        missing = chain.slot_at(time.time()) - head
        if missing * chain.slot_s < -MAX_CLOCK_SKEW_S:
            text = f"clock skew: the head is {-missing} slots in the future; check the clock of this machine"
            return self.not_ready(text, ReasonCode.CLOCK_SKEW)
        if missing > max(limit, 1):  # the newest slot has just begun
            text = f"the head is {missing} slots behind the clock of this machine; max_slot_lag is {limit}"
            return self.not_ready(text, ReasonCode.LAGGING)
        return None

    async def _read_chain(self, session: HttpSession) -> Chain | None:
        """Once: it does not change."""
        if not self._chain:
            genesis, spec = await self._data(session, "beacon/genesis"), await self._data(session, "config/spec")
            if genesis is None or spec is None:
                self._chain.append(None)
            else:
                slot_s = _whole_number(spec, "SECONDS_PER_SLOT", at_least=1)
                self._chain.append(Chain(_whole_number(genesis, "genesis_time"), slot_s))
        return self._chain[0]

    async def _peers_verdict(self, session: HttpSession) -> Verdict | None:
        min_peers = 1 if self.min_peers is None else self.min_peers
        if not min_peers:
            return None
        data = await self._data(session, "node/peer_count", is_needed=self.min_peers is not None)
        if data is not None and (peers := _whole_number(data, "connected")) < min_peers:
            return self.not_ready(f"{peers} peers; min_peers is {min_peers}", ReasonCode.TOO_FEW_PEERS)
        return None

    async def _data(self, session: HttpSession, path: str, *, is_needed: bool = False) -> Mapping[str, Any] | None:
        """None if the node does not offer it, and no option needs it."""
        response = await session.send(self._request(path))
        if not is_needed and 400 <= response.status < 500:
            return None
        data = resolve_pointer(response.document(), "/data") if response.status == 200 else None
        if isinstance(data, dict):
            return data
        text = f"/eth/v1/{path} has no data of a beacon node (HTTP status {response.status})"
        raise CheckError(text, code_for_http_status(response.status))


def _whole_number(data: Mapping[str, Any], key: str, *, at_least: int = 0) -> int:
    """This API writes numbers as texts."""
    text = str(data.get(key))
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) >= at_least:
        return int(text)
    raise CheckError(f"{key} is {json_excerpt(data.get(key))}, which is not valid", ReasonCode.UNEXPECTED_RESPONSE)


def _flag(data: Mapping[str, Any], key: str) -> bool:
    """False if an older client does not have it."""
    found = data.get(key, False)
    if isinstance(found, bool):
        return found
    raise CheckError(f"{key} is {json_excerpt(found)}, not true or false", ReasonCode.UNEXPECTED_RESPONSE)
