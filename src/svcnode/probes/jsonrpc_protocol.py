"""JSON-RPC 2.0: encoding a request and decoding its result."""

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

    Params = list[Any] | dict[str, Any]

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


def encode_request(method: str, params: Params) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}).encode()


def build_rpc_request(client: Http1Client, method: str, params: Params, *, keep_alive: bool = False) -> PreparedRequest:
    return client.build_request(
        client.url.target,
        method="POST",
        body=encode_request(method, params),
        content_type="application/json",
        needs="body",
        keep_alive=keep_alive,
    )


def decode_response(method: str, response: HttpResponse) -> Any:  # noqa: ANN401  any JSON value
    """The result in a response over HTTP. An error in the body says more than the HTTP status; a result does not."""
    document, status = response.document(), response.status
    if 200 <= status < 300:
        return result_of(method, document, f"HTTP status {status}: the body")
    _raise_error(method, document)
    text = f"{method}: HTTP status {status}: the body is not a JSON-RPC response{_why(document)}"
    raise RpcError(text, code_for_http_status(status))


def result_of(method: str, document: object, name: str = "the response") -> Any:  # noqa: ANN401  any JSON value
    _raise_error(method, document)
    match document:
        case {"result": result, "id": id_} if type(id_) is int and id_ == _ID:
            return result
    raise RpcError(f"{method}: {name} is not a JSON-RPC response{_why(document)}", ReasonCode.PROTOCOL_ERROR)


def _raise_error(method: str, document: object) -> None:
    match document:
        case {"error": {"code": code, "message": message}}:
            text = excerpt(f"error {_message_text(code)}: {_message_text(message)}", _MAX_SHOWN_CHARS)
            number = code if isinstance(code, int) else 0
            raise RpcError(f"{method}: {text}", _ERROR_CODES.get(number, ReasonCode.SERVER_ERROR))
        case _:
            pass


def _why(document: object) -> str:
    return document.suffix if isinstance(document, InvalidJson) else ""


def _message_text(value: object) -> str:
    return value if isinstance(value, str) else json_excerpt(value)
