"""`beacon+http://…`, `beacon+https://…`: an Ethereum beacon node that is in sync.

ready      `/eth/v1/node/health` has status 200; `/eth/v1/node/syncing` reports neither that it is syncing, nor an
           offline execution client, nor an optimistic head; the head is at most `max_slot_lag` slots behind, by the
           node and by the clock of this machine; the node has at least `min_peers` peers; each of `validators` is
           active, not slashed, and was seen in one of the last two finished epochs
not ready  the status is 206 (syncing), or any of the above is not so of the node; an optimistic head is one that the
           execution client has not verified; a validator is not active yet, or it is not known for two epochs whether
           it was seen; the certificate expires within `min_cert_days`
failed     a validator is slashed, has left the chain, or has missed two epochs; any other response; connection refused,
           host unreachable, certificate not trusted
unknown    the node does not offer what an option needs; no file descriptors or ports left on this machine; the resolver
           or the proxy does not answer

What older clients and some gateways do not offer, does not count, unless an option needs it. Validators are judged
only by a node that is ready.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.core.url import UrlForm
from svcnode.probes.base import CheckError
from svcnode.probes.beacon_validators import (
    NOT_FOUND,
    EpochTime,
    Finding,
    LivenessRecord,
    ValidatorIds,
    status_finding,
    worst_finding,
)
from svcnode.probes.chain import ChainProbe, flag_at, number_at, text_at
from svcnode.probes.json_pointer import json_excerpt
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.net.http1 import HttpSession, PreparedRequest
    from svcnode.net.http_response import Needs


DEFAULT_MAX_SLOT_LAG = 8
MAX_DIGITS = 20
OPTIMISTIC = "the execution client has not verified the head of the chain yet"
ONLY_HEALTH = "the node offers no sync status, so nothing but its health is known"
CURRENTLY_SYNCING = 503  # of the paths below validator/
NOT_OFFERED = {400, 403, 404, 405, 410, 501}  # how older clients and gateways answer a path that they do not have


class Chain(NamedTuple):
    genesis_s: float
    slot_s: float
    slots_per_epoch: int  # 0: it is not known

    @property
    def slot(self) -> int:
        """By the clock of this machine."""
        return int((time.time() - self.genesis_s) // self.slot_s)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeaconProbe(ChainProbe):
    max_slot_lag: Count | None = None  # None: the default, where the node says how far it is
    min_peers: Count | None = None  # None: 1, where the node says how many it has
    validators: ValidatorIds = ()
    _chain: list[Chain] = field(init=False, compare=False, default_factory=list)  # once it has been read
    _liveness: LivenessRecord = field(init=False, compare=False, default_factory=LivenessRecord)
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self._request("node/health")  # reject invalid options when the probe is made

    def _request(self, path: str, body: object = None) -> PreparedRequest:
        needs: Needs = "status" if path == "node/health" else "body"
        target = f"{self.url.path.rstrip('/')}/eth/v1/{path}"
        if body is None:
            return self.build_request(target, needs=needs, keep_alive=True)
        return self.build_request(
            target,
            method="POST",
            body=json.dumps(body).encode(),
            content_type="application/json",
            needs=needs,
            keep_alive=True,
        )

    async def check_session(self, session: HttpSession) -> Verdict | None:
        was_in_sync = self._liveness.begin_check()
        health = await session.send(self._request("node/health"))
        match health.status:
            case 200:
                verdict = await self._node_verdict(session, was_in_sync=was_in_sync)
            case 206:
                return self.not_ready("syncing", ReasonCode.SYNCING)
            case 503:
                text = "the node reports that it is not initialized or has issues (HTTP status 503)"
                return self.failed(text, ReasonCode.UNHEALTHY)
            case status:
                text = f"HTTP status {status} is not a health status of a beacon node"
                return self.failed(text, self.code_for_status(status))
        is_ready = verdict is None or verdict.outcome is Outcome.READY
        return (health.certificate_verdict if is_ready else None) or verdict

    async def _node_verdict(self, session: HttpSession, *, was_in_sync: bool) -> Verdict | None:
        """None if the node and its validators can do their work."""
        is_needed = self.max_slot_lag is not None or bool(self.validators)
        data = await self._data(session, "node/syncing", is_needed=is_needed)
        if data is None:
            return await self._peers_verdict(session) or Verdict.ready(ONLY_HEALTH)
        if _flag(data, "el_offline"):
            return self.not_ready("the execution client of the node is offline", ReasonCode.UPSTREAM_OFFLINE)
        if _flag(data, "is_syncing", is_needed=True):
            return self.not_ready("syncing", ReasonCode.SYNCING)
        if _flag(data, "is_optimistic"):
            return self.not_ready(OPTIMISTIC, ReasonCode.SYNCING)
        verdict = await self._lag_verdict(session, data) or await self._peers_verdict(session)
        if verdict is not None or not self.validators:
            return verdict
        return await self._duty_verdict(session, _whole_number(data, "head_slot"), was_in_sync=was_in_sync)

    async def _lag_verdict(self, session: HttpSession, data: Mapping[str, Any]) -> Verdict | None:
        """A node that does not hear from others may count the slots that it has, and not those that it has missed."""
        lag, head = _whole_number(data, "sync_distance"), _whole_number(data, "head_slot")
        limit = DEFAULT_MAX_SLOT_LAG if self.max_slot_lag is None else self.max_slot_lag
        if lag > limit:
            return self.not_ready(f"{lag} slots behind, but max_slot_lag is {limit}", ReasonCode.LAGGING)
        is_known, chain = bool(self._chain), await self._read_chain(session)
        if chain is None:
            return None
        verdict = await self._head_verdict(chain, head, limit)
        if verdict is None or not is_known or (new := await self._find_new_chain(session)) is None:
            return verdict
        return await self._head_verdict(new, head, limit)

    async def _head_verdict(self, chain: Chain, head: int, limit: int) -> Verdict | None:
        """The newest slot has just begun, and the limit counts whole slots."""
        limit_s = (max(limit, 1) + 1) * chain.slot_s
        return await self.age_verdict("the head", chain.genesis_s + head * chain.slot_s, limit_s, "max_slot_lag")

    async def _read_chain(self, session: HttpSession) -> Chain | None:
        """None if the node does not say it, as before it knows the genesis. Later it is remembered."""
        if not self._chain and (found := await self._ask_chain(session)) is not None:
            self._chain.append(found)
        return self._chain[0] if self._chain else None

    async def _find_new_chain(self, session: HttpSession) -> Chain | None:
        """The one that is at this URL now, if it is not the one that is remembered: a test network may begin again."""
        with suppress(CheckError):  # what is known of the node is worse
            found = await self._ask_chain(session)
            if found is not None and found != self._chain[0]:
                self._chain[:] = [found]
                self._liveness.forget()
                return found
        return None

    async def _ask_chain(self, session: HttpSession) -> Chain | None:
        is_needed = bool(self.validators)
        genesis = await self._data(session, "beacon/genesis", is_needed=is_needed)
        spec = await self._data(session, "config/spec", is_needed=is_needed)
        if genesis is None or spec is None:
            return None
        per_epoch = _whole_number(spec, "SLOTS_PER_EPOCH", at_least=1) if is_needed else 0
        return Chain(_whole_number(genesis, "genesis_time"), _slot_s(spec), per_epoch)

    async def _peers_verdict(self, session: HttpSession) -> Verdict | None:
        async def peer_count() -> int:
            return _whole_number(await self._needed(session, "node/peer_count"), "connected")

        return await self.peers_verdict(self.min_peers, peer_count)

    # ---- validators

    async def _duty_verdict(self, session: HttpSession, head_slot: int, *, was_in_sync: bool) -> Verdict | None:
        chain = await self._read_chain(session)
        assert chain is not None  # with validators it is needed
        epoch, slot = divmod(max(chain.slot, head_slot), chain.slots_per_epoch)  # the clocks may differ a little
        indices, findings = await self._read_statuses(session)
        if (worst := worst_finding(findings)) is None or worst.outcome is not Outcome.FAILED:
            finished = await self._ask_liveness(session, epoch - 1, indices.values())
            running = await self._ask_liveness(session, epoch, [one for one in finished if not finished[one]])
            judged_epoch = self._liveness.add(EpochTime(epoch, slot), finished, running, was_in_sync=was_in_sync)
            seen = ((name, self._liveness.finding(index, judged_epoch)) for name, index in indices.items())
            worst = worst_finding([*findings, *((name, finding) for name, finding in seen if finding is not None)])
        return None if worst is None else Verdict(worst.outcome, f"{worst.text}: {self.url}", worst.code)

    async def _read_statuses(self, session: HttpSession) -> tuple[dict[str, int], list[tuple[str, Finding]]]:
        """The indices of the validators that have duties, by name, and what is found of all."""
        document = await self._document(session, "beacon/states/head/validators", {"ids": [*self.validators]})
        if _flag(document, "execution_optimistic"):
            raise CheckError(OPTIMISTIC, ReasonCode.SYNCING, Outcome.NOT_READY)
        rows: dict[str, Mapping[str, Any]] = {}
        for row in _rows(document):
            rows |= {str(number_at(row, "/index")): row, text_at(row, "/validator/pubkey").lower(): row}
        indices: dict[str, int] = {}
        findings: list[tuple[str, Finding]] = []
        for name in self.validators:
            if (row := rows.get(name)) is None:
                findings.append((name, NOT_FOUND))
                continue
            finding = status_finding(text_at(row, "/status"), is_slashed=flag_at(row, "/validator/slashed"))
            if finding is not None:
                findings.append((name, finding))
            if finding is None or finding.outcome is Outcome.READY:
                indices[name] = number_at(row, "/index")
        return indices, findings

    async def _ask_liveness(self, session: HttpSession, epoch: int, indices: Iterable[int]) -> dict[int, bool]:
        """Whether they were seen, by index."""
        asked = sorted(set(indices))
        if not asked or epoch < 0:  # before the genesis
            return dict.fromkeys(asked, False)
        path = f"validator/liveness/{epoch}"
        rows = _rows(await self._document(session, path, [*map(str, asked)]))
        answers = {number_at(row, "/index"): flag_at(row, "/is_live") for row in rows}
        if missing := set(asked) - answers.keys():
            text = f"/eth/v1/{path} says nothing about validator {min(missing)}"
            raise CheckError(text, ReasonCode.UNEXPECTED_RESPONSE)
        return {index: answers[index] for index in asked}

    # ---- documents

    async def _data(self, session: HttpSession, path: str, *, is_needed: bool = False) -> Mapping[str, Any] | None:
        """None if the node does not offer it, and no option needs it."""
        try:
            return await self._needed(session, path)
        except CheckError as exc:
            if is_needed or exc.outcome is not Outcome.UNKNOWN:
                raise
            return None

    async def _needed(self, session: HttpSession, path: str) -> Mapping[str, Any]:
        data: Mapping[str, Any] = (await self._document(session, path, of=dict))["data"]
        return data

    async def _document(
        self, session: HttpSession, path: str, body: object = None, *, of: type = list
    ) -> Mapping[str, Any]:
        """With data of this type."""
        response = await session.send(self._request(path, body))
        document = response.document() if response.status == 200 else None
        if isinstance(document, dict) and isinstance(document.get("data"), of):
            return document
        if response.status == CURRENTLY_SYNCING and path.startswith("validator/"):
            raise CheckError("syncing", ReasonCode.SYNCING, Outcome.NOT_READY)
        text = f"/eth/v1/{path} has no data of a beacon node (HTTP status {response.status})"
        outcome = Outcome.UNKNOWN if response.status in NOT_OFFERED else Outcome.FAILED
        raise CheckError(text, self.code_for_status(response.status), outcome)


def _rows(document: Mapping[str, Any]) -> list[Any]:
    rows: list[Any] = document["data"]
    return rows


def _slot_s(spec: Mapping[str, Any]) -> float:
    """Newer clients have it in milliseconds, and some have it in both units."""
    if "SLOT_DURATION_MS" in spec:
        return _whole_number(spec, "SLOT_DURATION_MS", at_least=1) / 1000
    return _whole_number(spec, "SECONDS_PER_SLOT", at_least=1)


def _whole_number(data: Mapping[str, Any], key: str, *, at_least: int = 0) -> int:
    """This API writes numbers as texts."""
    if key not in data:
        raise CheckError(f"{key} is missing", ReasonCode.UNEXPECTED_RESPONSE)
    text = str(data[key]) if isinstance(data[key], str | int) else ""
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) >= at_least:
        return int(text)
    raise CheckError(f"{key} is {json_excerpt(data[key])}, which is not valid", ReasonCode.UNEXPECTED_RESPONSE)


def _flag(data: Mapping[str, Any], key: str, *, is_needed: bool = False) -> bool:
    """False if an older client does not have it, unless every client has it."""
    if is_needed and key not in data:
        raise CheckError(f"{key} is missing", ReasonCode.UNEXPECTED_RESPONSE)
    found = data.get(key, False)
    if isinstance(found, bool):
        return found
    raise CheckError(f"{key} is {json_excerpt(found)}, not true or false", ReasonCode.UNEXPECTED_RESPONSE)
