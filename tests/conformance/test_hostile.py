"""Hostile servers: the run ends, closes its connections and reports the problem."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.node_under_test import RESPOND_IN_TIME_FIX
from svcnode.conformance.run import MAX_TIMED_OUT_CHECKS, CheckOutcome, Report, check_node
from tests.conformance.conforming_node import ConformingNode, Request, Response
from tests.conformance.in_memory import report_of
from tests.conformance.nonconforming_nodes import ConcurrencyAware, at, modified
from tests.support.backends import Backend, Peer, close, open_file_count, reset, sending, unresponsive

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 0.5


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


# tests/wording/test_conformance.py has the texts of all of them.
@pytest.mark.parametrize("name", ["no response", "garbage", "endless body"])
def test_a_server_without_a_complete_response_is_unreachable(name: str) -> None:
    before = open_file_count()
    with Backend(UNREACHABLE[name]) as backend:
        report = check_node(f"http://{backend.address}", timeout_s=TIMEOUT_S if name == "no response" else 60.0)
    assert report.unreachable
    assert report.results == ()
    assert not report.conforms()
    assert open_file_count() <= before


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    assert check_node("http://no-such-host.invalid", timeout_s=60.0).unreachable


# ---- hanging, in virtual time


def hanging(condition: Callable[[Request], bool]) -> ConformingNode:
    return modified(lambda asked, reply: replace(reply, delay_s=1e6 if condition(asked) else 0.0))()


@pytest.mark.parametrize(
    ("path", "check"),
    [
        ("health", "health-code"),
        ("services/indexer/health", "service-health-code"),
        ("services/a%2Fb%20c%25/health", "service-id-encoded"),
    ],
)
def test_one_path_that_hangs_fails_one_check_with_its_own_fix(path: str, check: str) -> None:
    report = report_of(hanging(lambda asked: asked.path == f"/svc/node/{path}"))
    (result,) = report.failed()
    assert result.check.name == check
    assert [str(finding.request) for finding in result.findings] == [f"GET /svc/node/{path}"]
    assert result.fixes == [RESPOND_IN_TIME_FIX]
    assert not report.aborted


def test_a_run_against_a_node_that_stops_responding_is_aborted() -> None:
    report = report_of(hanging(lambda asked: bool(asked.query) or asked.method != "GET"))
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


def test_concurrent_requests_may_take_longer_than_the_timeout() -> None:
    class SlowUnderConcurrency(ConcurrencyAware):
        def respond(self, asked: Request) -> Response:
            return replace(super().respond(asked), delay_s=15.0 if self.is_concurrent() else 0.0)

    assert outcomes(report_of(SlowUnderConcurrency()))["parallel-requests"] is CheckOutcome.PASSED


# ---- unusual responses


def outcomes(report: Report) -> dict[str, CheckOutcome]:
    return {result.check.name: result.outcome for result in report.results}


def test_a_list_of_ten_megabytes_is_a_finding() -> None:
    padded = at("/svc/node/services", lambda reply: replace(reply, body=b" " * 10_000_000 + reply.body))
    (result,) = report_of(padded()).failed()
    assert result.check.name == "services-answers"
    assert len(result.findings) == 1


IDENTITY = b'{"node_name":"n","spec_version":"v0.0.1","node_version":"v1.0.0"}'
CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"A;with=extension\r\n%s\r\n%x\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n"
) % (IDENTITY[:10], len(IDENTITY) - 10, IDENTITY[10:])


@pytest.mark.parametrize(
    ("response", "passed"),
    [
        (CHUNKED, {"identity-json", "identity-fields"}),
        (b'HTTP/1.0 200\nContent-Type: application/json\n\n{"services":[]}', {"services-list"}),
    ],
    ids=["chunked after an interim response", "delimited by the connection, with bare line feeds"],
)
def test_unusual_but_valid_framing_is_read(response: bytes, passed: set[str]) -> None:
    def respond(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(response)
        peer.shutdown_write()

    with Backend(respond) as backend:
        found = outcomes(check_node(f"http://{backend.address}", timeout_s=60.0))
    assert {found[name] for name in passed} == {CheckOutcome.PASSED}


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


@pytest.mark.wide
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
    assert outcomes(report)["parallel-requests"] is CheckOutcome.PASSED
