"""`svcnode init` with real servers and with other programs on their ports."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli.init.catalog import CATALOG
from svcnode.cli.init.scan import ScanResult, scan
from svcnode.core.codes import ReasonCode
from svcnode.version import install_command
from tests.support.backends import (
    Backend,
    HttpBackend,
    Peer,
    close,
    closed_port,
    full_backlog,
    http_response,
    open_file_count,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.http_server import becomes_true
from tests.support.ports import free_port
from tests.support.processes import Agent, has_ipv6, run_command
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.chains import StubChain
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.mariadb import MariaDbServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.nats import NatsServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.redis import RedisServer
from tests.support.servers.signers import MevBoostServer, Web3SignerServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.servers.base import RealServer

DEADLINE_S = 60.0
CONFIGURE = (Path(__file__).parents[2] / "docs" / "configure.md").read_text()
SILENCE_S = 0.3  # for servers that never respond
ANSWER_S = 60.0  # for servers that do
KINDS = [entry.kind for entry in CATALOG]
BY_KIND = {entry.kind: entry for entry in CATALOG}
CHAINS = ["ethereum", "opnode", "cometbft", "solana", "substrate", "bitcoin"]
HTTP_KINDS = ["etcd", *CHAINS, "beacon", "web3signer", "mevboost", "ipfs", "node"]


def chain(kind: str, **state: Any) -> Callable[[Path], RealServer]:
    def make(folder: Path) -> StubChain:
        client = StubChain(folder, kind)
        client.set(**state)
        return client

    return make


# etcd reports its health without a login even if it requires one for data.
OPEN: dict[str, Callable[[Path], RealServer]] = {
    "redis": RedisServer,
    "memcached": MemcachedServer,
    "etcd": lambda folder: EtcdServer(folder, requires_auth=True),
    "beacon": BeaconServer,
    "ipfs": IpfsServer,
    "web3signer": Web3SignerServer,
    "mevboost": MevBoostServer,
    **{kind: chain(kind) for kind in CHAINS},
}
WITH_AUTH: dict[str, Callable[[Path], RealServer]] = {
    "postgresql": PostgresServer,
    "mysql": MariaDbServer,
    "redis": lambda folder: RedisServer(folder, password="ledger-password"),
    "amqp": RabbitServer,
    "nats": NatsServer,
    "bitcoin": chain("bitcoin", needs_login=True),
}


def wide_but(kinds: Iterable[str], narrow: str) -> list[Any]:
    return [kind if kind == narrow else pytest.param(kind, marks=pytest.mark.wide) for kind in kinds]


@pytest.fixture
def unused_port() -> Iterator[int]:
    with closed_port() as port:
        yield port


def options(ports: dict[str, list[int]], unused_port: int) -> list[str]:
    """Kinds that are not in `ports` are scanned on an unused port, whatever runs on this machine."""
    return [word for kind in KINDS for port in ports.get(kind, [unused_port]) for word in ("--port", f"{kind}={port}")]


def init(folder: Path, ports: dict[str, list[int]], unused_port: int) -> subprocess.CompletedProcess[str]:
    ended = svcnode("init", *options(ports, unused_port), folder=folder)
    assert ended.returncode == 0, ended.stderr
    return ended


def check(folder: Path, **environ: Any) -> None:
    """The file is valid, and every service of it is ready."""
    ended = svcnode("check-config", "--check", folder=folder, **environ)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def written(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "svcnode.toml").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "node"
    made.mkdir()
    return made


# ---- real servers


@pytest.mark.parametrize("kind", wide_but(OPEN, "redis"))
def test_a_server_without_a_login_gets_its_own_probe(kind: str, folder: Path, tmp_path: Path, unused_port: int) -> None:
    with OPEN[kind](tmp_path / "server") as server:
        ended = init(folder, {kind: [server.port]}, unused_port)
        probe = BY_KIND[kind].url.replace("{address}", f"127.0.0.1:{server.port}")
        assert ended.stdout.splitlines()[1] == f"  {BY_KIND[kind].title}  {probe}  ready"
        (service,) = written(folder)["services"]
        assert (service["id"], service["probe"]) == (kind, probe)
        check(folder)


@pytest.mark.parametrize("kind", wide_but(WITH_AUTH, "redis"))
def test_a_server_that_requires_a_password_gets_a_tcp_probe(
    kind: str, folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with WITH_AUTH[kind](tmp_path / "server") as server:
        ended = init(folder, {kind: [server.port]}, unused_port)
        assert re.search(rf" {kind} probe failed: .", ended.stdout)
        assert "timeout" not in ended.stdout, "the server refused the login"
        (service,) = written(folder)["services"]
        assert (service["id"], service["probe"]) == (kind, f"tcp://127.0.0.1:{server.port}")
        check(folder)
        if kind == "redis":  # the commented probe works with the password
            file = folder / "svcnode.toml"
            lines = [line for line in file.read_text().splitlines() if not line.startswith("probe =")]
            file.write_text("\n".join(lines).replace("# probe =", "probe ="))
            assert "tcp://" not in file.read_text()
            check(folder, REDIS_PASSWORD="ledger-password")


def test_an_op_stack_client_is_told_from_an_ethereum_client_and_needs_no_peers(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with (
        chain("ethereum")(tmp_path / "ethereum") as ethereum,
        chain("ethereum", chain=10, peers=0, transaction_type="0x7e")(tmp_path / "optimism") as optimism,
    ):
        init(folder, {"ethereum": [ethereum.port, optimism.port]}, unused_port)
        assert {service["name"]: service["probe"] for service in written(folder)["services"]} == {
            "Ethereum execution client": f"ethereum+http://127.0.0.1:{ethereum.port}",
            "OP Stack execution client": {"url": f"ethereum+http://127.0.0.1:{optimism.port}", "min_peers": 0},
        }
        check(folder)


@pytest.mark.parametrize("kind", wide_but(CHAINS, "solana"))
def test_a_client_of_a_chain_is_recognized_by_its_answer_and_not_by_its_port(kind: str, tmp_path: Path) -> None:
    with chain(kind)(tmp_path / "server") as server:
        result = scan_output(HTTP_KINDS, server.port)
        assert [service.entry.kind for service in result.found] == [kind]


def test_a_signer_and_relays_that_have_failed_are_found_with_their_own_probes(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with Web3SignerServer(tmp_path / "signer") as signer, MevBoostServer(tmp_path / "boost") as boost:
        signer.set(database="DOWN")
        boost.set(available_relays=0)
        init(folder, {"web3signer": [signer.port], "mevboost": [boost.port]}, unused_port)
        assert [service["probe"] for service in written(folder)["services"]] == [signer.url, boost.url]


def test_without_the_driver_the_report_and_the_file_name_the_package(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    """In a process of its own: the driver is loaded here."""
    hidden = tmp_path / "hidden" / "redis"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('No module named redis', name='redis')")
    with RedisServer(tmp_path / "server") as server:
        command = [sys.executable, "-m", "svcnode", "init", *options({"redis": [server.port]}, unused_port)]
        ended = run_command(command, folder, PYTHONPATH=str(hidden.parent))
        fix = install_command("redis")
        assert fix in ended.stdout
        assert fix in (folder / "svcnode.toml").read_text()
        check(folder)


def test_other_nodes_are_found_under_both_prefixes(folder: Path, tmp_path: Path, unused_port: int) -> None:
    listen = ("--listen", "127.0.0.1:0")
    config = '[server]\nprefix = "{}"\n[[services]]\nid = "a"\nstatus = "Up"\n'
    (tmp_path / "twin").mkdir()
    with (
        Agent(tmp_path, *listen, config=config.format("/svc")) as first,
        Agent(tmp_path / "twin", *listen, config=config.format("/eigen")) as second,
    ):
        ended = init(folder, {"node": [first.port, second.port]}, unused_port)
        assert "/eigen" in ended.stdout
        assert {service["id"]: service["probe"] for service in written(folder)["services"]} == {
            f"node-{first.port}": f"svc+http://127.0.0.1:{first.port}",
            f"node-{second.port}": f"svc+http://127.0.0.1:{second.port}/eigen/node",
        }
        check(folder)


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
def test_a_service_that_listens_only_on_ipv6_is_found(folder: Path) -> None:
    identity = '{"node_name": "n", "spec_version": "v0.0.1", "node_version": "v1"}'
    with closed_port() as unused_port, HttpBackend(http_response(200, identity), host="::1") as backend:
        init(folder, {"node": [backend.port]}, unused_port)
        (service,) = written(folder)["services"]
        assert service["probe"] == f"svc+http://[::1]:{backend.port}"
        check(folder)


# ---- unconfirmed ports


def scan_output(kinds: list[str], port: int, deadline_s: float = ANSWER_S) -> ScanResult:
    with closed_port() as unused_port:
        ports = {kind: [port] if kind in kinds else [unused_port] for kind in KINDS}
        return asyncio.run(scan(ports, deadline_s))


def codes(result: ScanResult) -> set[ReasonCode]:
    return {port.code for port in result.unconfirmed}


RESPONSES = {
    "noise": bytes(range(255, 0, -1)) * 300,
    "too much": b"x" * 1_000_000,
    "JSON without an end": http_response(200, "[" * 100_000),
    "not found": http_response(404, '{"Version": "1", "etcdserver": "1", "data": {"version": "1"}}'),
    "a short body": http_response(200, "{}").replace(b"Content-Length: 2", b"Content-Length: 20"),
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=list(RESPONSES))
def test_another_protocol_or_web_server_is_not_confirmed(response: bytes) -> None:
    is_http = response.startswith(b"HTTP")
    kinds = HTTP_KINDS if is_http else KINDS
    with HttpBackend(response) if is_http else Backend(sending(response)) as backend:
        result = scan_output(kinds, backend.port)
    assert result.found == ()
    # The backend may reset the connection before its response is read.
    assert codes(result) <= {ReasonCode.PROTOCOL_ERROR, ReasonCode.CONNECTION_CLOSED}
    assert {port.entry.kind for port in result.unconfirmed} == set(kinds)


def test_a_port_that_does_not_respond_or_accept_is_a_timeout(folder: Path, unused_port: int) -> None:
    with full_backlog() as port:
        assert codes(scan_output(KINDS, port, SILENCE_S)) == {ReasonCode.CONNECT_TIMEOUT}
    with Backend(unresponsive) as backend:
        result = scan_output(KINDS, backend.port, SILENCE_S)
        assert (result.found, codes(result)) == ((), {ReasonCode.TIMEOUT})
        ended = init(folder, {"redis": [backend.port]}, unused_port)
    assert f"\n  port {backend.port}: " in ended.stdout
    assert "services" not in written(folder)


def test_all_ports_are_scanned_at_the_same_time() -> None:
    lock, arrived, all_arrived = threading.Lock(), 0, threading.Event()

    def count(peer: Peer) -> None:
        nonlocal arrived
        with lock:
            arrived += 1
            if arrived == len(KINDS):
                all_arrived.set()
        unresponsive(peer)

    async def scan_until_all_arrived(ports: dict[str, list[int]]) -> None:
        running = asyncio.create_task(scan(ports, ANSWER_S))
        assert await asyncio.to_thread(all_arrived.wait, ANSWER_S)
        running.cancel()

    with Backend(count) as backend:
        asyncio.run(scan_until_all_arrived({kind: [backend.port] for kind in KINDS}))


def test_a_port_that_closes_the_connection_and_a_tls_port_are_reported(tmp_path: Path) -> None:
    with Backend(reset) as backend:
        assert codes(scan_output(KINDS, backend.port)) == {ReasonCode.CONNECTION_CLOSED}
    with Backend(close) as backend:
        banner_kinds = [kind for kind in KINDS if kind not in HTTP_KINDS]
        assert codes(scan_output(banner_kinds, backend.port)) == {ReasonCode.CONNECTION_CLOSED}
    with Backend(unresponsive, tls=server_tls(make_certificate(tmp_path))) as backend:
        result = scan_output(["redis", "mysql", "etcd"], backend.port, SILENCE_S)
        assert (len(result.unconfirmed), codes(result)) == (3, {ReasonCode.NOT_SUPPORTED})


def test_a_confirmed_port_is_not_reported_as_unconfirmed() -> None:
    def slowly(peer: Peer) -> None:
        for byte in b"+PONG\r\n":
            peer.send(bytes([byte]))
            time.sleep(0.01)

    free_port()  # keeps a socket of its own from its first call on
    with Backend(slowly) as backend:
        before = open_file_count()
        result = scan_output(["redis", "nats"], backend.port)
        assert becomes_true(lambda: open_file_count() <= before)  # the backend closes its ends later
    assert [service.entry.kind for service in result.found] == ["redis"]
    assert result.unconfirmed == ()


# ---- the file


def test_the_reference_has_every_kind_and_its_ports() -> None:
    for entry in CATALOG:
        ports = r"\D+".join(map(str, entry.ports))
        assert re.search(rf"`{entry.kind}`[^`\d]*\s{ports}", CONFIGURE), entry.kind


def test_a_full_disk_leaves_no_partial_file(folder: Path, unused_port: int) -> None:
    """A limit on the file size replaces the full disk: the system call fails in the same way."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); "
        "from svcnode.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-B", "-c", script, "init", *options({}, unused_port)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith(f" svcnode.toml: {os.strerror(errno.EFBIG).lower()}\n")
    assert list(folder.iterdir()) == []
