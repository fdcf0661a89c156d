"""`ethereum+http://…`, `ethereum+https://…`: an Ethereum execution client that follows its chain.

ready      not syncing; where they are set, its newest block is younger than `max_block_age`, and it has `min_peers`
not ready  syncing, an older block or one from the future, fewer peers; the certificate ends within `min_cert_days`
failed     another chain than `chain_id`; an error, an answer that is not JSON-RPC; refused, unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Verdict
from svcnode.probes.tools.clocks import CLOCK_SLACK_S
from svcnode.probes.tools.exchange import HttpOptions
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.json_rpc import RpcError, call_of, result_of
from svcnode.probes.tools.options import Count, Seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Call = Callable[..., Awaitable[Any]]

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumProbe(HttpOptions):
    chain_id: Count | None = None
    max_block_age: Seconds | None = None
    min_peers: Count = 0

    def __post_init__(self) -> None:
        self.request(self.url.target)  # refuses at once what no look could use

    async def look(self) -> Verdict:
        expiring: Verdict | None = None

        async def call(method: str, *params: object) -> Any:  # noqa: ANN401  whatever JSON can hold
            nonlocal expiring
            request = self.request(
                self.url.target,
                method="POST",
                body=call_of(method, list(params)),
                content_type="application/json",
                needs="body",
                is_followed=True,
            )
            answer = await conversation.send(request)
            expiring = answer.expiring
            try:
                return result_of(answer)
            except RpcError as exc:
                raise RpcError(f"{method}: {exc}") from exc

        try:
            with self.conversation() as conversation:
                verdict = await self._judged(call)
        except RpcError as exc:
            return Verdict.failed(f"{exc}: {self.url}")
        except OSError as exc:
            return verdict_on(exc, str(self.url))
        return verdict or expiring or READY

    async def _judged(self, call: Call) -> Verdict | None:
        """None when all is as it should be."""
        if self.chain_id is not None and (found := _number(await call("eth_chainId"))) != self.chain_id:
            return Verdict.failed(f"it follows chain {found}, not {self.chain_id}: {self.url}")
        if (progress := await call("eth_syncing")) is not False:
            return Verdict.not_ready(f"syncing{_shown(progress)}: {self.url}")
        if self.max_block_age is not None:
            age_s = time.time() - _timestamp_of(await call("eth_getBlockByNumber", "latest", False))
            if (fault := _fault_of_age(age_s, self.max_block_age)) is not None:
                return Verdict.not_ready(f"its newest block is {fault}: {self.url}")
        if self.min_peers and (peers := _number(await call("net_peerCount"))) < self.min_peers:
            return Verdict.not_ready(f"{peers} peers, min_peers is {self.min_peers}: {self.url}")
        return None


def _fault_of_age(age_s: float, max_block_age_s: float) -> str | None:
    if age_s < -CLOCK_SLACK_S:
        return f"dated {-age_s:.0f} s in the future, so the clocks disagree and its age is not known"
    if age_s > max_block_age_s:
        return f"{age_s:.0f} s old, max_block_age is {max_block_age_s:g} s"
    return None


def _timestamp_of(block: object) -> int:
    if not isinstance(block, dict):
        raise RpcError("eth_getBlockByNumber: there is no newest block")
    return _number(block.get("timestamp"))


def _number(value: object) -> int:
    """As Ethereum writes numbers: 0x1a. A plain 10 is no such number, and might be meant for ten or for sixteen."""
    if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,64}", value):
        return int(value, 16)
    raise RpcError(f"what should be a number is {str(value)[:40]!r}")


def _shown(progress: object) -> str:
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            return f", at block {_number(current)} of {_number(highest)}"
        case _:
            return ""
