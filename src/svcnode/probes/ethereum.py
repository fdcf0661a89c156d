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
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.jsonrpc_protocol import RpcError, decode_result, encode_request
from svcnode.probes.options import Count, Seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    RpcCall = Callable[..., Awaitable[Any]]

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumProbe(HttpClientProbe):
    chain_id: Count | None = None
    max_block_age: Seconds | None = None
    min_peers: Count = 0

    def __post_init__(self) -> None:
        self.build_request(self.url.target)  # refuses at once what no look could use

    async def check(self) -> Verdict:
        expiring: Verdict | None = None

        async def call(method: str, *params: object) -> Any:  # noqa: ANN401  whatever JSON can hold
            nonlocal expiring
            request = self.build_request(
                self.url.target,
                method="POST",
                body=encode_request(method, list(params)),
                content_type="application/json",
                needs="body",
                keep_alive=True,
            )
            answer = await conversation.send(request)
            expiring = answer.certificate_verdict
            try:
                return decode_result(answer)
            except RpcError as exc:
                raise RpcError(f"{method}: {exc}") from exc

        try:
            with self.session() as conversation:
                verdict = await self._check_chain(call)
        except RpcError as exc:
            return Verdict.failed(f"{exc}: {self.url}")
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
        return verdict or expiring or READY

    async def _check_chain(self, call: RpcCall) -> Verdict | None:
        """None when all is as it should be."""
        if self.chain_id is not None and (found := _parse_hex(await call("eth_chainId"))) != self.chain_id:
            return Verdict.failed(f"it follows chain {found}, not {self.chain_id}: {self.url}")
        if (progress := await call("eth_syncing")) is not False:
            return Verdict.not_ready(f"syncing{_progress_text(progress)}: {self.url}")
        if self.max_block_age is not None:
            age_s = time.time() - _block_timestamp(await call("eth_getBlockByNumber", "latest", False))
            if (fault := _block_age_problem(age_s, self.max_block_age)) is not None:
                return Verdict.not_ready(f"its newest block is {fault}: {self.url}")
        if self.min_peers and (peers := _parse_hex(await call("net_peerCount"))) < self.min_peers:
            return Verdict.not_ready(f"{peers} peers, min_peers is {self.min_peers}: {self.url}")
        return None


def _block_age_problem(age_s: float, max_block_age_s: float) -> str | None:
    if age_s < -MAX_CLOCK_SKEW_S:
        return f"dated {-age_s:.0f} s in the future, so the clocks disagree and its age is not known"
    if age_s > max_block_age_s:
        return f"{age_s:.0f} s old, max_block_age is {max_block_age_s:g} s"
    return None


def _block_timestamp(block: object) -> int:
    if not isinstance(block, dict):
        raise RpcError("eth_getBlockByNumber: there is no newest block")
    return _parse_hex(block.get("timestamp"))


def _parse_hex(value: object) -> int:
    """As Ethereum writes numbers: 0x1a. A plain 10 is no such number, and might be meant for ten or for sixteen."""
    if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,64}", value):
        return int(value, 16)
    raise RpcError(f"what should be a number is {str(value)[:40]!r}")


def _progress_text(progress: object) -> str:
    match progress:
        case {"currentBlock": str(current), "highestBlock": str(highest)}:
            return f", at block {_parse_hex(current)} of {_parse_hex(highest)}"
        case _:
            return ""
