"""`ethereum+http://…`, `ethereum+https://…`, `ethereum+unix:///socket`: an execution client that follows its chain.

ready      the client is not syncing, its newest block is not older than `max_block_age`, and it has at least
           `min_peers` peers; `account` has at least `min_balance` and `warn_balance`; `call` returns what it expects
not ready  the client is syncing; its newest block is older, or dated in the future; it has fewer peers; it is more than
           `max_behind` blocks behind the majority of `reference`; the account has less than `warn_balance`; the
           certificate expires within `min_cert_days`
failed     the client follows another chain than `chain_id`; the account has less than `min_balance`; the call is
           reverted, or returns something else; a JSON-RPC error; a response that is not JSON-RPC; connection refused,
           host unreachable, certificate not trusted
unknown    the client does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer

Account and contract are read from the newest block, so they say something only about a client that follows its chain.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.url import Url
from svcnode.probes.base import CheckError
from svcnode.probes.chain import RpcChainProbe, RpcChainRules, Tip, text_at, unexpected
from svcnode.probes.ethereum_options import Address, Call, Wei, amount_text
from svcnode.probes.json_pointer import json_excerpt
from svcnode.probes.options import Count
from svcnode.probes.rpc_client import UnixRpcProbe

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

# How many seconds a block takes, by chain id.
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
    42161: 0.25,  # Arbitrum One
}
# A client may be behind the references by the blocks of this time, and by some blocks more if they are slow.
MAX_BEHIND_S, MIN_BEHIND = 30, 3


@dataclass(frozen=True, kw_only=True, repr=False)
class EthereumRules(RpcChainRules):
    __slots__ = ()  # as in UrlProbe

    chain_id: Count | None = None
    min_peers: Count | None = None  # None: 1, if the client can say how many it has
    account: Address = ""
    min_balance: Wei | None = None
    warn_balance: Wei | None = None
    call: Call | None = None

    error_codes: ClassVar = {3: ReasonCode.UNEXPECTED_RESPONSE}  # a contract reverted the call (go-ethereum and others)

    def validate_options(self) -> None:
        limits = [name for name in ("min_balance", "warn_balance") if getattr(self, name)]
        if limits and not self.account:
            raise OptionError(limits[0], "only works with account; set both")
        if self.account and not limits:
            raise OptionError("account", "only works with min_balance or warn_balance; set one of them")
        if self.min_balance and self.warn_balance and self.warn_balance <= self.min_balance:
            raise OptionError("warn_balance", f'must be more than min_balance ("{amount_text(self.min_balance)}")')

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        chain_id = _parse_hex(await call("eth_chainId"))
        if self.chain_id not in (None, chain_id):
            return self.failed(f"it follows chain {chain_id}, but chain_id is {self.chain_id}", ReasonCode.WRONG_CHAIN)
        progress, limit_s = await call("eth_syncing"), self.max_block_age_s(BLOCK_TIMES_S.get(chain_id))
        if not isinstance(progress, bool | dict):
            raise unexpected("eth_syncing", progress, "false or the progress")
        if progress is not False and (limit_s == math.inf or not _is_at_its_end(progress)):
            return self.not_ready(f"syncing{_progress_text(progress)}", ReasonCode.SYNCING)
        if verdict := await self.head_verdict(call, limit_s):
            return verdict

        async def peer_count() -> int:
            return _parse_hex(await call("net_peerCount"))

        return await self.peers_verdict(self.min_peers, peer_count)

    async def head_verdict(self, call: RpcCall, limit_s: float) -> Verdict | None:
        if limit_s == math.inf:
            return None
        block_s = block_timestamp_s(await call("eth_getBlockByNumber", "latest", False))
        return await self.age_verdict("the newest block", block_s, limit_s, "max_block_age")

    async def duty_verdict(self, call: RpcCall) -> Verdict | None:
        return await self._contract_verdict(call) or await self._balance_verdict(call)

    async def _contract_verdict(self, call: RpcCall) -> Verdict | None:
        if (wanted := self.call) is None:
            return None
        result = text_at(await call("eth_call", {"to": wanted.to, "data": wanted.data}, "latest"), "")
        if result == "0x":
            text = f"nothing was returned: there is no contract at {wanted.to}, or it does not have this function"
            return self.failed(text, ReasonCode.NOT_FOUND)
        if not wanted.is_met_by(result):
            text = f"the contract {wanted.to} returned {json_excerpt(result)}, expected {json_excerpt(wanted.expect)}"
            return self.failed(text, ReasonCode.UNEXPECTED_RESPONSE)
        return None

    async def _balance_verdict(self, call: RpcCall) -> Verdict | None:
        if not self.account:
            return None
        wei = _parse_hex(await call("eth_getBalance", self.account, "latest"))
        balance = f"the account {self.account} has {amount_text(wei)}"
        if self.min_balance and wei < self.min_balance:
            text = f"{balance}, but min_balance is {amount_text(self.min_balance)}"
            return self.failed(text, ReasonCode.LOW_BALANCE)
        if self.warn_balance and wei < self.warn_balance:
            text = f"{balance}, but warn_balance is {amount_text(self.warn_balance)}"
            return self.not_ready(text, ReasonCode.LOW_BALANCE)
        return None

    async def read_tip(self, call: RpcCall) -> Tip:
        return Tip(_parse_hex(await call("eth_chainId")), _parse_hex(await call("eth_blockNumber")))

    def default_max_behind(self, chain: object) -> int:
        block_time_s = BLOCK_TIMES_S.get(chain, 1.0) if isinstance(chain, int) else 1.0
        return max(MIN_BEHIND, int(MAX_BEHIND_S / block_time_s))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumProbe(EthereumRules, RpcChainProbe):
    """Over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixEthereumProbe(EthereumRules, UnixRpcProbe):
    """Through its IPC socket. References are asked over HTTP."""

    def reference_probe(self, text: str) -> EthereumProbe:
        return EthereumProbe(Url.parse(f"ethereum+{text}"))


def _is_at_its_end(progress: object) -> bool:
    """Whether the client has the newest block that it knows of. Some clients then still build an index."""
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            return _parse_hex(current) >= _parse_hex(highest) > 0
        case _:
            return False


def block_timestamp_s(block: object) -> int:
    if not isinstance(block, dict):
        raise CheckError(f"{json_excerpt(block)} is not a block", ReasonCode.UNEXPECTED_RESPONSE)
    return _parse_hex(block.get("timestamp"))


def _parse_hex(value: object) -> int:
    """Ethereum writes numbers as 0x1a. A number without 0x is rejected: its base is unclear."""
    if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,64}", value):
        return int(value, 16)
    raise CheckError(f"{json_excerpt(value)} is not a hexadecimal number such as 0x1a", ReasonCode.UNEXPECTED_RESPONSE)


def _progress_text(progress: object) -> str:
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            block, end = _parse_hex(current), _parse_hex(highest)
            return f", at block {block}{f' of {end}' if end > block else ''}"  # some clients do not know the end yet
        case _:
            return ""
