"""Every configuration in examples/nodes with real services, and every event of its table."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.backends import HttpBackend, ReceivedRequest, http_response, server_tls
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import wait_until
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.redis import RedisSentinel, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.wide

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted((EXAMPLES / "nodes").glob("*.toml"))
PASSWORD = "the-password-of-monitor"
# Frequent checks. A check that times out on a busy machine only delays a test: it waits for the expected statuses.
QUICK = {
    "SVCNODE_DEFAULTS_INTERVAL": "2s",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_TIMEOUT": "1900ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "LEDGER_PASSWORD": PASSWORD,
    "SESSIONS_PASSWORD": PASSWORD,
}


class Example:
    """One configuration with the table of events and the indented commands in its comments."""

    def __init__(self, name: str) -> None:
        self._text = (EXAMPLES / "nodes" / name).read_text()
        head, _, *rows = re.findall(r"^# \|(.*)\|$", self._text, re.MULTILINE)
        self._ids = re.findall(r"`([^`]+)`", head)
        self.rows = {event: rest for event, *rest in (row.strip().split(" | ") for row in rows)}
        self._untested = set(self.rows)

    def config(self, changes: Mapping[str, str]) -> str:
        return replaced(self._text, changes)

    def commands(self, changes: Mapping[str, str]) -> str:
        return replaced("\n".join(re.findall(r"^#     (.*)$", self._text, re.MULTILINE)), changes)

    def expect(self, agent: Agent, event: str, other_statuses: Callable[[], Mapping[str, str]] = dict) -> None:
        """Wait until the statuses and the health are those in the row of the event."""
        *cells, code = self.rows[event]
        statuses = {id_: re.split(r"[,:;]", cell)[0] for id_, cell in zip(self._ids, cells, strict=True)}
        self._untested.discard(event)
        agent.wait_until(lambda: ({**agent.statuses(), **other_statuses()}, str(agent.health())) == (statuses, code))

    @contextmanager
    def served(self, folder: Path, changes: Mapping[str, str]) -> Iterator[Agent]:
        """Serves the example; at the end, every row of its table has been tested."""
        with Agent(folder, "--listen", "127.0.0.1:0", config=self.config(changes), environ=QUICK) as agent:
            yield agent
        assert not self._untested, f"not tested: {self._untested}"


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the example"
        text = text.replace(old, new)
    return text


def node_folder(folder: Path) -> Path:
    node = folder / "node"
    node.mkdir()
    return node


def test_every_example_has_a_test() -> None:
    assert sorted(re.findall(r'Example\("(.*)"\)', Path(__file__).read_text())) == [file.name for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_example_has_a_healthy_and_an_unhealthy_event(file: Path) -> None:
    codes = {row[-1] for row in Example(file.name).rows.values()}
    assert {"200", "503"} <= codes


def test_a_primary_and_its_replica(tmp_path: Path) -> None:
    example = Example("postgresql.toml")
    with PostgresServer(tmp_path / "primary") as primary:
        primary.psql("REVOKE ALL ON DATABASE ledger FROM PUBLIC")
        primary.psql("DROP TABLE svcnode_write", database="ledger")
        primary.psql(example.commands({"…": PASSWORD}), database="ledger")
        with primary.replica(tmp_path / "replica") as replica:
            addresses = {"10.0.0.5:5432": f"127.0.0.1:{primary.port}", "10.0.0.6:5432": f"127.0.0.1:{replica.port}"}
            with example.served(node_folder(tmp_path), addresses) as agent:
                example.expect(agent, "both run")
                replica.kill()
                example.expect(agent, "the replica is killed")
                replica.start()
                replica.wait_until_ready()
                example.expect(agent, "both run")
                with primary.read_only():
                    example.expect(agent, "the primary is set to read-only")
                with primary.write_lock():
                    example.expect(agent, "the table of `write` is locked")
                example.expect(agent, "both run")
                primary.kill()
                example.expect(agent, "the primary is killed")
                replica.psql("SELECT pg_promote()")
                example.expect(agent, "then the replica is promoted")

                roles_changed = dict(zip(addresses, reversed(addresses.values()), strict=True))
                agent.reload(example.config(roles_changed))
                agent.wait_until(lambda: agent.statuses() == {"ledger": "Up", "ledger-replica": "Down"})
                assert agent.health() == 206


def test_a_master_and_a_cache(tmp_path: Path) -> None:
    example = Example("redis_sentinel.toml")
    _, *create_user = shlex.split(example.commands({"…": PASSWORD}))
    with (
        RedisServer(tmp_path / "master") as master,
        RedisSentinel(tmp_path / "sentinel", master) as sentinel,
        MemcachedServer(tmp_path / "cache") as cache,
    ):
        assert master.cli(*create_user) == "OK"
        addresses = {"10.0.0.7:26379": f"127.0.0.1:{sentinel.port}", "10.0.0.8:11211": f"127.0.0.1:{cache.port}"}
        with example.served(node_folder(tmp_path), addresses) as agent:
            example.expect(agent, "both run")
            cache.kill()
            example.expect(agent, "the cache is killed")
            cache.start()
            with master.out_of_memory():
                example.expect(agent, "the master reaches `maxmemory` and evicts nothing")
            with master.writes_paused():
                example.expect(agent, "`CLIENT PAUSE … WRITE` on the master")
            example.expect(agent, "both run")
            sentinel.kill()
            example.expect(agent, "the Sentinel is killed")
            sentinel.start()
            example.expect(agent, "both run")
            with master.replica(tmp_path / "replica") as replica:
                assert replica.cli(*create_user) == "OK"
                wait_until(sentinel.knows_replicas, "the replica is known")
                sentinel.set_failure_timeout(600.0)
                master.kill()
                example.expect(agent, "the master is killed")
                sentinel.set_failure_timeout(0.5)
                example.expect(agent, "the Sentinel has promoted a replica")


class Indexer:
    """The status port of a graph-node, or the 503 of a proxy in front of it."""

    def __init__(self) -> None:
        self.code = 200
        self.statuses = [{"synced": True, "health": "healthy"}]

    def __call__(self, request: ReceivedRequest) -> bytes:
        assert (request.method, request.target) == ("POST", "/graphql")
        assert request.headers["content-type"] == "application/json"
        assert json.loads(request.body) == {"query": "{ indexingStatuses { synced health } }"}
        body = json.dumps({"data": {"indexingStatuses": self.statuses}})
        return http_response(self.code, body if self.code == 200 else "starting", Content_Type="application/json")


def test_an_indexer_behind_tls(tmp_path: Path) -> None:
    example = Example("indexer.toml")
    made = make_certificate(tmp_path, "indexer")
    other = make_certificate(tmp_path, "other")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(made.certificate.read_bytes())
    indexer = Indexer()
    with HttpBackend(indexer, tls=server_tls(made)) as server:
        replacements = {"indexer.internal:8030": f"localhost:{server.port}", "/etc/svcnode/ca.pem": str(ca)}
        with example.served(node_folder(tmp_path), replacements) as agent:
            synced = '`synced` is true and `health` is "healthy"'
            example.expect(agent, synced)
            indexer.statuses = [{"synced": False, "health": "healthy"}]
            example.expect(agent, '`synced` is false and `health` is "healthy"')
            indexer.code = 503
            example.expect(agent, "the reverse proxy answers 503, for example during a restart")
            indexer.code, indexer.statuses = 200, [{"synced": True, "health": "failed"}]
            example.expect(agent, '`health` is "failed"')
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            example.expect(agent, synced)
            indexer.statuses = []
            example.expect(agent, "the list is empty: nothing is deployed")
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            example.expect(agent, synced)
            ca.write_bytes(other.certificate.read_bytes())
            example.expect(agent, "`ca` did not sign its certificate")


def test_an_execution_client_and_its_beacon_node(tmp_path: Path) -> None:
    example = Example("ethereum.toml")
    with GanacheServer(tmp_path / "execution") as execution, BeaconServer(tmp_path / "beacon") as beacon:
        replacements = {"127.0.0.1:8545": f"127.0.0.1:{execution.port}", "127.0.0.1:5052": f"127.0.0.1:{beacon.port}"}
        with example.served(node_folder(tmp_path), replacements) as agent:
            example.expect(agent, "the execution client follows another chain")
            execution.mine()
            agent.reload(example.config({**replacements, "chain_id = 1": f"chain_id = {CHAIN_ID}"}))
            example.expect(agent, "both follow their chain")
            beacon.set(is_syncing=True, sync_distance=300)
            example.expect(agent, "the beacon node is syncing")
            beacon.reset()
            example.expect(agent, "both follow their chain")
            beacon.set(el_offline=True)
            example.expect(agent, "the beacon node cannot reach its execution client and reports that it is healthy")
            beacon.reset()
            example.expect(agent, "both follow their chain")
            beacon.set(sync_distance=3)
            example.expect(agent, "the beacon node is three slots behind and reports that it is synced")
            beacon.set(sync_distance=2)
            example.expect(agent, "both follow their chain")
            execution.mine(age_s=3600)
            example.expect(agent, "the newest block is older than 60 s")
            execution.mine()
            example.expect(agent, "both follow their chain")
            execution.freeze()
            example.expect(agent, "the execution client is frozen")
            execution.thaw()
            example.expect(agent, "both follow their chain")
            execution.kill()
            example.expect(agent, "the execution client is killed")


def test_a_storage_daemon(tmp_path: Path) -> None:
    example = Example("ipfs.toml")
    verified = tmp_path / "verified"
    verified.touch()
    with IpfsServer(tmp_path / "daemon") as daemon:
        replacements = {
            "127.0.0.1:5001": f"127.0.0.1:{daemon.port}",
            "/var/lib/ipfs-jobs/verified": str(verified),
            "disk:/var/lib/ipfs": f"disk:{tmp_path}",
        }
        # The test cannot fill the disk, so it changes the limits.
        enough_space = {**replacements, '"5GiB"': '"1B"', '"50GiB"': '"2B"'}
        with example.served(node_folder(tmp_path), enough_space) as agent:
            example.expect(agent, "no fault")
            daemon.set(peers=0)
            example.expect(agent, "the daemon has no peers")
            daemon.reset()
            example.expect(agent, "no fault")
            old_s = time.time() - 27 * 3600
            os.utime(verified, (old_s, old_s))
            example.expect(agent, "the last verification is older than 26 h")
            verified.touch()
            example.expect(agent, "no fault")
            agent.reload(example.config({**replacements, '"5GiB"': '"1B"', '"50GiB"': '"9000TiB"'}))
            example.expect(agent, "less than 50 GiB is free")
            agent.reload(example.config({**replacements, '"5GiB"': '"9000TiB"', '"50GiB"': '"9001TiB"'}))
            example.expect(agent, "less than 5 GiB is free")
            agent.reload(example.config(enough_space))
            example.expect(agent, "no fault")
            daemon.kill()
            example.expect(agent, "the daemon is killed")


@contextmanager
def worker(folder: Path, ledger: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "LEDGER": str(ledger), "PORT": str(port)}
    command = [sys.executable, str(EXAMPLES / "worker.py")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker_status(port: int) -> dict[str, str]:
    """The status that the worker serves, or unreachable."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            connection.request("GET", "/svc/node/services")
            services = json.loads(connection.getresponse().read())["services"]
            return {service["id"]: service["status"] for service in services if service["id"] == "replay/main"}
    except ConnectionError:
        return {"replay/main": "unreachable"}


def test_a_worker_with_heartbeats(tmp_path: Path) -> None:
    example = Example("worker.toml")
    port, ledger = free_port(), tmp_path / "ledger.db"
    with (
        worker(tmp_path, ledger, port) as process,
        example.served(node_folder(tmp_path), {"127.0.0.1:8000": f"127.0.0.1:{port}"}) as agent,
    ):
        example.expect(agent, "the worker writes blocks", lambda: worker_status(port))
        with closing(sqlite3.connect(ledger, isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            event = "another process locks its ledger, and the worker waits"
            example.expect(agent, event, lambda: worker_status(port))
            database.execute("ROLLBACK")
        example.expect(agent, "the lock is released", lambda: worker_status(port))
        process.kill()
        example.expect(agent, "the worker is killed", lambda: worker_status(port))


def test_a_node_on_several_machines(tmp_path: Path) -> None:
    example = Example("shared.toml")
    codes = [200]

    def respond(_: ReceivedRequest) -> bytes:
        return http_response(codes[-1])

    with (
        EtcdServer(tmp_path / "etcd") as etcd,
        HttpBackend(respond) as ledger,
        MemcachedServer(tmp_path / "cache") as cache,
    ):
        replacements = {
            "10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379": f"127.0.0.1:{etcd.port}",
            "10.0.0.9:8080": f"127.0.0.1:{ledger.port}",
            "127.0.0.1:11211": f"127.0.0.1:{cache.port}",
        }
        with example.served(node_folder(tmp_path), replacements) as agent:
            example.expect(agent, "both services work")
            cache.kill()
            example.expect(agent, "`cache`, which only host-a can reach, is stopped")
            codes.append(500)
            example.expect(agent, "`ledger` answers 500 to most of its observers")
