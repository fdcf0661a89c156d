"""Redis and its replicas."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer, ToolError, wait_until
from tests.support.servers.connection_limit import connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.certificates import Certificate

PACKAGE = "redis-server"
MAX_CLIENTS = 10
# A stalled load takes 100 s, and the server responds after each key.
STALL_KEYS = 5_000
STALL_KEY_BYTES = 1_024
STALL_DELAY_US = 20_000


class RedisServer(RealServer):
    """Loses its data when it is killed. With a certificate it requires TLS over TCP."""

    def __init__(
        self, folder: Path, *, port: int | None = None, password: str = "", certificate: Certificate | None = None
    ) -> None:
        super().__init__(folder)
        self.port = port or self.port
        self.password = password
        self.certificate = certificate
        self.socket_file = folder / "redis.sock"
        self._load_delay_us = 0

    @property
    def url(self) -> str:
        return self._url(self.password)

    @property
    def bad_credentials_url(self) -> str:
        assert self.password, "the server has no password"
        return self._url("not-the-password")

    def _url(self, password: str) -> str:
        scheme = "redis" if self.certificate is None else "rediss"
        return f"{scheme}://{f':{password}@' if password else ''}{self.host}:{self.port}/0"

    def command(self) -> Sequence[str]:
        options = ((f"--{name}", str(value)) for name, value in self.options().items())
        return [program("redis-server", PACKAGE), *chain.from_iterable(options)]

    def options(self) -> dict[str, object]:
        options: dict[str, object] = {
            "bind": self.host,
            "unixsocket": self.socket_file,
            "unixsocketperm": 700,
            "dir": self.folder,
            "maxclients": MAX_CLIENTS,
            "save": "",
            "rdbcompression": "no",
            "loading-process-events-interval-bytes": STALL_KEY_BYTES,
            "key-load-delay": self._load_delay_us,
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
            "repl-timeout": 3,
        }
        if self.password:
            options["requirepass"] = self.password
        if self.certificate is None:
            return options | {"port": self.port}
        return options | {
            "port": 0,
            "tls-port": self.port,
            "tls-cert-file": self.certificate.certificate,
            "tls-key-file": self.certificate.key,
            "tls-ca-cert-file": self.certificate.certificate,
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    def environ(self) -> Mapping[str, str]:
        return {"REDISCLI_AUTH": self.password} if self.password else {}

    def is_ready(self) -> bool:
        return self.cli("PING") == "PONG"

    # ---- requests

    def cli(self, *arguments: str) -> str:
        """The response, also if it is an error."""
        return self.run(program("redis-cli", PACKAGE), "-s", str(self.socket_file), *arguments)

    def replica(self, folder: Path) -> RedisReplica:
        """A replica; start it with `with` while this server runs."""
        return RedisReplica(folder, self)

    # ---- faults

    def start_stalled_loading(self) -> None:
        """Restart it so that it loads its data until `finish_loading`."""
        if self.process is None:
            self.start()
            self.wait_until_ready()
        fill = "for n = 1, ARGV[1] do redis.call('SET', 'held:' .. n, string.rep('x', ARGV[2])) end"
        self.cli("EVAL", fill, "0", str(STALL_KEYS), str(STALL_KEY_BYTES))
        assert self.cli("SAVE") == "OK", self.log_tail()
        self.kill()
        self._load_delay_us = STALL_DELAY_US
        self.start()
        self._load_delay_us = 0
        wait_until(self._is_loading, "loading")

    def _is_loading(self) -> bool:
        try:
            return self.cli("PING").startswith("LOADING")
        except ToolError:
            return False

    def finish_loading(self) -> None:
        assert self.cli("CONFIG", "SET", "key-load-delay", "0") == "OK", self.log_tail()
        self.wait_until_ready()

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """Hold all connections except those to other servers."""
        others = "".join(self.cli("CLIENT", "LIST", "TYPE", kind) for kind in ("master", "replica")).count(" addr=")
        with connections_held(MAX_CLIENTS - others, self.socket_file, _is_accepted):
            yield


def _is_accepted(sock: socket.socket) -> bool:
    sock.sendall(b"PING\r\n")
    return not sock.recv(100).startswith(b"-ERR max number of clients")


class RedisReplica(RedisServer):
    def __init__(self, folder: Path, primary: RedisServer) -> None:
        super().__init__(folder, password=primary.password, certificate=primary.certificate)
        self.primary = primary

    def options(self) -> dict[str, object]:
        options = super().options() | {"replicaof": f"{self.host} {self.primary.port}"}
        return options | ({"masterauth": self.password} if self.password else {})

    def set_up(self) -> None:
        wait_until(self.is_following, "following its primary")

    def is_following(self) -> bool:
        return "master_link_status:up" in self.cli("INFO", "replication")
