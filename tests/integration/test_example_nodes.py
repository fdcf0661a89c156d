"""The configurations in examples/nodes, some with real services and every event of their table."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import commands
from tests.support.certificates import make_certificate
from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.redis import RedisSentinel, RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted((EXAMPLES / "nodes").glob("*.toml"))
PASSWORD = "the-password-of-monitor"
# Frequent checks. A check that times out on a busy machine only delays a test: it waits for the expected statuses.
QUICK: dict[str, Any] = {
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

    def expect(self, agent: Agent, event: str) -> None:
        """Wait until the statuses and the health are those in the row of the event."""
        *cells, code = self.rows[event]
        statuses = {id_: re.split(r"[,:;]", cell)[0] for id_, cell in zip(self._ids, cells, strict=True)}
        self._untested.discard(event)
        agent.wait_until(lambda: (agent.statuses(), str(agent.health())) == (statuses, code))

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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_example_is_valid_and_has_a_healthy_and_an_unhealthy_event(file: Path, tmp_path: Path) -> None:
    codes = {row[-1] for row in Example(file.name).rows.values()}
    assert {"200", "503"} <= codes
    (tmp_path / "svcnode.toml").write_text(
        file.read_text().replace("/etc/svcnode/ca.pem", str(make_certificate(tmp_path).certificate))
    )
    checked = commands.svcnode("check-config", folder=tmp_path, **QUICK)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.wide
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


@pytest.mark.wide
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
