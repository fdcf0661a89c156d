"""JSON-RPC 2.0: encoding a request and decoding its result."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.text import excerpt
from svcnode.net.http_response import MAX_BODY_BYTES, InvalidJson
from svcnode.probes.base import CheckError
from svcnode.probes.json_pointer import json_excerpt

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.net.http1 import Http1Client, PreparedRequest
    from svcnode.net.http_response import HttpResponse

    Params = list[Any] | dict[str, Any]

_ID = 1
_MAX_SHOWN_CHARS = 200
_MAX_READ_CHARS = 1000  # of a message that may say that a method is not there


# The error numbers of the JSON-RPC specification, and those of servers that limit the rate of requests.
_ERROR_CODES = {
    -32700: ReasonCode.BAD_REQUEST,
    -32600: ReasonCode.BAD_REQUEST,
    -32601: ReasonCode.NOT_SUPPORTED,
    -32604: ReasonCode.NOT_SUPPORTED,  # "method not enabled" of Besu
    -32004: ReasonCode.NOT_SUPPORTED,  # "method not supported" of EIP-1474
    -32602: ReasonCode.BAD_REQUEST,
    -32005: ReasonCode.RATE_LIMITED,  # "limit exceeded" of EIP-1474
    -32029: ReasonCode.RATE_LIMITED,  # "too many requests" of tRPC, which other servers use too
    -32097: ReasonCode.RATE_LIMITED,  # of some gateways of Ethereum
    429: ReasonCode.RATE_LIMITED,  # as in HTTP: Solana's public endpoints, Alchemy
}


# Servers also say with a general error that they do not have a method: Nethermind with -32600, gateways with -32000.
_GENERAL_ERRORS = {-32600, -32000}
_NOT_SUPPORTED = re.compile(
    r"\b(method|module|namespace)\b.{0,100}\b(is disabled|not (supported|enabled|available|found|exist))", re.IGNORECASE
)


class RpcError(CheckError):
    """The response holds no result."""

    def __init__(self, text: str, code: ReasonCode, number: int = 0) -> None:
        super().__init__(text, code)
        self.number = number  # of the error; 0 if the response holds none


def encode_request(method: str, params: Params) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}).encode()


def build_rpc_request(
    client: Http1Client,
    method: str,
    params: Params,
    *,
    keep_alive: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> PreparedRequest:
    return client.build_request(
        client.url.target,
        method="POST",
        body=encode_request(method, params),
        content_type="application/json",
        needs="body",
        keep_alive=keep_alive,
        max_body_bytes=max_body_bytes,
    )


def decode_result(response: HttpResponse, code_for_status: Callable[[int], ReasonCode] = code_for_http_status) -> Any:  # noqa: ANN401  any JSON value
    """The result in a response over HTTP. With an error status, an error in the body counts, and a result does not."""
    document, status = response.document(), response.status
    name = f"HTTP status {status}: the body"
    if 200 <= status < 300:
        return result_of(document, name)
    _raise_error(document, code_for_status(status))
    raise RpcError(f"{name} is not a JSON-RPC response{_why(document)}", code_for_status(status))


def result_of(document: object, name: str = "the response") -> Any:  # noqa: ANN401  any JSON value
    _raise_error(document)
    match document:
        case {"error": error} if error is not None:  # of another form: a result beside it says nothing
            pass
        case {"result": result, "id": id_} if type(id_) is int and id_ == _ID:
            return result
        case _:
            pass
    raise RpcError(f"{name} is not a JSON-RPC response{_why(document)}", ReasonCode.PROTOCOL_ERROR)


def _raise_error(document: object, status_code: ReasonCode = ReasonCode.SERVER_ERROR) -> None:
    match document:
        case {"error": {"code": code, "message": message} as error}:
            text = excerpt(f"error {_message_text(code)}: {_message_text(message)}", _MAX_SHOWN_CHARS)
            number = code if isinstance(code, int) else 0
            raise RpcError(text, _error_code(number, message, error.get("data"), status_code), number)
        case _:
            pass


def _why(document: object) -> str:
    return document.suffix if isinstance(document, InvalidJson) else ""


def _error_code(number: int, message: object, data: object, status_code: ReasonCode) -> ReasonCode:
    """An error that says nothing else has the code of its HTTP status."""
    if isinstance(data, dict) and "numSlotsBehind" in data:
        return ReasonCode.LAGGING  # Solana has another meaning for -32005
    if status_code is ReasonCode.RATE_LIMITED:
        return status_code
    if number in _GENERAL_ERRORS and isinstance(message, str) and _has_no_method(message[:_MAX_READ_CHARS]):
        return ReasonCode.NOT_SUPPORTED
    return _ERROR_CODES.get(number, status_code)


def _has_no_method(message: str) -> bool:
    """A contract that reverts a call gives its reason in its own words."""
    return "revert" not in message and _NOT_SUPPORTED.search(message) is not None


def _message_text(value: object) -> str:
    return value if isinstance(value, str) else json_excerpt(value)
