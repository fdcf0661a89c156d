"""What a probe keeps from look to look is let go of when its looking ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from svcnode.definition import define
from svcnode.supervisor import Supervisor
from tests.support.supervising import (
    HUNG_S,
    READY,
    NoChance,
    ScriptedProbe,
    StubbornProbe,
    a_node,
    looks_under_way,
    now_s,
    supervising,
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

    def let_go(self) -> None:
        self.let_go_at_s.append((now_s(), self.crowd.running))


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
    node, probe, other = a_node(), KeepingProbe(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("db-2", probe=other, interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []
        goes(node)
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == [(15.0, 0)]
        assert other.let_go_at_s == []


@GOING
@in_virtual_time
async def test_a_probe_that_is_looking_lets_go_after_its_look(goes: Callable[[Node], None]) -> None:
    node, probe = a_node(), KeepingProbe(takes_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(11.0)
        goes(node)
        await asyncio.sleep(15.0)
    assert probe.cancelled_at_s == [11.0]
    assert probe.let_go_at_s == [(11.0, 0)]


@in_virtual_time
async def test_new_words_about_a_service_leave_its_probe_what_it_keeps() -> None:
    node, probe = a_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
        node.replace(define("db-1", name="Ledger", probe=probe, interval="10s"))
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []


@pytest.mark.parametrize("takes_s", [0.0, 2.0], ids=["between its looks", "in the middle of one"])
@in_virtual_time
async def test_every_probe_lets_go_when_the_looking_ends(takes_s: float) -> None:
    node, probes = a_node(), [KeepingProbe(takes_s=takes_s) for _ in range(3)]
    for place, probe in enumerate(probes):
        node.register(f"svc-{place}", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(11.5)
    assert [probe.let_go_at_s for probe in probes] == [[(11.5, 0)]] * 3


@in_virtual_time
async def test_a_probe_that_swallows_the_end_of_its_look_still_lets_go_after_it() -> None:
    """What it keeps then, it would keep for ever."""

    @dataclass(eq=False)
    class StubbornKeeper(StubbornProbe):
        diary: list[str] = field(default_factory=list)

        async def look(self) -> Verdict:
            verdict = await super().look()
            self.diary.append("kept")
            return verdict

        def let_go(self) -> None:
            self.diary.append("let go")

    node, probe = a_node(), StubbornKeeper(lambda: READY)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert probe.diary == ["kept", "let go"]


@in_virtual_time
async def test_a_probe_whose_look_is_ended_before_its_first_step_lets_go_too() -> None:
    node, probe = a_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")

    class EndedAtOnce(Supervisor):
        def note_begin(self, service_id: str, late_s: float) -> None:
            raise AssertionError("it should not begin")

    supervisor = EndedAtOnce(node, NoChance())
    async with supervisor:
        (looker,) = supervisor._lookers.values()
        looker._begin()  # its task is made, and has not run yet
        looker.stop()
        await asyncio.sleep(1.0)
        assert (probe.began_at_s, probe.let_go_at_s) == ([], [(0.0, 0)])


@in_virtual_time
async def test_a_probe_that_waits_for_a_place_lets_go_when_its_service_goes() -> None:
    node, waiting = a_node(), KeepingProbe()
    node.register("hung", probe=ScriptedProbe(takes_s=HUNG_S), interval="60s", timeout="50s")
    node.register("db-1", probe=waiting, interval="60s")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(5.0)
        node.deregister("db-1")
        await asyncio.sleep(1.0)
    assert (waiting.began_at_s, waiting.let_go_at_s) == ([], [(5.0, 0)])


@in_virtual_time
async def test_a_probe_that_cannot_let_go_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(eq=False)
    class Clinging(ScriptedProbe):
        def let_go(self) -> None:
            raise RuntimeError("not today")

    node, other, hung = a_node(), KeepingProbe(), ScriptedProbe(takes_s=4.0)
    node.register("clinging", probe=Clinging(), interval="10s")
    node.register("hung", probe=hung, interval="10s", timeout="5s")
    node.register("db-1", probe=other, interval="10s")
    async with supervising(node):
        await asyncio.sleep(3.0)
    assert other.let_go_at_s == [(3.0, 0)]
    assert hung.cancelled_at_s == [3.0]
    assert not looks_under_way()
    assert [record.getMessage() for record in caplog.records] == ["a probe could not let go of what it had kept"]
