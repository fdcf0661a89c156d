"""The errors of a gRPC gateway as JSON, in the forms of all its versions.

{"error": "text", "message": "text", "code": 16}                   version 1, such as etcd 3.4 and 3.5
{"error": {"grpc_code": 16, "http_code": 401, "message": "text"}}  version 1, in a stream
{"code": 16, "message": "text", "details": []}                     version 2, such as etcd 3.6
{"error": {"code": 16, "message": "text", "details": []}}          version 2, in a stream
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class GatewayError(NamedTuple):
    text: str  # empty if the response has none
    status: int | None  # of gRPC; None if the response has none


def parse_gateway_error(fields: Mapping[str, Any]) -> GatewayError | None:
    """None if the object is not an error. Fields of another type than expected are as if they were missing."""
    if not fields.keys() & {"error", "message", "code"}:
        return None
    error = fields.get("error", fields)
    if isinstance(error, dict):
        text, status = error.get("message"), error.get("grpc_code", error.get("code"))
    else:
        text, status = error, fields.get("code")
    return GatewayError(text if isinstance(text, str) else "", status if isinstance(status, int) else None)
