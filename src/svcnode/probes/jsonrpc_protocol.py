"""JSON-RPC 2.0 over HTTP: encoding a request and decoding its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.text import excerpt
from svcnode.net.http_response import InvalidJson
from svcnode.probes.base import CheckError
from svcnode.probes.json_pointer import json_excerpt

if TYPE_CHECKING:
    from svcnode.net.http1 import Http1Client, PreparedRequest
    from svcnode.net.http_response import HttpResponse

_ID = 1
_MAX_SHOWN_CHARS = 200


# The error numbers of the JSON-RPC specification; others are the server's own.
_ERROR_CODES = {
    -32700: ReasonCode.BAD_REQUEST,
    -32600: ReasonCode.BAD_REQUEST,
    -32601: ReasonCode.NOT_SUPPORTED,
    -32602: ReasonCode.BAD_REQUEST,
}


class RpcError(CheckError):
    """The response holds no result."""


def encode_request(method: str, params: list[Any] | dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}).encode()


def build_rpc_request(
    client: Http1Client, method: str, params: list[Any] | dict[str, Any], *, keep_alive: bool = False
) -> PreparedRequest:
    return client.build_request(
        client.url.target,
        method="POST",
        body=encode_request(method, params),
        content_type="application/json",
        needs="body",
        keep_alive=keep_alive,
    )


def decode_result(response: HttpResponse) -> Any:  # noqa: ANN401  any JSON value
    match response.document():
        case {"error": {"code": code, "message": message}}:
            text = excerpt(f"error {_message_text(code)}: {_message_text(message)}", _MAX_SHOWN_CHARS)
            number = code if isinstance(code, int) else 0
            raise RpcError(text, _ERROR_CODES.get(number, ReasonCode.SERVER_ERROR))
        case {"result": result, "id": id_} if type(id_) is int and id_ == _ID and 200 <= response.status < 300:
            return result
        case document:
            why = document.suffix if isinstance(document, InvalidJson) else ""
            is_success = 200 <= response.status < 300
            raise RpcError(
                f"HTTP status {response.status}: the body is not a JSON-RPC response{why}",
                ReasonCode.PROTOCOL_ERROR if is_success else code_for_http_status(response.status),
            )


def _message_text(value: object) -> str:
    return value if isinstance(value, str) else json_excerpt(value)
