"""Every recipe of docs/recipes.md with real services, and every event of its table."""

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
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import free_port, wait_until
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.redis import RedisSentinel, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
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


class Recipe:
    """The section of one recipe."""

    def __init__(self, title: str) -> None:
        match = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
        assert match, f"no recipe {title!r}"
        self._text = match[1]
        head, _, *rows = re.findall(r"^\| (.*) \|$", self._text.replace("---|", " --- |"), re.MULTILINE)
        self._ids = re.findall(r"`([^`]+)`", head)
        self.rows = {event: rest for event, *rest in (row.split(" | ") for row in rows)}
        self._untested = set(self.rows)

    def block(self, language: str, changes: Mapping[str, str] | None = None) -> str:
        """The block of the recipe with these replacements."""
        block: str
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)
        for old, new in (changes or {}).items():
            assert old in block, f"{old!r} is not in the recipe"
            block = block.replace(old, new)
        return block

    def expect(self, agent: Agent, event: str, other_statuses: Callable[[], Mapping[str, str]] = dict) -> None:
        """Wait until the statuses and the health are those in the row of the event."""
        *cells, code = self.rows[event]
        statuses = {id_: re.split(r"[,:;]", cell)[0] for id_, cell in zip(self._ids, cells, strict=True)}
        self._untested.discard(event)
        agent.wait_until(lambda: ({**agent.statuses(), **other_statuses()}, str(agent.health())) == (statuses, code))

    @contextmanager
    def served(self, folder: Path, changes: Mapping[str, str]) -> Iterator[Agent]:
        """Serves the recipe; at the end, every row of its table has been tested."""
        config = self.block("toml", changes)
        with Agent(folder, "--listen", "127.0.0.1:0", config=config, environ=QUICK) as agent:
            yield agent
        assert not self._untested, f"not tested: {self._untested}"


def node_folder(folder: Path) -> Path:
    node = folder / "node"
    node.mkdir()
    return node


def test_every_recipe_has_a_test() -> None:
    assert re.findall(r'Recipe\("(.*)"\)', Path(__file__).read_text()) == TITLES


@pytest.mark.parametrize("title", TITLES)
def test_every_recipe_has_a_healthy_and_an_unhealthy_event(title: str) -> None:
    codes = {row[-1] for row in Recipe(title).rows.values()}
    assert {"200", "503"} <= codes


def test_a_primary_and_its_replica(tmp_path: Path) -> None:
    recipe = Recipe("A PostgreSQL primary with a replica")
    with PostgresServer(tmp_path / "primary") as primary:
        primary.psql("REVOKE ALL ON DATABASE ledger FROM PUBLIC")
        primary.psql("DROP TABLE svcnode_write", database="ledger")
        primary.psql(recipe.block("sql", {"…": PASSWORD}), database="ledger")
        with primary.replica(tmp_path / "replica") as replica:
            addresses = {"10.0.0.5:5432": f"127.0.0.1:{primary.port}", "10.0.0.6:5432": f"127.0.0.1:{replica.port}"}
            with recipe.served(node_folder(tmp_path), addresses) as agent:
                recipe.expect(agent, "both run")
                replica.kill()
                recipe.expect(agent, "the replica is killed")
                replica.start()
                replica.wait_until_ready()
                recipe.expect(agent, "both run")
                with primary.read_only():
                    recipe.expect(agent, "the primary is set to read-only")
                with primary.write_lock():
                    recipe.expect(agent, "the table of `write` is locked")
                recipe.expect(agent, "both run")
                primary.kill()
                recipe.expect(agent, "the primary is killed")
                replica.psql("SELECT pg_promote()")
                recipe.expect(agent, "then the replica is promoted")

                roles_changed = dict(zip(addresses, reversed(addresses.values()), strict=True))
                agent.reload(recipe.block("toml", roles_changed))
                agent.wait_until(lambda: agent.statuses() == {"ledger": "Up", "ledger-replica": "Down"})
                assert agent.health() == 206


def test_a_master_and_a_cache(tmp_path: Path) -> None:
    recipe = Recipe("Redis behind a Sentinel, with a cache")
    _, *create_user = shlex.split(recipe.block("sh", {"…": PASSWORD}))
    with (
        RedisServer(tmp_path / "master") as master,
        RedisSentinel(tmp_path / "sentinel", master) as sentinel,
        MemcachedServer(tmp_path / "cache") as cache,
    ):
        assert master.cli(*create_user) == "OK"
        addresses = {"10.0.0.7:26379": f"127.0.0.1:{sentinel.port}", "10.0.0.8:11211": f"127.0.0.1:{cache.port}"}
        with recipe.served(node_folder(tmp_path), addresses) as agent:
            recipe.expect(agent, "both run")
            cache.kill()
            recipe.expect(agent, "the cache is killed")
            cache.start()
            with master.out_of_memory():
                recipe.expect(agent, "the master reaches `maxmemory` and evicts nothing")
            with master.writes_paused():
                recipe.expect(agent, "`CLIENT PAUSE … WRITE` on the master")
            recipe.expect(agent, "both run")
            sentinel.kill()
            recipe.expect(agent, "the Sentinel is killed")
            sentinel.start()
            recipe.expect(agent, "both run")
            with master.replica(tmp_path / "replica") as replica:
                assert replica.cli(*create_user) == "OK"
                wait_until(sentinel.knows_replicas, "the replica is known")
                sentinel.set_failure_timeout(600.0)
                master.kill()
                recipe.expect(agent, "the master is killed")
                sentinel.set_failure_timeout(0.5)
                recipe.expect(agent, "the Sentinel has promoted a replica")


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
    recipe = Recipe("An indexer behind TLS")
    made = make_certificate(tmp_path, "indexer")
    other = make_certificate(tmp_path, "other")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(made.certificate.read_bytes())
    indexer = Indexer()
    with HttpBackend(indexer, tls=server_tls(made)) as server:
        replacements = {"indexer.internal:8030": f"localhost:{server.port}", "/etc/svcnode/ca.pem": str(ca)}
        with recipe.served(node_folder(tmp_path), replacements) as agent:
            synced = '`synced` is true and `health` is "healthy"'
            recipe.expect(agent, synced)
            indexer.statuses = [{"synced": False, "health": "healthy"}]
            recipe.expect(agent, '`synced` is false and `health` is "healthy"')
            indexer.code = 503
            recipe.expect(agent, "the reverse proxy answers 503, for example during a restart")
            indexer.code, indexer.statuses = 200, [{"synced": True, "health": "failed"}]
            recipe.expect(agent, '`health` is "failed"')
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            recipe.expect(agent, synced)
            indexer.statuses = []
            recipe.expect(agent, "the list is empty: nothing is deployed")
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            recipe.expect(agent, synced)
            ca.write_bytes(other.certificate.read_bytes())
            recipe.expect(agent, "`ca` did not sign its certificate")


def test_an_execution_client_and_its_beacon_node(tmp_path: Path) -> None:
    recipe = Recipe("An execution client with its beacon node")
    with GanacheServer(tmp_path / "execution") as execution, BeaconServer(tmp_path / "beacon") as beacon:
        replacements = {"127.0.0.1:8545": f"127.0.0.1:{execution.port}", "127.0.0.1:5052": f"127.0.0.1:{beacon.port}"}
        with recipe.served(node_folder(tmp_path), replacements) as agent:
            recipe.expect(agent, "the execution client follows another chain")
            execution.mine()
            agent.reload(recipe.block("toml", {**replacements, "chain_id = 1": f"chain_id = {CHAIN_ID}"}))
            recipe.expect(agent, "both follow their chain")
            beacon.set(is_syncing=True, sync_distance=300)
            recipe.expect(agent, "the beacon node is syncing")
            beacon.reset()
            recipe.expect(agent, "both follow their chain")
            beacon.set(el_offline=True)
            recipe.expect(agent, "the beacon node cannot reach its execution client and reports that it is healthy")
            beacon.reset()
            recipe.expect(agent, "both follow their chain")
            beacon.set(sync_distance=3)
            recipe.expect(agent, "the beacon node is three slots behind and reports that it is synced")
            beacon.set(sync_distance=2)
            recipe.expect(agent, "both follow their chain")
            execution.mine(age_s=3600)
            recipe.expect(agent, "the newest block is older than 60 s")
            execution.mine()
            recipe.expect(agent, "both follow their chain")
            execution.freeze()
            recipe.expect(agent, "the execution client is frozen")
            execution.thaw()
            recipe.expect(agent, "both follow their chain")
            execution.kill()
            recipe.expect(agent, "the execution client is killed")


def test_a_storage_daemon(tmp_path: Path) -> None:
    recipe = Recipe("A storage daemon")
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
        with recipe.served(node_folder(tmp_path), enough_space) as agent:
            recipe.expect(agent, "no fault")
            daemon.set(peers=0)
            recipe.expect(agent, "the daemon has no peers")
            daemon.reset()
            recipe.expect(agent, "no fault")
            old_s = time.time() - 27 * 3600
            os.utime(verified, (old_s, old_s))
            recipe.expect(agent, "the last verification is older than 26 h")
            verified.touch()
            recipe.expect(agent, "no fault")
            agent.reload(recipe.block("toml", {**replacements, '"5GiB"': '"1B"', '"50GiB"': '"9000TiB"'}))
            recipe.expect(agent, "less than 50 GiB is free")
            agent.reload(recipe.block("toml", {**replacements, '"5GiB"': '"9000TiB"', '"50GiB"': '"9001TiB"'}))
            recipe.expect(agent, "less than 5 GiB is free")
            agent.reload(recipe.block("toml", enough_space))
            recipe.expect(agent, "no fault")
            daemon.kill()
            recipe.expect(agent, "the daemon is killed")


@contextmanager
def program(text: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    file = folder / "settler.py"
    file.write_text(text)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(file)], cwd=folder, env=environ, stdout=log, stderr=log)
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
            (service,) = json.loads(connection.getresponse().read())["services"]
            return {service["id"]: service["status"]}
    except ConnectionError:
        return {"settle": "unreachable"}


def test_a_worker_with_heartbeats(tmp_path: Path) -> None:
    recipe = Recipe("A worker with heartbeats")
    port = free_port()
    with closing(sqlite3.connect(tmp_path / "batches.db", isolation_level=None)) as database:
        with (
            program(recipe.block("python", {"8421": str(port)}), tmp_path) as worker,
            recipe.served(node_folder(tmp_path), {"127.0.0.1:8421": f"127.0.0.1:{port}"}) as agent,
        ):
            recipe.expect(agent, "the worker settles batches", lambda: worker_status(port))
            database.execute("BEGIN EXCLUSIVE")
            recipe.expect(
                agent,
                "another process locks the database, and the worker waits",
                lambda: worker_status(port),
            )
            database.execute("ROLLBACK")
            recipe.expect(agent, "the lock is released", lambda: worker_status(port))
            worker.kill()
            recipe.expect(agent, "the worker is killed", lambda: worker_status(port))
        assert database.execute("SELECT count(*) FROM batches").fetchone()[0] > 1
