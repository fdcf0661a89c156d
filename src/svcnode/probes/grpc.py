"""`grpc://host:port/service`, `grpcs://…` with TLS: a gRPC server that answers the standard health check.

ready      the service is SERVING; without a service in the URL, the server as a whole
not ready  its status is in `starting_status`, such as NOT_SERVING; the certificate ends within `min_cert_days`
failed     any other status; the service is not known there, or health is not spoken; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work

One call over HTTP/2 on a connection of our own. gRPC's own library keeps threads, and connects again by itself, for as
long as the process lives, and no deadline of a look reaches those.
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

from svcnode.core.errors import InvalidValueError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.text import suggestion, type_name
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import response_too_large
from svcnode.net.tls import connect_tls
from svcnode.probes.session import SessionProbe, driver_error_text

READY = Verdict.ready()
SERVING = 1
STATUSES = {0: "UNKNOWN", SERVING: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_NOT_FOUND, _UNIMPLEMENTED = "5", "12"
_MAX_RECEIVED_BYTES = 16 * 1024  # every few bytes may be a frame, which take their time
_SETTINGS_FRAME_TYPE = b"\x04"  # the type of the frame that every server begins with, after three bytes of length


def starting_statuses(value: object) -> frozenset[str]:
    if isinstance(value, list | tuple):
        return frozenset[str]().union(*map(starting_statuses, value))
    if not isinstance(value, str):
        raise InvalidValueError(f'must be a status such as "NOT_SERVING", or a list of such, not {type_name(value)}')
    others = [name for number, name in STATUSES.items() if number != SERVING]
    if value not in others:
        raise InvalidValueError(f'"{value}" is no status of a service that is not ready{suggestion(value, others)}')
    return frozenset({value})


@dataclass(frozen=True, slots=True, kw_only=True)
class _GrpcResponse:
    http_status: str
    grpc_status: str
    message: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GrpcProbe(SessionProbe["_Client"]):
    starting_status: Annotated[frozenset[str], starting_statuses] = frozenset()
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.reject_credentials()
        if self.url.query or "/" in self._service:
            raise ProbeError(f"after the host stands at most the name of a service: {self.url.scheme}://host:port/name")
        self.validate_tls_options(uses_tls=self._uses_tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.require_port()))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "grpcs"

    @property
    def _service(self) -> str:
        return unquote(self.url.path.removeprefix("/"))

    async def open(self) -> _Client:
        if not self._uses_tls:
            transport, client = await self._endpoint.connect(_Client)
        else:
            server_name = self.server_name or self._endpoint.host
            tls = self.tls_context(alpn="h2")
            transport, client = await connect_tls(self._endpoint.connect, _Client, tls, server_name)
        client.start(transport)
        return client

    async def check_connection(self, connection: _Client) -> Verdict:
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

    def _verdict(self, reply: _GrpcResponse) -> Verdict:
        if reply.http_status != "200":
            return Verdict.failed(f"answered {reply.http_status}, which is no answer of gRPC: {self.url}")
        if reply.grpc_status == _NOT_FOUND:
            return Verdict.failed(f'it knows no service "{self._service}": {self.url}')
        if reply.grpc_status == _UNIMPLEMENTED:
            return Verdict.failed(f"it does not answer health checks: {self.url}")
        if reply.grpc_status != "0":
            said = driver_error_text(Exception(unquote(reply.message))) if reply.message else "no reason given"
            return Verdict.failed(f"gRPC status {reply.grpc_status or 'missing'}, {said}: {self.url}")
        number = _decode_status(reply.body)
        name = STATUSES.get(number, f"status {number}")
        if name in self.starting_status:
            return Verdict.not_ready(f"{name}: {self.url}")
        return READY if number == SERVING else Verdict.failed(f"{name}: {self.url}")

    def abort(self, connection: _Client) -> None:
        connection.transport.abort()


class _Client(asyncio.Protocol):
    """One call at a time; what h2 makes of the bytes is gathered into a reply."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")  # which any bytes are
        self._http2 = h2.connection.H2Connection(config)
        self._http2.initiate_connection()  # first of all: a server may speak before us, and is answered after it
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
            self._fail(response_too_large(_MAX_RECEIVED_BYTES))
            if self._is_started:
                self.transport.abort()
        if self._error is not None:
            return
        is_other = not self._has_received and data[3:4] not in (b"", _SETTINGS_FRAME_TYPE)
        self._has_received = True
        if is_other:  # h2 would wait for the rest of what it takes for a large frame
            self._fail(ConnectionError("what came back is not HTTP/2"))
            return
        try:
            for event in self._http2.receive_data(data):
                self._handle_event(event)
        except h2.exceptions.ProtocolError:
            self._fail(ConnectionError("what came back is not HTTP/2"))
        self._send()

    def _handle_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ConnectionTerminated():
                self._fail(ConnectionError("it ended the connection"))
            case h2.events.StreamReset(stream_id=stream) if stream == self._stream:
                self._fail(ConnectionError("it broke off the call"))
            case h2.events.ResponseReceived() | h2.events.TrailersReceived() if event.stream_id == self._stream:
                self._headers.update(cast("list[tuple[str, str]]", event.headers))
            case h2.events.DataReceived() if event.stream_id == self._stream:
                self._body += event.data
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded(stream_id=stream) if stream == self._stream:
                self._complete()

    def _complete(self) -> None:
        if self._response is not None and not self._response.done():
            reply = _GrpcResponse(
                http_status=self._headers.get(":status", ""),
                grpc_status=self._headers.get("grpc-status", ""),
                message=self._headers.get("grpc-message", ""),
                body=bytes(self._body),
            )
            self._response.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("it closed the connection before its answer was whole"))

    def _fail(self, exc: Exception) -> None:
        self._error = exc
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc)

    def _send(self) -> None:
        if self._is_started and (data := self._http2.data_to_send()):
            self.transport.write(data)


# The two messages of the health check have one field each, so they are written and read by hand: a string with the
# service's name, and a number with its status.


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
        return 0  # a field that is not sent has its first value
    if len(body) == 7 and body[:6] == b"\0\0\0\0\x02\x08" and body[6] < 0x80:
        return body[6]
    raise ValueError("its answer is no answer to a health check")
