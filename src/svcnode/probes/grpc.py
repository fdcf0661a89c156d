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

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, cast
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from svcnode.core.codes import ReasonCode, code_for_grpc_status, code_for_http_status
from svcnode.core.errors import InvalidValueError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.text import suggestion, type_name
from svcnode.net.connect import TcpEndpoint, peer_address
from svcnode.net.streams import ResponseTooLargeError
from svcnode.net.tls import connect_tls
from svcnode.probes.base import CheckError
from svcnode.probes.session import SessionProbe, driver_error_text

READY = Verdict.ready()
SERVING = 1
SERVICE_UNKNOWN = 3
STATUSES = {0: "UNKNOWN", SERVING: "SERVING", 2: "NOT_SERVING", SERVICE_UNKNOWN: "SERVICE_UNKNOWN"}
_NOT_FOUND, _UNIMPLEMENTED = "5", "12"
_MAX_RECEIVED_BYTES = 16 * 1024  # small, because parsing many short frames takes long
_SETTINGS_FRAME_TYPE = b"\x04"  # of the first frame of every server, after three bytes of length


def starting_statuses(value: object) -> frozenset[str]:
    if isinstance(value, list | tuple):
        return frozenset[str]().union(*map(starting_statuses, value))
    if not isinstance(value, str):
        raise InvalidValueError(f'must be a status such as "NOT_SERVING" or a list of them, not {type_name(value)}')
    others = [name for number, name in STATUSES.items() if number != SERVING]
    if value not in others:
        raise InvalidValueError(f'"{value}" is not one of {", ".join(others)}{suggestion(value, others)}')
    return frozenset({value})


@dataclass(frozen=True, slots=True, kw_only=True)
class _GrpcResponse:
    http_status: str
    grpc_status: str
    message: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GrpcProbe(SessionProbe["_Http2Client"]):
    starting_status: Annotated[frozenset[str], starting_statuses] = frozenset()
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.reject_credentials()
        if self.url.query or "/" in self._service:
            raise ProbeError(f"only the name of a service may follow the host: {self.url.scheme}://host:port/name")
        self.validate_tls_options(uses_tls=self._uses_tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.require_port()))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "grpcs"

    @property
    def _service(self) -> str:
        return unquote(self.url.path.removeprefix("/"))

    async def open(self) -> _Http2Client:
        if not self._uses_tls:
            transport, client = await self._endpoint.connect(_Http2Client)
        else:
            server_name = self.server_name or self._endpoint.host
            tls = self.tls_context(alpn="h2")
            transport, client = await connect_tls(self._endpoint.connect, _Http2Client, tls, server_name)
        client.start(transport)
        return client

    async def check_connection(self, connection: _Http2Client) -> Verdict:
        headers = [
            (":method", "POST"),
            (":scheme", "https" if self._uses_tls else "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", self.url.host_port),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "svcnode"),
        ]
        verdict = self._verdict(await connection.call(headers, _frame(_encode_request(self._service))))
        if verdict is READY and self._uses_tls:
            return self.certificate_verdict(connection.transport) or READY
        return verdict

    def _verdict(self, response: _GrpcResponse) -> Verdict:
        if response.http_status != "200" or response.grpc_status != "0":
            return self._call_error(response).verdict(self.url)
        number = _decode_status(response.body)
        name = STATUSES.get(number, f"health status {number}")
        if name in self.starting_status:
            return Verdict.not_ready(f"{name}: {self.url}", code=ReasonCode.STARTING)
        if number == SERVING:
            return READY
        code = ReasonCode.NOT_FOUND if number == SERVICE_UNKNOWN else ReasonCode.UNHEALTHY
        return Verdict.failed(f"{name}: {self.url}", code=code)

    def _call_error(self, response: _GrpcResponse) -> CheckError:
        http_status, status = response.http_status, response.grpc_status
        if http_status != "200":
            code = code_for_http_status(int(http_status)) if http_status.isdecimal() else ReasonCode.PROTOCOL_ERROR
            return CheckError(f"HTTP status {http_status or 'missing'}: not a gRPC response", code)
        if not status.isdecimal():
            return CheckError("the response has no gRPC status", ReasonCode.PROTOCOL_ERROR)
        if status == _NOT_FOUND:
            text = f'the server has no service "{self._service}"'
        elif status == _UNIMPLEMENTED:
            text = "the server does not implement the gRPC health service"
        else:
            message = driver_error_text(Exception(unquote(response.message))) if response.message else "no message"
            text = f"gRPC status {status}, {message}"
        return CheckError(text, code_for_grpc_status(int(status)))

    def peer_address(self, connection: _Http2Client) -> str:
        return peer_address(connection.transport)

    def abort(self, connection: _Http2Client) -> None:
        connection.transport.abort()


class _Http2Client(asyncio.Protocol):
    """One call at a time; collects the events of h2 into a response."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")  # decodes any bytes
        self._http2 = h2.connection.H2Connection(config)
        self._http2.initiate_connection()  # first: the server may send frames before the client does
        self._is_started = False
        self._received_bytes = 0
        self._has_received = False
        self._stream = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._response: asyncio.Future[_GrpcResponse] | None = None
        self._error: Exception | None = None

    def start(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._is_started = True
        self._send()

    async def call(self, headers: list[tuple[str, str]], message: bytes) -> _GrpcResponse:
        if self._error is not None:
            raise self._error
        self._received_bytes = 0
        self._headers.clear()
        self._body.clear()
        self._response = asyncio.get_running_loop().create_future()
        self._stream = self._http2.get_next_available_stream_id()
        self._http2.send_headers(self._stream, headers)
        self._http2.send_data(self._stream, message, end_stream=True)
        self._send()
        return await self._response

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > _MAX_RECEIVED_BYTES:
            self._fail(ResponseTooLargeError(_MAX_RECEIVED_BYTES))
            if self._is_started:
                self.transport.abort()
        if self._error is not None:
            return
        is_other_protocol = not self._has_received and data[3:4] not in (b"", _SETTINGS_FRAME_TYPE)
        self._has_received = True
        if is_other_protocol:  # h2 would read a large length and wait for the rest of that frame
            self._fail(_not_http2())
            return
        try:
            for event in self._http2.receive_data(data):
                self._handle_event(event)
        except h2.exceptions.ProtocolError:
            self._fail(_not_http2())
        self._send()

    def _handle_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ConnectionTerminated():
                self._fail(CheckError("the server closed the HTTP/2 connection (GOAWAY)", ReasonCode.CONNECTION_CLOSED))
            case h2.events.StreamReset(stream_id=stream) if stream == self._stream:
                self._fail(CheckError("the server reset the HTTP/2 stream", ReasonCode.CONNECTION_CLOSED))
            case h2.events.ResponseReceived() | h2.events.TrailersReceived() if event.stream_id == self._stream:
                self._headers.update(cast("list[tuple[str, str]]", event.headers))
            case h2.events.DataReceived() if event.stream_id == self._stream:
                self._body += event.data
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded(stream_id=stream) if stream == self._stream:
                self._complete()

    def _complete(self) -> None:
        if self._response is not None and not self._response.done():
            response = _GrpcResponse(
                http_status=self._headers.get(":status", ""),
                grpc_status=self._headers.get("grpc-status", ""),
                message=self._headers.get("grpc-message", ""),
                body=bytes(self._body),
            )
            self._response.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or EOFError())

    def _fail(self, exc: Exception) -> None:
        self._error = exc
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc)

    def _send(self) -> None:
        if self._is_started and (data := self._http2.data_to_send()):
            self.transport.write(data)


def _not_http2() -> CheckError:
    return CheckError("the response is not HTTP/2", ReasonCode.PROTOCOL_ERROR)


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
