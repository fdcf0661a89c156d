"""The node as a WSGI application, for Flask, Django and any WSGI server."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svcnode.spec import PREFIX, Answer, Request, prefixes_from
from svcnode.web import site
from svcnode.web.mounting import path_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from svcnode.node import Node

    Environ = dict[str, Any]
    WsgiApplication = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def wsgi(
    node: Node,
    *,
    prefix: str | Sequence[str] = PREFIX,
    otherwise: WsgiApplication | None = None,
    start: bool = True,
) -> WsgiApplication:
    """An application that answers for the node.

    With `otherwise`, only paths under the prefix are answered and every other one is handed to that application.
    WSGI has no lifespan, so the looking starts with the first request in the process that serves it: a server that
    forks its workers then looks in each of them. With `start=False` it is left to the program.
    """
    return _WsgiNode(node, prefixes_from(prefix), otherwise, start=start)


class _WsgiNode:
    def __init__(
        self, node: Node, prefixes: tuple[str, ...], otherwise: WsgiApplication | None, *, start: bool
    ) -> None:
        self._node = node
        self._prefixes = prefixes
        self._otherwise = otherwise
        self._is_start_wanted = start
        self._started_in_pid = 0

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        self._start_once_per_process()
        path = _path_below_mount(environ, self._prefixes)
        if self._otherwise is not None and not site.is_under(path, self._prefixes):
            return self._otherwise(environ, start_response)
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", "").encode("latin-1"))
        answer = site.noted(site.route(request, self._prefixes)(self._node))
        start_response(_status_line(answer), list(answer.headers))
        return [answer.body] if answer.body and request.method != "HEAD" else []

    def _start_once_per_process(self) -> None:
        if self._is_start_wanted and self._started_in_pid != os.getpid():
            self._started_in_pid = os.getpid()
            self._node.start()


def _path_below_mount(environ: Environ, prefixes: tuple[str, ...]) -> bytes:
    mount = _text(environ.get("SCRIPT_NAME", ""))
    path = mount + _text(environ.get("PATH_INFO", ""))
    # Servers keep the raw target under one of two names; neither is promised.
    raw_target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    raw_path = None if raw_target is None else raw_target.partition("?")[0].encode("latin-1", "replace")
    return path_below(mount, path, raw_path, prefixes)


def _text(wsgi_string: str) -> str:
    """WSGI carries bytes as if each were one Latin-1 character."""
    return wsgi_string.encode("latin-1", "replace").decode("utf-8", "replace")


def _status_line(answer: Answer) -> str:
    try:
        return f"{answer.code} {HTTPStatus(answer.code).phrase}"
    except ValueError:
        return f"{answer.code} Chosen by the caller"  # `partial_status` may name any code
