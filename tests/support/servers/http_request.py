"""One HTTP request: how a launcher asks its server whether it is ready, and tells it what to do."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT_S = 5.0


def http_request(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    ca_file: Path | None = None,
) -> tuple[int, Any]:
    """The code, and the body as JSON where it is JSON. Raises OSError for everything that is not an answer."""
    with closing(_connect(port, ca_file)) as connection:
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
        except http.client.HTTPException as exc:
            raise ConnectionError(f"no answer in HTTP: {exc!r}") from exc
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw.decode(errors="replace")


def tls_context(certificate: Path) -> ssl.SSLContext:
    """For a server whose certificate signed itself."""
    return ssl.create_default_context(cafile=certificate)


def _connect(port: int, trusted: Path | None) -> http.client.HTTPConnection:
    if trusted is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=tls_context(trusted))
