"""A node whose services are other nodes: real nodes, found in a real etcd or in a file."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import main
from svcnode.control import ControlClient
from svcnode.core.errors import ControlError
from svcnode.sharing import client as registry_client
from svcnode.sharing.client import NodeReplicas, read_replicas
from svcnode.sharing.etcd import EtcdClient
from svcnode.sharing.format import Ignored, KeyKind, ReplicaDocument, encode_document, encode_key, node_root
from tests.support.ports import free_port
from tests.support.processes import Agent, run_command
from tests.support.replicas import NODE, RegistryKeys
from tests.support.servers.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UP, DOWN, INITIALIZING = "Up", "Down", "Initializing"
OPTIONS = """
refresh_interval = "1s"
interval = "500ms"
timeout = "400ms"
fall = 2
rise = 1
start_period = "0s"
"""
HEAD = '[history]\nkeep = false\n[server]\nlisten = "127.0.0.1:{port}"\n'


class Nodes:
    """Real nodes on loopback, each with one service that is Up."""

    def __init__(self, folder: Path, registry: str = "") -> None:
        self._folder, self._registry = folder, registry
        self._stack = ExitStack()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, replica: str, status: str = UP) -> Agent:
        port = free_port()
        sharing = (
            f'[sharing]\nregistry = "{self._registry}"\nreplica = "{replica}"\nlease = "2s"\n'
            f'url = "http://127.0.0.1:{port}"\n'
        )
        config = (
            f'{HEAD.format(port=port)}drain = "0s"\n[node]\nname = "{name}"\n{sharing if self._registry else ""}'
            f'[[services]]\nid = "of-{replica}"\nstatus = "{status}"\n'
        )
        folder = self._folder / f"{name}-{replica}"
        folder.mkdir()
        return self._stack.enter_context(Agent(folder, config=config))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def fleet_config(source: str, more: str = "") -> str:
    return f"{HEAD.format(port=0)}[node]\nname = 'fleet'\n{more}[fleet]\n{source}\n{OPTIONS}"


def fleet_of(etcd: EtcdServer) -> str:
    return fleet_config(f'registry = "{etcd.url}"')


def details_of(agent: Agent, service_id: str) -> dict[str, Any]:
    [details] = [found for found in agent.request("/details").json["services"] if found["id"] == service_id]
    return dict(details)


def expect(agent: Agent, health: int, **statuses: str) -> None:
    """The names of the services, with `_` for a slash, and their statuses."""
    expected = {name.replace("_", "/"): status for name, status in statuses.items()}
    agent.wait_until(lambda: (agent.statuses(), agent.health()) == (expected, health))


def test_the_list_follows_the_replicas_in_the_registry(tmp_path: Path, etcd: EtcdServer) -> None:
    keys = RegistryKeys(etcd)
    with Nodes(tmp_path, etcd.url) as nodes, Agent(tmp_path, config=fleet_of(etcd)) as fleet:
        expect(fleet, 206, fleet=INITIALIZING)  # an empty registry is no healthy fleet
        keys.put_service("db", {"status": UP}, owner="replica:gone")
        expect(fleet, 206, fleet=UP, ledger_gone=DOWN)  # known from what it has left
        keys.delete_service("db", owner="replica:gone")
        first = nodes.start(NODE, "a")
        nodes.start("search", "a", INITIALIZING)
        expect(fleet, 206, fleet=UP, ledger_a=UP, search_a=INITIALIZING)
        assert details_of(fleet, "ledger/a")["group"] == NODE
        assert details_of(fleet, "search/a")["code"] == "partially_healthy"
        assert details_of(fleet, "fleet")["kind"] == "fleet"

        # Without the registry, the nodes are checked and the fleet is not healthy.
        etcd.freeze()
        fleet.wait_until(lambda: fleet.statuses()["fleet"] == DOWN)
        assert fleet.health() == 206
        first.signal(signal.SIGKILL)
        fleet.wait_until(lambda: fleet.statuses()["ledger/a"] == DOWN)
        etcd.thaw()

        # A replica that died stays in the list until it is forgotten.
        fleet.wait_until(lambda: keys.replicas() == set())
        checks = sum(details_of(fleet, "fleet")["checks"].values())
        fleet.wait_until(lambda: sum(details_of(fleet, "fleet")["checks"].values()) > checks + 1)
        expect(fleet, 206, fleet=UP, ledger_a=DOWN, search_a=INITIALIZING)
        assert main(["registry", "forget", "--registry", etcd.url, "--node", NODE, "a"]) == 0
        expect(fleet, 206, fleet=UP, search_a=INITIALIZING)


def test_all_nodes_are_found_whatever_else_the_registry_has(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "KEYS_PER_REQUEST", 3)
    monkeypatch.setattr(registry_client, "NODES_PER_REQUEST", 2)
    names = ["a", "a b", "a/b", "a0", "b", "é"]

    async def read() -> dict[str, NodeReplicas]:
        async with EtcdClient([(etcd.host, etcd.port)]) as client:
            lease = await client.grant_lease(600)
            for name in names:
                root = node_root("/svcnode", name)
                for number in range(5):
                    service = encode_key(root, KeyKind.SERVICES, f"s{number}", f"replica:r{number % 2}")
                    await client.put(service, b"{}")
                document = encode_document(ReplicaDocument("1", f"http://{name}", "1"))
                await client.put(encode_key(root, KeyKind.REPLICAS, "r0"), document, lease_id=lease.id)
                await client.put(encode_key(root, KeyKind.REPLICAS, "no-lease"), document)
            for key in (
                "/svcnode/v1/x",
                "/svcnode/v1/a/replicas/r0/more",
                "/svcnode/v1/b/replicas/r9",
                "/svcnode/v2/c/d",
            ):
                await client.put(key, b"no JSON", lease_id=lease.id)
            return await read_replicas(client, "/svcnode")

    found = asyncio.run(read())
    assert list(found) == names
    for name, node in found.items():
        assert node.live["r0"] == ReplicaDocument("1", f"http://{name}", "1")
        assert (set(node.absent), node.service_count) == ({"r1"}, 5)
    assert {name for name, node in found.items() if node.live.keys() != {"r0"}} == {"b"}
    assert isinstance(found["b"].live["r9"], Ignored)


def test_the_list_follows_the_file(tmp_path: Path) -> None:
    nodes_file = tmp_path / "nodes.txt"
    control = f'[control]\nlisten = "unix:{tmp_path}/c.sock"\npath = "{tmp_path}/c.db"\n'
    config = fleet_config(f'file = "{nodes_file}"', control)
    with Nodes(tmp_path) as nodes, Agent(tmp_path, config=config) as fleet:
        fleet.wait_until(lambda: fleet.statuses() == {"fleet": DOWN})
        assert details_of(fleet, "fleet")["code"] == "file_not_found"
        ledger, search = nodes.start(NODE, "a"), nodes.start("search", "a")
        first, second = f"127.0.0.1:{ledger.port}", f"127.0.0.1:{search.port}"
        nodes_file.write_text(f"http://{first} ledger\nhttp://{second}  # no name\n")
        found = {"fleet": UP, f"ledger/{first}": UP, second: UP}
        fleet.wait_until(lambda: fleet.statuses() == found and fleet.health() == 200)

        nodes_file.write_text("")  # it is being written
        fleet.wait_until(lambda: fleet.statuses()["fleet"] == DOWN)
        assert fleet.statuses() == {**found, "fleet": DOWN}
        nodes_file.write_text(f"http://{first} ledger\n")
        fleet.wait_until(lambda: fleet.statuses() == {"fleet": UP, f"ledger/{first}": UP})

        with ControlClient(tmp_path / "c.sock", timeout=60) as client:
            for service_id in fleet.statuses():
                with pytest.raises(ControlError) as caught:
                    client.register(service_id, ttl="10m")
                assert caught.value.status == 409
            client.register("mine", ttl="10m", group="tools")
            assert details_of(fleet, "mine")["group"] == "tools"
            client.deregister("mine")

        fleet.reload(f'{config}[[services]]\nid = "ledger/{first}"\nstatus = "Up"\n')
        fleet.wait_for_event("reload_failed")
        fleet.reload(f'{HEAD.format(port=0)}{control}[[services]]\nid = "db"\nstatus = "Up"\n')
        fleet.wait_until(lambda: fleet.statuses() == {"db": UP})


def test_a_fleet_says_which_services_are_down_in_which_node(tmp_path: Path) -> None:
    """In the order of trouble, with a link to the page of each."""

    def node(name: str, **statuses: str) -> Agent:
        services = "".join(f'[[services]]\nid = "{key}"\nstatus = "{status}"\n' for key, status in statuses.items())
        folder = tmp_path / name
        folder.mkdir()
        return Agent(folder, config=f'{HEAD.format(port=free_port())}[node]\nname = "{name}"\n{services}')

    nodes = {
        "partial": node("partial", cache=DOWN, web=UP),
        "one": node("one", ledger=DOWN),
        "two": node("two", ledger=DOWN, api=DOWN),
        "fine": node("fine", web=UP),
    }
    with ExitStack() as stack:
        urls = {name: f"http://127.0.0.1:{stack.enter_context(agent).port}" for name, agent in nodes.items()}
        file = tmp_path / "nodes.txt"
        file.write_text("".join(f"{url} {name}\n" for name, url in urls.items()))
        agent = stack.enter_context(Agent(tmp_path, config=fleet_config(f'file = "{file}"')))
        agent.wait_until(lambda: sorted(agent.statuses().values()) == [DOWN, DOWN, INITIALIZING, UP, UP])
        problems = agent.request("/problems").json["problems"]
        assert [problem["reason"] for problem in problems] == [
            "unhealthy, 2 Down: ledger, api",
            "unhealthy, 1 Down: ledger",
            "partially healthy, 1 Down: cache",
        ]
        assert problems[0]["page"] == f"{urls['two']}/"
        done = run_command([sys.executable, "-m", "svcnode", "status", f"http://127.0.0.1:{agent.port}"], tmp_path)
        assert "2 Down: ledger, api" in done.stdout
        assert done.returncode == 1
