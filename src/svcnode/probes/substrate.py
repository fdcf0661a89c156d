"""`substrate+http://…`, `substrate+https://…`: a node of Polkadot, Kusama, or another chain made with Substrate.

ready      the node is not syncing, its best block is not older than `max_block_age` and its finalized one not older
           than `max_finalized_age`, and it has at least `min_peers` peers, unless its chain has none
not ready  the node is syncing; one of the two blocks is older, or dated in the future; it has fewer peers; it is more
           than `max_behind` blocks behind the majority of `reference`; the certificate expires within `min_cert_days`
failed     the node follows another chain than `chain`; a JSON-RPC error; connection refused, host unreachable,
           certificate not trusted
unknown    the node does not have a method that the check needs, or the chain no times; no file descriptors or ports
           left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.core.option_types import PublicText
from svcnode.core.text import excerpt
from svcnode.probes.base import CheckError
from svcnode.probes.chain import BlockAge, RpcChainProbe, Tip, flag_at, number_at, text_at, unexpected
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

# How many seconds a block takes, by the name of the chain.
BLOCK_TIMES_S = dict.fromkeys(("Polkadot", "Kusama", "Westend", "Paseo Testnet"), 6.0)
MAX_FINALIZED_AGE_S = 300.0
# Where the state of a chain has the time of its block: the hashes (twox128) of "Timestamp" and "Now".
TIME_KEY = "0xf0c365c3cf59d671eb72da0e7a4113c49f1f0515f462cdcf84e0f1d6045dfcbb"

TIME = re.compile("0x([0-9a-fA-F]{16})")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SubstrateProbe(RpcChainProbe):
    chain: PublicText = ""
    max_finalized_age: BlockAge = MAX_FINALIZED_AGE_S
    min_peers: Count | None = None  # None: 1, if the node should have peers

    usual_distance: ClassVar = 10

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        chain, health = text_at(await call("system_chain"), ""), await call("system_health")
        if self.chain not in ("", chain):
            return self.failed(
                f"it follows chain {excerpt(chain)}, but the option chain is {self.chain}", ReasonCode.WRONG_CHAIN
            )
        if flag_at(health, "/isSyncing"):
            return self.not_ready("syncing", ReasonCode.SYNCING)
        limit_s, peers = self.max_block_age_s(BLOCK_TIMES_S.get(chain)), number_at(health, "/peers")
        min_peers = int(flag_at(health, "/shouldHavePeers")) if self.min_peers is None else self.min_peers
        if peers < min_peers:
            return self.not_ready(f"{peers} peers, but min_peers is {min_peers}", ReasonCode.TOO_FEW_PEERS)
        if limit_s < math.inf and (
            verdict := await self.age_verdict("the best block", await _block_time(call), limit_s, "max_block_age")
        ):
            return verdict
        if self.max_finalized_age == math.inf:
            return None
        finalized = await _block_time(call, text_at(await call("chain_getFinalizedHead"), ""))
        return await self.age_verdict("the finalized block", finalized, self.max_finalized_age, "max_finalized_age")

    async def read_tip(self, call: RpcCall) -> Tip:
        return Tip(text_at(await call("system_chain"), ""), number_at(await call("chain_getHeader"), "/number"))


async def _block_time(call: RpcCall, *block: str) -> int:
    """In milliseconds. The state has the eight bytes of the number, the lowest first."""
    value = await call("state_getStorage", TIME_KEY, *block)
    if value is None:
        text = 'the chain has no times of blocks; set max_block_age and max_finalized_age to "off"'
        raise CheckError(text, ReasonCode.NOT_SUPPORTED, Outcome.UNKNOWN)
    if not (found := TIME.match(text_at(value, ""))):
        raise unexpected("the time of the block", value, "eight bytes")
    return int.from_bytes(bytes.fromhex(found[1]), "little")
