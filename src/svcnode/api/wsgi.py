"""The node as a WSGI application, for Flask, Django and any WSGI server."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svcnode.api import routing
from svcnode.api.raw_path import path_below
from svcnode.api.spec import Request, Response, parse_prefixes
from svcnode.core.model import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from svcnode.node import Node

    Environ = dict[str, Any]
    WsgiApplication = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def wsgi(
    node: Node,
    *,
    prefix: str | Sequence[str] = DEFAULT_PREFIX,
    fallback: WsgiApplication | None = None,
    start: bool = True,
) -> WsgiApplication:
    """Return a WSGI application that serves the node's interface.

    With `fallback`, requests outside the prefix are passed to that application.
    WSGI has no lifespan, so probing starts with the first request in each process; a server that forks workers probes
    in each of them. With `start=False` the program calls `node.start()` itself.
    """
    return _WsgiApp(node, parse_prefixes(prefix), fallback, start=start)


class _WsgiApp:
    def __init__(self, node: Node, prefixes: tuple[str, ...], fallback: WsgiApplication | None, *, start: bool) -> None:
        self._node = node
        self._prefixes = prefixes
        self._fallback = fallback
        self._should_start = start
        self._serving_pid = 0

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._serving_pid != os.getpid():
            self._serving_pid = os.getpid()
            self._on_first_request()
        path = _raw_path_below_mount(environ, self._prefixes)
        if self._fallback is not None and not routing.is_under_prefix(path, self._prefixes):
            return self._fallback(environ, start_response)
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", "").encode("latin-1"))
        response = routing.respond(self._node, request, self._prefixes)
        start_response(_status_line(response), list(response.headers))
        return [response.body] if response.body and request.method != "HEAD" else []

    def _on_first_request(self) -> None:
        """In each process: a fork copies this object, but not the thread that runs the checks."""
        if self._should_start:
            self._node.start_or_warn()
        else:
            self._node.warn_if_not_probing()


def _raw_path_below_mount(environ: Environ, prefixes: tuple[str, ...]) -> bytes:
    mount = _decode_wsgi(environ.get("SCRIPT_NAME", ""))
    path = mount + _decode_wsgi(environ.get("PATH_INFO", ""))
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
