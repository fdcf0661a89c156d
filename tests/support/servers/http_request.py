"""One HTTP request, for the readiness checks and the setup of servers."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.certificates import Certificate

TIMEOUT_S = 5.0


def http_request(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    ca_file: Path | None = None,
    client: Certificate | None = None,
) -> tuple[int, Any]:
    """The status, and the body as JSON if it is JSON. Raises OSError if there is no response."""
    with closing(_connect(port, ca_file, client)) as connection:
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
        except http.client.HTTPException as exc:
            raise ConnectionError(f"not HTTP: {exc!r}") from exc
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw.decode(errors="replace")


def tls_context(certificate: Path) -> ssl.SSLContext:
    """For a server with a self-signed certificate."""
    return ssl.create_default_context(cafile=certificate)


def _connect(port: int, trusted: Path | None, client: Certificate | None) -> http.client.HTTPConnection:
    if trusted is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    context = tls_context(trusted)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)
