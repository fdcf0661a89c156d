"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that is in sync.

ready      `/eth/v1/node/health` has status 200; `/eth/v1/node/syncing` reports neither that it is syncing, nor an
           offline execution client, nor an optimistic head; the head is at most `max_slot_lag` slots behind, by the
           node and by the clock of this machine; the node has at least `min_peers` peers
not ready  the status is 206 (syncing), or any of the above is not so; an optimistic head is one that the execution
           client has not verified; the certificate expires within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    the node does not offer what an option needs; no file descriptors or ports left on this machine; the resolver
           or the proxy does not answer

What older clients and some gateways do not offer, does not count, unless an option needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.core.url import UrlForm
from svcnode.probes.base import CheckError
from svcnode.probes.chain import ChainProbe
from svcnode.probes.json_pointer import json_excerpt, resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession, PreparedRequest
    from svcnode.net.http_response import Needs


DEFAULT_MAX_SLOT_LAG = 8
MAX_DIGITS = 20
NOT_OFFERED = {400, 403, 404, 405, 410, 501}  # how older clients and gateways answer a path that they do not have


class Chain(NamedTuple):
    genesis_s: float
    slot_s: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeaconProbe(ChainProbe):
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
                return self.failed(text, self.code_for_status(status))

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
        # The newest slot has just begun, and the limit counts whole slots.
        limit_s = (max(limit, 1) + 1) * chain.slot_s
        return await self.age_verdict("the head", chain.genesis_s + head * chain.slot_s, limit_s, "max_slot_lag")

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
        async def peer_count() -> int:
            return _whole_number(await self._needed(session, "node/peer_count"), "connected")

        return await self.peers_verdict(self.min_peers, peer_count)

    async def _data(self, session: HttpSession, path: str, *, is_needed: bool = False) -> Mapping[str, Any] | None:
        """None if the node does not offer it, and no option needs it."""
        try:
            return await self._needed(session, path)
        except CheckError as exc:
            if is_needed or exc.outcome is not Outcome.UNKNOWN:
                raise
            return None

    async def _needed(self, session: HttpSession, path: str) -> Mapping[str, Any]:
        response = await session.send(self._request(path))
        data = resolve_pointer(response.document(), "/data") if response.status == 200 else None
        if isinstance(data, dict):
            return data
        text = f"/eth/v1/{path} has no data of a beacon node (HTTP status {response.status})"
        outcome = Outcome.UNKNOWN if response.status in NOT_OFFERED else Outcome.FAILED
        raise CheckError(text, self.code_for_status(response.status), outcome)


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
