"""grpc:// and grpcs:// against the health service of the gRPC library and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from hypothesis import given

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from tests.support.backends import Backend, Peer, closed_port, http_response, sending, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http2_backend import Http2Backend
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_not_reused_after_timeout,
    assert_reused,
    assert_survives_restarts,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.grpc_health import SERVICE, GrpcHealthServer
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    PROTOCOL_ERROR,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcHealthServer]:
    with GrpcHealthServer(tmp_path_factory.mktemp("grpc")) as server:
        yield server


@pytest.fixture
def server(running: GrpcHealthServer) -> Iterator[GrpcHealthServer]:
    yield running
    running.set(SERVICE, "SERVING")
    running.set("", "SERVING")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[GrpcHealthServer]:
    with GrpcHealthServer(tmp_path_factory.mktemp("grpcs"), certificate=certificate) as server:
        yield server


def address(server: GrpcHealthServer) -> str:
    return f"grpc://127.0.0.1:{server.port}"


# ---- statuses


def test_a_serving_service_is_ready(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]


def test_without_a_service_name_the_status_of_the_server_counts(check: CheckRunner, server: GrpcHealthServer) -> None:
    server.set(SERVICE, "NOT_SERVING")
    assert check(address(server)) == READY
    assert check(f"{address(server)}/") == READY
    server.set("", "NOT_SERVING")
    assert check(address(server)) == NOT_SERVING


@pytest.mark.parametrize("status", STATUS_CODES)
def test_any_other_status_is_failed_unless_it_means_starting(
    check: CheckRunner, server: GrpcHealthServer, status: str
) -> None:
    server.set(SERVICE, status)
    expected = failed(STATUS_CODES[status])
    assert check(server.url) == expected
    assert check(server.url, starting_status=status) == not_ready(ReasonCode.STARTING)
    assert check(server.url, starting_status=[one for one in STATUS_CODES if one != status]) == expected


@pytest.mark.parametrize("name", ["ledger.v1.Ledger", "grpc.health.v1.Health", "größe", "ledger%20two"])
def test_a_service_may_have_any_name(check: CheckRunner, server: GrpcHealthServer, name: str) -> None:
    url = f"{address(server)}/{name}"
    server.set(unquote(name), "SERVING")
    assert check(url) == READY
    server.set(unquote(name), "NOT_SERVING")
    assert check(url) == NOT_SERVING


def test_an_unknown_service_is_failed(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert check(f"{address(server)}/ledger.v2.Ledger") == failed(ReasonCode.NOT_FOUND)


def test_a_name_whose_length_needs_two_bytes_is_sent(check: CheckRunner, server: GrpcHealthServer) -> None:
    name = "ledger." * 40
    server.set(name, "SERVING")
    assert check(f"{address(server)}/{name}") == READY


def test_a_server_without_the_health_service_is_failed(check: CheckRunner, tmp_path: Path) -> None:
    with GrpcHealthServer(tmp_path / "bare", has_health=False) as server:
        assert check(server.url) == failed(ReasonCode.NOT_SUPPORTED)


def test_a_check_leaves_nothing_open(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert assert_no_leaks(check, server.url, server.port) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_server_is_failed_at_the_deadline(check: CheckRunner, server: GrpcHealthServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- grpcs


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: GrpcHealthServer, certificate: Certificate
) -> None:
    """The server of the gRPC library rejects clients that do not offer h2 in the handshake."""
    ca = str(certificate.certificate)
    assert check(encrypted.url, ca=ca) == READY
    assert check.steps(encrypted.url, ca=ca) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        ("exchange", "", True),
    ]
    assert check(encrypted.url, ca=ca, min_cert_days=1) == EXPIRES_SOON


def test_a_server_whose_certificate_is_not_trusted_is_failed(
    check: CheckRunner, encrypted: GrpcHealthServer, tmp_path: Path
) -> None:
    assert check(encrypted.url) == TLS_UNTRUSTED
    other = make_certificate(tmp_path, "other")
    assert check(encrypted.url, ca=str(other.certificate)) == TLS_UNTRUSTED


def test_h2_is_offered_in_the_handshake(check: CheckRunner, certificate: Certificate) -> None:
    selected: list[str | None] = []
    tls = server_tls(certificate)
    tls.set_alpn_protocols(["http/1.1", "h2"])

    def script(peer: Peer) -> None:
        selected.append(peer.sock.selected_alpn_protocol())  # type: ignore[attr-defined]

    with Backend(script, tls=tls) as backend:
        assert_times_out(check, f"grpcs://{backend.address}", backend.port, "exchange", ca=str(certificate.certificate))
    assert selected[-1] == "h2"


def test_a_server_with_tls_is_failed_without_it(check: CheckRunner, encrypted: GrpcHealthServer) -> None:
    assert check(encrypted.url.replace("grpcs", "grpc")).outcome is Outcome.FAILED


def test_an_unanswered_handshake_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"grpcs://{backend.address}", backend.port, "handshake")


# ---- not a gRPC server


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"grpc://127.0.0.1:{port}") == CONNECTION_REFUSED


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"grpc://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "grpc")


def test_an_http_1_server_is_failed_before_the_deadline(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(400, "what?")) as backend:
        assert assert_no_leaks(check, f"grpc://{backend.address}", backend.port) == PROTOCOL_ERROR


SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
HEADERS = b"\0\0\x01\x01\x04\0\0\0\x01\x88"  # :status 200


@few_examples
@given(answers=garbage(SETTINGS, SETTINGS + HEADERS, SETTINGS + HEADERS + b"\0\0\x07\0\x01\0\0\0\x01"))
def test_random_bytes_are_failed(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"grpc://{backend.address}")


# ---- invalid responses


def begin(http2: h2.connection.H2Connection, stream: int, *more: tuple[bytes, bytes], status: bytes = b"200") -> None:
    http2.send_headers(stream, [(b":status", status), (b"content-type", b"application/grpc"), *more])


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
        (headers_only(status=b"404"), ReasonCode.NOT_FOUND),
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
    ids=[
        "stream reset",
        "goaway",
        "404",
        "503",
        "no gRPC status",
        "permission denied",
        "resource exhausted",
        "unauthenticated",
        "internal",
        "unavailable",
        "no text",
        "no message",
        "empty message",
        "unknown health status",
        "another field",
        "compressed",
        "HTML",
    ],
)
def test_an_invalid_response_is_failed(check: CheckRunner, respond: Respond, code: ReasonCode) -> None:
    with Http2Backend(respond) as backend:
        verdict = assert_no_leaks(check, f"grpc://{backend.address}", backend.port)
    assert verdict == failed(code)
    assert verdict.reason.isprintable()


def test_a_large_response_is_failed(check: CheckRunner) -> None:
    def flood(peer: Peer) -> None:
        peer.send(SETTINGS + HEADERS)
        while True:
            peer.send(b"\0\x40\0\0\0\0\0\0\x01" + b"x" * 16384)

    with Backend(flood) as backend:
        verdict = check(f"grpc://{backend.address}")
    # The size limit, or HTTP/2's flow control if all frames arrive at once.
    assert verdict in (UNEXPECTED_RESPONSE, PROTOCOL_ERROR)


def test_the_request_has_the_headers_of_grpc(check: CheckRunner) -> None:
    with Http2Backend(serving) as backend:
        assert check(f"grpc://{backend.address}/ledger") == READY
        headers = backend.headers[0]
    assert headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert headers[b":authority"] == backend.address.encode()
    assert (headers[b"content-type"], headers[b"te"]) == (b"application/grpc", b"trailers")


# ---- reuse


def test_a_connection_can_be_reused(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_tls_connection_can_be_reused(
    check: CheckRunner, encrypted: GrpcHealthServer, certificate: Certificate
) -> None:
    assert_reused(check, encrypted.url, encrypted.port, ca=str(certificate.certificate))


def test_a_change_is_found_on_a_reused_connection(check: CheckRunner, server: GrpcHealthServer) -> None:
    async def main() -> None:
        with reusing(server.url) as probe:
            for _ in range(5):
                assert (await check_with_steps(probe))[0] == READY
            server.set(SERVICE, "NOT_SERVING")
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (NOT_SERVING, REUSED)
            server.set(SERVICE, "SERVING")
            assert (await check_with_steps(probe))[0] == READY

    check.run(main())


def test_a_reused_connection_outlives_restarts_of_the_server(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert_survives_restarts(check, server)


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


def test_a_call_that_is_reset_on_a_reused_connection_is_repeated_on_a_new_one(check: CheckRunner) -> None:
    calls: list[int] = []

    def reset_second(http2: h2.connection.H2Connection, stream: int) -> None:
        calls.append(stream)
        (reset_stream if len(calls) == 2 else serving)(http2, stream)

    async def main(url: str) -> list[tuple[str, str, bool]]:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
        return steps

    with Http2Backend(reset_second) as backend:
        assert check.run(main(f"grpc://{backend.address}")) == [
            REUSED,
            ("exchange", "", False),
            ("connect", "127.0.0.1", True),
            ("exchange", "", True),
        ]
    assert calls == [1, 3, 1]


def test_a_frozen_server_is_failed_at_the_deadline_on_a_reused_connection(
    check: CheckRunner, server: GrpcHealthServer
) -> None:
    assert_not_reused_after_timeout(check, server)


def test_a_server_that_closes_after_its_settings_is_failed(check: CheckRunner) -> None:
    with Backend(sending(SETTINGS)) as backend:
        assert check(f"grpc://{backend.address}", reuse=True) == CONNECTION_CLOSED
