"""A proxy of an etcd 3.4 whose errors have the form of etcd 3.6, which uses version 2 of the gRPC gateway."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tests.support.servers.etcd import EtcdServer

UNAUTHENTICATED = 16
# HTTP statuses by gRPC statuses, where they differ from version 1.
_HTTP_STATUSES: dict[int | None, int] = {1: 499, 9: 400}
_REQUEST_HEADERS = ("Authorization", "Content-Type", "Grpc-Metadata-hasleader")


class EtcdGateway:
    host = "127.0.0.1"

    def __init__(self, etcd: EtcdServer) -> None:
        self.error_count = 0  # that were rewritten

        class Handler(_Handler):
            gateway = self
            backend = (etcd.host, etcd.port)

        self._server = ThreadingHTTPServer((self.host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rewritten(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"error": {"message": str(text), "grpc_code": int(code)}}:
                self.error_count += 1
                return {"error": {"code": code, "message": text}}
            case {"error": str(text), "code": int(code)}:
                self.error_count += 1
                return {"code": code, "message": text}
            case _:
                return message


class _Handler(BaseHTTPRequestHandler):
    gateway: EtcdGateway
    backend: tuple[str, int]

    def do_POST(self) -> None:
        """Line by line: a message of a stream is a line."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name: self.headers[name] for name in _REQUEST_HEADERS if name in self.headers}
        with closing(HTTPConnection(*self.backend)) as connection:
            try:
                connection.request("POST", self.path, body, headers)
                self._forward(connection.getresponse())
            except (OSError, HTTPException):
                pass  # etcd or the client has gone: the connection closes

    def _forward(self, response: HTTPResponse) -> None:
        is_started = False
        for line in response:
            message = self.gateway.rewritten(json.loads(line))
            if not is_started:
                is_started = True
                code = message.get("code")
                self.send_response(_HTTP_STATUSES.get(code, response.status))
                self.send_header("Content-Type", "application/json")
                if code == UNAUTHENTICATED:
                    self.send_header("WWW-Authenticate", message["message"])
                self.end_headers()
            self.wfile.write(json.dumps(message).encode() + b"\n")
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass
