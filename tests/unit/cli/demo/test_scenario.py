"""The scenario: what it shows within a minute, and when."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from svcnode.cli.demo.checks import INTERVAL_S, SERVICES, START_PERIOD_S, TIMEOUT_S
from svcnode.cli.demo.scenario import (
    INITIAL_MODES,
    LOOP_S,
    LOOP_STEPS,
    STARTUP_S,
    STARTUP_STEPS,
    FaultMode,
    ScenarioStep,
    run_scenario,
    scenario_steps,
)
from svcnode.core.model import Change, Health, Status, Verdict
from svcnode.node.checks import Checks
from svcnode.node.definition import define
from svcnode.probes.base import Probe
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

MINUTE_S = 60.0
SERVERS = {service.id for service in SERVICES}


def test_the_rounds_follow_the_startup_and_repeat() -> None:
    rounds = [step._replace(at_s=step.at_s + STARTUP_S + index * LOOP_S) for index in range(3) for step in LOOP_STEPS]
    assert [*islice(scenario_steps(), len(STARTUP_STEPS) + len(rounds))] == [*STARTUP_STEPS, *rounds]


@pytest.mark.parametrize("speed", [0.5, 8.0])
def test_each_step_is_applied_at_its_time(speed: float) -> None:
    applied: list[tuple[float, ScenarioStep]] = []

    async def apply_step(step: ScenarioStep) -> None:
        applied.append((asyncio.get_running_loop().time(), step))
        await asyncio.sleep(0.3)  # does not delay the later steps

    async def run() -> None:
        await asyncio.sleep(7)
        async with asyncio.timeout(5 * MINUTE_S / speed):
            await run_scenario(apply_step, speed=speed)

    with pytest.raises(TimeoutError):
        run_in_virtual_time(run())
    assert len(applied) > 50
    for at_s, step in applied:
        assert at_s == pytest.approx(7 + step.at_s / speed, abs=0.31)
    assert [step for _, step in applied] == [*islice(scenario_steps(), len(applied))]


class FakeProbe(Probe):
    """Replaces a server and its probe."""

    def __init__(self, mode: FaultMode) -> None:
        self.mode = mode

    async def check(self) -> Verdict:
        match self.mode:
            case FaultMode.NONE:
                return Verdict.ready()
            case FaultMode.NOT_READY:
                return Verdict.not_ready("starting")
            case FaultMode.SLOW:
                await asyncio.sleep(0.3)
                return Verdict.ready()
            case FaultMode.UNRESPONSIVE:
                await asyncio.sleep(3600)
            case FaultMode.STOPPED:
                pass
        return Verdict.failed("gone")


async def changes_in(seconds: float) -> list[Change]:
    """The changes of a node with the settings of the demo."""
    node = make_node("demo", version="v1", clock=asyncio.get_running_loop().time)
    probes = {service.id: FakeProbe(INITIAL_MODES[service.id]) for service in SERVICES}
    for service in SERVICES:
        definition = define(
            service.id,
            probe=probes[service.id],
            impact=service.impact,
            interval=INTERVAL_S,
            timeout=TIMEOUT_S,
            start_period=START_PERIOD_S,
            max_latency=service.max_latency_s,
        )
        node.add(definition)
    changes: list[Change] = []
    node.subscribe(changes.append)

    async def apply_step(step: ScenarioStep) -> None:
        probes[step.server].mode = step.mode

    async with Checks(node).running():
        scenario = asyncio.create_task(run_scenario(apply_step))
        await asyncio.sleep(seconds)
        scenario.cancel()
    return changes


@in_virtual_time
async def test_the_first_minute_shows_every_status_and_every_health() -> None:
    changes = await changes_in(MINUTE_S)
    up, down, initializing = Status.UP, Status.DOWN, Status.INITIALIZING
    statuses = {
        server: [change.after.status for change in changes if change.service_id == server and change.after]
        for server in SERVERS
    }
    assert statuses == {
        "chain": [up, down, initializing, up],
        "indexer": [up, down, initializing, up],
        "storage": [up, initializing, up],
        "cache": [up, initializing, up],
        "peer": [up, down, up],
    }
    healths = [change.health for change in changes if change.health is not change.health_before]
    assert {*healths} == {Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY}
    assert healths[-1] is Health.HEALTHY
