"""A proxy of an older etcd whose responses have the form of etcd 3.6, which uses version 2 of the gRPC gateway.

Errors have another form, in a response and in a stream. And since 3.6.9, if authentication is on, a member tells its
status, and grants, renews and ends a lease, only with a valid token. Without authentication, it ignores tokens.
"""

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
RANGE_PATH = "/v3/kv/range"
STREAM_PATHS = {"/v3/watch", "/v3/lease/keepalive"}
GUARDED_PATHS = {"/v3/maintenance/status", "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"}
_REFUSALS = ("user name is empty", "invalid auth token")
# HTTP statuses by gRPC statuses, where they differ from version 1.
_HTTP_STATUSES: dict[int | None, int] = {1: 499, 9: 400}
_REQUEST_HEADERS = ("Authorization", "Content-Type", "Grpc-Metadata-hasleader")


class EtcdGateway:
    host = "127.0.0.1"

    def __init__(self, etcd: EtcdServer, *, ignores_tokens: bool = True) -> None:
        self.ignores_tokens = ignores_tokens
        self.error_paths: list[str] = []  # of the requests with an error

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

    def rewritten(self, path: str, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"error": {"message": str(text), "grpc_code": int(code)}}:
                self.error_paths.append(path)
                return {"error": {"code": code, "message": text}}
            case {"error": str(text), "code": int(code)}:
                self.error_paths.append(path)
                error = {"code": code, "message": text}
                return {"error": error} if path in STREAM_PATHS else error
            case {"result": {"canceled": True}}:
                self.error_paths.append(path)
                return message
            case _:
                return message


class _Handler(BaseHTTPRequestHandler):
    gateway: EtcdGateway
    backend: tuple[str, int]

    def do_POST(self) -> None:
        """Line by line: a message of a stream is a line."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name: self.headers[name] for name in _REQUEST_HEADERS if name in self.headers}
        try:
            if self.gateway.ignores_tokens and not self._requires_login():
                headers.pop("Authorization", None)
            if self.path in GUARDED_PATHS and (refusal := self._refusal(headers)) is not None:
                self._send_head(refusal, 400)
                self._send_line(refusal)
                return
            with closing(HTTPConnection(*self.backend)) as connection:
                connection.request("POST", self.path, body, headers)
                self._forward(connection.getresponse())
        except (OSError, HTTPException):
            pass  # etcd or the client has gone: the connection closes

    def _requires_login(self) -> bool:
        return self._read_error({}) is not None

    def _refusal(self, headers: dict[str, str]) -> dict[str, Any] | None:
        message = self._read_error(headers)
        return None if message is None else self.gateway.rewritten(self.path, message)

    def _read_error(self, headers: dict[str, str]) -> dict[str, Any] | None:
        """What the older etcd says to a read with this token; None if it accepts the token."""
        with closing(HTTPConnection(*self.backend)) as connection:
            connection.request("POST", RANGE_PATH, b'{"key":"AA=="}', headers)
            message: dict[str, Any] = json.loads(connection.getresponse().read())
        return message if any(text in str(message.get("error")) for text in _REFUSALS) else None

    def _forward(self, response: HTTPResponse) -> None:
        is_started = False
        for line in response:
            message = self.gateway.rewritten(self.path, json.loads(line))
            if not is_started:
                is_started = True
                self._send_head(message, response.status)
            self._send_line(message)

    def _send_head(self, message: dict[str, Any], status: int) -> None:
        code = message.get("code")
        self.send_response(401 if code == UNAUTHENTICATED else _HTTP_STATUSES.get(code, status))
        self.send_header("Content-Type", "application/json")
        if code == UNAUTHENTICATED:
            self.send_header("WWW-Authenticate", message["message"])
        self.end_headers()

    def _send_line(self, message: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(message).encode() + b"\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass
