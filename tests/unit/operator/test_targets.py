"""`/targets`: other nodes as Prometheus discovers them; the replicas run in virtual time on a simulated etcd."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent.fleet.found_services import FleetServices
from svcnode.api.spec import Request
from svcnode.config.fleet import FleetSettings
from svcnode.core.model import Verdict
from svcnode.operator.single_flight import SingleFlight
from svcnode.operator.targets import targets
from tests.support.operator_context import OperatorHarness, operator_context
from tests.support.replica_simulation import Simulation, simulated_probes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.api.spec import Response
    from svcnode.operator.context import OperatorContext

SETTLE_S, LEASE_ENDS_S = 5.0, 30.0
DEFINES = {"status": "Up"}


def ask(context: OperatorContext) -> Response:
    context = context._replace(single_flight=SingleFlight())  # which shares an answer for a second
    return asyncio.run(targets(context, Request("GET", b"/targets"), ""))


def listed(context: OperatorContext) -> list[Any]:
    response = ask(context)
    assert response.code == 200
    assert dict(response.headers)["Content-Type"] == "application/json"
    return list(json.loads(response.body))


def scraped(context: OperatorContext) -> dict[str, str]:
    """What Prometheus would ask, by the id of the node."""
    found = {}
    for group in listed(context):
        labels = group["labels"]
        (target,) = group["targets"]
        found[labels["__meta_svcnode_id"]] = f"{labels['__scheme__']}://{target}{labels['__metrics_path__']}"
    return found


# ---- the nodes that probes check


@pytest.mark.parametrize(
    ("probe", "url"),
    [
        ("svc+http://10.0.0.5:8420", "http://10.0.0.5:8420/metrics"),
        ("svc+https://validator.example.com", "https://validator.example.com:443/metrics"),
        ("svc+http://validator.example.com", "http://validator.example.com:80/metrics"),
        ("svc+http://[::1]:8420/eigen", "http://[::1]:8420/metrics"),
        ("svc+https://[2001:db8::1]", "https://[2001:db8::1]:443/metrics"),
        ("svc+https://proxy/validator-7/svc/node", "https://proxy:443/validator-7/metrics"),
        ({"url": "svc+http://10.0.0.9:8420", "prefix": "/eigen"}, "http://10.0.0.9:8420/metrics"),
        ({"url": "svc+http://10.0.0.9:8420", "prefix": "/"}, "http://10.0.0.9:8420/metrics"),
    ],
)
def test_the_metrics_of_a_node_are_beside_its_interface(probe: Any, url: str) -> None:
    harness = OperatorHarness()
    harness.node.register("other", probe=probe)
    assert scraped(harness.context) == {"other": url}


def test_only_nodes_are_listed_and_each_once() -> None:
    harness = OperatorHarness()
    register = harness.node.register
    register("db", probe="tcp://10.0.0.5:5432")
    register("reported")
    register("b", name="B", group="eu", probe="svc+http://10.0.0.5:8420")
    register("c", probe={"url": "svc+http://10.0.0.5:8420", "service": "ledger"})
    register("a", probe="svc+http://10.0.0.4:8420")
    first, second = listed(harness.context)
    assert first["targets"] == ["10.0.0.4:8420"]
    assert second == {
        "targets": ["10.0.0.5:8420"],
        "labels": {
            "__scheme__": "http",
            "__metrics_path__": "/metrics",
            "__meta_svcnode_id": "b",
            "__meta_svcnode_name": "B",
            "__meta_svcnode_group": "eu",
        },
    }


def test_a_node_without_others_lists_nothing() -> None:
    assert listed(OperatorHarness().context) == []


def test_a_node_that_is_down_stays_in_the_list() -> None:
    harness = OperatorHarness()
    harness.node.register("other", probe="svc+http://10.0.0.5:8420", start_period=0.0)
    harness.record("other", *[Verdict.failed("refused")] * 3)
    assert harness.details("other")["status"] == "Down"
    assert scraped(harness.context) == {"other": "http://10.0.0.5:8420/metrics"}


def test_no_secret_of_a_url_is_shown() -> None:
    harness = OperatorHarness()
    key = "a81bc81bdead4e5dabff90865d1e13b1"
    harness.node.register("other", probe=f"svc+https://reader:hunter2hunter2@10.0.0.5:8420/{key}/svc")
    text = ask(harness.context).body.decode()
    assert "10.0.0.5:8420" in text
    assert not any(secret in text for secret in ("reader", "hunter2", key))


def test_a_fleet_answers_with_an_error_until_it_has_found_its_nodes(tmp_path: Path) -> None:
    """Prometheus then keeps the targets that it has."""
    harness = OperatorHarness()
    nodes_file = tmp_path / "nodes.txt"
    harness.node.register("known", probe="svc+http://10.0.0.4:8420")
    fleet = FleetServices(harness.node, {})
    settings = FleetSettings(
        file=nodes_file, registry=None, tls=None, refresh_interval_s=10.0, options={}, probe_options={}
    )
    fleet.configure(settings)
    probe = harness.node.probe_config("fleet")
    assert probe is not None
    asyncio.run(probe.probe.check())
    assert ask(harness.context).code == 503
    nodes_file.write_text("http://10.0.0.5:8420 ledger\nhttps://proxy/search/svc search\n")
    asyncio.run(probe.probe.check())
    found = {
        "known": "http://10.0.0.4:8420/metrics",
        "ledger/10.0.0.5:8420": "http://10.0.0.5:8420/metrics",
        "search/proxy": "https://proxy:443/search/metrics",
    }
    assert scraped(harness.context) == found
    nodes_file.unlink()
    asyncio.run(probe.probe.check())
    assert scraped(harness.context) == found


# ---- the replicas of a node


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulated_probes():
        simulation = Simulation()
        yield simulation
        simulation.close()


def test_the_replicas_of_a_node_are_listed_at_the_addresses_that_others_reach(simulation: Simulation) -> None:
    a = simulation.start("a", url="http://10.0.0.1:8420")
    simulation.start("b", url="https://proxy/b/svc")
    simulation.start("c")
    context = operator_context(a.node, replica=a.replica)
    assert ask(context).code == 503, "the registry was not read so far"
    simulation.run_for(SETTLE_S)
    assert scraped(context) == {"n/a": "http://10.0.0.1:8420/metrics", "n/b": "https://proxy:443/b/metrics"}
    (first, _) = listed(context)
    assert first["labels"]["__meta_svcnode_group"] == "n"
    assert first["labels"]["__meta_svcnode_name"] == "a"


def test_a_replica_that_has_died_stays_in_the_list_until_it_is_forgotten(simulation: Simulation) -> None:
    a = simulation.start("a", url="http://10.0.0.1:8420")
    b = simulation.start("b", {"of-b": DEFINES}, url="http://10.0.0.2:8420")
    context = operator_context(a.node, replica=a.replica)
    simulation.run_for(SETTLE_S)
    both = {"n/a": "http://10.0.0.1:8420/metrics", "n/b": "http://10.0.0.2:8420/metrics"}
    b.kill()
    simulation.run_for(LEASE_ENDS_S)
    assert [member.name for member in a.replica.members()] == ["a"]
    assert scraped(context) == both
    simulation.etcd.is_running = False
    simulation.run_for(LEASE_ENDS_S)
    assert scraped(context) == both
    simulation.etcd.is_running = True
    simulation.run_for(LEASE_ENDS_S)
    simulation.start("b", {"of-b": DEFINES}, url="http://10.0.0.3:8420")
    simulation.run_for(SETTLE_S)
    assert scraped(context)["n/b"] == "http://10.0.0.3:8420/metrics"
    simulation.processes["b"].kill()
    simulation.run_for(LEASE_ENDS_S)
    simulation.undefine("of-b", "replica:b")
    simulation.run_for(SETTLE_S)
    assert scraped(context) == {"n/a": "http://10.0.0.1:8420/metrics"}


def test_all_replicas_list_the_same_nodes_whichever_of_them_checks_them(simulation: Simulation) -> None:
    probe = {"url": "svc+http://10.0.0.9:8420", "prefix": "/eigen"}
    a = simulation.start("a", {"other": {"probe": probe, "checked_by": ["b"]}, "db": {"probe": "tcp://10.0.0.8:5432"}})
    b = simulation.start("b")
    simulation.run_for(SETTLE_S)
    for process in (a, b):
        context = operator_context(process.node, replica=process.replica)
        assert scraped(context) == {"other": "http://10.0.0.9:8420/metrics"}
