"""`jsonrpc+http://…`, `jsonrpc+https://…`: a JSON-RPC 2.0 method returns the expected result.

ready      the method returned a result, and the result matches `result`
not ready  the certificate expires within `min_cert_days`
failed     an error, another result, a response that is not JSON-RPC; connection refused, network unreachable,
           certificate not valid
unknown    no file descriptors or ports left on this machine, or the resolver or the proxy failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import PublicText, option_type
from svcnode.core.text import type_name
from svcnode.net.http1 import PreparedRequest
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.json_pointer import Expectations, find_mismatch, is_json_value
from svcnode.probes.jsonrpc_protocol import RpcError, build_rpc_request, decode_result

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession


@option_type({"type": ["array", "object"]})
def parameters(value: object) -> list[Any] | dict[str, Any]:
    if not isinstance(value, list | dict):
        raise InvalidValueError(f"must be a list or a table, not {type_name(value)}")
    if not is_json_value(value):
        raise InvalidValueError("must not contain dates, times, nan or inf: JSON does not have them")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JsonRpcProbe(HttpSessionProbe):
    method: PublicText
    params: Annotated[list[Any] | dict[str, Any], parameters] = field(default_factory=list)
    result: Expectations = field(default_factory=dict)  # by JSON pointer into the result; "" is the whole result
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_request", build_rpc_request(self, self.method, self.params))

    async def check_session(self, session: HttpSession) -> Verdict | None:
        response = await session.send(self._request)
        try:
            mismatch = find_mismatch(decode_result(response), self.result)
        except RpcError as exc:
            return self.failed(f"{self.method}: {exc}", exc.code)
        if mismatch:
            return self.failed(f"{self.method}: {mismatch}", ReasonCode.UNEXPECTED_RESPONSE)
        return response.certificate_verdict
