"""What a probe keeps from look to look is let go of when its looking ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from svcnode.definition import define
from svcnode.scheduler import ProbeScheduler
from tests.support.scheduling import (
    HUNG_S,
    READY,
    CancelSwallowingProbe,
    NoJitter,
    ScriptedProbe,
    make_node,
    make_scheduler,
    now_s,
    running_checks,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from svcnode.node import Node


@dataclass(eq=False)
class KeepingProbe(ScriptedProbe):
    """Has something to let go of, and notes when it was told to, and how many of its looks were under way then."""

    let_go_at_s: list[tuple[float, int]] = field(default_factory=list)

    def close(self) -> None:
        self.let_go_at_s.append((now_s(), self.concurrency.open_buckets))


def deregister(node: Node) -> None:
    node.deregister("db-1")


def redefine(node: Node) -> None:
    node.replace(define("db-1", probe=ScriptedProbe(), interval="10s"))


def report_instead(node: Node) -> None:
    node.replace(define("db-1"))


GOING = pytest.mark.parametrize("goes", [deregister, redefine, report_instead])


@GOING
@in_virtual_time
async def test_a_probe_lets_go_when_its_service_goes_or_is_looked_at_in_another_way(
    goes: Callable[[Node], None],
) -> None:
    node, probe, other = make_node(), KeepingProbe(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("db-2", probe=other, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []
        goes(node)
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == [(15.0, 0)]
        assert other.let_go_at_s == []


@GOING
@in_virtual_time
async def test_a_probe_that_is_looking_lets_go_after_its_look(goes: Callable[[Node], None]) -> None:
    node, probe = make_node(), KeepingProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(11.0)
        goes(node)
        await asyncio.sleep(15.0)
    assert probe.cancelled_at_s == [11.0]
    assert probe.let_go_at_s == [(11.0, 0)]


@in_virtual_time
async def test_new_words_about_a_service_leave_its_probe_what_it_keeps() -> None:
    node, probe = make_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        node.replace(define("db-1", name="Ledger", probe=probe, interval="10s"))
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []


@pytest.mark.parametrize("takes_s", [0.0, 2.0], ids=["between its looks", "in the middle of one"])
@in_virtual_time
async def test_every_probe_lets_go_when_the_looking_ends(takes_s: float) -> None:
    node, probes = make_node(), [KeepingProbe(duration_s=takes_s) for _ in range(3)]
    for place, probe in enumerate(probes):
        node.register(f"svc-{place}", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(11.5)
    assert [probe.let_go_at_s for probe in probes] == [[(11.5, 0)]] * 3


@in_virtual_time
async def test_a_probe_that_swallows_the_end_of_its_look_still_lets_go_after_it() -> None:
    """What it keeps then, it would keep for ever."""

    @dataclass(eq=False)
    class StubbornKeeper(CancelSwallowingProbe):
        diary: list[str] = field(default_factory=list)

        async def check(self) -> Verdict:
            verdict = await super().check()
            self.diary.append("kept")
            return verdict

        def close(self) -> None:
            self.diary.append("let go")

    node, probe = make_node(), StubbornKeeper(lambda: READY)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert probe.diary == ["kept", "let go"]


@in_virtual_time
async def test_a_probe_whose_look_is_ended_before_its_first_step_lets_go_too() -> None:
    node, probe = make_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")

    class EndedAtOnce(ProbeScheduler):
        def count_start(self, service_id: str, late_s: float) -> None:
            raise AssertionError("it should not begin")

    scheduler = EndedAtOnce(node, NoJitter())
    async with scheduler:
        (runner,) = scheduler._runners.values()
        runner._start_check()  # its task is made, and has not run yet
        runner.stop()
        await asyncio.sleep(1.0)
        assert (probe.started_at_s, probe.let_go_at_s) == ([], [(0.0, 0)])


@in_virtual_time
async def test_a_probe_that_waits_for_a_place_lets_go_when_its_service_goes() -> None:
    node, waiting = make_node(), KeepingProbe()
    node.register("hung", probe=ScriptedProbe(duration_s=HUNG_S), interval="60s", timeout="50s")
    node.register("db-1", probe=waiting, interval="60s")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(5.0)
        node.deregister("db-1")
        await asyncio.sleep(1.0)
    assert (waiting.started_at_s, waiting.let_go_at_s) == ([], [(5.0, 0)])


@in_virtual_time
async def test_a_probe_that_cannot_let_go_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(eq=False)
    class Clinging(ScriptedProbe):
        def close(self) -> None:
            raise RuntimeError("not today")

    node, other, hung = make_node(), KeepingProbe(), ScriptedProbe(duration_s=4.0)
    node.register("clinging", probe=Clinging(), interval="10s")
    node.register("hung", probe=hung, interval="10s", timeout="5s")
    node.register("db-1", probe=other, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(3.0)
    assert other.let_go_at_s == [(3.0, 0)]
    assert hung.cancelled_at_s == [3.0]
    assert not running_checks()
    assert [record.getMessage() for record in caplog.records] == ["a probe could not let go of what it had kept"]
