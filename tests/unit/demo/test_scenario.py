"""The script: what it promises to show within a minute, and that it keeps its times."""

from __future__ import annotations

import asyncio
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Health, Status, Verdict
from svcnode.definition import define
from svcnode.demo.scenario import (
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
from svcnode.demo.services import INTERVAL_S, SERVICES, START_PERIOD_S, TIMEOUT_S
from svcnode.node import Node
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.model import Change

MINUTE_S = 60.0
SERVERS = {role.id for role in SERVICES}
LONG_ENOUGH_S = 2 * INTERVAL_S + 3 * TIMEOUT_S  # until a look begins, three that fail, and a moment to see it


def in_the_first(seconds: float) -> list[ScenarioStep]:
    return [act for act in islice(scenario_steps(), 100) if act.at_s <= seconds]


def moods_after(*played: ScenarioStep) -> dict[str, FaultMode]:
    return INITIAL_MODES | {act.server: act.mode for act in played}


# ---- as data


def test_everybody_who_plays_is_in_the_cast() -> None:
    assert set(INITIAL_MODES) == SERVERS == {act.server for act in (*STARTUP_STEPS, *LOOP_STEPS)}
    assert len(SERVICES) == 5


def test_opening_and_first_round_make_a_minute() -> None:
    assert STARTUP_S + LOOP_S == MINUTE_S


@pytest.mark.parametrize(("part", "length_s"), [(STARTUP_STEPS, STARTUP_S), (LOOP_STEPS, LOOP_S)])
def test_acts_stand_in_their_order_and_within_their_time(part: tuple[ScenarioStep, ...], length_s: float) -> None:
    times_s = [act.at_s for act in part]
    assert times_s == sorted(set(times_s))
    assert times_s[0] > 0
    assert times_s[-1] < length_s


def test_the_first_minute_shows_everything_that_can_happen() -> None:
    assert {*INITIAL_MODES.values(), *(act.mode for act in in_the_first(MINUTE_S))} == set(FaultMode)


def test_everybody_is_well_after_the_opening_and_after_every_round() -> None:
    well = dict.fromkeys(SERVERS, FaultMode.NONE)
    assert moods_after(*STARTUP_STEPS) == well
    assert moods_after(*STARTUP_STEPS, *LOOP_STEPS) == well


def test_every_act_changes_something() -> None:
    moods: dict[str, FaultMode] = dict(INITIAL_MODES)
    for act in (*STARTUP_STEPS, *LOOP_STEPS, *LOOP_STEPS):
        assert moods[act.server] is not act.mode, act
        moods[act.server] = act.mode


def test_every_mood_lasts_long_enough_to_be_seen() -> None:
    for server in SERVERS:
        times_s = [0.0, *(act.at_s for act in in_the_first(2 * MINUTE_S) if act.server == server)]
        assert all(after_s - before_s >= LONG_ENOUGH_S for before_s, after_s in pairwise(times_s)), server


def test_it_begins_again_and_again() -> None:
    found = [*islice(scenario_steps(), len(STARTUP_STEPS) + 3 * len(LOOP_STEPS))]
    first, second, third = (
        found[len(STARTUP_STEPS) + place * len(LOOP_STEPS) : len(STARTUP_STEPS) + (place + 1) * len(LOOP_STEPS)]
        for place in range(3)
    )
    assert second == [act._replace(at_s=act.at_s + LOOP_S) for act in first]
    assert third == [act._replace(at_s=act.at_s + 2 * LOOP_S) for act in first]


def test_what_is_said_is_one_line_that_a_terminal_can_show() -> None:
    for act in (*STARTUP_STEPS, *LOOP_STEPS):
        assert act.text.isprintable()
        assert len(act.text) <= 95


# ---- as it is played


@pytest.mark.parametrize("speed", [0.5, 1.0, 8.0])
def test_each_act_comes_at_its_time(speed: float) -> None:
    performed: list[tuple[float, ScenarioStep]] = []

    async def perform(act: ScenarioStep) -> None:
        performed.append((asyncio.get_running_loop().time(), act))
        await asyncio.sleep(0.3)  # taking a while shifts none of the later ones

    async def story() -> None:
        await asyncio.sleep(7)
        async with asyncio.timeout(5 * MINUTE_S / speed):
            await run_scenario(perform, speed=speed)

    with pytest.raises(TimeoutError):
        run_in_virtual_time(story())
    assert len(performed) > 50
    for at_s, act in performed:
        assert at_s == pytest.approx(7 + act.at_s / speed, abs=0.31)
    assert [act for _, act in performed] == [*islice(scenario_steps(), len(performed))]


# ---- as the node sees it


class Actor:
    """Stands where a server and its probe stand."""

    def __init__(self, mood: FaultMode) -> None:
        self.mode = mood

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


async def as_seen_for(seconds: float) -> list[Change]:
    """What the node makes of the script, looking as it does in the demo."""
    node = Node("demo", version="v1", clock=asyncio.get_running_loop().time)
    actors = {role.id: Actor(INITIAL_MODES[role.id]) for role in SERVICES}
    for role in SERVICES:
        definition = define(
            role.id,
            probe=actors[role.id],
            impact=role.impact,
            interval=INTERVAL_S,
            timeout=TIMEOUT_S,
            start_period=START_PERIOD_S,
            max_latency=role.max_latency_s,
        )
        node.add(definition)
    changes: list[Change] = []
    node.subscribe(changes.append)

    async def perform(act: ScenarioStep) -> None:
        actors[act.server].mode = act.mode

    async with node.probing():
        playing = asyncio.create_task(run_scenario(perform))
        await asyncio.sleep(seconds)
        playing.cancel()
    return changes


def statuses_in(changes: list[Change]) -> Mapping[str, list[Status]]:
    return {
        server: [change.after.status for change in changes if change.service_id == server and change.after]
        for server in SERVERS
    }


@in_virtual_time
async def test_the_first_minute_shows_every_status_and_every_health() -> None:
    changes = await as_seen_for(MINUTE_S)
    up, down, initializing = Status.UP, Status.DOWN, Status.INITIALIZING
    assert statuses_in(changes) == {
        "chain": [up, down, initializing, up],
        "indexer": [up, down, initializing, up],
        "storage": [up, initializing, up],
        "cache": [up, initializing, up],
        "peer": [up, down, up],
    }
    healths = [change.health for change in changes if change.health is not change.health_before]
    assert {*healths} == {Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY}
    assert healths[-1] is Health.HEALTHY


@in_virtual_time
async def test_the_second_round_shows_the_same_as_the_first() -> None:
    changes = await as_seen_for(MINUTE_S + LOOP_S)
    of_the_first = statuses_in(await as_seen_for(MINUTE_S))
    for server, seen in statuses_in(changes).items():
        assert seen == [*of_the_first[server], *of_the_first[server][1:]]
