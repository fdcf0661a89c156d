"""The configurations in examples/nodes, and every event of most tables: with real databases, and scripted chains."""

from __future__ import annotations

import re
import shlex
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support import commands
from tests.support.certificates import make_certificate
from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.chains import StubChain
from tests.support.servers.eigenda import EigenDaNode
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.redis import RedisSentinel, RedisServer
from tests.support.servers.signers import MevBoostServer, Web3SignerServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.servers.fake_http import FakeHttpServer

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
    "BITCOIN_PASSWORD": PASSWORD,
}
# Scripted servers answer at once, and fail so often that they would soon count as unreliable.
QUICKER = QUICK | {
    "SVCNODE_DEFAULTS_INTERVAL": "600ms",
    "SVCNODE_DEFAULTS_TIMEOUT": "550ms",
    "SVCNODE_DEFAULTS_TOLERANCE": "off",
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

    def expected(self, event: str) -> tuple[dict[str, str], str]:
        """The statuses and the health in its row."""
        *cells, code = self.rows[event]
        return {id_: re.split(r"[,:;]", cell)[0] for id_, cell in zip(self._ids, cells, strict=True)}, code

    def expect(self, agent: Agent, event: str) -> None:
        """Wait until the statuses and the health are those in the row of the event."""
        self._untested.discard(event)
        agent.wait_until(lambda: (agent.statuses(), str(agent.health())) == self.expected(event))

    @contextmanager
    def served(self, folder: Path, changes: Mapping[str, str], environ: Mapping[str, str] = QUICK) -> Iterator[Agent]:
        """Serves the example; at the end, every row of its table has been tested."""
        with Agent(folder, "--listen", "127.0.0.1:0", config=self.config(changes), environ=environ) as agent:
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


# ---- networks


class Server(NamedTuple):
    """A scripted server, and what the example has in its place: addresses, or the URL of a reference."""

    make: Callable[[Path], FakeHttpServer]
    places: tuple[str, ...]


class Event(NamedTuple):
    server: str
    state: Mapping[str, Any]

    @contextmanager
    def happens(self, server: FakeHttpServer) -> Iterator[None]:
        before = {name: server.state[name] for name in self.state}
        server.set(**self.state)
        yield
        server.set(**before)


class Killed(NamedTuple):
    server: str

    @contextmanager
    def happens(self, server: FakeHttpServer) -> Iterator[None]:
        server.kill()
        yield
        server.start()
        server.wait_until_ready()


class Frozen(NamedTuple):
    server: str

    @contextmanager
    def happens(self, server: FakeHttpServer) -> Iterator[None]:
        server.freeze()
        yield
        server.thaw()


class Network(NamedTuple):
    """What runs, and what the events of the table do, without the first one, which is that all is well."""

    servers: Mapping[str, Server]
    events: Mapping[str, Event | Killed | Frozen]
    changes: Mapping[str, str] = {}


def chain(kind: str, *places: str, **state: Any) -> Server:
    def make(folder: Path) -> StubChain:
        client = StubChain(folder, kind)
        client.set(**state)
        return client

    return Server(make, places)


def beacon_with_short_epochs(folder: Path) -> BeaconServer:
    node = BeaconServer(folder)
    node.set(slot_s=1, slots_per_epoch=6)  # more than the slots of grace
    return node


OLD_BLOCK = {"age_s": 100_000}
REJECTED_LOGIN = {"errors": {"getblockchaininfo": [401, 0, "", None]}}
LOADING = {"errors": {"getblockchaininfo": [500, -28, "Loading block index…", None]}}  # RPC_IN_WARMUP
NETWORKS = {
    "ethereum.toml": Network(
        {
            "execution": chain("ethereum", "127.0.0.1:8545"),
            "beacon": Server(beacon_with_short_epochs, ("127.0.0.1:5052",)),
            "signer": Server(Web3SignerServer, ("127.0.0.1:9000",)),
            "boost": Server(MevBoostServer, ("127.0.0.1:18550",)),
        },
        {
            "the execution client is syncing": Event("execution", {"is_syncing": True}),
            "the newest block is older than 60 s, and the execution client reports that it is synced": Event(
                "execution", {"age_s": 75}
            ),
            "the execution client has no peers": Event("execution", {"peers": 0}),
            "the execution client follows another chain": Event("execution", {"chain": 17000}),
            "the execution client is killed": Killed("execution"),
            "the execution client is frozen": Frozen("execution"),
            "the beacon node is syncing": Event("beacon", {"is_syncing": True, "sync_distance": 300}),
            "the beacon node is three slots behind and reports that it is synced": Event(
                "beacon", {"sync_distance": 3}
            ),
            "the beacon node stands still and reports that it is synced": Event("beacon", {"missed_slots": 50}),
            "the beacon node cannot reach its execution client and reports that it is healthy": Event(
                "beacon", {"el_offline": True}
            ),
            "the beacon node has no peers": Event("beacon", {"peers": 0}),
            "the beacon node is killed": Killed("beacon"),
            "the validator is not active yet": Event("beacon", {"validator_status": "pending_queued"}),
            "the validator is slashed": Event("beacon", {"validator_status": "active_slashed"}),
            "the validator was not seen in two finished epochs": Event("beacon", {"is_live": False}),
            "the signer has lost the database of its slashing protection": Event("signer", {"database": "DOWN"}),
            "the signer has not loaded the key": Event("signer", {"keys": ["0x" + "b2" * 48]}),
            "the signer is killed": Killed("signer"),
            "no relay of MEV-Boost is available": Event("boost", {"available_relays": 0}),
            "MEV-Boost is killed": Killed("boost"),
        },
    ),
    "eigenda.toml": Network(
        {
            "operator": Server(EigenDaNode, ("127.0.0.1:9091", "127.0.0.1:9092")),
            "ethereum": chain("ethereum", "127.0.0.1:8545"),
        },
        {
            "it has signed no batch for an hour": Event("operator", {"is_signing": False}),
            "the disperser cannot reach its sockets": Event("operator", {"is_reachable": False}),
            "it no longer says whether its sockets can be reached": Event("operator", {"has_reachable": False}),
            "the node API reports that it is partially healthy": Event("operator", {"health": 206}),
            "the node API reports that it is unhealthy": Event("operator", {"health": 503}),
            "its Ethereum client stands still": Event("ethereum", OLD_BLOCK),
            "its Ethereum client is killed": Killed("ethereum"),
            "the operator is killed": Killed("operator"),
        },
        {"within 1h": "within 2s"},
    ),
    "cosmos.toml": Network(
        {"node": chain("cometbft", "127.0.0.1:26657"), "other": chain("cometbft", "https://cosmos-rpc.example")},
        {
            "the node is catching up": Event("node", {"is_syncing": True}),
            "the newest block is older than 60 s, and the node reports that it is not catching up": Event(
                "node", {"age_s": 75}
            ),
            "the node has no peers": Event("node", {"peers": 0}),
            "the node is more than 10 blocks behind the other one": Event("node", {"behind": 100}),
            "the other node is killed": Killed("other"),
            "the node follows another chain": Event("node", {"chain": "theta-testnet-001"}),
            "the validator is jailed, or has left the active set": Event("node", {"voting_power": "0"}),
            "the node is killed": Killed("node"),
            "the node is frozen": Frozen("node"),
            "the validator misses every second block": Event("node", {"misses_every": 2}),
        },
    ),
    "solana.toml": Network(
        {"validator": chain("solana", "127.0.0.1:8899"), "other": chain("solana", "https://solana-rpc.example")},
        {
            "it reports that it is behind the cluster": Event("validator", {"is_syncing": True}),
            "its newest slot is older than 60 s, and it reports that it is healthy": Event("validator", {"age_s": 75}),
            "it is more than 150 slots behind the other node, and reports that it is healthy": Event(
                "validator", {"behind": 200}
            ),
            "the other node is killed": Killed("other"),
            "its vote account is delinquent": Event("validator", {"votes": "delinquent"}),
            "its vote account has no stake": Event("validator", {"votes": None}),
            "it is killed": Killed("validator"),
            "it is frozen": Frozen("validator"),
        },
    ),
    "polkadot.toml": Network(
        {"node": chain("substrate", "127.0.0.1:9944"), "other": chain("substrate", "https://polkadot-rpc.example")},
        {
            "it is syncing": Event("node", {"is_syncing": True}),
            "its best block is older than 60 s, and it reports that it is not syncing": Event("node", {"age_s": 75}),
            "no block has been finalized for 5 minutes": Event("node", {"finalized_age_s": 330}),
            "it has no peers": Event("node", {"peers": 0}),
            "it is more than 10 blocks behind the other node": Event("node", {"behind": 100}),
            "the other node is killed": Killed("other"),
            "it follows another chain": Event("node", {"chain": "Kusama"}),
            "it is killed": Killed("node"),
            "it is frozen": Frozen("node"),
        },
    ),
    "bitcoin.toml": Network(
        {"node": chain("bitcoin", "127.0.0.1:8332"), "other": chain("bitcoin", "https://bitcoin-rpc.example")},
        {
            "it loads its blocks after a start": Event("node", LOADING),
            "it is in its initial download": Event("node", {"is_syncing": True}),
            "it has headers of blocks that it cannot get": Event("node", {"missing_blocks": 10}),
            "its newest block is older than 2 hours": Event("node", {"age_s": 7500}),
            "it has no connections": Event("node", {"peers": 0}),
            "it is more than 3 blocks behind the other node": Event("node", {"behind": 100}),
            "the other node is killed": Killed("other"),
            "it follows another chain": Event("node", {"chain": "testnet4"}),
            "it rejects the login": Event("node", REJECTED_LOGIN),
            "it is killed": Killed("node"),
            "it is frozen": Frozen("node"),
        },
    ),
    "optimism.toml": Network(
        {
            "op-node": chain("opnode", "127.0.0.1:9545"),
            "other": chain("opnode", "https://op-node.example"),
            "execution": chain("ethereum", "127.0.0.1:8545", chain=10),
            "l1": chain("ethereum", "10.0.0.5:8545"),
            "l1-beacon": Server(BeaconServer, ("10.0.0.5:5052",)),
        },
        {
            "op-node has just started": Event("op-node", {"is_syncing": True}),
            "op-node gets no blocks of the sequencer": Event("op-node", {"age_s": 75}),
            "op-node sees no new blocks of L1": Event("op-node", {"l1_age_s": 330}),
            "op-node finalizes no blocks": Event("op-node", {"finalized_age_s": 3600}),
            "op-node is more than 15 blocks behind the other one": Event("op-node", {"behind": 100}),
            "the other op-node is killed": Killed("other"),
            "op-node is killed": Killed("op-node"),
            "the execution client is syncing": Event("execution", {"is_syncing": True}),
            "the execution client stands still, and reports that it is synced": Event("execution", {"age_s": 75}),
            "the execution client has no peers": Event("execution", {"peers": 0}),
            "the execution client follows another chain": Event("execution", {"chain": 8453}),
            "the execution client is killed": Killed("execution"),
            "the L1 node stands still": Event("l1", OLD_BLOCK),
            "the beacon node of L1 is syncing": Event("l1-beacon", {"is_syncing": True, "sync_distance": 300}),
            "the L1 node is killed": Killed("l1"),
        },
    ),
}
SEVERAL_CHECKS_S = 2.0
NARROW = ("eigenda.toml", "polkadot.toml")


def address_in(place: str, port: int) -> str:
    return f"http://127.0.0.1:{port}" if place.startswith("https://") else f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    "name", [name if name in NARROW else pytest.param(name, marks=pytest.mark.wide) for name in NETWORKS]
)
def test_every_event_of_a_network(name: str, tmp_path: Path) -> None:
    """After each event but the last, all is well again."""
    example, network = Example(name), NETWORKS[name]
    well, *events = example.rows
    assert list(network.events) == events
    with ExitStack() as stack:
        servers = {
            key: stack.enter_context(one.make(tmp_path / "servers" / key)) for key, one in network.servers.items()
        }
        addresses = {
            place: address_in(place, servers[key].port) for key, one in network.servers.items() for place in one.places
        }
        agent = stack.enter_context(example.served(node_folder(tmp_path), addresses | dict(network.changes), QUICKER))
        example.expect(agent, well)
        for event in events:
            what = network.events[event]
            with what.happens(servers[what.server]):
                if example.expected(event) == example.expected(well):
                    time.sleep(SEVERAL_CHECKS_S)
                example.expect(agent, event)
            if event != events[-1]:
                example.expect(agent, well)
