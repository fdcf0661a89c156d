"""Whatever is at the other end: the judge ends in time, keeps no connection, and says what came."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.run import MAX_TIMED_OUT_CHECKS, CheckOutcome, Report, Result, check_node
from tests.conformance.conforming_node import ConformingNode, NodeServer, Request, Response
from tests.conformance.nonconforming_nodes import ConcurrencyAware
from tests.support.backends import Backend, Peer, close, closed_port, open_file_count, reset, sending, unresponsive

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 0.5
TOLERANCE_S = 2.0  # for a busy machine


def run_timed(url: str) -> tuple[Report, float]:
    began_s = time.monotonic()
    report = check_node(url, timeout_s=TIMEOUT_S)
    return report, time.monotonic() - began_s


def drip(peer: Peer) -> None:
    """Byte after byte, each well within the timeout."""
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


UNREACHABLE: dict[str, tuple[Callable[[Peer], object], str]] = {
    "mute": (unresponsive, "no whole answer within 0.5 s"),
    "drips": (drip, "no whole answer within 0.5 s"),
    "closes": (close, "it closed the connection without an answer; does it speak TLS? then write https://"),
    "resets": (reset, "it broke the connection off; does it speak TLS? then write https://"),
    "garbage": (sending(b"\x00\x01\x02 hello\r\n\r\n"), r"what came back is not HTTP/1.1: \x00\x01\x02 hello\r\n"),
    "banner": (sending(b"SSH-2.0-OpenSSH_9.9\r\n"), r"what came back is not HTTP/1.1: SSH-2.0-OpenSSH_9.9\r\n"),
    "one byte": (sending(b"?"), "what came back is not HTTP/1.1: ?"),
    "half a head": (sending(b"HTTP/1.1 200 OK\r\nContent-"), "it closed the connection before its answer was whole"),
    "no header": (sending(b"HTTP/1.1 200 OK\r\nwhatever\r\n\r\n"), r"a line of its head is no header: whatever\r\n"),
    "endless headers": (endless_headers, "the head of its answer is larger than 64 KiB"),
    "endless line": (endless_line, "the head of its answer is larger than 64 KiB"),
    "endless interim answers": (endless_interim, "the head of its answer is larger than 64 KiB"),
    "10 MB announced": (
        sending(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n"),
        "the body of its answer is larger than 8 MiB",
    ),
    "endless body": (endless_body, "the body of its answer is larger than 8 MiB"),
    "endless chunks": (endless_chunks, "the body of its answer is larger than 8 MiB"),
    "cut short": (
        sending(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"),
        "it closed the connection after 2 of at least 10 bytes of its body",
    ),
    "two lengths": (
        sending(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        "its Content-Length is not one number: 2, 3",
    ),
    "no chunks": (
        sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n"),
        r"a chunk of its body does not begin with its length: {}\r\n",
    ),
    "long chunk": (
        sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n"),
        "a chunk of its body is longer than it says",
    ),
    "TLS": (sending(b"\x15\x03\x01\x00\x02\x02\x46"), "does it speak TLS? then write https://"),
}


@pytest.mark.parametrize("what", UNREACHABLE)
def test_a_server_that_never_answers_whole_is_told_so_in_time(what: str) -> None:
    script, reason = UNREACHABLE[what]
    before = open_file_count()
    with Backend(script) as backend:
        report, took_s = run_timed(f"http://{backend.address}")
    assert reason in report.unreachable
    assert report.results == ()
    assert not report.conforms()
    assert took_s < TIMEOUT_S + TOLERANCE_S
    assert open_file_count() <= before


def test_a_port_that_nobody_listens_on_is_unreachable() -> None:
    with closed_port() as port:
        report, _ = run_timed(f"http://127.0.0.1:{port}")
    assert report.unreachable == "connection refused"


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    report, _ = run_timed("http://no-such-host.invalid")
    assert report.unreachable


def test_one_endpoint_that_hangs_fails_one_check_and_leaves_the_others_to_be_judged() -> None:
    is_over = threading.Event()
    right = ConformingNode()

    def answer(asked: Request) -> Response:
        if asked.path == "/svc/node/health":
            is_over.wait(30)
        return right.respond(asked)

    with NodeServer(answer) as server:
        report, took_s = run_timed(server.url)
        is_over.set()
    assert [result.check.name for result in report.failed()] == ["health-code"]
    assert [finding.actual for finding in report.failed()[0].findings] == ["no whole answer within 0.5 s"]
    assert [mend.partition(":")[0] for mend in report.failed()[0].fixes] == ["Answer in time"]
    assert took_s < 2 * TIMEOUT_S + 2 * TOLERANCE_S


@pytest.mark.parametrize(
    ("segment", "check"), [("indexer", "service-health-code"), ("a%2Fb%20c%25", "service-id-encoded")]
)
def test_one_service_whose_health_hangs_fails_one_check_with_a_fix_that_helps(segment: str, check: str) -> None:
    is_over = threading.Event()
    right = ConformingNode()

    def answer(asked: Request) -> Response:
        if asked.path == f"/svc/node/services/{segment}/health":
            is_over.wait(30)
        return right.respond(asked)

    with NodeServer(answer) as server:
        report, took_s = run_timed(server.url)
        is_over.set()
    (result,) = report.failed()
    assert result.check.name == check
    assert [str(finding.request) for finding in result.findings] == [f"GET /svc/node/services/{segment}/health"]
    assert [mend.partition(":")[0] for mend in result.fixes] == ["Answer in time"]
    assert not report.aborted
    assert took_s < 2 * TIMEOUT_S + 2 * TOLERANCE_S


def test_a_node_that_goes_silent_is_not_asked_for_ever() -> None:
    is_over = threading.Event()
    right = ConformingNode()

    def answer(asked: Request) -> Response:
        if asked.query or asked.method != "GET":
            is_over.wait(30)
        return right.respond(asked)

    with NodeServer(answer) as server:
        report, took_s = run_timed(server.url)
        is_over.set()
    told = [result for result in report.failed() if result.findings[-1].actual == "no whole answer within 0.5 s"]
    others = [
        result
        for result in report.results
        if result.skip_reason.startswith("no answer in time, see version-supported-on-")
    ]
    assert len(told) + len(others) == MAX_TIMED_OUT_CHECKS
    assert len(told) == 4, "one for each endpoint"
    assert report.aborted == "it has stopped answering"
    assert not report.conforms()
    assert report.results[-1].outcome is CheckOutcome.SKIPPED
    assert report.results[-1].skip_reason == "it has stopped answering"
    assert took_s < MAX_TIMED_OUT_CHECKS * TIMEOUT_S + 2 * TOLERANCE_S


def test_a_list_that_is_ten_megabytes_long_is_a_finding_of_its_own() -> None:
    right = ConformingNode()

    def answer(asked: Request) -> Response:
        reply = right.respond(asked)
        is_list = asked.path == "/svc/node/services" and reply.code == 200
        return Response(headers=reply.headers, body=b" " * 10_000_000 + reply.body) if is_list else reply

    with NodeServer(answer) as server:
        report = check_node(server.url, timeout_s=10.0)
    (result,) = report.failed()
    assert result.check.name == "services-answers"
    assert result.findings[0].actual == "the body of its answer is larger than 8 MiB"


def test_what_is_shown_of_an_answer_is_short_and_harmless() -> None:
    right = ConformingNode()

    def answer(asked: Request) -> Response:
        reply = right.respond(asked)
        body = b"\x1b[2J\xff" + b"x" * 100_000
        return Response(headers=reply.headers, body=body) if asked.path == "/svc/node" and reply.code == 200 else reply

    with NodeServer(answer) as server:
        report = check_node(server.url, timeout_s=10.0)
    (result,) = report.failed()
    (finding,) = result.findings
    assert finding.actual.startswith(r"\x1b[2J\xffxxxx")
    assert len(finding.actual) < 500


def test_an_answer_in_chunks_or_after_an_interim_one_is_as_good_as_another() -> None:
    identity = b'{"node_name":"n","spec_version":"v0.0.1","node_version":"v1.0.0"}'
    body = b"A;with=extension\r\n%s\r\n%x\r\n%s\r\n0\r\n" % (identity[:10], len(identity) - 10, identity[10:])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head + body + b"X-Trailer: 1\r\n\r\n")
        peer.shutdown_write()

    with Backend(answer) as backend:
        report = check_node(f"http://{backend.address}", timeout_s=10.0)
    outcomes = {result.check.name: result.outcome for result in report.results}
    assert outcomes["identity-json"] is CheckOutcome.PASSED
    assert outcomes["identity-fields"] is CheckOutcome.PASSED


def test_an_answer_that_ends_with_the_connection_and_has_bare_line_ends_is_read() -> None:
    def answer(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b'HTTP/1.0 200\nContent-Type: application/json\n\n{"services":[]}')
        peer.shutdown_write()

    with Backend(answer) as backend:
        report = check_node(f"http://{backend.address}", timeout_s=10.0)
    outcomes = {result.check.name: result.outcome for result in report.results}
    assert outcomes["services-list"] is CheckOutcome.PASSED


class StockHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        reply = ConformingNode().respond(Request("GET", path, query))
        self.send_response(reply.code)
        for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_: object) -> None:
        pass


def outcome_of(name: str, report: Report) -> Result:
    return next(result for result in report.results if result.check.name == name)


def test_connections_that_must_wait_to_be_accepted_are_waited_for() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), StockHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            report = check_node(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=2.0, other_methods=False)
        finally:
            server.shutdown()
            thread.join()
    assert server.request_queue_size == 5, "as it comes"
    result = outcome_of("parallel-requests", report)
    assert result.outcome is CheckOutcome.PASSED, result


class SlowUnderConcurrency(ConcurrencyAware):
    def respond(self, asked: Request) -> Response:
        if self.is_concurrent():
            time.sleep(1.5)
        return super().respond(asked)


def test_of_many_at_once_each_may_take_longer_than_one_alone() -> None:
    node = SlowUnderConcurrency()
    with NodeServer(node.respond) as server:
        node.server = server
        report = check_node(server.url, timeout_s=1.0)
    assert outcome_of("parallel-requests", report).outcome is CheckOutcome.PASSED
