"""Services that report by heartbeat, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Status
from svcnode.definition import define
from svcnode.node import Node
from svcnode.probes import make_probe
from svcnode.probes.heartbeat import HeartbeatProbe
from svcnode.scheduler import ProbeScheduler
from tests.support.verdicts import unknown
from tests.support.virtual_time import VirtualClock, in_virtual_time

Config = str | dict[str, object]
CONFIGS: list[Config] = ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def node(clock: VirtualClock) -> Node:
    return Node("validator-7", version="v1", clock=clock)


# ---- ttl


@pytest.mark.parametrize("config", CONFIGS)
def test_the_ttl_is_in_the_url_or_an_option(config: Config) -> None:
    probe = make_probe(config)
    assert isinstance(probe, HeartbeatProbe)
    assert probe.ttl_s == 30.0


@pytest.mark.parametrize(("text", "ttl_s"), [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("7d", 604800.0)])
def test_the_ttl_is_a_duration(text: str, ttl_s: float) -> None:
    assert define("worker", probe=f"heartbeat:{text}").service.policy.ttl_s == ttl_s


def test_a_job_has_a_period_and_a_grace() -> None:
    policy = define("job", probe={"url": "heartbeat:", "period": "1h", "grace": "1m"}).service.policy
    assert (policy.ttl_s, policy.grace_s) == (3660.0, 60.0)
    assert define("worker", probe="heartbeat:30s").service.policy.grace_s is None


def test_checking_a_heartbeat_is_unknown() -> None:
    assert asyncio.run(make_probe("heartbeat:30s").check()) == unknown(ReasonCode.NO_EVIDENCE)


# ---- as a service of a node


@pytest.mark.parametrize("config", CONFIGS)
def test_a_service_is_initializing_before_its_first_beat_then_up_and_down_after_its_ttl(
    node: Node, clock: VirtualClock, config: Config
) -> None:
    node.register("worker", probe=config)
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.INITIALIZING, Health.PARTIAL)
    node.beat("worker")
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.UP, Health.HEALTHY)
    clock.advance(0.2)
    assert (node.status("worker"), node.health) == (Status.DOWN, Health.UNHEALTHY)
    assert node.state("worker").code == ReasonCode.TTL_EXPIRED


@in_virtual_time
async def test_a_heartbeat_service_is_not_probed() -> None:
    node = Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.register("worker", probe="heartbeat:30s")
    assert node.probe_config("worker") is None
    statuses: list[Status | None] = []
    node.subscribe(lambda change: statuses.append(None if change.after is None else change.after.status))
    async with ProbeScheduler(node):
        await asyncio.sleep(20.0)
        node.beat("worker")
        await asyncio.sleep(60.0)
    assert statuses == [Status.UP, Status.DOWN]


def test_an_equal_definition_keeps_the_state(node: Node) -> None:
    node.register("worker", probe="heartbeat:30s")
    node.beat("worker")
    node.replace(define("worker", probe={"url": "heartbeat:", "ttl": "30s"}))
    assert node.status("worker") is Status.UP
