"""The texts of the client: errors, deviations and invalid arguments."""

from __future__ import annotations

import errno
import json
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from svcnode.client import AsyncClient
from svcnode.client.errors import translate_http_error
from svcnode.client.parse import HEALTH, IDENTITY, SERVICES, NodeResponse, service_health_operation
from svcnode.client.response_guard import ResponseGuard
from svcnode.core.errors import ClientError, InvalidValueError
from tests.unit.client.test_errors import caused, certificate_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.client.parse import Operation
    from tests.wording.conftest import Snapshot


URL = "http://node.example/svc/node"
JSON = {"content-type": "application/json"}
DB = {"id": "db", "name": "Ledger", "description": "Holds it", "status": "Up"}
NODE = {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def test_connection_errors(snapshot: Snapshot) -> None:
    causes = [
        ConnectionRefusedError(errno.ECONNREFUSED, ""),
        OSError(errno.EMFILE, ""),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        ssl_error("WRONG_VERSION_NUMBER"),
        ssl_error("TLSV1_ALERT_PROTOCOL_VERSION"),
        certificate_error(18, "self-signed certificate"),
        certificate_error(10, "certificate has expired"),
        certificate_error(62, "Hostname mismatch, certificate is not valid for 'node.example'."),
    ]
    errors = [translate_http_error(caused(cause), URL) for cause in causes]
    errors.append(translate_http_error(caused(causes[6]), URL, has_custom_ca=True))
    errors += [
        translate_http_error(error, URL)
        for error in (
            httpx2.RemoteProtocolError("Server disconnected without sending a response."),
            httpx2.RemoteProtocolError("peer closed connection without sending complete message body"),
            httpx2.RemoteProtocolError("illegal header line: bytearray(b'x')"),
            httpx2.DecodingError("Error -3"),
        )
    ]
    for chunk in (b"SSH-2.0-OpenSSH_9.9\r\n", b"\x15\x03\x01\x00", INTERIM * 20_000):
        with pytest.raises(ClientError) as caught:
            ResponseGuard(URL).receive(chunk)
        errors.append(caught.value)
    snapshot("connection_errors", "\n".join(map(_with_code, errors)))


def _with_code(error: ClientError) -> str:
    return f"{error.code:20} {type(error).__name__}: {error}"


def test_response_errors(snapshot: Snapshot) -> None:
    service = service_health_operation("db")
    html = {"content-type": "text/html"}
    responses: list[tuple[Operation[Any], int, dict[str, str], bytes]] = [
        (IDENTITY, 404, JSON, b'{"message": "API version not found"}'),
        (IDENTITY, 500, JSON, b'{"message": "Internal server error"}'),
        (IDENTITY, 404, html, b"<h1>404</h1>"),
        (IDENTITY, 400, html, b"<h1>The plain HTTP request was sent to HTTPS port</h1>"),
        (IDENTITY, 401, {}, b""),
        (IDENTITY, 302, {"location": "https://bob:hunter2@login.example/path?token=x"}, b""),
        (IDENTITY, 200, html, b"<html>\n Hello"),
        (IDENTITY, 200, JSON, b"{}"),
        (SERVICES, 200, JSON, b'{"services": 7}'),
        (SERVICES, 200, JSON, b'{"services": [{"name": "A"}]}'),
        (SERVICES, 200, JSON, b'{"services": NaN}'),
        (HEALTH, 418, {}, b""),
        (service, 404, JSON, b'{"message": "Service not found"}'),
    ]
    lines = []
    for operation, status, headers, body in responses:
        with pytest.raises(ClientError) as caught:
            operation.parse(NodeResponse(URL, status, headers, body))
        lines.append(_with_code(caught.value))
    with pytest.raises(ClientError) as caught:
        IDENTITY.parse(NodeResponse(f"{URL}?version=v9", 404, JSON, b'{"message": "API version not found"}'))
    snapshot("response_errors", "\n".join([*lines, _with_code(caught.value)]))


def test_deviations(snapshot: Snapshot) -> None:
    documents: list[tuple[Operation[Any], object]] = [
        (IDENTITY, NODE | {"uptime": 7}),
        (IDENTITY, {"node_name": 7, "node_version": "1.4.2-rc1"}),
        (SERVICES, [DB]),
        (SERVICES, {"services": None}),
        (SERVICES, {"services": [DB, DB | {"port": 1}], "total": 2}),
        (SERVICES, {"services": [{"id": 7}, DB | {"status": "up"}, DB | {"id": "x", "status": "Degraded"}]}),
    ]
    responses = [
        (operation, NodeResponse(URL, 200, JSON, json.dumps(document).encode())) for operation, document in documents
    ]
    node = json.dumps(NODE)
    responses += [
        (HEALTH, NodeResponse(URL, 206, {}, b"partial")),
        (IDENTITY, NodeResponse(URL, 200, {"content-type": "text/plain"}, node.encode())),
        (IDENTITY, NodeResponse(URL, 200, {}, node.encode())),
        (IDENTITY, NodeResponse(URL, 200, JSON | {"content-encoding": "gzip"}, node.encode())),
        (IDENTITY, NodeResponse(URL, 200, JSON, node.encode("utf-8-sig"))),
        (IDENTITY, NodeResponse(URL, 200, JSON, node.encode("utf-16"))),
    ]
    snapshot("deviations", "\n".join(line for operation, one in responses for line in operation.parse(one).deviations))


def test_invalid_arguments(snapshot: Snapshot) -> None:
    urls = ["", "a b", "http:\\\\h", "h:70000", "ftp://h", "http://", "bob:hunter2@h?x=1", "ü" * 70]
    calls: list[Callable[[], object]] = [
        *(partial(AsyncClient, url) for url in urls),
        lambda: AsyncClient(7),  # type: ignore[arg-type]
        lambda: AsyncClient("h", prefix="svc"),
        lambda: AsyncClient("h", prefix="/a?b"),
        lambda: AsyncClient("h", version=""),
        lambda: AsyncClient("h", version="\ud800"),
        lambda: AsyncClient("h", timeout=0),
        lambda: AsyncClient("h", timeout=[]),  # type: ignore[arg-type]
        lambda: AsyncClient("h", retries=-1),
        lambda: AsyncClient("h", ca=""),
        lambda: AsyncClient("h", ca="/no/such/file"),
        lambda: AsyncClient("h", ca=__file__),
        lambda: service_health_operation(""),
        lambda: service_health_operation("x" * 70_000),
        lambda: service_health_operation("\ud800"),
    ]
    lines = []
    for call in calls:
        with pytest.raises(InvalidValueError) as caught:
            call()
        lines.append(str(caught.value).replace(__file__, "FILE"))
    snapshot("invalid_arguments", "\n".join(lines))
