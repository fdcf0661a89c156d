"""grpc:// and grpcs:// against the health service of the gRPC library and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.http2_backend import Http2Backend
from tests.support.probe_assertions import assert_no_leaks, assert_reused, check_with_steps, reusing
from tests.support.servers.base import module_server
from tests.support.servers.grpc_health import SERVICE, GrpcHealthServer
from tests.support.verdicts import EXPIRES_SOON, READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h2.connection

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner
    from tests.support.http2_backend import Respond

STATUS_CODES = {
    "UNKNOWN": ReasonCode.UNHEALTHY,
    "NOT_SERVING": ReasonCode.UNHEALTHY,
    "SERVICE_UNKNOWN": ReasonCode.NOT_FOUND,
}
NOT_SERVING = failed(ReasonCode.UNHEALTHY)


running = module_server(GrpcHealthServer)
encrypted = module_server(GrpcHealthServer, tls=True)


@pytest.fixture
def server(running: GrpcHealthServer) -> Iterator[GrpcHealthServer]:
    yield running
    running.set(SERVICE, "SERVING")
    running.set("", "SERVING")


def test_a_serving_service_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: GrpcHealthServer, encrypted: GrpcHealthServer, certificate: Certificate
) -> None:
    """The server of the gRPC library rejects clients that do not offer h2 in the handshake."""
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]
    assert_reused(check, server.url, server.port)
    ca = str(certificate.certificate)
    assert check(encrypted.url, ca=ca) == READY
    assert check(encrypted.url, ca=ca, min_cert_days=1) == EXPIRES_SOON


@pytest.mark.parametrize("status", STATUS_CODES)
def test_any_other_status_is_failed_unless_it_means_starting(
    check: CheckRunner, server: GrpcHealthServer, status: str
) -> None:
    """Without the name of a service, the status of the server counts."""
    whole = f"grpc://127.0.0.1:{server.port}"
    server.set(SERVICE, status)
    expected = failed(STATUS_CODES[status])
    assert check(server.url) == expected
    assert check(server.url, starting_status=status) == not_ready(ReasonCode.STARTING)
    assert check(server.url, starting_status=[one for one in STATUS_CODES if one != status]) == expected
    assert check(whole) == check(f"{whole}/") == READY
    server.set("", status)
    assert check(whole) == expected


def begin(http2: h2.connection.H2Connection, stream: int) -> None:
    http2.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])


def serving(http2: h2.connection.H2Connection, stream: int, body: bytes = b"\0\0\0\0\x02\x08\x01") -> None:
    begin(http2, stream)
    if body:
        http2.send_data(stream, body)
    http2.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)


def headers_only(*headers: tuple[bytes, bytes], status: bytes = b"200") -> Respond:
    def respond(http2: h2.connection.H2Connection, stream: int) -> None:
        http2.send_headers(stream, [(b":status", status), *headers], end_stream=True)

    return respond


def with_body(body: bytes) -> Respond:
    return lambda http2, stream: serving(http2, stream, body)


def reset_stream(http2: h2.connection.H2Connection, stream: int) -> None:
    begin(http2, stream)
    http2.reset_stream(stream)


def send_goaway(http2: h2.connection.H2Connection, stream: int) -> None:
    begin(http2, stream)
    http2.close_connection()


@pytest.mark.parametrize(
    ("respond", "code"),
    [
        (reset_stream, ReasonCode.CONNECTION_CLOSED),
        (send_goaway, ReasonCode.CONNECTION_CLOSED),
        (headers_only((b"grpc-status", b"5")), ReasonCode.NOT_FOUND),
        (headers_only((b"grpc-status", b"12")), ReasonCode.NOT_SUPPORTED),
        (headers_only(status=b"503"), ReasonCode.SERVER_ERROR),
        (headers_only(), ReasonCode.PROTOCOL_ERROR),
        (headers_only((b"grpc-status", b"7")), ReasonCode.PERMISSION_DENIED),
        (headers_only((b"grpc-status", b"8")), ReasonCode.RATE_LIMITED),
        (headers_only((b"grpc-status", b"16")), ReasonCode.AUTH_REQUIRED),
        (headers_only((b"grpc-status", b"13")), ReasonCode.SERVER_ERROR),
        (headers_only((b"grpc-status", b"14"), (b"grpc-message", b"going%20down%0Anow")), ReasonCode.UNHEALTHY),
        (headers_only((b"grpc-status", b"0"), (b"x-raw", b"\xff\xfe")), ReasonCode.UNEXPECTED_RESPONSE),
        (with_body(b""), ReasonCode.UNEXPECTED_RESPONSE),
        (with_body(b"\0\0\0\0\0"), ReasonCode.UNHEALTHY),
        (with_body(b"\0\0\0\0\x02\x08\x09"), ReasonCode.UNHEALTHY),
        (with_body(b"\0\0\0\0\x02\x10\x01"), ReasonCode.UNEXPECTED_RESPONSE),
        (with_body(b"\x01\0\0\0\x02\x08\x01"), ReasonCode.UNEXPECTED_RESPONSE),
        (with_body(b"<html>"), ReasonCode.UNEXPECTED_RESPONSE),
    ],
)
def test_an_invalid_response_is_failed(check: CheckRunner, respond: Respond, code: ReasonCode) -> None:
    with Http2Backend(respond) as backend:
        verdict = assert_no_leaks(check, f"grpc://{backend.address}", backend.port)
    assert verdict == failed(code)
    assert verdict.reason.isprintable()


def test_the_request_has_the_headers_of_grpc(check: CheckRunner) -> None:
    with Http2Backend(serving) as backend:
        assert check(f"grpc://{backend.address}/ledger") == READY
        headers = backend.headers[0]
    assert headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert headers[b":authority"] == backend.address.encode()
    assert (headers[b"content-type"], headers[b"te"]) == (b"application/grpc", b"trailers")


def test_a_server_that_sends_goaway_after_each_call_is_ready(check: CheckRunner) -> None:
    """Some servers do this to balance connections."""

    def serve_once(http2: h2.connection.H2Connection, stream: int) -> None:
        serving(http2, stream)
        http2.close_connection()

    async def main(url: str) -> None:
        with reusing(url) as probe:
            for _ in range(3):
                assert (await check_with_steps(probe))[0] == READY

    with Http2Backend(serve_once) as backend:
        check.run(main(f"grpc://{backend.address}"))
        assert backend.connection_count == 3
