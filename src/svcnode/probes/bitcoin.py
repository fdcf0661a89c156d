"""`bitcoin+http://…`, `bitcoin+https://…`: Bitcoin Core, or a client with the same RPC, that follows its chain.

ready      the initial download is over, the node has the blocks of the headers that it knows, its newest block is not
           older than `max_block_age`, and it has at least `min_peers` connections
not ready  the node is starting, or in its initial download; it lacks blocks; its newest block is older, or dated too
           far in the future; it has fewer connections; it is more than `max_behind` blocks behind the majority of
           `reference`; the certificate expires within `min_cert_days`
failed     the node follows another chain than `chain`; a rejected login; an RPC error; connection refused, host
           unreachable, certificate not trusted
unknown    the node does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.option_types import PublicText
from svcnode.core.text import excerpt
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.chain import RpcChainProbe, Tip, flag_at, number_at, text_at
from svcnode.probes.json_pointer import MISSING, resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

# Blocks come at random, every 10 minutes on average: the next one takes longer than 2 hours with a probability of
# exp(-12), which is about once in three years. 90 minutes would be six times a year.
MAX_AGE_S = 7200.0
# Miners set the times of blocks. The network rejects a block whose time is more than 2 hours in the future.
MAX_AHEAD_S = 7200.0 + MAX_CLOCK_SKEW_S
ON_DEMAND = "regtest"  # a chain that makes blocks only on demand
MAX_BEHIND = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BitcoinProbe(RpcChainProbe):
    chain: PublicText = ""
    min_peers: Count | None = None  # None: 1

    error_codes: ClassVar = {-28: ReasonCode.STARTING}  # RPC_IN_WARMUP
    usual_distance: ClassVar = MAX_BEHIND

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        info = await call("getblockchaininfo")
        chain, blocks, headers = text_at(info, "/chain"), number_at(info, "/blocks"), number_at(info, "/headers")
        if self.chain not in ("", chain):
            return self.failed(
                f'it follows chain "{excerpt(chain)}", but the option chain is "{self.chain}"', ReasonCode.WRONG_CHAIN
            )
        if flag_at(info, "/initialblockdownload") or headers - blocks > MAX_BEHIND:
            return self.not_ready(f"syncing, at block {blocks} of {headers}", ReasonCode.SYNCING)

        async def peer_count() -> int:
            return number_at(await call("getnetworkinfo"), "/connections")

        return await self._block_age_verdict(call, info, chain) or await self.peers_verdict(self.min_peers, peer_count)

    async def _block_age_verdict(self, call: RpcCall, info: object, chain: str) -> Verdict | None:
        limit_s = (math.inf if chain == ON_DEMAND else MAX_AGE_S) if self.max_block_age is None else self.max_block_age
        if limit_s == math.inf:
            return None
        if resolve_pointer(info, "/time") is MISSING:  # before version 23
            info = await call("getblockheader", text_at(info, "/bestblockhash"))
        time_s = number_at(info, "/time")
        return await self.age_verdict("the newest block", time_s, limit_s, "max_block_age", max_ahead_s=MAX_AHEAD_S)

    async def read_tip(self, call: RpcCall) -> Tip:
        info = await call("getblockchaininfo")
        return Tip(text_at(info, "/chain"), number_at(info, "/blocks"))
