"""A conforming node for these tests; the non-conforming nodes change one detail of it.

It shares no code with the package, so that checker and node cannot have the same error.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

CODES = {"Up": 200, "Initializing": 206, "Down": 503}
REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 405: "Method Not Allowed"}


class Request(NamedTuple):
    method: str
    path: str
    query: str
    index_on_connection: int = 0  # on its connection

    @property
    def is_service_health(self) -> bool:
        return self.path.startswith("/svc/node/services/") and self.path.endswith("/health")

    @property
    def versions(self) -> list[str]:
        return [value for name, value in parse_qsl(self.query, keep_blank_values=True) if name == "version"]

    @property
    def parameters(self) -> set[str]:
        return {name for name, _ in parse_qsl(self.query, keep_blank_values=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    code: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: str = "HTTP/1.1"
    closes_unannounced: bool = False  # without saying so
    has_body_after_head: bool = False
    is_unframed: bool = False  # says nothing of its length
    delay_s: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def with_json(reply: Response, value: object) -> Response:
    return Response(code=reply.code, headers=reply.headers, body=json.dumps(value).encode())


def service(service_id: str, status: str) -> dict[str, Any]:
    return {"id": service_id, "name": f"The {service_id}", "description": "A backing service", "status": status}


def error(code: int, message: str, **headers: str) -> Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", **headers}
    return Response(code=code, headers=headers, body=json.dumps({"message": message}).encode())


class ConformingNode:
    def __init__(self) -> None:
        self.identity: dict[str, Any] = {
            "node_name": "validator-7",
            "spec_version": "v0.0.1",
            "node_version": "v1.4.2",
        }
        self.services = [
            service("db", "Up"),
            service("indexer", "Initializing"),
            service("storage", "Down"),
            service("a/b c%", "Up"),
        ]
        self.health = 206
        self.supported = {"v0.0.1", "0.0.1"}

    def respond(self, asked: Request) -> Response:
        if not self.has(asked.path):
            return error(404, "Not found")
        if not self.is_supported(asked):
            return error(404, "API version not found")
        if asked.method not in ("GET", "HEAD"):
            return error(405, "Method not allowed", Allow="GET, HEAD")
        return self.endpoint(asked)

    def has(self, path: str) -> bool:
        is_fixed = path in ("/svc/node", "/svc/node/health", "/svc/node/services")
        return is_fixed or (Request("GET", path, "").is_service_health and path.count("/") == 5)

    def is_supported(self, asked: Request) -> bool:
        return set(asked.versions) <= self.supported

    def endpoint(self, asked: Request) -> Response:
        headers = {"Cache-Control": "no-store"}
        json_headers = {**headers, "Content-Type": "application/json; charset=utf-8"}
        if asked.path == "/svc/node":
            return with_json(Response(headers=json_headers), self.identity)
        if asked.path == "/svc/node/health":
            return Response(code=self.health, headers=headers)
        if asked.path == "/svc/node/services":
            return with_json(Response(headers=json_headers), {"services": self.services})
        status = self.status_of(asked.path.split("/")[4])
        return error(404, "Service not found") if status is None else Response(code=CODES[status], headers=headers)

    def status_of(self, segment: str) -> str | None:
        statuses = {one["id"]: one["status"] for one in self.services}
        return statuses.get(unquote(segment))


class NodeServer:
    """Serves what `respond` says, on threads, for as long as its `with` block runs."""

    def __init__(self, respond: Callable[[Request], Response], *, tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.respond = respond
        self._server.tls = tls
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[Request]:
        return self._server.requests

    @property
    def open_connections(self) -> int:
        return self._server.open_connections

    def concurrent_connections(self) -> int:
        """Waits for as long as more keep coming."""
        seen = 0
        while (count := self.open_connections) > seen:
            seen = count
            time.sleep(0.01)
        return seen

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    respond: Callable[[Request], Response]
    tls: ssl.SSLContext | None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.requests: list[Request] = []
        self.open_connections = 0
        self.counting = threading.Lock()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection, so that no other connection waits for a handshake."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The checker may close a connection at any time."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = 30
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with self.server.counting:
            self.server.open_connections += 1
        try:
            nth = 0
            while self._respond(nth):
                nth += 1
        finally:
            with self.server.counting:
                self.server.open_connections -= 1

    def _respond(self, nth: int) -> bool:
        """Returns whether another request may follow."""
        head = b""
        while (line := self.rfile.readline()) and line != b"\r\n":
            head += line
        if not head:
            return False
        asked, is_last = parse_request(head, nth)
        self.server.requests.append(asked)
        reply = self.server.respond(asked)
        time.sleep(reply.delay_s)
        self.wfile.write(serialize(asked, reply, is_last=is_last))
        return not (is_last or is_closing(reply))


def parse_request(head: bytes, nth: int) -> tuple[Request, bool]:
    """The request, and whether the client wants no other one on this connection."""
    request_line, *headers = head.decode("latin-1").split("\r\n")
    method, target, _ = request_line.split()
    path, _, query = target.partition("?")
    return Request(method, path, query, nth), "Connection: close" in headers


def is_closing(reply: Response) -> bool:
    is_announced = reply.headers.get("Connection") == "close" or reply.version != "HTTP/1.1"
    return is_announced or reply.closes_unannounced


def serialize(asked: Request, reply: Response, *, is_last: bool) -> bytes:
    lines = [f"{reply.version} {reply.code} {REASONS.get(reply.code, 'Whatever')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if reply.code != 204 and not reply.is_unframed:
        lines.append(f"Content-Length: {len(reply.body)}")
    if is_last and "Connection" not in reply.headers:
        lines.append("Connection: close")
    head = "\r\n".join([*lines, "", ""]).encode()
    return head if asked.method == "HEAD" and not reply.has_body_after_head else head + reply.body
