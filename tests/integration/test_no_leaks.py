"""No look outlives its deadline: servers of every kind fall silent, and nothing of the looking is left behind.

They are looked at while they are frozen for as many seconds as `LEAK_TEST_WAIT_S` says, which are few without it:
`LEAK_TEST_WAIT_S=60` shows it for a minute, and hundreds of looks at each.
"""

from __future__ import annotations

import os
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

from svcnode.probes import KINDS
from tests.support.backends import Backend, Peer
from tests.support.certificates import Certificate, make_certificate
from tests.support.probing_process import LOOPS, ProbingProcess, increases
from tests.support.servers.base import RealServer
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
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
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WAIT_S = float(os.environ.get("LEAK_TEST_WAIT_S", "5"))
TIMEOUT_S, OVERRUN_S = 0.25, 0.1
# Calm while all is well; a service that fails is looked at again at once, and is never decided to be down.
SCHEDULE = {"interval": 1.0, "timeout": TIMEOUT_S, "transition_interval": TIMEOUT_S, "fall": 1000}
# The kinds that look at no server: there is nobody who could fall silent.
WITHOUT_SERVER = {"disk", "file", "heartbeat", "sqlite"}
# After how many bytes a server falls silent that is reached through a relay: somewhere in the greeting, the handshake,
# the login and the answer of every protocol.
SILENT_AFTER_BYTES = (0, 1, 7, 20, 60, 120, 250, 500, 900, 1_300, 1_600, 1_900, 2_200, 2_600, 3_200, 100_000)


class SvcServer(RealServer):
    """Another node."""

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
    under_tls = {
        f"{make.__name__} tls": make(folder / f"tls-{number}", certificate=certificate)
        for number, make in enumerate(UNDER_TLS)
    }
    return plain | under_tls


def options_of(server: RealServer) -> dict[str, Any]:
    certificate: Certificate | None = getattr(server, "certificate", None)
    if certificate is None:
        return {}
    said_by_option = isinstance(server, MariaDbServer | NatsServer | EtcdServer)
    return {"ca": str(certificate.certificate), **({"tls": True} if said_by_option else {})}


@pytest.fixture
def servers() -> Iterator[dict[str, RealServer]]:
    with ExitStack() as stack:
        # Not pytest's folder: other sessions of the same user shut that to the users that run some of the servers.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="svcnode-leftovers-")))
        found = servers_of_every_kind(folder, make_certificate(folder))
        pool = stack.enter_context(ThreadPoolExecutor(len(found)))
        for server in found.values():
            stack.callback(server.kill)
        started = [pool.submit(server.__enter__) for server in found.values()]
        for one in started:
            one.exception()  # nobody is killed while it starts
        for one in started:
            one.result()
        yield found


class Relay(Backend):
    """Hands on all that is said to a server, but of what the server says only so much; then it is as if frozen."""

    def __init__(self, port: int) -> None:
        super().__init__(self._relay)
        self._server_port = port
        self._limits = cycle(SILENT_AFTER_BYTES)

    def _relay(self, peer: Peer) -> None:
        limit = next(self._limits)
        with socket.socket() as server:
            server.settimeout(TIMEOUT_S)
            if server.connect_ex(("127.0.0.1", self._server_port)) != 0:  # its queue is full
                return
            server.settimeout(None)
            back = threading.Thread(target=self._answer, args=(server, peer.sock, limit))
            back.start()
            try:
                while data := peer.sock.recv(65536):
                    server.sendall(data)
            finally:
                server.shutdown(socket.SHUT_RDWR)
                back.join()

    @staticmethod
    def _answer(server: socket.socket, peer: socket.socket, limit: int) -> None:
        try:
            while limit and (data := server.recv(min(limit, 65536))):
                peer.sendall(data)
                limit -= len(data)
        except OSError:
            pass  # it was told to end


def probes_for(servers: dict[str, RealServer], relays: dict[str, Relay]) -> dict[str, dict[str, Any]]:
    probes: dict[str, dict[str, Any]] = {}
    for name, server in servers.items():
        words = {"url": server.url, **options_of(server)}
        relayed = words | {"url": server.url.replace(f":{server.port}", f":{relays[name].port}")}
        for how, given in (("", words), (", soon silent", relayed)):
            probes[f"{name}{how}"] = given
            probes[f"{name}{how}, reused"] = given | {"reuse": True}
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
        "exec, silent": {"url": "exec:", "argv": ["sleep", "600"]},
    }


def kinds_of(probes: dict[str, dict[str, Any]]) -> set[str]:
    return {_kind(KINDS[words["url"].partition(":")[0]]) for words in probes.values()}


def _kind(row: str) -> str:
    return row.partition(":")[0].rpartition(".")[2]


@pytest.mark.serial
@pytest.mark.timeout(120 + 2 * WAIT_S)
def test_servers_of_every_kind_that_fall_silent_leave_no_task_thread_or_socket_behind(
    servers: dict[str, RealServer],
) -> None:
    with ExitStack() as stack:
        relays = {name: stack.enter_context(Relay(server.port)) for name, server in servers.items()}
        probes = probes_for(servers, relays)
        assert kinds_of(probes) == {_kind(row) for row in KINDS.values()} - WITHOUT_SERVER
        well = [name for name in probes if "silent" not in name]
        kept = {name: probes[name] for name in well if "reused" in name}
        lookouts = [stack.enter_context(ProbingProcess(name, probes, SCHEDULE)) for name in LOOPS]
        contented = stack.enter_context(ProbingProcess("uvloop", kept, SCHEDULE))
        for lookout in (*lookouts, contented):
            lookout.wait_until_ready(kept if lookout is contented else well)
        contented.probe_for(0)
        assert_no_leaks(contented.result())
        contented.wait_for_exit()
        for server in servers.values():
            server.freeze()
        for lookout in lookouts:
            lookout.probe_for(WAIT_S)
        for result in [lookout.result() for lookout in lookouts]:
            assert_no_leaks(result)
            assert_checks_timed_out(result, len(probes))
        for lookout in lookouts:
            lookout.wait_for_exit()


def assert_no_leaks(result: dict[str, Any]) -> None:
    assert increases(result["before"], result["after"]) == {}
    assert result["errors"] == []


def assert_checks_timed_out(result: dict[str, Any], service_count: int) -> None:
    """Each was cut off at its deadline, and none cost more than the connection it had."""
    looks = [look for of_one in result["checks"].values() for look in of_one]
    assert {saw for _, _, saw in looks} == {"cancelled"}
    seldom = {name: len(of_one) for name, of_one in result["checks"].items() if len(of_one) < WAIT_S}
    assert seldom == {}, "they were to be looked at again and again"
    overruns_s = sorted(ended_s - began_s - TIMEOUT_S for began_s, ended_s, _ in looks)
    assert overruns_s[len(looks) // 2] < OVERRUN_S
    outlived_s = [
        (name, overrun_s)
        for name, of_one in result["checks"].items()
        for began_s, ended_s, _ in of_one
        if (overrun_s := ended_s - began_s - TIMEOUT_S) > OVERRUN_S + stall_time_s(result["stalls"], began_s, ended_s)
    ]
    assert outlived_s == [], "beyond what the machine itself withheld from the process"
    assert result["peak"]["sockets"] <= result["before"]["sockets"] + service_count
    _, early, late = result["memory_bytes"]
    assert late - early < 4_000_000 + 512 * len(looks)


def stall_time_s(stalls: list[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """How long the process could not run between two moments."""
    return sum(late_s for at_s, late_s in stalls if began_s - late_s - 0.1 < at_s < ended_s)
