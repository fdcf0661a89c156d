"""`jsonrpc+http://…`, `jsonrpc+https://…`, `jsonrpc+unix:///socket`: a JSON-RPC 2.0 method returns the expected result.

ready      the method returned a result that is as in `result`, and all conditions of `require` hold
not ready  a condition of `starting` holds; a value that must advance has not yet; the certificate expires within
           `min_cert_days`
failed     an error, another result, a response that is not JSON-RPC; connection refused, network unreachable,
           certificate not valid
unknown    no file descriptors or ports left on this machine, or the resolver or the proxy failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Verdict
from svcnode.core.option_types import PublicText, option_type
from svcnode.core.text import type_name
from svcnode.probes.conditions import Condition, ConditionalProbe, Conditions, equalities, judge
from svcnode.probes.json_pointer import Expectations, is_json_value
from svcnode.probes.jsonrpc_protocol import RpcError
from svcnode.probes.rpc_client import HttpRpcProbe, RpcProbe, UnixRpcProbe

if TYPE_CHECKING:
    from svcnode.probes.rpc_client import RpcConnection


@option_type({"type": ["array", "object"]})
def parameters(value: object) -> list[Any] | dict[str, Any]:
    if not isinstance(value, list | dict):
        raise InvalidValueError(f"must be a list or a table, not {type_name(value)}")
    if not is_json_value(value):
        raise InvalidValueError("must not contain dates, times, nan or inf: JSON does not have them")
    return value


@dataclass(frozen=True, kw_only=True, repr=False)
class MethodProbe(ConditionalProbe, RpcProbe):
    __slots__ = ()  # as in UrlProbe

    method: PublicText
    params: Annotated[list[Any] | dict[str, Any], parameters] = field(default_factory=list)
    result: Expectations = field(default_factory=dict)  # by JSON pointer into the result; "" is the whole result
    require: Conditions = ()  # on the result
    starting: Conditions = ()  # one of them holds: not ready
    _required: tuple[Condition, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.validate_transport()
        object.__setattr__(self, "_required", (*equalities(self.result), *self.require))

    async def check_rpc(self, connection: RpcConnection) -> Verdict | None:
        try:
            result = await connection.call(self.method, self.params)
        except RpcError as exc:
            return self.failed(f"{self.method}: {exc}", exc.code)
        if (problem := await judge(self.starting, self._required, result)) is not None:
            return Verdict(problem.outcome, f"{self.method}: {problem.text}: {self.url}", problem.code)
        return None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JsonRpcProbe(MethodProbe, HttpRpcProbe):
    """Over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixJsonRpcProbe(MethodProbe, UnixRpcProbe):
    """Through a Unix socket."""
