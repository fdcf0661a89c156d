"""grpc:// and grpcs:// against gRPC's own health service, and against what only stands at its port."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from hypothesis import given

from svcnode.core.model import Outcome, Verdict
from tests.support.backends import Backend, Peer, closed_port, http_response, sending, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
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
from tests.support.verdicts import EXPIRES_SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

    Answer = Callable[[h2.connection.H2Connection, int], None]

READY = Verdict.ready()


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


def test_a_service_that_serves_is_ready(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]


def test_without_a_service_the_server_as_a_whole_counts(check: CheckRunner, server: GrpcHealthServer) -> None:
    server.set(SERVICE, "NOT_SERVING")
    assert check(address(server)) == READY
    assert check(f"{address(server)}/") == READY
    server.set("", "NOT_SERVING")
    assert check(address(server)) == Verdict.failed(f"NOT_SERVING: {address(server)}")


@pytest.mark.parametrize("status", ["UNKNOWN", "NOT_SERVING", "SERVICE_UNKNOWN"])
def test_any_other_status_is_failed_unless_it_means_starting(
    check: CheckRunner, server: GrpcHealthServer, status: str
) -> None:
    server.set(SERVICE, status)
    assert check(server.url) == Verdict.failed(f"{status}: {server.url}")
    assert check(server.url, starting_status=status) == Verdict.not_ready(f"{status}: {server.url}")
    others = [one for one in ("UNKNOWN", "NOT_SERVING", "SERVICE_UNKNOWN") if one != status]
    assert check(server.url, starting_status=others) == Verdict.failed(f"{status}: {server.url}")


@pytest.mark.parametrize("name", ["ledger.v1.Ledger", "grpc.health.v1.Health", "größe", "ledger%20two"])
def test_services_have_any_name(check: CheckRunner, server: GrpcHealthServer, name: str) -> None:
    url = f"{address(server)}/{name}"
    server.set(unquote(name), "SERVING")
    assert check(url) == READY
    server.set(unquote(name), "NOT_SERVING")
    assert check(url) == Verdict.failed(f"NOT_SERVING: {url}")


def test_a_service_that_the_server_does_not_know_is_failed(check: CheckRunner, server: GrpcHealthServer) -> None:
    url = f"{address(server)}/ledger.v2.Ledger"
    assert check(url) == Verdict.failed(f'it knows no service "ledger.v2.Ledger": {url}')


def test_a_name_that_is_longer_than_one_byte_can_tell_is_asked_for(
    check: CheckRunner, server: GrpcHealthServer
) -> None:
    name = "ledger." * 40
    server.set(name, "SERVING")
    assert check(f"{address(server)}/{name}") == READY


def test_a_server_without_the_health_service_is_failed(check: CheckRunner, tmp_path: Path) -> None:
    with GrpcHealthServer(tmp_path / "bare", has_health=False) as server:
        assert check(server.url) == Verdict.failed(f"it does not answer health checks: {server.url}")


def test_nothing_is_left_of_a_check(check: CheckRunner, server: GrpcHealthServer) -> None:
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
    """gRPC's own server turns those away who do not offer h2 in the handshake."""
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
    assert check(encrypted.url) == Verdict.failed(
        f"its certificate is not valid: self-signed certificate: {encrypted.url}"
    )
    other = make_certificate(tmp_path, "other")
    verdict = check(encrypted.url, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_h2_is_offered_in_the_handshake(check: CheckRunner, certificate: Certificate) -> None:
    agreed: list[str | None] = []
    tls = server_tls(certificate)
    tls.set_alpn_protocols(["http/1.1", "h2"])

    def script(peer: Peer) -> None:
        agreed.append(peer.sock.selected_alpn_protocol())  # type: ignore[attr-defined]

    with Backend(script, tls=tls) as backend:
        assert_times_out(check, f"grpcs://{backend.address}", backend.port, "exchange", ca=str(certificate.certificate))
    assert agreed == ["h2"]


def test_a_server_that_speaks_tls_is_failed_without_it(check: CheckRunner, encrypted: GrpcHealthServer) -> None:
    assert check(encrypted.url.replace("grpcs", "grpc")).outcome is Outcome.FAILED


def test_a_handshake_that_is_never_answered_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"grpcs://{backend.address}", backend.port, "handshake")


# ---- what is no gRPC server


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"grpc://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"grpc://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "grpc")


def test_a_server_that_speaks_http_1_is_failed_at_once(check: CheckRunner) -> None:
    """It answers, and waits for more."""
    with KeepAliveBackend(http_response(400, "what?")) as backend:
        began_s = time.monotonic()
        url = f"grpc://{backend.address}"
        assert assert_no_leaks(check, url, backend.port) == Verdict.failed(f"what came back is not HTTP/2: {url}")
        assert time.monotonic() - began_s < WAIT_TIMEOUT_S


SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
HEADERS = b"\0\0\x01\x01\x04\0\0\0\x01\x88"  # :status 200


@few_examples
@given(answers=garbage(SETTINGS, SETTINGS + HEADERS, SETTINGS + HEADERS + b"\0\0\x07\0\x01\0\0\0\x01"))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"grpc://{backend.address}")


# ---- servers that answer as they should not


class Http2Backend(Backend):
    """Answers each call by what it was given for it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(self._serve_http2)
        self._answer = answer
        self.headers: list[dict[bytes, bytes]] = []

    def _serve_http2(self, peer: Peer) -> None:
        config = h2.config.H2Configuration(
            client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        http2 = h2.connection.H2Connection(config)
        http2.initiate_connection()
        peer.send(http2.data_to_send())
        with suppress(h2.exceptions.ProtocolError):  # what we send after our last word is not listened to
            while data := peer.sock.recv(65536):
                for event in http2.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self.headers.append(dict(event.headers))
                    if isinstance(event, h2.events.StreamEnded):
                        self._answer(http2, event.stream_id)
                peer.send(http2.data_to_send())


def begin(http2: h2.connection.H2Connection, stream: int, *more: tuple[bytes, bytes], status: bytes = b"200") -> None:
    http2.send_headers(stream, [(b":status", status), (b"content-type", b"application/grpc"), *more])


def serving(http2: h2.connection.H2Connection, stream: int, body: bytes = b"\0\0\0\0\x02\x08\x01") -> None:
    begin(http2, stream)
    if body:
        http2.send_data(stream, body)
    http2.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)


def only(*headers: tuple[bytes, bytes], status: bytes = b"200") -> Answer:
    """An answer that is over with its headers."""

    def answer(http2: h2.connection.H2Connection, stream: int) -> None:
        http2.send_headers(stream, [(b":status", status), *headers], end_stream=True)

    return answer


def with_body(body: bytes) -> Answer:
    return lambda http2, stream: serving(http2, stream, body)


def disconnects(http2: h2.connection.H2Connection, stream: int) -> None:
    begin(http2, stream)
    http2.reset_stream(stream)


def sends_goaway(http2: h2.connection.H2Connection, stream: int) -> None:
    begin(http2, stream)
    http2.close_connection()


INVALID_RESPONSE = "its answer is no answer to a health check"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (disconnects, "it broke off the call"),
        (sends_goaway, "it ended the connection"),
        (only(status=b"404"), "answered 404, which is no answer of gRPC"),
        (only(), "gRPC status missing, no reason given"),
        (only((b"grpc-status", b"7")), "gRPC status 7, no reason given"),
        (only((b"grpc-status", b"14"), (b"grpc-message", b"going%20down%0Anow")), "gRPC status 14, going down now"),
        (only((b"grpc-status", b"0"), (b"x-words", b"\xff\xfe")), INVALID_RESPONSE),
        (with_body(b""), INVALID_RESPONSE),
        (with_body(b"\0\0\0\0\0"), "UNKNOWN"),
        (with_body(b"\0\0\0\0\x02\x08\x09"), "status 9"),
        (with_body(b"\0\0\0\0\x02\x10\x01"), INVALID_RESPONSE),
        (with_body(b"\x01\0\0\0\x02\x08\x01"), INVALID_RESPONSE),
        (with_body(b"<html>"), INVALID_RESPONSE),
    ],
    ids=[
        "broken off",
        "goes away",
        "404",
        "no status",
        "refused",
        "in words",
        "no text",
        "no message",
        "nothing in it",
        "unheard of",
        "another field",
        "compressed",
        "a page",
    ],
)
def test_an_answer_that_is_not_as_it_should_be_is_failed(check: CheckRunner, answer: Answer, words: str) -> None:
    with Http2Backend(answer) as backend:
        url = f"grpc://{backend.address}"
        assert assert_no_leaks(check, url, backend.port) == Verdict.failed(f"{words}: {url}")


def test_a_large_answer_is_failed_and_not_listened_to_for_ever(check: CheckRunner) -> None:
    def chatters(peer: Peer) -> None:
        peer.send(SETTINGS + HEADERS)
        while True:
            peer.send(b"\0\x40\0\0\0\0\0\0\x01" + b"x" * 16384)

    with Backend(chatters) as backend:
        assert check(f"grpc://{backend.address}").outcome is Outcome.FAILED


def test_who_asks_is_said_as_grpc_has_it(check: CheckRunner) -> None:
    with Http2Backend(serving) as backend:
        assert check(f"grpc://{backend.address}/ledger") == READY
        headers = backend.headers[0]
    assert headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert headers[b":authority"] == backend.address.encode()
    assert (headers[b"content-type"], headers[b"te"]) == (b"application/grpc", b"trailers")


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_connection_under_tls_can_be_kept(
    check: CheckRunner, encrypted: GrpcHealthServer, certificate: Certificate
) -> None:
    assert_reused(check, encrypted.url, encrypted.port, ca=str(certificate.certificate))


def test_a_reused_connection_sees_what_changes(check: CheckRunner, server: GrpcHealthServer) -> None:
    async def story() -> None:
        with reusing(server.url) as probe:
            for _ in range(5):
                assert (await check_with_steps(probe))[0] == READY
            server.set(SERVICE, "NOT_SERVING")
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (Verdict.failed(f"NOT_SERVING: {server.url}"), REUSED)
            server.set(SERVICE, "SERVING")
            assert (await check_with_steps(probe))[0] == READY

    check.run(story())


def test_a_reused_connection_outlives_restarts_of_the_server(check: CheckRunner, server: GrpcHealthServer) -> None:
    assert_survives_restarts(check, server)


def test_a_server_that_sends_us_away_after_each_call_is_ready(check: CheckRunner) -> None:
    """As servers do that want connections to be spread anew."""

    def serves_once(http2: h2.connection.H2Connection, stream: int) -> None:
        serving(http2, stream)
        http2.close_connection()

    async def story(url: str) -> None:
        with reusing(url) as probe:
            for _ in range(3):
                assert (await check_with_steps(probe))[0] == READY
                await asyncio.sleep(0.01)

    with Http2Backend(serves_once) as backend:
        check.run(story(f"grpc://{backend.address}"))
        assert backend.connection_count == 3


def test_a_call_that_breaks_off_on_a_reused_connection_is_made_again_on_a_new_one(check: CheckRunner) -> None:
    calls: list[int] = []

    def breaks_off_at_second(http2: h2.connection.H2Connection, stream: int) -> None:
        calls.append(stream)
        (disconnects if len(calls) == 2 else serving)(http2, stream)

    async def story(url: str) -> list[tuple[str, str, bool]]:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
        return steps

    with Http2Backend(breaks_off_at_second) as backend:
        assert check.run(story(f"grpc://{backend.address}")) == [
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


def test_a_server_that_closes_after_its_greeting_is_failed(check: CheckRunner) -> None:
    with Backend(sending(SETTINGS)) as backend:
        url = f"grpc://{backend.address}"
        assert check(url, reuse=True) == Verdict.failed(f"it closed the connection before its answer was whole: {url}")
