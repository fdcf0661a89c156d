"""`solana+http://…`, `solana+https://…`: a Solana validator or RPC node that follows its cluster.

ready      the node says that it is healthy, and the time of its newest confirmed slot is not older than
           `max_block_age`; with `vote_account`, this account votes
not ready  the node says that it is behind or unhealthy; its slot is older, or dated in the future; it is more than
           `max_behind` slots behind the majority of `reference`; the certificate expires within `min_cert_days`
failed     the vote account is delinquent, or has no stake in this cluster; a JSON-RPC error; connection refused, host
           unreachable, certificate not trusted
unknown    the node does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer

The node compares itself with what it hears of the cluster. One that hears nothing is healthy for itself; its clock,
which the cluster moves with each slot, stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.option_types import PublicText
from svcnode.probes.chain import RpcChainProbe, Tip, number_at, text_at, unexpected
from svcnode.probes.json_pointer import json_excerpt, resolve_pointer

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

SLOT_S = 0.4
CLOCK = "SysvarC1ock11111111111111111111111111111111"  # an account that every node has
CONFIRMED = {"commitment": "confirmed"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SolanaProbe(RpcChainProbe):
    vote_account: PublicText = ""

    error_codes: ClassVar = {-32005: ReasonCode.LAGGING}
    usual_distance: ClassVar = 150

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        health = await call("getHealth")
        if health != "ok":
            return self.not_ready(f"the node says that its health is {json_excerpt(health)}", ReasonCode.UNHEALTHY)
        clock = await call("getAccountInfo", CLOCK, {"encoding": "jsonParsed", **CONFIRMED})
        unix_time_s = number_at(clock, "/value/data/parsed/info/unixTimestamp")
        return await self.age_verdict(
            "the newest slot", unix_time_s, self.max_block_age_s(SLOT_S), "max_block_age"
        ) or (await self._vote_verdict(call) if self.vote_account else None)

    async def read_tip(self, call: RpcCall) -> Tip:
        genesis = text_at(await call("getGenesisHash"), "")
        return Tip(genesis, number_at(await call("getSlot", CONFIRMED), ""))

    async def _vote_verdict(self, call: RpcCall) -> Verdict | None:
        """The list of the delinquent ones is without those that have no stake."""
        accounts = await call("getVoteAccounts", {"votePubkey": self.vote_account, **CONFIRMED})
        if _has_account(accounts, "/current", self.vote_account):
            return None
        if _has_account(accounts, "/delinquent", self.vote_account):
            return self.failed(f"the vote account {self.vote_account} is delinquent", ReasonCode.DUTIES_MISSED)
        text = f"this cluster has no vote account {self.vote_account} with stake"
        return self.failed(text, ReasonCode.NOT_FOUND)


def _has_account(accounts: object, pointer: str, key: str) -> bool:
    found = resolve_pointer(accounts, pointer)
    if not isinstance(found, list):
        raise unexpected(pointer, found, "a list")
    return any(resolve_pointer(one, "/votePubkey") == key for one in found)
