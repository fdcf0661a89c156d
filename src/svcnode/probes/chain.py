"""What the kinds of chain clients share: the age of a block, peers, calls by JSON-RPC, and references.

What a client says of itself is not enough: one that has lost its peers or hangs goes on saying that it is in sync, and
a cache in front of it says so for ever. So a kind reads the time of the newest block, which must be recent by the clock
of this machine. That needs no memory of earlier checks, and a head that stands still gets old, whoever sends it.
"""

from __future__ import annotations

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import option_type, schema_of
from svcnode.core.text import excerpt
from svcnode.core.url import Url
from svcnode.net.http_response import MAX_BODY_BYTES
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError, UrlProbe, time_for_others_s
from svcnode.probes.conditions import Age
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.json_pointer import MISSING, json_excerpt, resolve_pointer
from svcnode.probes.jsonrpc_protocol import RpcError
from svcnode.probes.options import Count, WebUrls, seconds
from svcnode.probes.rpc_client import HttpRpcProbe, RpcProbe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.probes.rpc_client import RpcConnection

LARGE_BODY_BYTES = 4 * 1024**2  # of a list of all peers or keys
# A client may be this many blocks behind, and at least `MIN_AGE_S`.
MAX_MISSING_BLOCKS, MIN_AGE_S, UNKNOWN_CHAIN_AGE_S = 10, 60.0, 120.0
_MAX_INT = 10**20
_NUMBER = re.compile("0x([0-9a-fA-F]{1,16})|([0-9]{1,20})")
_REFUSED = (
    ReasonCode.NOT_SUPPORTED,
    ReasonCode.NOT_FOUND,
    ReasonCode.BAD_REQUEST,
    ReasonCode.AUTH_REQUIRED,
    ReasonCode.PERMISSION_DENIED,
)
_OUTCOMES = {
    ReasonCode.NOT_SUPPORTED: Outcome.UNKNOWN,  # the options, or what the client offers, have to be changed
    ReasonCode.STARTING: Outcome.NOT_READY,
    ReasonCode.LAGGING: Outcome.NOT_READY,
}


@option_type(
    {"anyOf": [{"const": "off"}, schema_of(seconds)]}, show=lambda age_s: "off" if age_s == math.inf else f"{age_s:g}s"
)
def block_age(value: object) -> float:
    return math.inf if value == "off" else seconds(value)


BlockAge = Annotated[float, block_age]


# ---- reading documents


def number_at(document: object, pointer: str) -> int:
    """A whole number, which may also be a text, decimal or with 0x."""
    value = resolve_pointer(document, pointer)
    if type(value) is int and 0 <= value < _MAX_INT:
        return value
    if isinstance(value, str) and (found := _NUMBER.fullmatch(value)):
        return int(found[1], 16) if found[1] else int(found[2])
    raise unexpected(pointer, value, "a whole number")


def flag_at(document: object, pointer: str) -> bool:
    value = resolve_pointer(document, pointer)
    if isinstance(value, bool):
        return value
    raise unexpected(pointer, value, "true or false")


def text_at(document: object, pointer: str) -> str:
    value = resolve_pointer(document, pointer)
    if isinstance(value, str):
        return value
    raise unexpected(pointer, value, "a text")


def unexpected(pointer: str, value: object, expected: str) -> CheckError:
    name = pointer or "the result"
    shown = "is missing" if value is MISSING else f"is {json_excerpt(value)}, not {expected}"
    return CheckError(f"{name} {shown}", ReasonCode.UNEXPECTED_RESPONSE)


# ---- probes


class ChainRules(UrlProbe):
    """What holds for every client of a chain."""

    __slots__ = ()

    async def age_verdict(
        self, head: str, time: object, limit_s: float, option: str, *, max_ahead_s: float = MAX_CLOCK_SKEW_S
    ) -> Verdict | None:
        """None if the head is recent. A time in the future shows that one of the two clocks is wrong."""
        if limit_s == math.inf:
            return None
        problem = await Age("<=", limit_s, max_ahead_s).find_problem(head, time)
        if problem is None:
            return None
        if problem.code is ReasonCode.UNEXPECTED_RESPONSE:
            return self.failed(problem.text, problem.code)
        hint = f" ({option})" if problem.code is ReasonCode.LAGGING else ""
        return self.not_ready(f"{problem.text}{hint}", problem.code)

    async def peers_verdict(self, min_peers: int | None, read_count: Callable[[], Awaitable[int]]) -> Verdict | None:
        """Without the option, a client that can say how many peers it has must have one."""
        if min_peers == 0:
            return None
        try:
            peers = await read_count()
        except CheckError as exc:
            if min_peers is None and exc.code in _REFUSED:
                return None  # many public endpoints do not have the method, and each says so in its own way
            raise
        if peers < (wanted := min_peers or 1):
            return self.not_ready(f"{peers} peers, but min_peers is {wanted}", ReasonCode.TOO_FEW_PEERS)
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChainProbe(ChainRules, HttpSessionProbe, ABC):
    """A client of a chain that is asked over HTTP."""


class Tip(NamedTuple):
    """Where a client is."""

    chain: object  # its id, its name or its first block: clients of different chains cannot be compared
    number: int  # of the newest block


@dataclass(frozen=True, kw_only=True, repr=False)
class RpcChainRules(ChainRules, RpcProbe):
    """A client that is asked by JSON-RPC, one call after the other: some reject batches, and providers charge for them.

    References are other clients of the same chain, such as public endpoints. A client that is behind the majority of
    those that answer is not ready. Nothing that they do makes it failed.
    """

    __slots__ = ()  # as in UrlProbe

    max_block_age: BlockAge | None = None  # None: by the chain
    reference: WebUrls = ()
    max_behind: Count | None = None  # None: `default_max_behind`
    _references: tuple[RpcChainProbe, ...] = field(init=False, compare=False, default=())

    calls_often: ClassVar = True

    usual_distance: ClassVar[int] = 10  # in blocks; clients of a chain may differ by this
    error_codes: ClassVar[Mapping[int, ReasonCode]] = {}  # of errors that mean something else to these clients

    def __post_init__(self) -> None:
        self.validate_transport()
        self.validate_options()
        if self.max_behind is not None and not self.reference:
            raise OptionError("max_behind", "only works with reference; set both")
        try:
            object.__setattr__(self, "_references", tuple(map(self.reference_probe, self.reference)))
        except ProbeError as exc:
            raise OptionError("reference", str(exc)) from exc

    def validate_options(self) -> None:
        """Raise `OptionError` if the options of the kind do not fit together."""

    @abstractmethod
    async def chain_verdict(self, call: RpcCall) -> Verdict | None:
        """None if the client is ready."""

    async def duty_verdict(self, call: RpcCall) -> Verdict | None:
        """What the client says of an account or a contract. Only one that is ready can say it."""
        return None

    @abstractmethod
    async def read_tip(self, call: RpcCall) -> Tip: ...

    @abstractmethod
    def reference_probe(self, text: str) -> RpcChainProbe:
        """Of the client at this URL."""

    def default_max_behind(self, chain: object) -> int:
        """For a kind that knows more of the chain."""
        return self.usual_distance

    def max_block_age_s(self, block_time_s: float | None) -> float:
        """None: it is not known."""
        if self.max_block_age is not None:
            return self.max_block_age
        return UNKNOWN_CHAIN_AGE_S if block_time_s is None else max(MIN_AGE_S, MAX_MISSING_BLOCKS * block_time_s)

    async def check_rpc(self, connection: RpcConnection) -> Verdict | None:
        """The first of these that is not ready."""
        call, note = RpcCall(self, connection), None
        for verdict_on in (self.chain_verdict, self._reference_verdict, self.duty_verdict):
            verdict = await verdict_on(call)
            if verdict is not None and verdict.outcome is not Outcome.READY:
                return verdict
            note = note or verdict
        return connection.certificate_verdict or note

    # ---- references

    async def _reference_verdict(self, call: RpcCall) -> Verdict | None:
        if not self._references:
            return None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reference.ask_tip()) for reference in self._references]
        own = await self.read_tip(call)  # after them: it has not less than it had when they answered
        answers = [task.result() for task in tasks]
        numbers = sorted(tip.number for tip, _ in answers if tip is not None and tip.chain == own.chain)
        problems = [_problem_text(*answer) for answer in answers if answer[0] is None or answer[0].chain != own.chain]
        note = f"{len(problems)} of {len(answers)} references cannot be compared: {'; '.join(problems)}"
        if not numbers:
            return Verdict.ready(note)
        behind = numbers[(len(numbers) - 1) // 2] - own.number  # more than half of them have this block
        limit = self.default_max_behind(own.chain) if self.max_behind is None else self.max_behind
        if behind > limit:
            text = f"{behind} blocks behind {len(numbers)} of the references, but max_behind is {limit}"
            return self.not_ready(f"{text}; {note}" if problems else text, ReasonCode.LAGGING)
        return Verdict.ready(note) if problems else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RpcChainProbe(RpcChainRules, HttpRpcProbe):
    """Over HTTP."""

    def reference_probe(self, text: str) -> RpcChainProbe:
        """Without the login and the headers of this client."""
        url = Url.parse(f"{self.url.scheme.rpartition('+')[0]}+{text}")
        return type(self)(url, proxy=self.proxy, ca=self.ca if text.startswith("https:") else "")

    async def ask_tip(self) -> tuple[Tip | None, str]:
        """The tip of a reference and its URL, or None and the reason."""
        try:
            with step("reference", self.url.host_port), self.session() as session:
                async with asyncio.timeout(time_for_others_s()):
                    return await self.read_tip(RpcCall(self, self.connection(session))), str(self.url)
        except TimeoutError:
            return None, f"no response in time: {self.url}"
        except CheckError as exc:
            return None, exc.verdict(self.url).reason
        except OSError as exc:
            return None, verdict_for_os_error(exc, str(self.url)).reason


def _problem_text(tip: Tip | None, text: str) -> str:
    return text if tip is None else f"it follows another chain, {excerpt(str(tip.chain))}: {text}"


class RpcCall:
    """Calls the methods of a client on one connection."""

    def __init__(self, client: RpcChainRules, connection: RpcConnection) -> None:
        self._client = client
        self.connection = connection

    async def __call__(self, method: str, *params: object, is_large: bool = False, **named: object) -> Any:  # noqa: ANN401  any JSON value
        try:
            limit = LARGE_BODY_BYTES if is_large else MAX_BODY_BYTES
            return await self.connection.call(method, named or [*params], limit)
        except RpcError as exc:
            code = self._client.error_codes.get(exc.number, exc.code)
            raise CheckError(f"{method}: {exc}", code, _OUTCOMES.get(code, Outcome.FAILED)) from exc
