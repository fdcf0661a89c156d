"""`ethereum+http://…`, `ethereum+https://…`, `ethereum+unix:///socket`: an execution client that follows its chain.

ready      the client is not syncing, its newest block is not older than `max_block_age`, and it has at least
           `min_peers` peers
not ready  the client is syncing; its newest block is older, or dated in the future; it has fewer peers; the certificate
           expires within `min_cert_days`
failed     the client follows another chain than `chain_id`; a JSON-RPC error; a response that is not JSON-RPC;
           connection refused, host unreachable, certificate not trusted
unknown    the client does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer

What the client says of itself is not enough: one that has lost its peers, or hangs, goes on saying that it is in sync.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.core.option_types import option_type, schema_of
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError
from svcnode.probes.jsonrpc_protocol import RpcError
from svcnode.probes.options import Count, seconds
from svcnode.probes.rpc_client import HttpRpcProbe, RpcProbe, UnixRpcProbe

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.rpc_client import RpcCall

# How many seconds a block takes, by chain id. A client may be this many blocks behind, and at least `MIN_AGE_S`.
BLOCK_TIMES_S = {
    1: 12,  # Ethereum
    11155111: 12,  # Sepolia
    560048: 12,  # Hoodi
    10: 2,  # OP Mainnet
    8453: 2,  # Base
    137: 2,  # Polygon
    56: 3,  # BNB Smart Chain
    100: 5,  # Gnosis
    59144: 2,  # Linea
    534352: 3,  # Scroll
    42220: 1,  # Celo
}
MAX_MISSING_BLOCKS, MIN_AGE_S, UNKNOWN_CHAIN_AGE_S = 10, 60.0, 120.0


@option_type(
    {"anyOf": [{"const": "off"}, schema_of(seconds)]}, show=lambda age_s: "off" if age_s == math.inf else f"{age_s:g}s"
)
def block_age(value: object) -> float:
    return math.inf if value == "off" else seconds(value)


BlockAge = Annotated[float, block_age]


@dataclass(frozen=True, kw_only=True, repr=False)
class ChainProbe(RpcProbe):
    __slots__ = ()  # as in UrlProbe

    chain_id: Count | None = None
    max_block_age: BlockAge | None = None  # None: by the chain
    min_peers: Count | None = None  # None: 1, if the client can say how many it has

    calls_often: ClassVar = True

    async def check_rpc(self, call: RpcCall) -> Verdict | None:
        try:
            return await self._chain_verdict(call)
        except RpcError as exc:
            if exc.code is ReasonCode.NOT_SUPPORTED:
                # Without the method, nothing is known: the options or the modules of the client have to be changed.
                raise CheckError(str(exc), exc.code, Outcome.UNKNOWN) from exc
            raise

    async def _chain_verdict(self, call: RpcCall) -> Verdict | None:
        """None if the client is ready."""
        chain_id = _parse_hex(await call("eth_chainId", []))
        if self.chain_id not in (None, chain_id):
            return self.failed(f"chain {chain_id}; chain_id is {self.chain_id}", ReasonCode.WRONG_CHAIN)
        progress, limit_s = await call("eth_syncing", []), self._max_block_age_s(chain_id)
        if progress is not False and (limit_s == math.inf or not _is_at_its_end(progress)):
            return self.not_ready(f"syncing{_progress_text(progress)}", ReasonCode.SYNCING)
        if limit_s < math.inf:
            timestamp_s = _block_timestamp(await call("eth_getBlockByNumber", ["latest", False]))
            if verdict := self._age_verdict(time.time() - timestamp_s, limit_s):
                return verdict
        return await self._peers_verdict(call)

    def _max_block_age_s(self, chain_id: int) -> float:
        if self.max_block_age is not None:
            return self.max_block_age
        block_time_s = BLOCK_TIMES_S.get(chain_id)
        return UNKNOWN_CHAIN_AGE_S if block_time_s is None else max(MIN_AGE_S, MAX_MISSING_BLOCKS * block_time_s)

    def _age_verdict(self, age_s: float, limit_s: float) -> Verdict | None:
        if age_s < -MAX_CLOCK_SKEW_S:
            text = (
                f"clock skew: the newest block is dated {-age_s:.0f} s in the future; check the clock of this machine"
            )
            return self.not_ready(text, ReasonCode.CLOCK_SKEW)
        if age_s > limit_s:
            limit = "max_block_age is" if self.max_block_age is not None else "this chain is allowed"
            return self.not_ready(f"the newest block is {age_s:.0f} s old; {limit} {limit_s:g} s", ReasonCode.LAGGING)
        return None

    async def _peers_verdict(self, call: RpcCall) -> Verdict | None:
        min_peers = 1 if self.min_peers is None else self.min_peers
        if not min_peers:
            return None
        try:
            peers = _parse_hex(await call("net_peerCount", []))
        except RpcError as exc:
            if self.min_peers is None and exc.code is ReasonCode.NOT_SUPPORTED:
                return None  # many public endpoints do not have the method
            raise
        if peers < min_peers:
            return self.not_ready(f"{peers} peers; min_peers is {min_peers}", ReasonCode.TOO_FEW_PEERS)
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumProbe(ChainProbe, HttpRpcProbe):
    """Over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixEthereumProbe(ChainProbe, UnixRpcProbe):
    """Through its IPC socket."""


def _is_at_its_end(progress: object) -> bool:
    """Whether the client has the newest block that it knows of. Some clients then still build an index."""
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            return _parse_hex(current) >= _parse_hex(highest) > 0
        case _:
            return False


def _block_timestamp(block: object) -> int:
    if not isinstance(block, dict):
        raise CheckError("eth_getBlockByNumber returned no block", ReasonCode.UNEXPECTED_RESPONSE)
    return _parse_hex(block.get("timestamp"))


def _parse_hex(value: object) -> int:
    """Ethereum writes numbers as 0x1a. A number without 0x is rejected: its base is unclear."""
    if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,64}", value):
        return int(value, 16)
    raise CheckError(f"{str(value)[:40]!r} is not a hexadecimal number such as 0x1a", ReasonCode.UNEXPECTED_RESPONSE)


def _progress_text(progress: object) -> str:
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            end = _parse_hex(highest)
            return f", at block {_parse_hex(current)}{f' of {end}' if end else ''}"
        case _:
            return ""
