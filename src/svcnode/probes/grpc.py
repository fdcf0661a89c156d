"""`grpc://host:port/service`, `grpcs://…` with TLS: a gRPC server with the standard health service.

ready      the status of the service, or of the server if the URL names no service, is SERVING
not ready  the status is in `starting_status`, for example NOT_SERVING; the certificate expires within `min_cert_days`
failed     any other status; the server does not know the service or has no health service; connection refused, host
           unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer

The probe makes one HTTP/2 call itself: the gRPC library keeps threads and reconnects for as long as the process lives,
and a deadline does not stop them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import unquote

from svcnode.core.codes import ReasonCode, code_for_grpc_status, code_for_http_status
from svcnode.core.errors import InvalidValueError, ProbeError
from svcnode.core.option_types import option_type
from svcnode.core.text import suggestion, type_name
from svcnode.core.url import UrlForm
from svcnode.net.http2 import Http2Protocol
from svcnode.net.tls import connect_tls
from svcnode.probes.base import CheckError
from svcnode.probes.session import SessionProbe, driver_error_text

if TYPE_CHECKING:
    import asyncio

    from svcnode.core.model import Verdict
    from svcnode.net.http_response import HttpResponse

SERVING = 1
SERVICE_UNKNOWN = 3
STATUSES = {0: "UNKNOWN", SERVING: "SERVING", 2: "NOT_SERVING", SERVICE_UNKNOWN: "SERVICE_UNKNOWN"}
_NOT_FOUND, _UNIMPLEMENTED = "5", "12"
_MAX_RECEIVED_BYTES = 16 * 1024  # small, because parsing many short frames takes long


_STARTING_STATUSES = {"enum": [name for number, name in STATUSES.items() if number != SERVING]}


@option_type({"anyOf": [_STARTING_STATUSES, {"type": "array", "items": _STARTING_STATUSES}]}, show=sorted)
def starting_statuses(value: object) -> frozenset[str]:
    if isinstance(value, list | tuple):
        return frozenset[str]().union(*map(starting_statuses, value))
    if not isinstance(value, str):
        raise InvalidValueError(f'must be a status such as "NOT_SERVING" or a list of them, not {type_name(value)}')
    others = _STARTING_STATUSES["enum"]
    if value not in others:
        raise InvalidValueError(f'"{value}" is not one of {", ".join(others)}{suggestion(value, others)}')
    return frozenset({value})


class _GrpcProtocol(Http2Protocol):
    __slots__ = ()

    max_overhead_bytes = _MAX_RECEIVED_BYTES


@dataclass(frozen=True, slots=True)
class _GrpcConnection:
    transport: asyncio.Transport
    protocol: _GrpcProtocol

    async def call(self, headers: list[tuple[str, str]], message: bytes) -> HttpResponse:
        protocol = self.protocol
        is_second_call = protocol.response.done() and protocol.response.exception() is None
        if is_second_call and not protocol.begin_next_request():
            raise EOFError  # the server has closed the connection
        protocol.collects_body, protocol.max_body_bytes = True, _MAX_RECEIVED_BYTES
        protocol.send_request(self.transport, headers, message)
        return await protocol.response


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GrpcProbe(SessionProbe[_GrpcConnection]):
    starting_status: Annotated[frozenset[str], starting_statuses] = frozenset()

    tls_schemes: ClassVar = ("grpcs",)
    url_form: ClassVar = UrlForm(needs_port=True, has_credentials=False, path="(/[^/?#]*)?", query="")

    def __post_init__(self) -> None:
        if self.url.query or "/" in self._service:
            raise ProbeError(f"only the name of a service may follow the host: {self.url.scheme}://host:port/name")
        self.url.reject_parts(self.url_form)
        self.validate_connection()

    @property
    def _service(self) -> str:
        return unquote(self.url.path.removeprefix("/"))

    async def open(self) -> _GrpcConnection:
        endpoint = self.endpoint()
        if not self.uses_tls:
            return _GrpcConnection(*await endpoint.connect(_GrpcProtocol))
        tls, server_name = await self.tls_context(alpn="h2"), self.server_name or endpoint.host
        return _GrpcConnection(*await connect_tls(endpoint.connect, _GrpcProtocol, tls, server_name))

    async def check_connection(self, connection: _GrpcConnection) -> Verdict | None:
        headers = [
            (":method", "POST"),
            (":scheme", "https" if self.uses_tls else "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", self.url.host_port),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "svcnode"),
        ]
        return self._verdict(await connection.call(headers, _frame(_encode_request(self._service))))

    def _verdict(self, response: HttpResponse) -> Verdict | None:
        if response.status != 200 or response.headers.get("grpc-status") != "0":
            return self._call_error(response).verdict(self.url)
        number = _decode_status(response.body)
        name = STATUSES.get(number, f"health status {number}")
        if name in self.starting_status:
            return self.not_ready(name, ReasonCode.STARTING)
        if number == SERVING:
            return None
        return self.failed(name, ReasonCode.NOT_FOUND if number == SERVICE_UNKNOWN else ReasonCode.UNHEALTHY)

    def _call_error(self, response: HttpResponse) -> CheckError:
        if response.status != 200:
            return CheckError(
                f"HTTP status {response.status}: not a gRPC response", code_for_http_status(response.status)
            )
        status, message = response.headers.get("grpc-status", ""), response.headers.get("grpc-message", "")
        if not status.isdecimal():
            return CheckError("the response has no gRPC status", ReasonCode.PROTOCOL_ERROR)
        if status == _NOT_FOUND:
            text = f'the server has no service "{self._service}"'
        elif status == _UNIMPLEMENTED:
            text = "the server does not implement the gRPC health service"
        else:
            detail = driver_error_text(unquote(message)) if message else "no message"
            text = f"gRPC status {status}, {detail}"
        return CheckError(text, code_for_grpc_status(int(status)))

    def transport(self, connection: _GrpcConnection) -> asyncio.Transport:
        return connection.transport

    def abort(self, connection: _GrpcConnection) -> None:
        connection.transport.abort()


# The two protobuf messages of the health service have one field each: the name of the service, and its status.


def _encode_request(service: str) -> bytes:
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _frame(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4) + message  # not compressed


def _decode_status(body: bytes) -> int:
    if body[:5] == b"\0\0\0\0\0" and len(body) == 5:
        return 0  # protobuf omits a field that has its default value
    if len(body) == 7 and body[:6] == b"\0\0\0\0\x02\x08" and body[6] < 0x80:
        return body[6]
    raise CheckError("the response is not a HealthCheckResponse", ReasonCode.UNEXPECTED_RESPONSE)
