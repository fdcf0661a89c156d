"""Metrics probes against servers with correct, incomplete, large and other pages."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from svcnode.core.codes import ReasonCode
from svcnode.probes.metrics_page import MAX_PAGE_BYTES
from tests.support.backends import Backend, HttpBackend, Peer, http_response, server_tls
from tests.support.ports import free_port
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PAGE = '# TYPE up gauge\nup{job="signer"} 1\nup{job="api"} 0\n# TYPE batches counter\nbatches_total 7\n'


def page(body: bytes | str = PAGE, content_type: str = TEXT, **headers: str) -> bytes:
    return http_response(200, body, Content_Type=content_type, **headers)


def test_conditions_judge_the_page(check: CheckRunner) -> None:
    with HttpBackend(page()) as backend:
        url = f"metrics+http://{backend.address}/metrics?part=1"
        ready = check(url, require=['up{job="signer"} == 1', "batches_total > 5"], starting=['up{job="api"} == 1'])
        assert ready == READY
        request = backend.last_request
        assert (request.method, request.target) == ("GET", "/metrics?part=1")
        assert "accept-encoding" not in request.headers
        wrong = check(url, require=['up{job="api"} == 1'])
        assert wrong == UNEXPECTED_RESPONSE
        assert 'up{job="api"} is 0, expected 1' in wrong.reason
        assert check(url, require=["batch_total > 5"]) == UNEXPECTED_RESPONSE
        assert check(url, require=["up == 1"]) == UNEXPECTED_RESPONSE  # several series
        assert check(url, require=["batches_total > 0"], starting=["up == 0"]) == UNEXPECTED_RESPONSE
        assert check(url, require=["batches_total advances within 1m"]) == not_ready(ReasonCode.STARTING)
        starting = check(url, require=["batches_total > 9"], starting=["min of up == 0"])
        assert starting == not_ready(ReasonCode.STARTING)


@pytest.fixture
def exporter() -> Iterator[tuple[str, Counter]]:
    registry = CollectorRegistry()
    batches = Counter("batches", "Batches.", registry=registry)
    Gauge("process_start_time_seconds", "Start.", registry=registry).set_to_current_time()
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    yield f"metrics+http://127.0.0.1:{port}/metrics", batches
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_program_with_prometheus_client_is_read_in_both_formats(
    check: CheckRunner, exporter: tuple[str, Counter]
) -> None:
    url, batches = exporter
    batches.inc(3)
    require = ["batches_total == 3", "age of process_start_time_seconds <= 5m", "age of batches_created <= 5m"]
    assert check(url, require=require) == READY
    assert check(url, require=require, headers={"Accept": "application/openmetrics-text"}) == READY
    assert check(url, require=["batches_total == 4"]) == UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    "response",
    [
        http_response(200, "<html>Log in</html>\n", Content_Type="text/html"),
        http_response(200, "", Content_Type=TEXT),
        page(PAGE[:-1]),
        page(PAGE, OPENMETRICS),
        page(PAGE + "# EOF\n" + PAGE, OPENMETRICS),
        page("up 1\n" + " " * MAX_PAGE_BYTES + "\n"),
        page("up 1\n" + "x" * 300_000 + " 1\n"),
        page(gzip.compress(b"up 1\n" + b"x 1\n" * 1_000_000), Content_Encoding="gzip"),
    ],
    ids=["html", "empty", "cut", "no EOF", "after EOF", "too large", "long line", "gzip too large"],
)
def test_another_page_is_failed_even_while_a_value_may_still_begin_to_advance(
    check: CheckRunner, response: bytes
) -> None:
    with HttpBackend(response) as backend:
        url = f"metrics+http://{backend.address}/metrics"
        assert check(url, require=["up advances within 1h"]) == UNEXPECTED_RESPONSE


def test_a_compressed_page_is_read_although_it_was_not_asked_for(check: CheckRunner) -> None:
    with HttpBackend(page(gzip.compress(PAGE.encode()), Content_Encoding="gzip")) as backend:
        assert check(f"metrics+http://{backend.address}", require=["batches_total == 7"]) == READY


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (302, ReasonCode.REDIRECTED),
        (401, ReasonCode.AUTH_REQUIRED),
        (404, ReasonCode.NOT_FOUND),
        (503, ReasonCode.SERVER_ERROR),
        (206, ReasonCode.UNEXPECTED_RESPONSE),
    ],
)
def test_only_the_status_200_has_a_page(check: CheckRunner, status: int, code: ReasonCode) -> None:
    with HttpBackend(http_response(status, PAGE, Content_Type=TEXT)) as backend:
        assert check(f"metrics+http://{backend.address}", require=["batches_total == 7"]) == failed(code)


def test_a_page_whose_end_is_lost_is_failed(check: CheckRunner) -> None:
    def cut(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(page()[:-10])
        peer.shutdown_write()

    with Backend(cut) as backend:
        verdict = check(f"metrics+http://{backend.address}", require=['up{job="signer"} == 1'])
        assert verdict == failed(ReasonCode.CONNECTION_CLOSED)


def test_a_page_of_10_mb_with_100_000_series_is_read(check: CheckRunner) -> None:
    lines = [f'requests_total{{path="/api/v1/{number:060}"}} {number}\n' for number in range(100_000)]
    body = "".join(["up 1\n", *lines, "last 2\n"])
    assert len(body) > 9_000_000
    with HttpBackend(page(body)) as backend:
        url = f"metrics+http://{backend.address}"
        require = ["up == 1", "last == 2", "count of requests_total == 100000", "max of requests_total == 99999"]
        assert check(url, require=[*require, f'requests_total{{path="/api/v1/{77:060}"}} == 77']) == READY


def test_a_page_is_read_over_tls_and_on_a_kept_connection(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(page(), tls=server_tls(certificate)) as backend:
        url, ca, require = f"metrics+https://{backend.address}", str(certificate.certificate), ["batches_total == 7"]
        assert check(url, require=require, ca=ca) == READY
        assert check(url, require=require, ca=ca, reuse=True) == READY
        assert check(url, require=require) == TLS_UNTRUSTED
        assert check(url, require=require, ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(url, require=["batches_total == 8"], ca=ca, min_cert_days=1) == UNEXPECTED_RESPONSE
