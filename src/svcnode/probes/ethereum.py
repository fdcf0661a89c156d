"""`ethereum+http://…`, `ethereum+https://…`: an Ethereum execution client that follows its chain.

ready      the client is not syncing; its newest block is not older than `max_block_age` and it has at least
           `min_peers` peers, if those are set
not ready  the client is syncing; its newest block is older, or dated in the future; it has fewer peers; the certificate
           expires within `min_cert_days`
failed     the client follows another chain than `chain_id`; a JSON-RPC error; a response that is not JSON-RPC;
           connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.jsonrpc_protocol import RpcError, build_rpc_request, decode_result
from svcnode.probes.options import Count, Seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession

    RpcCall = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumProbe(HttpSessionProbe):
    chain_id: Count | None = None
    max_block_age: Seconds | None = None
    min_peers: Count = 0

    def __post_init__(self) -> None:
        self.build_request(self.url.target)  # reject invalid options when the probe is made

    async def check_session(self, session: HttpSession) -> Verdict | None:
        certificate_verdict: Verdict | None = None

        async def call(method: str, *params: object) -> Any:  # noqa: ANN401  any JSON value
            nonlocal certificate_verdict
            response = await session.send(build_rpc_request(self, method, list(params), keep_alive=True))
            certificate_verdict = response.certificate_verdict
            try:
                return decode_result(response)
            except RpcError as exc:
                raise CheckError(f"{method}: {exc}", exc.code) from exc

        return await self._chain_verdict(call) or certificate_verdict

    async def _chain_verdict(self, call: RpcCall) -> Verdict | None:
        """None if the client is ready."""
        if self.chain_id is not None and (found := _parse_hex(await call("eth_chainId"))) != self.chain_id:
            return self.failed(f"chain {found}; chain_id is {self.chain_id}", ReasonCode.WRONG_CHAIN)
        if (progress := await call("eth_syncing")) is not False:
            return self.not_ready(f"syncing{_progress_text(progress)}", ReasonCode.SYNCING)
        if self.max_block_age is not None:
            age_s = time.time() - _block_timestamp(await call("eth_getBlockByNumber", "latest", False))
            if age_s < -MAX_CLOCK_SKEW_S:
                text = f"clock skew: the newest block is dated {-age_s:.0f} s in the future"
                return self.not_ready(text, ReasonCode.CLOCK_SKEW)
            if age_s > self.max_block_age:
                text = f"the newest block is {age_s:.0f} s old; max_block_age is {self.max_block_age:g} s"
                return self.not_ready(text, ReasonCode.LAGGING)
        if self.min_peers and (peers := _parse_hex(await call("net_peerCount"))) < self.min_peers:
            return self.not_ready(f"{peers} peers; min_peers is {self.min_peers}", ReasonCode.TOO_FEW_PEERS)
        return None


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
            return f", at block {_parse_hex(current)} of {_parse_hex(highest)}"
        case _:
            return ""
