"""Hostile servers: the run ends, closes its connections and reports the problem."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.node_under_test import RESPOND_IN_TIME_FIX
from svcnode.conformance.run import MAX_TIMED_OUT_CHECKS, CheckOutcome, Report, Result, check_node
from tests.conformance.conforming_node import ConformingNode, NodeServer, Request, Response
from tests.conformance.nonconforming_nodes import ConcurrencyAware
from tests.support.backends import Backend, Peer, close, closed_port, open_file_count, reset, sending, unresponsive

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 0.5


def run_conformance(url: str) -> Report:
    """Without its limits it would not return, and pytest's own timeout would fail the test."""
    return check_node(url, timeout_s=TIMEOUT_S)


def drip(peer: Peer) -> None:
    """One byte at a time, each within the timeout."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100:
        peer.send(bytes([byte]))
        time.sleep(TIMEOUT_S / 10)


def endless_headers(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.send(b"X-More: and more\r\n" * 100)


def endless_line(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nX-More: ")
    while True:
        peer.send(b"and more " * 1000)


def endless_interim(peer: Peer) -> None:
    while True:
        peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)


def endless_body(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        peer.send(b" " * 65536)


def endless_chunks(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        peer.send(b"10000\r\n" + b" " * 65536 + b"\r\n")


UNREACHABLE: dict[str, Callable[[Peer], object]] = {
    "no response": unresponsive,
    "one byte at a time": drip,
    "closes": close,
    "resets": reset,
    "garbage": sending(b"\x00\x01\x02 hello\r\n\r\n"),
    "banner": sending(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "one byte": sending(b"?"),
    "half a head": sending(b"HTTP/1.1 200 OK\r\nContent-"),
    "no header": sending(b"HTTP/1.1 200 OK\r\nwhatever\r\n\r\n"),
    "endless headers": endless_headers,
    "endless line": endless_line,
    "endless interim responses": endless_interim,
    "10 MB announced": sending(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n"),
    "endless body": endless_body,
    "endless chunks": endless_chunks,
    "truncated body": sending(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"),
    "two lengths": sending(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "no chunks": sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n"),
    "long chunk": sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n"),
    "TLS": sending(b"\x15\x03\x01\x00\x02\x02\x46"),
}


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_server_without_a_complete_response_is_unreachable(name: str) -> None:
    before = open_file_count()
    with Backend(UNREACHABLE[name]) as backend:
        report = run_conformance(f"http://{backend.address}")
    assert report.unreachable
    assert report.results == ()
    assert not report.conforms()
    assert open_file_count() <= before


def test_a_closed_port_is_unreachable() -> None:
    with closed_port() as port:
        report = run_conformance(f"http://127.0.0.1:{port}")
    assert report.unreachable == "connection refused"


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    report = run_conformance("http://no-such-host.invalid")
    assert report.unreachable


def test_one_endpoint_that_hangs_fails_one_check() -> None:
    released = threading.Event()
    node = ConformingNode()

    def respond(request: Request) -> Response:
        if request.path == "/svc/node/health":
            released.wait(30)
        return node.respond(request)

    with NodeServer(respond) as server:
        report = run_conformance(server.url)
        released.set()
    assert [result.check.name for result in report.failed()] == ["health-code"]
    assert report.failed()[0].fixes == [RESPOND_IN_TIME_FIX]


@pytest.mark.parametrize(
    ("segment", "check"), [("indexer", "service-health-code"), ("a%2Fb%20c%25", "service-id-encoded")]
)
def test_one_service_whose_health_hangs_fails_one_check_with_its_own_fix(segment: str, check: str) -> None:
    released = threading.Event()
    node = ConformingNode()

    def respond(request: Request) -> Response:
        if request.path == f"/svc/node/services/{segment}/health":
            released.wait(30)
        return node.respond(request)

    with NodeServer(respond) as server:
        report = run_conformance(server.url)
        released.set()
    (result,) = report.failed()
    assert result.check.name == check
    assert [str(finding.request) for finding in result.findings] == [f"GET /svc/node/services/{segment}/health"]
    assert result.fixes == [RESPOND_IN_TIME_FIX]
    assert not report.aborted


def test_a_run_against_a_node_that_stops_responding_is_aborted() -> None:
    released = threading.Event()
    node = ConformingNode()

    def respond(request: Request) -> Response:
        if request.query or request.method != "GET":
            released.wait(30)
        return node.respond(request)

    with NodeServer(respond) as server:
        report = run_conformance(server.url)
        released.set()
    timed_out = [result for result in report.failed() if result.fixes == [RESPOND_IN_TIME_FIX]]
    repeated = [
        result for result in report.results if "version-supported-on-" in result.skip_reason.split(", see ")[-1]
    ]
    assert len(timed_out) + len(repeated) == MAX_TIMED_OUT_CHECKS
    assert len(timed_out) == 4, "one for each endpoint"
    assert report.aborted
    assert not report.conforms()
    assert report.results[-1].outcome is CheckOutcome.SKIPPED
    assert report.results[-1].skip_reason == report.aborted


def test_a_list_of_ten_megabytes_is_a_finding() -> None:
    node = ConformingNode()

    def respond(request: Request) -> Response:
        response = node.respond(request)
        is_list = request.path == "/svc/node/services" and response.code == 200
        return Response(headers=response.headers, body=b" " * 10_000_000 + response.body) if is_list else response

    with NodeServer(respond) as server:
        report = check_node(server.url, timeout_s=10.0)
    (result,) = report.failed()
    assert result.check.name == "services-answers"
    assert len(result.findings) == 1


def test_a_response_is_shown_truncated_and_escaped() -> None:
    node = ConformingNode()

    def respond(request: Request) -> Response:
        response = node.respond(request)
        body = b"\x1b[2J\xff" + b"x" * 100_000
        return (
            Response(headers=response.headers, body=body)
            if request.path == "/svc/node" and response.code == 200
            else response
        )

    with NodeServer(respond) as server:
        report = check_node(server.url, timeout_s=10.0)
    (result,) = report.failed()
    (finding,) = result.findings
    assert finding.actual.startswith(r"\x1b[2J\xffxxxx")
    assert len(finding.actual) < 500


def test_chunked_and_interim_responses_are_read() -> None:
    identity = b'{"node_name":"n","spec_version":"v0.0.1","node_version":"v1.0.0"}'
    body = b"A;with=extension\r\n%s\r\n%x\r\n%s\r\n0\r\n" % (identity[:10], len(identity) - 10, identity[10:])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    def respond(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head + body + b"X-Trailer: 1\r\n\r\n")
        peer.shutdown_write()

    with Backend(respond) as backend:
        report = check_node(f"http://{backend.address}", timeout_s=10.0)
    outcomes = {result.check.name: result.outcome for result in report.results}
    assert outcomes["identity-json"] is CheckOutcome.PASSED
    assert outcomes["identity-fields"] is CheckOutcome.PASSED


def test_a_response_delimited_by_the_connection_with_bare_line_feeds_is_read() -> None:
    def respond(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b'HTTP/1.0 200\nContent-Type: application/json\n\n{"services":[]}')
        peer.shutdown_write()

    with Backend(respond) as backend:
        report = check_node(f"http://{backend.address}", timeout_s=10.0)
    outcomes = {result.check.name: result.outcome for result in report.results}
    assert outcomes["services-list"] is CheckOutcome.PASSED


class StockHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        response = ConformingNode().respond(Request("GET", path, query))
        self.send_response(response.code)
        for name, value in {**response.headers, "Content-Length": str(len(response.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, *_: object) -> None:
        pass


def outcome_of(name: str, report: Report) -> Result:
    return next(result for result in report.results if result.check.name == name)


def test_connections_in_a_full_backlog_are_retried() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), StockHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            report = check_node(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=10.0, other_methods=False)
        finally:
            server.shutdown()
            thread.join()
    assert server.request_queue_size == 5, "the default"
    result = outcome_of("parallel-requests", report)
    assert result.outcome is CheckOutcome.PASSED, result


class SlowUnderConcurrency(ConcurrencyAware):
    def respond(self, request: Request) -> Response:
        if self.is_concurrent():
            time.sleep(7.5)
        return super().respond(request)


def test_concurrent_requests_may_take_longer_than_the_timeout() -> None:
    node = SlowUnderConcurrency()
    with NodeServer(node.respond) as server:
        node.server = server
        report = check_node(server.url, timeout_s=5.0)
    assert outcome_of("parallel-requests", report).outcome is CheckOutcome.PASSED
