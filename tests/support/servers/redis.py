"""Redis, its replicas, a Redis Cluster, and a Sentinel."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.base import Cluster, OwnPort, PasswordServer, ToolError, wait_until
from tests.support.servers.connection_limit import connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.certificates import Certificate

PACKAGE = "redis-server"
MAX_CLIENTS = 10
# A stalled load takes 100 s, and the server responds after each key.
STALL_KEYS = 5_000
STALL_KEY_BYTES = 1_024
STALL_DELAY_US = 20_000
MASTER_NAME = "mymaster"
CLUSTER_SLOTS = 16_384


class RedisServer(PasswordServer):
    """Loses its data when it is killed. With a certificate it requires TLS over TCP."""

    quick_settings: Mapping[str, object] = {
        "repl-diskless-sync-delay": 0,
        "repl-ping-replica-period": 1,
        "repl-timeout": 3,
    }

    def __init__(
        self, folder: Path, *, port: int | None = None, password: str = "", certificate: Certificate | None = None
    ) -> None:
        super().__init__(folder)
        if port is not None:
            self.port = port
        self.password = password
        self.certificate = certificate
        self.socket_file = folder / "redis.sock"
        self._load_delay_us = 0

    def url_with(self, password: str) -> str:
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
            "enable-protected-configs": "local",
            "rdbcompression": "no",
            "loading-process-events-interval-bytes": STALL_KEY_BYTES,
            "key-load-delay": self._load_delay_us,
            **self.quick_settings,
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
    def setting(self, name: str, value: str, default: str) -> Iterator[None]:
        assert self.cli("CONFIG", "SET", name, value) == "OK", self.log_tail()
        try:
            yield
        finally:
            assert self.cli("CONFIG", "SET", name, default) == "OK", self.log_tail()

    def out_of_memory(self) -> AbstractContextManager[None]:
        return self.setting("maxmemory", "1", "0")

    def without_replicas(self) -> AbstractContextManager[None]:
        """It requires a replica for each write, and has none."""
        return self.setting("min-replicas-to-write", "1", "0")

    @contextmanager
    def writes_paused(self) -> Iterator[None]:
        assert self.cli("CLIENT", "PAUSE", "600000", "WRITE") == "OK"
        try:
            yield
        finally:
            assert self.cli("CLIENT", "UNPAUSE") == "OK"

    @contextmanager
    def storage_full(self) -> Iterator[None]:
        """Its append-only file is on a full file system; the server loses its data. Skips if none can be mounted."""
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            self.cli("FLUSHALL")
            assert self.cli("CONFIG", "SET", "dir", str(disk), "appendonly", "yes") == "OK", self.log_tail()
            wait_until(lambda: "aof_rewrite_in_progress:0" in self.cli("INFO", "persistence"), "rewritten")
            self.cli("EVAL", "redis.call('SET', 'large', string.rep('x', 200000))", "0")
            wait_until(lambda: self.cli("PING").startswith("MISCONF"), "refusing writes")
            yield
            self.cli("CONFIG", "SET", "appendonly", "no")
            assert self.cli("CONFIG", "SET", "dir", str(self.folder)) == "OK", self.log_tail()
            self.cli("FLUSHALL")
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)

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
        self.quick_settings = primary.quick_settings

    def options(self) -> dict[str, object]:
        options = super().options() | {"replicaof": f"{self.host} {self.primary.port}"}
        return options | ({"masterauth": self.password} if self.password else {})

    def set_up(self) -> None:
        wait_until(self.is_following, "following its primary")

    def is_following(self) -> bool:
        return "master_link_status:up" in self.cli("INFO", "replication")


class RedisMember(RedisServer):
    """A primary of a Redis Cluster, once `form_cluster` was called."""

    bus_port = OwnPort()
    quick_settings: Mapping[str, object] = {"cluster-node-timeout": 500}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.has_joined = False

    def options(self) -> dict[str, object]:
        return super().options() | {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "maxclients": 100,
        }

    def state(self) -> str:
        return dict(line.split(":", 1) for line in self.cli("CLUSTER", "INFO").split())["cluster_state"]

    def is_ready(self) -> bool:
        return super().is_ready() and (self.state() == "ok" or not self.has_joined)


def form_cluster(members: Sequence[RedisMember]) -> None:
    """Distribute the slots over running members."""
    for number, member in enumerate(members):
        start, end = (CLUSTER_SLOTS * each // len(members) for each in (number, number + 1))
        assert member.cli("CLUSTER", "ADDSLOTSRANGE", str(start), str(end - 1)) == "OK"
        assert member.cli("CLUSTER", "MEET", member.host, str(members[0].port), str(members[0].bus_port)) == "OK"
        member.has_joined = True
    for member in members:
        member.wait_until_ready()


class RedisCluster(Cluster[RedisMember]):
    """Three primaries without replicas. If one is killed, the cluster is down, since its slots are missing."""

    def __init__(self, folder: Path) -> None:
        super().__init__([RedisMember(folder / f"m{number}") for number in range(3)])

    def start(self) -> None:
        super().start()
        form_cluster(self.members)


class RedisSentinel(PasswordServer):
    """A Sentinel that watches one master under `MASTER_NAME`, and fails over alone."""

    def __init__(
        self, folder: Path, master: RedisServer, *, password: str = "", certificate: Certificate | None = None
    ) -> None:
        super().__init__(folder)
        self.master = master
        self.password = password
        self.certificate = certificate

    @property
    def url(self) -> str:
        return self.url_with(self.master.password)

    def url_with(self, password: str) -> str:
        return f"redis+sentinel://{f':{password}@' if password else ''}{self.host}:{self.port}/{MASTER_NAME}"

    def command(self) -> Sequence[str]:
        config = self.folder / "sentinel.conf"
        if not config.exists():  # the Sentinel changes it
            config.write_text("".join(f"{line}\n" for line in self._settings()))
        return [program("redis-server", PACKAGE), str(config), "--sentinel"]

    def _settings(self) -> Iterator[str]:
        yield f"bind {self.host}"
        yield f"dir {self.folder}"
        if self.certificate is None:
            yield f"port {self.port}"
        else:
            yield from ("port 0", f"tls-port {self.port}", "tls-auth-clients no", "tls-replication yes")
            yield f"tls-cert-file {self.certificate.certificate}"
            yield f"tls-key-file {self.certificate.key}"
            yield f"tls-ca-cert-file {self.certificate.certificate}"
        if self.password:
            yield f"requirepass {self.password}"
        yield f"sentinel monitor {MASTER_NAME} {self.master.host} {self.master.port} 1"
        if self.master.password:
            yield f"sentinel auth-pass {MASTER_NAME} {self.master.password}"
        yield f"sentinel down-after-milliseconds {MASTER_NAME} 500"
        yield f"sentinel failover-timeout {MASTER_NAME} 2000"

    def environ(self) -> Mapping[str, str]:
        return {"REDISCLI_AUTH": self.password} if self.password else {}

    def cli(self, *arguments: str) -> str:
        tls = [] if self.certificate is None else ["--tls", "--cacert", str(self.certificate.certificate)]
        return self.run(program("redis-cli", PACKAGE), "-h", self.host, "-p", str(self.port), *tls, *arguments)

    def is_ready(self) -> bool:
        return self.cli("PING") == "PONG"

    def set_failure_timeout(self, timeout_s: float) -> None:
        """It fails over when the master has not answered for that long."""
        setting = ("down-after-milliseconds", f"{timeout_s * 1000:.0f}")
        assert self.cli("SENTINEL", "SET", MASTER_NAME, *setting) == "OK"

    # ---- faults of the master

    def out_of_memory(self) -> AbstractContextManager[None]:
        return self.master.out_of_memory()

    def writes_paused(self) -> AbstractContextManager[None]:
        return self.master.writes_paused()

    def knows_replicas(self) -> bool:
        return "slaves=0" not in self.cli("INFO", "sentinel")
