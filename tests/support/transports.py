"""Every way to send HTTP requests to a node, behind one function: `fetch(method, target) -> Response`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import uvicorn

from svcnode import asgi, wsgi
from tests.support.http_server import WAIT_TIMEOUT_S, RawClient, request, running_server
from tests.support.node_cases import CASE_HEADER, NODE_CASES, NodeCase, asgi_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]


class Response(NamedTuple):
    code: int
    headers: dict[str, str]  # names in lowercase
    body: bytes

    @property
    def error(self) -> tuple[int, Any]:
        """The code and the JSON body of an error."""
        assert self.headers["content-type"] == "application/json"
        return self.code, json.loads(self.body)


# The errors whose bodies the interface defines.
NOT_FOUND = (404, {"message": "Not found"})
SERVICE_NOT_FOUND = (404, {"message": "Service not found"})
VERSION_NOT_FOUND = (404, {"message": "API version not found"})
INTERNAL_ERROR = (500, {"message": "Internal server error"})


class Fetch(Protocol):
    def __call__(self, method: str, target: str, /) -> Response: ...


@dataclass(frozen=True, slots=True)
class Transport:
    name: str
    open: Callable[[str], AbstractContextManager[Fetch]]  # from the name of a node case
    keeps_raw_path: bool = True  # so that `a%2Fb` differs from `a/b`
    sends_date: bool = True
    is_in_process: bool = True

    def __str__(self) -> str:
        return self.name


def make_response(code: int, headers: list[tuple[str, str]], body: bytes) -> Response:
    names = [name.lower() for name, _ in headers]
    assert len(set(names)) == len(names), f"repeated header: {names}"
    return Response(code, {name.lower(): value for name, value in headers}, body)


# ---- our own server


@contextmanager
def _server(case_name: str) -> Iterator[Fetch]:
    case = NODE_CASES[case_name]()
    with running_server(case.node, prefixes=case.prefixes) as running:
        yield lambda method, target: _fetch_over(running.connect(), request(target, method=method))


def _fetch_over(client: RawClient, raw: bytes) -> Response:
    with client:
        response = client.request(raw, is_head=raw.startswith(b"HEAD "))
        assert not client.unread
    return make_response(response.code, list(response.headers), response.body)


# ---- in this process


class AsgiTransport:
    """A minimal ASGI server."""

    def __init__(self, application: Any, *, root_path: str = "") -> None:
        self._application = application
        self._root_path = root_path

    def __call__(self, method: str, target: str, /) -> Response:
        raw_path, _, query = target.encode().partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path.decode()),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": self._root_path,
            "headers": [(b"host", b"node.example")],
        }
        sent: list[dict[str, Any]] = []
        asyncio.run(self._run(scope, sent))
        start, *bodies = sent
        assert start["type"] == "http.response.start"
        assert [body["type"] for body in bodies] == ["http.response.body"]
        assert not bodies[0].get("more_body")
        for name, _ in start["headers"]:
            assert name == name.lower(), "header names must be lowercase in ASGI"
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return make_response(start["status"], headers, bodies[0]["body"])

    async def _run(self, scope: dict[str, Any], sent: list[dict[str, Any]]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._application(scope, receive, send)


class WsgiTransport:
    """A minimal WSGI server, with the standard library's validator."""

    def __init__(self, application: Any, *, script_name: str = "", raw_name: str | None = None) -> None:
        self._application = validator(_with_content_type(application))
        self._script_name = script_name
        self._raw_name = raw_name  # of the variable with the raw target

    def __call__(self, method: str, target: str, /) -> Response:
        path, _, query = target.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self._script_name,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1").removeprefix(self._script_name),
            "QUERY_STRING": query.encode().decode("latin-1"),
            "wsgi.input": BytesIO(),
        }
        if self._raw_name is not None:
            environ[self._raw_name] = target
        setup_testing_defaults(environ)
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Any:
            started.append((status, headers))
            return lambda _: None

        chunks = self._application(environ, start_response)
        try:
            body = b"".join(chunks)
        finally:
            chunks.close()  # type: ignore[attr-defined]
        ((status, headers),) = started
        return make_response(int(status[:3]), [pair for pair in headers if pair != _PLACEHOLDER], body)


_PLACEHOLDER = ("Content-Type", "none/none")


def _with_content_type(application: Any) -> Any:
    """The validator requires a Content-Type even without content."""

    def wrapped(environ: dict[str, Any], start_response: Any) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            has_type = any(name == "Content-Type" for name, _ in headers) or status.startswith(("204", "304"))
            return start_response(status, headers if has_type else [*headers, _PLACEHOLDER], *exc_info)

        return application(environ, start)

    return wrapped


@contextmanager
def _asgi(case_name: str) -> Iterator[Fetch]:
    case = NODE_CASES[case_name]()
    yield AsgiTransport(asgi(case.node, prefix=case.prefixes, start=False))


def _wsgi(raw_name: str | None) -> Callable[[str], AbstractContextManager[Fetch]]:
    @contextmanager
    def opened(case_name: str) -> Iterator[Fetch]:
        case: NodeCase = NODE_CASES[case_name]()
        yield WsgiTransport(wsgi(case.node, prefix=case.prefixes, start=False), raw_name=raw_name)

    return opened


# ---- under other servers


class ExternalServers:
    """Uvicorn on a thread and Gunicorn in a process; each starts on first use."""

    def __init__(self) -> None:
        self._uvicorn: tuple[uvicorn.Server, threading.Thread, socket.socket] | None = None
        self._gunicorn: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @contextmanager
    def uvicorn(self, case_name: str) -> Iterator[Fetch]:
        if self._uvicorn is None:
            config = uvicorn.Config(asgi_cases, lifespan="off", ws="none", log_config=None, access_log=False)
            server, listener = uvicorn.Server(config), _listener()
            thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn under test")
            thread.start()
            self._uvicorn = (server, thread, listener)
        yield _make_fetch(self._uvicorn[2], case_name)

    @contextmanager
    def gunicorn(self, case_name: str) -> Iterator[Fetch]:
        if self._gunicorn is None:
            listener = _listener()
            command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}", "--log-level", "error"]
            process = subprocess.Popen(
                [*command, "tests.support.node_cases:wsgi_cases"],
                cwd=REPOSITORY,
                pass_fds=[listener.fileno()],
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )
            self._gunicorn = (process, listener)
        yield _make_fetch(self._gunicorn[1], case_name)

    def close(self) -> None:
        if self._uvicorn is not None:
            server, thread, listener = self._uvicorn
            server.should_exit = True
            thread.join(WAIT_TIMEOUT_S)
            listener.close()
        if self._gunicorn is not None:
            process, listener = self._gunicorn
            process.terminate()
            process.wait(WAIT_TIMEOUT_S)
            listener.close()


def _listener() -> socket.socket:
    """Listens at once, so that early connections wait in the backlog."""
    return socket.create_server(("127.0.0.1", 0))


def _make_fetch(listener: socket.socket, case_name: str) -> Fetch:
    address = listener.getsockname()

    def fetch(method: str, target: str, /) -> Response:
        client = RawClient(socket.create_connection(address, WAIT_TIMEOUT_S))
        return _fetch_over(client, request(target, f"{CASE_HEADER}: {case_name}", method=method))

    return fetch


EXTERNAL_SERVERS = ExternalServers()

TRANSPORTS = (
    Transport("server", _server),
    Transport("asgi", _asgi, sends_date=False),
    Transport("wsgi", _wsgi(None), keeps_raw_path=False, sends_date=False),
    Transport("wsgi-raw-uri", _wsgi("RAW_URI"), sends_date=False),
    Transport("wsgi-request-uri", _wsgi("REQUEST_URI"), sends_date=False),
    Transport("uvicorn", EXTERNAL_SERVERS.uvicorn),
    Transport("gunicorn", EXTERNAL_SERVERS.gunicorn, is_in_process=False),
)
