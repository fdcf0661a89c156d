"""Checks of frozen servers of every kind time out and leak no task, thread, socket or process."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, Peer, open_file_count
from tests.support.certificates import Certificate, make_certificate
from tests.support.check_runner import CheckRunner
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S
from tests.support.probe_assertions import becomes_true
from tests.support.servers.base import RealServer
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ethereum import EthereumServer
from tests.support.servers.ganache import GanacheServer
from tests.support.servers.grpc_health import GrpcHealthServer
from tests.support.servers.http_request import http_request
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.mariadb import MariaDbServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.nats import NatsServer
from tests.support.servers.nginx import NginxServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.redis import RedisSentinel, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from svcnode.probes.base import Probe

TIMEOUT_S = 1.0
ROUNDS = 4
# A relay stops after this many bytes of the server: within the greeting, the handshake, the login and the response of
# every protocol.
STOP_AFTER_BYTES = (0, 1, 7, 20, 60, 120, 250, 500, 900, 1_300, 1_600, 1_900, 2_200, 2_600, 3_200, 100_000)


class SvcServer(RealServer):
    @property
    def url(self) -> str:
        return f"svc+http://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "svcnode", "serve", "--listen", f"{self.host}:{self.port}"]

    def is_ready(self) -> bool:
        return http_request(self.port, "/svc/node")[0] == 200


PLAIN: list[Callable[..., RealServer]] = [
    BeaconServer,
    EtcdServer,
    GanacheServer,
    GrpcHealthServer,
    IpfsServer,
    MariaDbServer,
    MemcachedServer,
    NatsServer,
    NginxServer,
    PostgresServer,
    RedisServer,
    SvcServer,
]
UNDER_TLS: list[Callable[..., RealServer]] = [
    EtcdServer,
    GrpcHealthServer,
    MariaDbServer,
    NatsServer,
    PostgresServer,
    RabbitServer,
    RedisServer,
]


def servers_of_every_kind(folder: Path, certificate: Certificate) -> dict[str, RealServer]:
    plain = {make.__name__: make(folder / f"plain-{number}") for number, make in enumerate(PLAIN)}
    redis = plain["RedisServer"]
    assert isinstance(redis, RedisServer)
    plain["RedisSentinel"] = RedisSentinel(folder / "sentinel", redis)
    under_tls = {
        f"{make.__name__} tls": make(folder / f"tls-{number}", certificate=certificate)
        for number, make in enumerate(UNDER_TLS)
    }
    return plain | under_tls


def urls_of(server: RealServer) -> list[str]:
    return [server.url, *([server.websocket_url] if isinstance(server, EthereumServer) else ())]


def options_of(server: RealServer) -> dict[str, Any]:
    if isinstance(server, EthereumServer):
        return {"min_peers": 0, "max_block_age": "off"}  # a chain of its own
    certificate: Certificate | None = getattr(server, "certificate", None)
    if certificate is None:
        return {}
    needs_option = isinstance(server, MariaDbServer | NatsServer | EtcdServer)
    return {"ca": str(certificate.certificate), **({"tls": True} if needs_option else {})}


@pytest.fixture
def servers() -> Iterator[dict[str, RealServer]]:
    with ExitStack() as stack:
        # Not pytest's folder: some servers run as another user without access to it.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="svcnode-leaks-")))
        found = servers_of_every_kind(folder, make_certificate(folder))
        pool = stack.enter_context(ThreadPoolExecutor(len(found)))
        for server in found.values():
            stack.callback(server.kill)
        started = [pool.submit(server.__enter__) for server in found.values()]
        for one in started:
            one.exception()  # no server is killed while another one starts
        for one in started:
            one.result()
        yield found


class Relay(Backend):
    """Forwards everything to a server, but only the first bytes of its response, like a server that freezes."""

    def __init__(self, port: int) -> None:
        super().__init__(self._relay)
        self._server_port = port
        self._limits = cycle(STOP_AFTER_BYTES)

    def _relay(self, peer: Peer) -> None:
        limit = next(self._limits)
        with socket.socket() as server:
            server.settimeout(TIMEOUT_S)
            if server.connect_ex(("127.0.0.1", self._server_port)) != 0:  # its backlog is full
                return
            server.settimeout(None)
            responses = threading.Thread(target=self._forward_responses, args=(server, peer.sock, limit))
            responses.start()
            try:
                while data := peer.sock.recv(65536):
                    server.sendall(data)
            finally:
                server.shutdown(socket.SHUT_RDWR)
                responses.join()

    @staticmethod
    def _forward_responses(server: socket.socket, peer: socket.socket, limit: int) -> None:
        try:
            while limit and (data := server.recv(min(limit, 65536))):
                peer.sendall(data)
                limit -= len(data)
        except OSError:
            pass  # the socket was shut down


def probes_for(servers: dict[str, RealServer], relays: dict[str, Relay]) -> dict[str, dict[str, Any]]:
    probes: dict[str, dict[str, Any]] = {}
    for name, server in servers.items():
        for url in urls_of(server):
            direct = {"url": url, **options_of(server)}
            relayed = direct | {"url": url.replace(f":{server.port}", f":{relays[name].port}")}
            for suffix, options in (("", direct), (", hanging", relayed)):
                probes[f"{name} {url}{suffix}"] = options | {"reuse": False}
                probes[f"{name} {url}{suffix}, reused"] = options | {"reuse": True}
    etcd, node, ganache = servers["EtcdServer tls"], servers["SvcServer"], servers["GanacheServer"]
    return probes | {
        "https": {"url": f"https://127.0.0.1:{etcd.port}/health", **options_of(servers["RedisServer tls"])},
        "by name": {"url": f"http://localhost:{node.port}/livez"},
        "jsonrpc": {"url": f"jsonrpc+http://127.0.0.1:{ganache.port}", "method": "eth_chainId"},
        "tcp": {"url": f"tcp://127.0.0.1:{node.port}", "send": "GET /livez HTTP/1.0\r\n\r\n", "expect": "200"},
        "tls": {
            "url": f"tls://127.0.0.1:{etcd.port}",
            "send": "GET /health HTTP/1.0\r\n\r\n",
            "expect": "200",
            **options_of(servers["RedisServer tls"]),
        },
        "exec, hanging": {"url": "exec:", "argv": ["sleep", "600"]},
    }


async def check_all(probes: Mapping[str, Probe], timeout_s: float) -> dict[str, Verdict]:
    """At the same time."""
    checked = await asyncio.gather(*(run_check(probe, timeout_s) for probe in probes.values()))
    assert [error for _, error in checked if error is not None] == []
    return {name: verdict for name, (verdict, _) in zip(probes, checked, strict=True)}


def counts() -> tuple[int, ...]:
    """Tasks, threads, files and children of this process."""
    children = Path("/proc/thread-self/children").read_text().split()
    return len(asyncio.all_tasks()), threading.active_count(), open_file_count(), len(children)


@pytest.mark.serial
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop_name", LOOPS)
def test_checks_of_frozen_servers_of_every_kind_leak_no_task_thread_or_socket(
    servers: dict[str, RealServer], loop_name: str
) -> None:
    async def main(stack: ExitStack) -> None:
        await make_probe("exec:true", allowed={"allow_exec"}).check()  # the loop opens files on first use
        before = counts()
        relays = {name: stack.enter_context(Relay(server.port)) for name, server in servers.items()}
        configs = probes_for(servers, relays)
        probes = {name: make_probe(config, allowed={"allow_exec"}) for name, config in configs.items()}
        healthy = {name: probe for name, probe in probes.items() if "hanging" not in name}
        for _ in range(2):  # the second time with reused connections
            verdicts = await check_all(healthy, WAIT_TIMEOUT_S)
            assert {name: one for name, one in verdicts.items() if one.outcome is not Outcome.READY} == {}
        for server in servers.values():
            server.freeze()
        for _ in range(ROUNDS):
            verdicts = await check_all(probes, TIMEOUT_S)
            assert {name: one for name, one in verdicts.items() if one.outcome is not Outcome.FAILED} == {}
        for probe in probes.values():
            close_probe(probe)
        for _ in range(10):  # the loop closes connections in its next iterations
            await asyncio.sleep(0)
        stack.close()  # fails if a connection is left open
        assert await becomes_true(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))

    with ExitStack() as stack:
        CheckRunner(loop_name).run(main(stack))
