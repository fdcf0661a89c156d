"""The node as a WSGI application, for Flask, Django and any WSGI server."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.application import EmbeddedApplication
from svcnode.agent.embed.options import ConnectionInfo, retained_headers, slash_redirect
from svcnode.api import routing
from svcnode.api.raw_path import path_below
from svcnode.api.spec import Request, Response
from svcnode.core.model import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from svcnode.agent.embed.node import Node
    from svcnode.agent.embed.operator_app import EmbeddedOperatorApp
    from svcnode.agent.embed.options import OperatorOptions
    from svcnode.agent.embed.stream import LoopStream

    Environ = dict[str, Any]
    WsgiApplication = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def wsgi(
    node: Node,
    *,
    prefix: str | Sequence[str] = DEFAULT_PREFIX,
    fallback: WsgiApplication | None = None,
    start: bool = True,
    operator: bool | OperatorOptions = False,
) -> WsgiApplication:
    """Return a WSGI application that serves the node's interface.

    With `fallback`, requests outside the prefix are passed to that application.
    With `operator`, it also serves the page, metrics, details, events, history and badges of the node; `True` is for
    clients on this machine only.
    WSGI has no lifespan, so probing starts with the first request in each process; a server that forks workers probes
    in each of them. With `start=False` the program calls `node.start()` itself.
    """
    return _WsgiApp(node, prefix, fallback, operator, start=start)


class _WsgiApp(EmbeddedApplication["WsgiApplication"]):
    _serving_pid = 0  # of the last request

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._serving_pid != os.getpid():
            self._serving_pid = os.getpid()
            self._on_first_request()
        path = _raw_path_below_mount(environ, self._prefixes)
        if self._operator_app is not None and self._operator_app.matches(path):
            return _respond_from_operator(self._operator_app, path, environ, start_response)
        if self._fallback is not None and not routing.is_under_prefix(path, self._prefixes):
            return self._fallback(environ, start_response)
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", "").encode("latin-1"))
        return _send_response(routing.respond(self._node, request, self._prefixes), request.method, start_response)

    def _on_first_request(self) -> None:
        """In each process: a fork copies this object, but not the thread that runs the checks."""
        if self._should_start:
            self._checks.start_or_warn()
        else:
            self._checks.warn_if_not_running()


def _respond_from_operator(
    app: EmbeddedOperatorApp, path: bytes, environ: Environ, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    method = environ["REQUEST_METHOD"]
    request = Request(method, path, environ.get("QUERY_STRING", "").encode("latin-1"), _headers(environ))
    response: Response | LoopStream | None
    if path == app.root:
        response = slash_redirect(_full_path(environ))
    else:
        is_multithread = bool(environ.get("wsgi.multithread"))
        response = app.rejection(request, _connection_info(environ)) or app.handle_blocking(
            request, is_multithread=is_multithread
        )
    if isinstance(response, Response):
        return _send_response(response, method, start_response)
    start_response(_status_line(response.head), list(response.head.headers))
    return _WsgiStream(response, has_body=method != "HEAD")


class _WsgiStream:
    """The body of an event stream. The server calls `close` at the end, also if the client has disconnected."""

    def __init__(self, stream: LoopStream, *, has_body: bool) -> None:
        self._stream = stream
        self._has_body = has_body
        self.close = stream.close

    def __iter__(self) -> Iterator[bytes]:
        return self._stream.blocking_chunks() if self._has_body else iter(())


def _send_response(response: Response, method: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response(_status_line(response), list(response.headers))
    return [response.body] if response.body and method != "HEAD" else []


def _headers(environ: Environ) -> dict[bytes, bytes]:
    names = (key for key in environ if key.startswith("HTTP_"))
    return retained_headers(
        (key.removeprefix("HTTP_").replace("_", "-").lower().encode("latin-1"), environ[key].encode("latin-1"))
        for key in names
    )


def _connection_info(environ: Environ) -> ConnectionInfo:
    """A server may not know the address of the client, as with a Unix socket."""
    port = str(environ.get("SERVER_PORT", ""))
    return ConnectionInfo(
        client_host=environ.get("REMOTE_ADDR", "") or "",
        uses_tls=environ.get("wsgi.url_scheme") == "https",
        server_port=int(port) if port.isascii() and port.isdigit() else 0,
        http_version=environ.get("SERVER_PROTOCOL", "").removeprefix("HTTP/"),
    )


def _full_path(environ: Environ) -> str:
    return _decode_wsgi(environ.get("SCRIPT_NAME", "")) + _decode_wsgi(environ.get("PATH_INFO", ""))


def _raw_path_below_mount(environ: Environ, prefixes: tuple[str, ...]) -> bytes:
    mount = _decode_wsgi(environ.get("SCRIPT_NAME", ""))
    path = _full_path(environ)
    # Not in the WSGI standard; servers use one of these two names, or none.
    raw_target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    raw_path = None if raw_target is None else raw_target.partition("?")[0].encode("latin-1", "replace")
    return path_below(mount, path, raw_path, prefixes)


def _decode_wsgi(wsgi_string: str) -> str:
    """WSGI strings hold bytes decoded as Latin-1."""
    return wsgi_string.encode("latin-1", "replace").decode("utf-8", "replace")


def _status_line(response: Response) -> str:
    try:
        return f"{response.code} {HTTPStatus(response.code).phrase}"
    except ValueError:
        return f"{response.code} Partial"  # a code from `partial_status` that has no standard phrase
