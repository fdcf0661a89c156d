"""Every recipe of docs/recipes.md, as it stands there, and every row of its table: done for real, and asked for."""

from __future__ import annotations

import http.client
import json
import os
import re
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
from tests.support.servers.base import free_port
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
PASSWORD = "the-password-of-monitor"
# Nobody wants to wait for looks every ten seconds; what a look finds is the same.
QUICK = {
    "SVCNODE_DEFAULTS_INTERVAL": "600ms",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_TIMEOUT": "550ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "LEDGER_PASSWORD": PASSWORD,
}


class Recipe:
    """What stands under one heading."""

    def __init__(self, title: str) -> None:
        found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
        assert found, f"no recipe {title!r}"
        self._text = found[1]
        head, _, *rows = re.findall(r"^\| (.*) \|$", self._text.replace("---|", " --- |"), re.MULTILINE)
        self._ids = re.findall(r"`([^`]+)`", head)
        self.rows = {event: rest for event, *rest in (row.split(" | ") for row in rows)}
        self._unseen = set(self.rows)

    def block(self, language: str, changes: Mapping[str, str] | None = None) -> str:
        """As it stands there, but for these changes."""
        block: str
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)
        for old, new in (changes or {}).items():
            assert old in block, f"{old!r} does not stand in the recipe"
            block = block.replace(old, new)
        return block

    def has_text(self, agent: Agent, event: str, beside: Callable[[], Mapping[str, str]] = dict) -> None:
        """Whether the node comes to say what the row of this event promises; `beside` it, others may be asked."""
        *words, code = self.rows[event]
        statuses = {id_: re.split(r"[,:;]", cell)[0] for id_, cell in zip(self._ids, words, strict=True)}
        self._unseen.discard(event)
        agent.wait_until(lambda: ({**agent.statuses(), **beside()}, str(agent.health())) == (statuses, code))

    @contextmanager
    def served(self, folder: Path, changes: Mapping[str, str]) -> Iterator[Agent]:
        """By the end, every row of its table has been seen."""
        config = self.block("toml", changes)
        with Agent(folder, "--listen", "127.0.0.1:0", config=config, environ=QUICK) as agent:
            yield agent
        assert not self._unseen, f"not tried: {self._unseen}"


def node_folder(folder: Path) -> Path:
    place = folder / "node"
    place.mkdir()
    return place


def test_every_recipe_is_tried() -> None:
    assert re.findall(r'Recipe\("(.*)"\)', Path(__file__).read_text()) == TITLES


@pytest.mark.parametrize("title", TITLES)
def test_every_recipe_has_a_table_with_a_good_state_and_a_bad_one(title: str) -> None:
    codes = {row[-1] for row in Recipe(title).rows.values()}
    assert {"200", "503"} <= codes


def test_a_primary_and_its_replica(tmp_path: Path) -> None:
    recipe = Recipe("A PostgreSQL primary with a replica")
    with PostgresServer(tmp_path / "primary") as primary:
        primary.psql("REVOKE ALL ON DATABASE ledger FROM PUBLIC")
        primary.psql(recipe.block("sql", {"…": PASSWORD}))
        with primary.replica(tmp_path / "replica") as replica:
            places = {"10.0.0.5:5432": f"127.0.0.1:{primary.port}", "10.0.0.6:5432": f"127.0.0.1:{replica.port}"}
            with recipe.served(node_folder(tmp_path), places) as agent:
                recipe.has_text(agent, "both run")
                replica.kill()
                recipe.has_text(agent, "the replica is killed")
                replica.start()
                replica.wait_until_ready()
                recipe.has_text(agent, "both run")
                primary.kill()
                recipe.has_text(agent, "the primary is killed")
                replica.psql("SELECT pg_promote()")
                recipe.has_text(agent, "then the replica is promoted")

                roles_changed = dict(zip(places, reversed(places.values()), strict=True))
                agent.reload(recipe.block("toml", roles_changed))
                agent.wait_until(lambda: agent.statuses() == {"ledger": "Up", "ledger-replica": "Down"})
                assert agent.health() == 206


class Indexer:
    """What a graph-node answers at its port for statuses; and 503 for whatever stands before it."""

    def __init__(self) -> None:
        self.code = 200
        self.statuses = [{"synced": True, "health": "healthy"}]

    def __call__(self, request: ReceivedRequest) -> bytes:
        assert (request.method, request.target) == ("POST", "/graphql")
        assert request.headers["content-type"] == "application/json"
        assert json.loads(request.body) == {"query": "{ indexingStatuses { synced health } }"}
        answer = json.dumps({"data": {"indexingStatuses": self.statuses}})
        return http_response(self.code, answer if self.code == 200 else "starting", Content_Type="application/json")


def test_an_indexer_behind_tls(tmp_path: Path) -> None:
    recipe = Recipe("An indexer behind TLS")
    made = make_certificate(tmp_path, "indexer")
    stranger = make_certificate(tmp_path, "stranger")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(made.certificate.read_bytes())
    indexer = Indexer()
    with HttpBackend(indexer, tls=server_tls(made)) as server:
        places = {"indexer.internal:8030": f"localhost:{server.port}", "/etc/svcnode/ca.pem": str(ca)}
        with recipe.served(node_folder(tmp_path), places) as agent:
            well = '`synced` is true and `health` is "healthy"'
            recipe.has_text(agent, well)
            indexer.statuses = [{"synced": False, "health": "healthy"}]
            recipe.has_text(agent, '`synced` is false, and `health` is "healthy"')
            indexer.code = 503
            recipe.has_text(agent, "what stands before it answers 503, as while it is being restarted")
            indexer.code, indexer.statuses = 200, [{"synced": True, "health": "failed"}]
            recipe.has_text(agent, '`health` is "failed"')
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            recipe.has_text(agent, well)
            indexer.statuses = []
            recipe.has_text(agent, "no status is listed: nothing is deployed")
            indexer.statuses = [{"synced": True, "health": "healthy"}]
            recipe.has_text(agent, well)
            ca.write_bytes(stranger.certificate.read_bytes())
            recipe.has_text(agent, "its certificate is one that `ca` did not sign")


def test_an_execution_client_and_its_beacon_node(tmp_path: Path) -> None:
    recipe = Recipe("An execution client with its beacon node")
    with GanacheServer(tmp_path / "execution") as execution, BeaconServer(tmp_path / "beacon") as beacon:
        places = {"127.0.0.1:8545": f"127.0.0.1:{execution.port}", "127.0.0.1:5052": f"127.0.0.1:{beacon.port}"}
        with recipe.served(node_folder(tmp_path), places) as agent:
            recipe.has_text(agent, "the execution client follows another chain")
            execution.mine()
            agent.reload(recipe.block("toml", {**places, "chain_id = 1": f"chain_id = {CHAIN_ID}"}))
            recipe.has_text(agent, "both follow their chain")
            beacon.set(is_syncing=True, sync_distance=300)
            recipe.has_text(agent, "the beacon node is syncing")
            beacon.reset()
            recipe.has_text(agent, "both follow their chain")
            beacon.set(sync_distance=3)
            recipe.has_text(agent, "the beacon node is three slots behind, and says that all is well")
            beacon.set(sync_distance=2)
            recipe.has_text(agent, "both follow their chain")
            execution.mine(age_s=3600)
            recipe.has_text(agent, "the newest block is older than a minute")
            execution.mine()
            recipe.has_text(agent, "both follow their chain")
            execution.freeze()
            recipe.has_text(agent, "the execution client is frozen")
            execution.thaw()
            recipe.has_text(agent, "both follow their chain")
            execution.kill()
            recipe.has_text(agent, "the execution client is killed")


def test_a_storage_daemon(tmp_path: Path) -> None:
    recipe = Recipe("A storage daemon")
    verified = tmp_path / "verified"
    verified.touch()
    with IpfsServer(tmp_path / "daemon") as daemon:
        places = {
            "127.0.0.1:5001": f"127.0.0.1:{daemon.port}",
            "/var/lib/ipfs-jobs/verified": str(verified),
            "disk:/var/lib/ipfs": f"disk:{tmp_path}",
        }
        # No test can fill the disk of this machine; what counts as little is its to say.
        roomy = {**places, '"5GiB"': '"1B"', '"50GiB"': '"2B"'}
        with recipe.served(node_folder(tmp_path), roomy) as agent:
            recipe.has_text(agent, "all is well")
            daemon.set(peers=0)
            recipe.has_text(agent, "the daemon has no peers")
            daemon.reset()
            recipe.has_text(agent, "all is well")
            an_old_time_s = time.time() - 27 * 3600
            os.utime(verified, (an_old_time_s, an_old_time_s))
            recipe.has_text(agent, "the job has not come to its end since yesterday")
            verified.touch()
            recipe.has_text(agent, "all is well")
            agent.reload(recipe.block("toml", {**places, '"5GiB"': '"1B"', '"50GiB"': '"9000TiB"'}))
            recipe.has_text(agent, "less than 50 GiB are free")
            agent.reload(recipe.block("toml", {**places, '"5GiB"': '"9000TiB"', '"50GiB"': '"9001TiB"'}))
            recipe.has_text(agent, "less than 5 GiB are free")
            agent.reload(recipe.block("toml", roomy))
            recipe.has_text(agent, "all is well")
            daemon.kill()
            recipe.has_text(agent, "the daemon is killed")


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
    """What it says of itself, where it says anything."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            connection.request("GET", "/svc/node/services")
            (service,) = json.loads(connection.getresponse().read())["services"]
            return {service["id"]: service["status"]}
    except ConnectionError:
        return {"settle": "no answer"}


def test_a_worker_that_beats(tmp_path: Path) -> None:
    recipe = Recipe("A worker that beats")
    port = free_port()
    with closing(sqlite3.connect(tmp_path / "batches.db", isolation_level=None)) as database:
        with (
            program(recipe.block("python", {"8421": str(port)}), tmp_path) as worker,
            recipe.served(node_folder(tmp_path), {"127.0.0.1:8421": f"127.0.0.1:{port}"}) as agent,
        ):
            recipe.has_text(agent, "it settles batches", lambda: worker_status(port))
            database.execute("BEGIN EXCLUSIVE")
            recipe.has_text(
                agent,
                "somebody locks the database, and the worker waits for it",
                lambda: worker_status(port),
            )
            database.execute("ROLLBACK")
            recipe.has_text(agent, "the lock is gone", lambda: worker_status(port))
            worker.kill()
            recipe.has_text(agent, "it is killed", lambda: worker_status(port))
        assert database.execute("SELECT count(*) FROM batches").fetchone()[0] > 1
