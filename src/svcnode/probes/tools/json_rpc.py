"""JSON-RPC 2.0 over HTTP: the body of a call, and what an answer comes to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcnode.core.redaction import redacted
from svcnode.probes.tools.http_answer import NoJson
from svcnode.probes.tools.json_pointer import shown

if TYPE_CHECKING:
    from svcnode.probes.tools.http_answer import HttpAnswer

_ID = 1
_MAX_SHOWN_CHARS = 200


class RpcError(Exception):
    """There is no result; the text says why."""


def call_of(method: str, params: list[Any] | dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}).encode()


def result_of(answer: HttpAnswer) -> Any:  # noqa: ANN401  whatever JSON can hold
    match answer.document():
        case {"error": {"code": code, "message": message}}:
            raise RpcError(redacted(f"error {_told(code)}: {_told(message)}")[:_MAX_SHOWN_CHARS])
        case {"result": result, "id": id_} if type(id_) is int and id_ == _ID and 200 <= answer.status < 300:
            return result
        case document:
            why = document.tail if isinstance(document, NoJson) else ""
            raise RpcError(f"answered {answer.status} with what is no JSON-RPC reply{why}")


def _told(value: object) -> str:
    """Words as they are; what should have been words, as it came."""
    return value if isinstance(value, str) else shown(value)
