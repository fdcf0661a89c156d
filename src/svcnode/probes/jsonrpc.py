"""`jsonrpc+http://…`, `jsonrpc+https://…`: a JSON-RPC 2.0 method whose result is as it should be.

ready      the method returned a result, and `result` holds for it
not ready  the certificate ends within `min_cert_days`
failed     an error, another result, an answer that is not JSON-RPC; refused, unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Verdict
from svcnode.core.text import type_name
from svcnode.net.http1 import PreparedRequest
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.json_pointer import Expectations, find_mismatch, is_json_value
from svcnode.probes.jsonrpc_protocol import RpcError, decode_result, encode_request

READY = Verdict.ready()


def parameters(value: object) -> list[Any] | dict[str, Any]:
    if not isinstance(value, list | dict):
        raise InvalidValueError(f"must be a list or a table, not {type_name(value)}")
    if not is_json_value(value):
        raise InvalidValueError("holds a date, a time or a number that JSON has no form for")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JsonRpcProbe(HttpClientProbe):
    method: str
    params: Annotated[list[Any] | dict[str, Any], parameters] = field(default_factory=list)
    result: Expectations = field(default_factory=dict)  # by pointers into the result; "" is all of it
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        request = self.build_request(
            self.url.target,
            method="POST",
            body=encode_request(self.method, self.params),
            content_type="application/json",
            needs="body",
        )
        object.__setattr__(self, "_request", request)

    async def check(self) -> Verdict:
        try:
            answer = await self.send(self._request)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
        try:
            fault = find_mismatch(decode_result(answer), self.result)
        except RpcError as exc:
            fault = str(exc)
        return Verdict.failed(f"{self.method}: {fault}: {self.url}") if fault else answer.certificate_verdict or READY
