"""Every way to ask a node over HTTP, behind one function: `ask(method, target) -> (code, headers, body)`."""

from __future__ import annotations

import asyncio
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
    headers: dict[str, str]  # with small letters
    body: bytes


class Fetch(Protocol):
    def __call__(self, method: str, target: str, /) -> Response: ...


@dataclass(frozen=True, slots=True)
class Transport:
    name: str
    open: Callable[[str], AbstractContextManager[Fetch]]  # from the name of a world
    keeps_raw_path: bool = True  # whether `a%2Fb` can be told from `a/b`
    sends_date: bool = True
    is_in_process: bool = True

    def __str__(self) -> str:
        return self.name


def make_response(code: int, headers: list[tuple[str, str]], body: bytes) -> Response:
    names = [name.lower() for name, _ in headers]
    assert len(set(names)) == len(names), f"a header stands twice: {names}"
    return Response(code, {name.lower(): value for name, value in headers}, body)


# ---- the wire server


@contextmanager
def _server(world_name: str) -> Iterator[Fetch]:
    world = NODE_CASES[world_name]()
    with running_server(world.node, prefixes=world.prefixes) as running:
        yield lambda method, target: _fetch_over(running.connect(), request(target, method=method))


def _fetch_over(client: RawClient, raw: bytes) -> Response:
    with client:
        answer = client.request(raw, is_head=raw.startswith(b"HEAD "))
        assert not client.unread, "something comes after the answer"
    return make_response(answer.code, list(answer.headers), answer.body)


# ---- inside this process


class AsgiTransport:
    """The least of an ASGI server."""

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
            assert name == name.lower(), "ASGI wants the names of headers in small letters"
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return make_response(start["status"], headers, bodies[0]["body"])

    async def _run(self, scope: dict[str, Any], sent: list[dict[str, Any]]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._application(scope, receive, send)


class WsgiTransport:
    """The least of a WSGI server, with the standard library's eye on both sides of the gateway."""

    def __init__(self, application: Any, *, script_name: str = "", raw_name: str | None = None) -> None:
        self._application = validator(_with_content_type(application))
        self._script_name = script_name
        self._raw_name = raw_name  # of the variable that holds the target as it stood on the wire

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
    """The validator wants to see a Content-Type even where there is no content."""

    def wrapped(environ: dict[str, Any], start_response: Any) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            is_named = any(name == "Content-Type" for name, _ in headers) or status.startswith(("204", "304"))
            return start_response(status, headers if is_named else [*headers, _PLACEHOLDER], *exc_info)

        return application(environ, start)

    return wrapped


@contextmanager
def _asgi(world_name: str) -> Iterator[Fetch]:
    world = NODE_CASES[world_name]()
    yield AsgiTransport(asgi(world.node, prefix=world.prefixes))


def _wsgi(raw_name: str | None) -> Callable[[str], AbstractContextManager[Fetch]]:
    @contextmanager
    def opened(world_name: str) -> Iterator[Fetch]:
        world: NodeCase = NODE_CASES[world_name]()
        yield WsgiTransport(wsgi(world.node, prefix=world.prefixes, start=False), raw_name=raw_name)

    return opened


# ---- under servers that others have written


class ExternalServers:
    """Uvicorn on a thread and Gunicorn in a process; each starts when it is first needed."""

    def __init__(self) -> None:
        self._uvicorn: tuple[uvicorn.Server, threading.Thread, socket.socket] | None = None
        self._gunicorn: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @contextmanager
    def uvicorn(self, world_name: str) -> Iterator[Fetch]:
        if self._uvicorn is None:
            config = uvicorn.Config(asgi_cases, lifespan="off", ws="none", log_config=None, access_log=False)
            server, listener = uvicorn.Server(config), _listener()
            thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn under test")
            thread.start()
            self._uvicorn = (server, thread, listener)
        yield _make_fetch(self._uvicorn[2], world_name)

    @contextmanager
    def gunicorn(self, world_name: str) -> Iterator[Fetch]:
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
        yield _make_fetch(self._gunicorn[1], world_name)

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
    """Listening already: who connects before the server is up waits."""
    return socket.create_server(("127.0.0.1", 0))


def _make_fetch(listener: socket.socket, world_name: str) -> Fetch:
    place = listener.getsockname()

    def ask(method: str, target: str, /) -> Response:
        client = RawClient(socket.create_connection(place, WAIT_TIMEOUT_S))
        return _fetch_over(client, request(target, f"{CASE_HEADER}: {world_name}", method=method))

    return ask


EXTERNAL_SERVERS = ExternalServers()

TRANSPORTS = (
    Transport("wire", _server),
    Transport("asgi", _asgi, sends_date=False),
    Transport("wsgi", _wsgi(None), keeps_raw_path=False, sends_date=False),
    Transport("wsgi-raw-uri", _wsgi("RAW_URI"), sends_date=False),
    Transport("wsgi-request-uri", _wsgi("REQUEST_URI"), sends_date=False),
    Transport("uvicorn", EXTERNAL_SERVERS.uvicorn),
    Transport("gunicorn", EXTERNAL_SERVERS.gunicorn, is_in_process=False),
)
