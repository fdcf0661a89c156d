"""`http2 = true` of http and https probes, against nginx and against scripted servers."""

from __future__ import annotations

import gzip
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.net.http_response import MAX_BODY_BYTES
from svcnode.probes import make_probe
from svcnode.version import install_command
from tests.support.backends import HttpBackend, http_response
from tests.support.http2_backend import Http2Backend
from tests.support.nginx_proxy import running_nginx
from tests.support.ports import free_port
from tests.support.probe_assertions import check_with_steps, reusing
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    PROTOCOL_ERROR,
    READY,
    UNEXPECTED_RESPONSE,
    ExpectedVerdict,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h2.connection

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner
    from tests.support.http2_backend import Respond

_LOCATIONS = """
location = /health { return 200 '{"status": "ok", "protocol": "$server_protocol"}'; }
location = /down { return 503; }
location = /old { return 302 /health; }
location /files/ { gzip off; root .; }
"""


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[dict[str, str]]:
    """The addresses of a server with HTTP/2, with HTTP/2 over TLS, and with TLS but without HTTP/2."""
    folder = tmp_path_factory.mktemp("nginx-http2")
    (folder / "files").mkdir()
    for size in (MAX_BODY_BYTES, MAX_BODY_BYTES + 1):
        (folder / "files" / f"{size}").write_text(f"{'x' * (size - 5)}hello")
    addresses = {options: f"127.0.0.1:{free_port()}" for options in ("http2", "ssl http2", "ssl")}
    lines = ["default_type application/json; gzip on; gzip_min_length 1; gzip_types *;"]
    lines += [f"ssl_certificate {certificate.certificate}; ssl_certificate_key {certificate.key};"]
    lines += [f"server {{ listen {each} {options}; {_LOCATIONS} }}" for options, each in addresses.items()]
    ports = [int(each.partition(":")[2]) for each in addresses.values()]
    with running_nginx(folder, "\n".join(lines), *ports):
        yield addresses


# ---- a real server


def test_a_server_is_asked_in_http2(check: CheckRunner, nginx: dict[str, str], certificate: Certificate) -> None:
    is_http2 = {"/status": "ok", "/protocol": "HTTP/2.0"}
    assert check(f"http://{nginx['http2']}/health", http2=True, json=is_http2) == READY
    options: dict[str, Any] = {"http2": True, "ca": str(certificate.certificate)}
    assert check(f"https://{nginx['ssl http2']}/health", json=is_http2, **options) == READY
    assert check(f"https://{nginx['ssl http2']}/health", **options, min_cert_days=1).code is ReasonCode.TLS_EXPIRES_SOON


def test_a_server_without_http2_is_failed(check: CheckRunner, nginx: dict[str, str], certificate: Certificate) -> None:
    url, ca = f"https://{nginx['ssl']}/health", str(certificate.certificate)
    assert check(url, http2=True, ca=ca) == PROTOCOL_ERROR
    assert check(url, ca=ca) == READY
    with HttpBackend(http_response(400)) as backend:
        assert check(f"http://{backend.address}", http2=True) == PROTOCOL_ERROR


def test_status_body_and_redirects_are_checked_alike(check: CheckRunner, nginx: dict[str, str]) -> None:
    url = f"http://{nginx['http2']}"
    assert check(f"{url}/health", http2=True, method="HEAD") == READY
    assert check(f"{url}/health", http2=True, contains="missing") == UNEXPECTED_RESPONSE
    assert check(f"{url}/down", http2=True) == failed(ReasonCode.SERVER_ERROR)
    assert check(f"{url}/down", http2=True, starting_status=503) == not_ready(ReasonCode.STARTING)
    assert check(f"{url}/old", http2=True) == failed(ReasonCode.REDIRECTED)
    assert check(f"{url}/old", http2=True, redirects=1, contains="HTTP/2.0", fresh=True) == READY
    gzipped = {"Accept-Encoding": "gzip"}
    assert check(f"{url}/health", http2=True, contains='"ok"', headers=gzipped) == READY


def test_a_body_is_read_up_to_the_limit(check: CheckRunner, nginx: dict[str, str]) -> None:
    url = f"http://{nginx['http2']}/files"
    assert check(f"{url}/{MAX_BODY_BYTES}", http2=True, contains="hello") == READY
    assert check(f"{url}/{MAX_BODY_BYTES + 1}", http2=True, contains="hello") == UNEXPECTED_RESPONSE
    assert check(f"{url}/{MAX_BODY_BYTES + 1}", http2=True, reuse=True) == READY


@pytest.mark.parametrize("options", [{}, {"contains": "ok"}], ids=["status", "body"])
def test_a_connection_is_reused(check: CheckRunner, nginx: dict[str, str], options: dict[str, Any]) -> None:
    async def scenario() -> list[list[str]]:
        names = []
        with reusing(f"http://{nginx['http2']}/health", http2=True, **options) as probe:
            for _ in range(3):
                verdict, steps = await check_with_steps(probe)
                assert verdict == READY
                names.append([name for name, _, _ in steps])
        return names

    assert check.run(scenario()) == [["connect", "exchange"], ["reuse", "exchange"], ["reuse", "exchange"]]


def ok(http2: h2.connection.H2Connection, stream: int) -> None:
    http2.send_headers(stream, [(b":status", b"200"), (b"x-api", b"v1")])
    http2.send_data(stream, b"ok", end_stream=True)


def test_the_request_has_the_options_of_the_probe(check: CheckRunner) -> None:
    body = "x" * 200_000  # more than the server allows at once
    with Http2Backend(ok) as backend:
        url = f"http://me:pw@{backend.address}/a%20b?c=d"
        headers = {"Host": "api.internal", "X-Api-Key": "k", "Connection": "keep-alive"}
        assert check(url, http2=True, method="POST", body=body, headers=headers) == READY
    (received,) = backend.headers
    assert received[b":method"] == b"POST"
    assert received[b":scheme"] == b"http"
    assert received[b":path"] == b"/a%20b?c=d"
    assert received[b":authority"] == b"api.internal"
    assert received[b"x-api-key"] == b"k"
    assert received[b"authorization"].startswith(b"Basic ")
    assert received[b"content-length"] == b"200000"
    assert not received.keys() & {b"host", b"connection"}
    assert backend.bodies == [body.encode()]


def with_headers(*headers: tuple[bytes, bytes], body: bytes = b"") -> Respond:
    def respond(http2: h2.connection.H2Connection, stream: int) -> None:
        http2.send_headers(stream, [(b":status", b"200"), *headers], end_stream=not body)
        while body_left := body[sum(sent) :]:
            part = body_left[: min(http2.local_flow_control_window(stream), http2.max_outbound_frame_size)]
            if not part:
                return
            sent.append(len(part))
            http2.send_data(stream, part, end_stream=sum(sent) == len(body))

    sent: list[int] = []
    return respond


def reset_stream(http2: h2.connection.H2Connection, stream: int) -> None:
    http2.reset_stream(stream)


def goaway(http2: h2.connection.H2Connection, stream: int) -> None:
    http2.close_connection()


@pytest.mark.parametrize("respond", [reset_stream, goaway])
def test_a_server_that_ends_the_stream_is_failed(check: CheckRunner, respond: Respond) -> None:
    with Http2Backend(respond) as backend:
        assert check.leaks_nothing(f"http://{backend.address}", http2=True) == CONNECTION_CLOSED


@pytest.mark.parametrize(
    ("content_type", "expected"), [(b"text/plain", failed(ReasonCode.TIMEOUT)), (b"text/event-stream", READY)]
)
def test_a_response_whose_body_does_not_come_is_failed(
    check: CheckRunner, content_type: bytes, expected: ExpectedVerdict
) -> None:
    def respond(http2: h2.connection.H2Connection, stream: int) -> None:
        http2.send_headers(stream, [(b":status", b"200"), (b"content-type", content_type)])

    with Http2Backend(respond) as backend:
        url = f"http://{backend.address}"
        verdict = check(url, http2=True) if expected == READY else check.times_out(url, "exchange", http2=True)
    assert verdict == expected


def test_a_compressed_body_is_decoded(check: CheckRunner) -> None:
    encoded = with_headers((b"content-encoding", b"gzip"), body=gzip.compress(b"hello"))
    with Http2Backend(encoded) as backend:
        assert check(f"http://{backend.address}", http2=True, contains="hello") == READY
    with Http2Backend(with_headers((b"content-encoding", b"br"), body=b"x")) as backend:
        assert check(f"http://{backend.address}", http2=True, contains="hello") == UNEXPECTED_RESPONSE


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "svcnode.net.http2", None)
    monkeypatch.delattr("svcnode.net.http2", raising=False)
    with pytest.raises(OptionError, match=re.escape(install_command("http2"))):
        make_probe({"url": "http://127.0.0.1", "http2": True})
