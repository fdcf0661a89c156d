"""`opnode+http://…`, `opnode+https://…`: the op-node of an OP Stack chain, such as OP Mainnet or Base.

ready      its newest (unsafe) L2 block is not older than `max_block_age`, the safe one not older than `max_safe_age`,
           the finalized one not older than `max_finalized_age`, and the L1 blocks that it knows and that it has derived
           from not older than `max_l1_age`
not ready  one of them is older, dated in the future, or not known yet; the node is more than `max_behind` blocks behind
           the majority of `reference`; the certificate expires within `min_cert_days`
failed     the node follows another chain than `chain_id`; a JSON-RPC error; connection refused, host unreachable,
           certificate not trusted
unknown    the node does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.probes.chain import BlockAge, RpcChainProbe, Tip, number_at
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

# The safe block may be this old, by chain id: these chains post their batches every few minutes. Others may wait until
# the end of the sequencing window, after which every node derives blocks without them.
SAFE_AGES_S = {10: 1800.0, 8453: 1800.0}
L1_BLOCK_S = 12
FINALITY_S = 1800.0  # L1 finalizes a block after about 15 minutes
MAX_L1_AGE_S = 300.0
# What the node says of its chain may not make the limits meaningless.
DAY_S, MAX_BLOCK_TIME_S = 86_400.0, 60


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpNodeProbe(RpcChainProbe):
    chain_id: Count | None = None
    max_safe_age: BlockAge | None = None  # None: by the chain
    max_finalized_age: BlockAge | None = None  # None: half an hour more than that
    max_l1_age: BlockAge = MAX_L1_AGE_S

    usual_distance: ClassVar = 15

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        config, status = await call("optimism_rollupConfig"), await call("optimism_syncStatus")
        chain_id = number_at(config, "/l2_chain_id")
        if self.chain_id not in (None, chain_id):
            return self.failed(f"it follows chain {chain_id}, but chain_id is {self.chain_id}", ReasonCode.WRONG_CHAIN)
        for name, limit_s, option in self._limits(config, chain_id):
            if limit_s == math.inf:
                continue
            time_s = number_at(status, f"/{name}/timestamp")
            if not time_s:  # the node has just started
                return self.not_ready(f"{name} is not known yet", ReasonCode.STARTING)
            if verdict := await self.age_verdict(name, time_s, limit_s, option):
                return verdict
        return None

    def _limits(self, config: object, chain_id: int) -> list[tuple[str, float, str]]:
        safe_s, finalized_s = self.max_safe_age, self.max_finalized_age
        if safe_s is None:
            safe_s = SAFE_AGES_S.get(chain_id) or min(number_at(config, "/seq_window_size") * L1_BLOCK_S, DAY_S)
        if finalized_s is None:
            finalized_s = safe_s + FINALITY_S
        block_s = min(number_at(config, "/block_time"), MAX_BLOCK_TIME_S)
        return [
            ("unsafe_l2", self.max_block_age_s(block_s), "max_block_age"),
            ("head_l1", self.max_l1_age, "max_l1_age"),
            ("current_l1", self.max_l1_age, "max_l1_age"),
            ("safe_l2", safe_s, "max_safe_age"),
            ("finalized_l2", finalized_s, "max_finalized_age"),
        ]

    async def read_tip(self, call: RpcCall) -> Tip:
        config, status = await call("optimism_rollupConfig"), await call("optimism_syncStatus")
        return Tip(number_at(config, "/l2_chain_id"), number_at(status, "/unsafe_l2/number"))
