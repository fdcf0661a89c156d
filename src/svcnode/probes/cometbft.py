"""`cometbft+http://…`, `cometbft+https://…`: a CometBFT (Tendermint) node that follows its chain.

ready      the node is not catching up, its newest block is not older than `max_block_age`, and it has at least
           `min_peers` peers; with `validator`, the validator has voting power and signs its blocks
not ready  the node is catching up; its newest block is older, or dated in the future; it has fewer peers; it is more
           than `max_behind` blocks behind the majority of `reference`; no commit shows yet whether the validator signs;
           the certificate expires within `min_cert_days`
failed     the node follows another chain than `chain_id`; the validator has no voting power, or has missed more blocks
           than `max_missed`; a JSON-RPC error; connection refused, host unreachable, certificate not trusted
unknown    the node does not have a method that the check needs; no file descriptors or ports left on this machine;
           the resolver or the proxy does not answer

A node says that it is not catching up when its chain has halted, too. The age of the newest block shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.option_types import PublicText, option_type
from svcnode.core.text import excerpt
from svcnode.probes.chain import RpcChainProbe, Tip, flag_at, number_at, text_at, unexpected
from svcnode.probes.conditions import as_unix_time_s
from svcnode.probes.json_pointer import resolve_pointer
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall

BLOCK_TIME_S = 6.0  # of the slower chains; the default configuration makes a block in about a second
MAX_COMMITS = 20  # that one check reads: a commit of 150 validators has 40 KB
ADDRESS = "[0-9A-Fa-f]{40}"
EARLIEST = "/sync_info/earliest_block_height"
SIGNATURES = "/signed_header/commit/signatures"
VOTED = (2, 3)  # the flags of a validator that voted for a block, or for none, in a commit
OWN = "own"  # the validator of the node


class End(NamedTuple):
    """The newest block of a node."""

    height: int
    time_s: float


class Missed(NamedTuple):
    """How many of the last blocks a validator may miss."""

    most: int = 5
    window: int = 100


@option_type(
    {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^{ADDRESS}$"}]},
    show=lambda address: address == OWN or address,
)
def validator_address(value: object) -> str:
    """`true` for the validator of the node itself; "" for none."""
    if isinstance(value, bool):
        return OWN if value else ""
    if isinstance(value, str) and re.fullmatch(ADDRESS, value):
        return value.upper()
    raise InvalidValueError("must be true, or an address of 40 hexadecimal digits, as in validator_info of /status")


@option_type({"type": "string", "pattern": "^[0-9]{1,4}/[0-9]{1,4}$"}, show=lambda missed: "{}/{}".format(*missed))
def missed_blocks(value: object) -> Missed:
    found = re.fullmatch("([0-9]{1,4})/([0-9]{1,4})", value) if isinstance(value, str) else None
    if found is None or int(found[1]) >= int(found[2]):
        raise InvalidValueError(f'must be a text such as "5/100" (at most 5 of the last 100 blocks), not {value!r}')
    return Missed(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CometbftProbe(RpcChainProbe):
    chain_id: PublicText = ""
    min_peers: Count | None = None  # None: 1, if the node can say how many it has
    validator: Annotated[str, validator_address] = ""
    max_missed: Annotated[Missed | None, missed_blocks] = None  # None: the default
    _signed: dict[int, bool] = field(init=False, compare=False, default_factory=dict)  # by height, of the last blocks
    _end: list[End] = field(init=False, compare=False, default_factory=list)  # the highest block that was seen

    usual_distance: ClassVar = 10

    def validate_options(self) -> None:
        if self.max_missed is not None and not self.validator:
            raise OptionError("max_missed", "only works with validator; set both")

    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        status = await call("status")
        chain, height = text_at(status, "/node_info/network"), number_at(status, "/sync_info/latest_block_height")
        if self.chain_id not in ("", chain):
            return self.failed(
                f"it follows chain {excerpt(chain)}, but chain_id is {self.chain_id}", ReasonCode.WRONG_CHAIN
            )
        if flag_at(status, "/sync_info/catching_up"):
            return self.not_ready(f"catching up, at block {height}", ReasonCode.SYNCING)
        block_time, limit_s = _block_time(status), self.max_block_age_s(BLOCK_TIME_S)

        async def peer_count() -> int:
            return number_at(await call("net_info", is_large=True), "/n_peers")  # with 2.5 KB for each peer

        return (
            await self.age_verdict("the newest block", block_time, limit_s, "max_block_age")
            or await self.peers_verdict(self.min_peers, peer_count)
            or (await self._duty_verdict(call, status) if self.validator else None)
        )

    async def read_tip(self, call: RpcCall) -> Tip:
        status = await call("status")
        return Tip(text_at(status, "/node_info/network"), number_at(status, "/sync_info/latest_block_height"))

    # ---- the duties of a validator

    async def _duty_verdict(self, call: RpcCall, status: object) -> Verdict | None:
        own = _address_at(status, "/validator_info/address")
        address = own if self.validator == OWN else self.validator
        if address == own and not number_at(status, "/validator_info/voting_power"):
            return self.failed(f"the validator {address} has no voting power", ReasonCode.WRONG_ROLE)
        limit = self.max_missed or Missed()
        await self._read_commits(call, address, status, limit.window)
        if not self._signed:
            return self.not_ready(
                "it is not known yet whether the validator signs: there is no commit to read", ReasonCode.STARTING
            )
        missed = [*self._signed.values()].count(False)
        if missed > limit.most:
            text = f"the validator {address} missed {missed} of the last {len(self._signed)} blocks that were read"
            return self.failed(f"{text}, but max_missed is {limit.most}/{limit.window}", ReasonCode.DUTIES_MISSED)
        return None

    async def _read_commits(self, call: RpcCall, address: str, status: object, window: int) -> None:
        """Those that are new since the last check. The newest block has no final commit before the next one."""
        end = self._find_end(status)
        known = max(self._signed, default=0)
        earliest = number_at(status, EARLIEST)
        if earliest > end:
            raise unexpected(EARLIEST, earliest, "one of the blocks up to the newest")
        first = max(known + 1, end - min(MAX_COMMITS, window), earliest, 1)
        for height in range(first, end):
            signatures = resolve_pointer(await call("commit", height=str(height)), SIGNATURES)
            if not isinstance(signatures, list):
                raise unexpected(SIGNATURES, signatures, "a list")
            self._signed[height] = any(_is_by(one, address) for one in signatures)
        for height in sorted(self._signed)[:-window]:
            del self._signed[height]

    def _find_end(self, status: object) -> int:
        """The height of the newest block. With a lower one, the node may lag behind another at the same address. But if
        that block is newer, the chain has begun again, and what was read of the blocks from there on is not of it."""
        height, time_s = number_at(status, "/sync_info/latest_block_height"), as_unix_time_s(_block_time(status)) or 0.0
        if not self._end or height > self._end[0].height or time_s > self._end[0].time_s:
            for gone in [one for one in self._signed if one >= height]:
                del self._signed[gone]
            self._end[:] = [End(height, time_s)]
        return height


def _address_at(status: object, pointer: str) -> str:
    address = text_at(status, pointer)
    if re.fullmatch(ADDRESS, address):
        return address.upper()
    raise unexpected(pointer, address, "an address")


def _block_time(status: object) -> str:
    return text_at(status, "/sync_info/latest_block_time")


def _is_by(signature: object, address: str) -> bool:
    """A vote for no block counts too, as for the chain itself. A validator that did not vote has no address here."""
    match signature:
        case {"block_id_flag": int(flag), "validator_address": str(found)}:
            return flag in VOTED and found.upper() == address
        case _:
            return False
