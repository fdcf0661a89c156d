"""The node as a WSGI application, for Flask, Django and any WSGI server."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svcnode.api import routing
from svcnode.api.raw_path import path_below
from svcnode.api.spec import DEFAULT_PREFIX, Request, Response, parse_prefixes

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
    """An application that answers for the node.

    With `fallback`, only paths under the prefix are answered and every other one is handed to that application.
    WSGI has no lifespan, so the looking starts with the first request in the process that serves it: a server that
    forks its workers then looks in each of them. With `start=False` it is left to the program.
    """
    return _WsgiApp(node, parse_prefixes(prefix), fallback, start=start)


class _WsgiApp:
    def __init__(self, node: Node, prefixes: tuple[str, ...], fallback: WsgiApplication | None, *, start: bool) -> None:
        self._node = node
        self._prefixes = prefixes
        self._fallback = fallback
        self._should_start = start
        self._started_in_pid = 0

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        self._start_once_per_process()
        path = _raw_path_below_mount(environ, self._prefixes)
        if self._fallback is not None and not routing.is_under_prefix(path, self._prefixes):
            return self._fallback(environ, start_response)
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", "").encode("latin-1"))
        answer = routing.log_failure(routing.route(request, self._prefixes)(self._node))
        start_response(_status_line(answer), list(answer.headers))
        return [answer.body] if answer.body and request.method != "HEAD" else []

    def _start_once_per_process(self) -> None:
        if self._should_start and self._started_in_pid != os.getpid():
            self._started_in_pid = os.getpid()
            self._node.start()


def _raw_path_below_mount(environ: Environ, prefixes: tuple[str, ...]) -> bytes:
    mount = _decode_wsgi(environ.get("SCRIPT_NAME", ""))
    path = mount + _decode_wsgi(environ.get("PATH_INFO", ""))
    # Servers keep the raw target under one of two names; neither is promised.
    raw_target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    raw_path = None if raw_target is None else raw_target.partition("?")[0].encode("latin-1", "replace")
    return path_below(mount, path, raw_path, prefixes)


def _decode_wsgi(wsgi_string: str) -> str:
    """WSGI carries bytes as if each were one Latin-1 character."""
    return wsgi_string.encode("latin-1", "replace").decode("utf-8", "replace")


def _status_line(response: Response) -> str:
    try:
        return f"{response.code} {HTTPStatus(response.code).phrase}"
    except ValueError:
        return f"{response.code} Chosen by the caller"  # `partial_status` may name any code
