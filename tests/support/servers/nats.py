"""NATS with a user and a password; with JetStream and its streams."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.servers.base import PasswordServer, wait_until
from tests.support.servers.http_request import tls_context
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.certificates import Certificate

TIMEOUT_S = 5.0
USER = "svcnode"
PASSWORD = "ledger/pass:word"  # must be escaped in a URL
MAX_CONNECTIONS = 12
MAX_STORAGE_BYTES = 1 << 20  # of files, and of memory
STREAM = "svcnode_write"  # stores one message of the subject of the same name
OTHER_STREAM = "orders"  # has no limit
_PONG = b"PONG\r\n"


class JetStream(Enum):
    OFF = "off"
    ON = "on"


class NatsServer(PasswordServer):
    password = PASSWORD

    def __init__(
        self, folder: Path, *, jetstream: JetStream = JetStream.OFF, certificate: Certificate | None = None
    ) -> None:
        super().__init__(folder)
        self.jetstream = jetstream
        self.certificate = certificate

    def url_with(self, password: str) -> str:
        return f"nats://{USER}:{quote(password, safe='')}@{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        return [program("nats-server", "nats-server"), "--config", str(self.folder / "nats.conf")]

    def prepare(self) -> None:
        """NATS accepts JSON as configuration."""
        config: dict[str, Any] = {
            "listen": f"{self.host}:{self.port}",
            "max_connections": MAX_CONNECTIONS,
            "authorization": {"user": USER, "password": PASSWORD},
        }
        if self.jetstream is not JetStream.OFF:
            limits = {"max_mem": MAX_STORAGE_BYTES, "max_file": MAX_STORAGE_BYTES}
            config["jetstream"] = {"store_dir": str(self.folder), **limits}
        if self.certificate is not None:
            config["tls"] = {"cert_file": str(self.certificate.certificate), "key_file": str(self.certificate.key)}
        (self.folder / "nats.conf").write_text(json.dumps(config))

    def is_ready(self) -> bool:
        with self._client() as (_, response):
            return response == _PONG

    def set_up(self) -> None:
        if self.jetstream is JetStream.ON:
            self.add_stream(STREAM, max_msgs=1)
            self.add_stream(OTHER_STREAM)

    def add_stream(self, name: str, **config: Any) -> dict[str, Any]:
        """Stores the subject of the same name."""
        stream = {"name": name, "subjects": [name], **config}
        return self.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(stream).encode())

    def request(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        """The response of JetStream."""
        with self._client() as (sock, _):
            sock.sendall(b"SUB reply 1\r\nPUB %b reply %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
            while not (line := _read_line(sock)).startswith(b"MSG "):  # PING, or INFO about the cluster
                pass
            response: dict[str, Any] = json.loads(b"".join(_read_bytes(sock, int(line.split()[-1]))))
            return response

    @contextmanager
    def storage_full(self) -> Iterator[None]:
        """The server has reached its limit of storage in files, in another stream."""
        while "error" not in self.request(OTHER_STREAM, bytes(MAX_STORAGE_BYTES // 16)):
            pass
        try:
            yield
        finally:
            self.request(f"$JS.API.STREAM.PURGE.{OTHER_STREAM}")

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """Hold all connections. The next one gets an error after INFO and is closed."""
        with ExitStack() as held:
            count = 0

            def hold_all() -> bool:  # the server may still count a client that has just left
                nonlocal count
                while count < MAX_CONNECTIONS and held.enter_context(self._client())[1] == _PONG:
                    count += 1
                return count == MAX_CONNECTIONS

            wait_until(hold_all, "all connections held")
            yield

    @contextmanager
    def _client(self) -> Iterator[tuple[socket.socket, bytes]]:
        """A client inside the block, and the response to its login."""
        with ExitStack() as opened:
            sock = opened.enter_context(socket.create_connection((self.host, self.port), timeout=TIMEOUT_S))
            _read_line(sock)  # INFO
            if self.certificate is not None:
                try:
                    sock = tls_context(self.certificate.certificate).wrap_socket(sock, server_hostname=self.host)
                except ssl.SSLError:  # at its limit the server sends the error in plain text instead of the handshake
                    yield sock, b""
                    return
                opened.enter_context(sock)
            login = {"user": USER, "pass": PASSWORD, "verbose": False, "pedantic": False}
            sock.sendall(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
            yield sock, _read_line(sock)


def _read_bytes(sock: socket.socket, count: int) -> Iterator[bytes]:
    while count:
        read = sock.recv(count)
        if not read:
            raise ConnectionError("closed by the server")
        count -= len(read)
        yield read


def _read_line(sock: socket.socket) -> bytes:
    """Byte by byte, so that no byte of a TLS handshake is read."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("closed by the server")
        line += byte
    return line
