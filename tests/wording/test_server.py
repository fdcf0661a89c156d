"""The texts of the interface and the HTTP server: errors in responses, errors at start, log lines."""

from __future__ import annotations

import errno
import json
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.api import app, routing, spec
from svcnode.core.address import Address
from svcnode.core.errors import ConfigError, ListenError
from svcnode.server import connection, parser
from svcnode.server.sockets import bind, tls_context
from tests.support.certificates import make_certificate
from tests.support.http_server import request, running_server
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wording.conftest import Snapshot


def test_error_bodies(snapshot: Snapshot) -> None:
    responses = [
        value
        for module in (spec, app, parser, connection)
        for name, value in sorted(vars(module).items())
        if name.isupper() and isinstance(value, spec.Response)
    ]
    lines = {f"{one.code} {json.loads(one.body)['message']}" for one in responses}
    snapshot("error_bodies", "\n".join(sorted(lines)))


BIND_ERRORS = (
    (errno.EADDRINUSE, Address(scheme="http", host="127.0.0.1", port=80), "server.listen"),
    (errno.EADDRINUSE, Address(scheme="http", host="127.0.0.1", port=80), None),
    (errno.EACCES, Address(scheme="http", host="127.0.0.1", port=80), None),
    (errno.EADDRNOTAVAIL, Address(scheme="http", host="192.0.2.1", port=80), None),
    (errno.EAFNOSUPPORT, Address(scheme="http", host="127.0.0.1", port=80), None),
    (errno.EACCES, Address(scheme="unix", path="/missing/a.sock"), None),
    (errno.ENOENT, Address(scheme="unix", path="/missing/a.sock"), None),
)


def test_bind_errors(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "notes.txt"
    file.touch()
    lines = []
    for code, address, set_by in (*BIND_ERRORS, (errno.EADDRINUSE, Address(scheme="unix", path=str(file)), None)):

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, "text of the operating system")

        monkeypatch.setattr(socket.socket, "bind", fail)
        with pytest.raises(ListenError) as raised:
            bind(address, set_by)
        lines.append(str(raised.value).replace(str(tmp_path), "DIR"))
    with pytest.raises(ListenError) as raised:
        bind(Address(scheme="http", host="ü" * 70, port=80))
    snapshot("bind_errors", "\n".join([*lines, str(raised.value)]))


def test_tls_errors(snapshot: Snapshot, tmp_path: Path) -> None:
    good, other = make_certificate(tmp_path, "good"), make_certificate(tmp_path, "other")
    encrypted = make_certificate(tmp_path, "encrypted", passphrase=b"secret")
    empty = tmp_path / "empty.pem"
    empty.touch()
    lines = []
    for certificate, key in (
        (good.certificate, other.key),
        (empty, good.key),
        (good.certificate, empty),
        (encrypted.certificate, encrypted.key),
        (tmp_path / "missing.pem", good.key),
    ):
        with pytest.raises(ConfigError) as raised:
            tls_context(certificate, key)
        lines.append(str(raised.value).replace(str(tmp_path), "DIR"))
    snapshot("tls_errors", "\n".join(lines))


def test_log_lines(snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    routing.log_failure(spec.Response(500, cause=RuntimeError("cause")))
    with running_server(worked_example()) as server, server.connect() as client:
        client.send(request("/svc/node")[:20])
        server.wait_for_reads()
        server.close(grace_s=0.1)
    lines = [f"{logging.getLevelName(one.levelno).lower()} {one.name}: {one.getMessage()}" for one in caplog.records]
    snapshot("log_lines", "\n".join(lines))


def test_openapi_texts(snapshot: Snapshot) -> None:
    def texts(value: object) -> list[str]:
        match value:
            case dict():
                own = [text for key in ("summary", "description") if isinstance(text := value.get(key), str)]
                return own + [text for item in value.values() for text in texts(item)]
            case list():
                return [text for item in value for text in texts(item)]
            case _:
                return []

    document = json.loads(routing.openapi_document(("/svc",)))
    snapshot("openapi_texts", "\n".join(dict.fromkeys(texts(document))))
