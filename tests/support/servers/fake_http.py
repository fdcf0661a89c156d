"""A scripted HTTP server in its own process; a test changes its state while it runs."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from tests.support.servers.base import PythonServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What every scripted server can do.
COMMON: Mapping[str, Any] = {
    "missing": [],  # paths, or methods of JSON-RPC, that it does not have
    "cached_at": None,  # all answers are as they were at this time
}


class FakeHttpServer(PythonServer):
    """Runs the module of the subclass, which calls `serve` with its handler. `defaults` is its state at first."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    other: FakeHttpServer  # that it can be compared with, or that it depends on

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state = {**COMMON, **self.defaults}
        self.state_file = folder / "state.json"
        self._write()

    def set(self, **state: object) -> None:
        """Change some values, from the next request on."""
        unknown = state.keys() - self.state.keys()
        assert not unknown, f"unknown: {', '.join(unknown)}"
        self.state |= state
        self._write()

    def reset(self) -> None:
        self.set(**{**COMMON, **self.defaults})

    def _write(self) -> None:
        """Atomically: a request reads the old or the new state."""
        draft = self.state_file.with_suffix(".draft")
        draft.write_text(json.dumps(self.state))
        draft.replace(self.state_file)

    def arguments(self) -> Sequence[str]:
        return [str(self.port), str(self.state_file)]


def now_s(state: Mapping[str, Any]) -> float:
    """When the server answers, or when a cache has stored its answers."""
    now_s: float = state["cached_at"] or time.time()
    return now_s


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    state: dict[str, Any]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    body: object = ""  # text, or a value for JSON
    headers: dict[str, str] = field(default_factory=dict)


def serve(respond: Callable[[Request], Response]) -> None:
    port, state_file = int(sys.argv[1]), Path(sys.argv[2])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # sends head and body together

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = urlsplit(self.path)
            state = json.loads(state_file.read_text())
            query = dict(parse_qsl(target.query))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, target.path, query, headers, state, body)
            self._send(Response(404) if target.path in state["missing"] else respond(request))

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = handle_any  # noqa: N815  http.server's names

        def _send(self, response: Response) -> None:
            is_text = isinstance(response.body, str)
            body = (response.body if isinstance(response.body, str) else json.dumps(response.body)).encode()
            self.send_response(response.code)
            self.send_header("Content-Type", "text/plain; charset=utf-8" if is_text else "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
