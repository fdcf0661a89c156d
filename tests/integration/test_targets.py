"""A real Prometheus that finds nodes by `/targets`: those of a fleet, and the replicas of a node on a real etcd."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.prometheus import DiscoveringPrometheus, discovery_example, promtool

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "the-token-of-the-operator"
WAIT_TIMEOUT_S = 60.0
HEAD = (
    '[history]\nkeep = false\n[security]\noperator_token = "{token}"\n'
    '[server]\nlisten = "127.0.0.1:{port}"\ndrain = "0s"\n[node]\nname = "{name}"\n'
)
SERVICE = '[[services]]\nid = "of-{name}"\nstatus = "Up"\n'


def start(stack: ExitStack, folder: Path, more: str, *, node: str, port: int = 0) -> Agent:
    folder.mkdir()
    config = HEAD.format(token=TOKEN, name=node, port=port)
    return stack.enter_context(Agent(folder, config=f"{config}{more}"))


def expect(prometheus: DiscoveringPrometheus, targets: dict[str, str]) -> None:
    with suppress(AssertionError):  # raised below, with what was found
        wait_until(lambda: prometheus.targets() == targets, "", WAIT_TIMEOUT_S)
    assert prometheus.targets() == targets


def test_prometheus_finds_the_nodes_of_a_fleet_and_keeps_one_that_dies(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = start(stack, tmp_path / "first", SERVICE.format(name="first"), node="one")
        second = start(stack, tmp_path / "second", SERVICE.format(name="second"), node="two")
        location = "location /second/ { proxy_pass http://127.0.0.1:8420/; }"
        proxy_port = stack.enter_context(nginx_in_front_of(second, location))
        urls = f"http://127.0.0.1:{first.port}", f"http://127.0.0.1:{proxy_port}/second"
        (tmp_path / "nodes.txt").write_text(f"{urls[0]} one\n{urls[1]}/svc two\n")
        source = f'[fleet]\nfile = "{tmp_path}/nodes.txt"\nrefresh_interval = "1s"\n'
        fleet = start(stack, tmp_path / "fleet", source, node="fleet")
        assert fleet.request("/targets").code == 401
        prometheus = DiscoveringPrometheus(tmp_path / "prometheus", target=f"127.0.0.1:{fleet.port}", token=TOKEN)
        stack.enter_context(prometheus)
        expect(prometheus, {f"{url}/metrics": "up" for url in urls})
        wait_until(lambda: len(prometheus.query("svcnode_node_info")) == 2, "both are scraped", WAIT_TIMEOUT_S)
        assert {found["metric"]["node"] for found in prometheus.query("svcnode_node_info")} == {"one", "two"}

        first.signal(signal.SIGKILL)
        expect(prometheus, {f"{urls[0]}/metrics": "down", f"{urls[1]}/metrics": "up"})
        wait_until(lambda: fleet.health() == 206, "the fleet has noticed", WAIT_TIMEOUT_S)
        expect(prometheus, {f"{urls[0]}/metrics": "down", f"{urls[1]}/metrics": "up"})


def test_prometheus_finds_the_replicas_of_a_node_and_keeps_one_that_dies(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdServer(tmp_path / "etcd"))

        def replica(name: str) -> Agent:
            port = free_port()
            sharing = (
                f'[sharing]\nregistry = "{etcd.url}"\nreplica = "{name}"\nlease = "2s"\n'
                f'url = "http://127.0.0.1:{port}"\n'
            )
            return start(stack, tmp_path / name, f"{sharing}{SERVICE.format(name=name)}", node="ledger", port=port)

        a, b = replica("a"), replica("b")
        prometheus = DiscoveringPrometheus(tmp_path / "prometheus", target=f"127.0.0.1:{a.port}", token=TOKEN)
        stack.enter_context(prometheus)
        urls = [f"http://127.0.0.1:{agent.port}/metrics" for agent in (a, b)]
        expect(prometheus, dict.fromkeys(urls, "up"))

        b.signal(signal.SIGKILL)
        wait_until(
            lambda: prometheus.value(f'svcnode_sharing_replicas{{instance="127.0.0.1:{a.port}"}}') == 1,
            "its lease is over",
            WAIT_TIMEOUT_S,
        )
        expect(prometheus, {urls[0]: "up", urls[1]: "down"})


def test_the_example_is_a_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(discovery_example())
    code, output = promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
    assert code == 0, output
