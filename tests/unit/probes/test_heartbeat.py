"""Services that report by heartbeat, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.agent.embed.node import Node
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Status
from svcnode.node.definition import define
from svcnode.probes import make_probe
from tests.support.verdicts import unknown
from tests.support.virtual_time import VirtualClock

Config = str | dict[str, object]
CONFIGS: list[Config] = ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def node(clock: VirtualClock) -> Node:
    return Node("validator-7", version="v1", clock=clock)


def test_a_job_has_a_period_and_a_grace() -> None:
    policy = define("job", probe={"url": "heartbeat:", "period": "1h", "grace": "1m"}).service.policy
    assert (policy.ttl_s, policy.grace_s) == (3660.0, 60.0)
    assert define("worker", probe="heartbeat:30s").service.policy.grace_s is None


def test_checking_a_heartbeat_is_unknown() -> None:
    assert asyncio.run(make_probe("heartbeat:30s").check()) == unknown(ReasonCode.NO_EVIDENCE)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_service_is_initializing_before_its_first_beat_then_up_and_down_after_its_ttl(
    node: Node, clock: VirtualClock, config: Config
) -> None:
    node.register("worker", probe=config)
    clock.advance(29.9)
    assert (node.state("worker").status, node.health) == (Status.INITIALIZING, Health.PARTIAL)
    node.beat("worker")
    clock.advance(29.9)
    assert (node.state("worker").status, node.health) == (Status.UP, Health.HEALTHY)
    clock.advance(0.2)
    assert (node.state("worker").status, node.health) == (Status.DOWN, Health.UNHEALTHY)
    assert node.state("worker").code == ReasonCode.TTL_EXPIRED
