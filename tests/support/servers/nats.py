"""NATS with a user and a password; with JetStream, or with one that cannot work yet."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, closing, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.servers.asking import trusting
from tests.support.servers.base import RealServer, free_port
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.certificates import Certificate

PATIENCE_S = 5.0
MAX_CONNECTIONS = 12


class JetStream(Enum):
    OFF = "off"
    ON = "on"
    ALONE = "alone"  # one of three members, of which the others never come: there is nobody to lead


class NatsServer(RealServer):
    name = "svcnode"
    password = "let/me:in"  # as they are in life: not without an escape in a URL

    def __init__(
        self, folder: Path, *, jetstream: JetStream | bool = False, tls: Certificate | None = None
    ) -> None:
        super().__init__(folder)
        self.jetstream = jetstream if isinstance(jetstream, JetStream) else JetStream("on" if jetstream else "off")
        self.tls = tls

    @property
    def url(self) -> str:
        return self._url(self.password)

    @property
    def wrong_url(self) -> str:
        return self._url("wrong")

    def _url(self, password: str) -> str:
        return f"nats://{self.name}:{quote(password, safe='')}@{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        return [program("nats-server", "nats-server"), "--config", str(self.folder / "nats.conf")]

    def prepare(self) -> None:
        """Its configuration may be written as JSON."""
        config: dict[str, Any] = {
            "server_name": f"n-{self.port}",
            "listen": f"{self.host}:{self.port}",
            "max_connections": MAX_CONNECTIONS,
            "authorization": {"user": self.name, "password": self.password},
        }
        if self.jetstream is not JetStream.OFF:
            config["jetstream"] = {"store_dir": str(self.folder), "max_mem": 1 << 24, "max_file": 1 << 26}
        if self.jetstream is JetStream.ALONE:
            routes = [f"nats-route://{self.host}:{free_port()}" for _ in range(2)]
            config["cluster"] = {"name": "ledger", "listen": f"{self.host}:{free_port()}", "routes": routes}
        if self.tls is not None:
            config["tls"] = {"cert_file": str(self.tls.certificate), "key_file": str(self.tls.key)}
        (self.folder / "nats.conf").write_text(json.dumps(config))

    def is_ready(self) -> bool:
        with closing(self._connect()) as sock:
            return self._log_in(sock) == b"PONG\r\n"

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """Hold every connection that it gives. What comes next is told so, and is hung up on."""
        with ExitStack() as held:
            answer = b"PONG\r\n"
            while answer == b"PONG\r\n":
                answer = self._log_in(held.enter_context(self._connect()))
            assert b"maximum connections exceeded" in answer
            yield

    def _connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_S)

    def _log_in(self, sock: socket.socket) -> bytes:
        """The server speaks first, and before TLS; the refusal of a full one takes the place of its greeting."""
        greeting = _line(sock)
        if not greeting.startswith(b"INFO "):
            return greeting
        stream = sock
        if self.tls is not None:
            stream = trusting(self.tls.certificate).wrap_socket(sock, server_hostname=self.host)
        claim = {"user": self.name, "pass": self.password, "verbose": False, "pedantic": False}
        stream.sendall(b"CONNECT " + json.dumps(claim).encode() + b"\r\nPING\r\n")
        return _line(stream)


def _line(sock: socket.socket) -> bytes:
    """Byte by byte, so that nothing is taken of what a TLS handshake must read."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            break
        line += byte
    return line
