"""A probe is closed when its checks end."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from svcnode.node.definition import define
from svcnode.node.scheduler.runner import ProbeRunner
from tests.support.scheduling import (
    HUNG_S,
    ScriptedProbe,
    make_node,
    make_scheduler,
    now_s,
    running_checks,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node.node_state import NodeState


@dataclass(eq=False)
class CachingProbe(ScriptedProbe):
    """Records when it was closed, and how many of its checks were running then."""

    closed_at_s: list[tuple[float, int]] = field(default_factory=list)

    def close(self) -> None:
        self.closed_at_s.append((now_s(), self.concurrency.running))


def deregister(node: NodeState) -> None:
    node.deregister("db-1")


def redefine(node: NodeState) -> None:
    node.replace(define("db-1", probe=ScriptedProbe(), interval="10s"))


def report_instead(node: NodeState) -> None:
    node.replace(define("db-1"))


CHANGES = pytest.mark.parametrize("change", [deregister, redefine, report_instead])


@CHANGES
@in_virtual_time
async def test_a_probe_is_closed_when_its_service_is_removed_or_gets_another_probe(
    change: Callable[[NodeState], None],
) -> None:
    node, probe, other = make_node(), CachingProbe(), CachingProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("db-2", probe=other, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        assert probe.closed_at_s == []
        change(node)
        await asyncio.sleep(15.0)
        assert probe.closed_at_s == [(15.0, 0)]
        assert other.closed_at_s == []


def runners_of(service_id: str) -> list[ProbeRunner]:
    """All that are in memory."""
    return [found for found in gc.get_objects() if isinstance(found, ProbeRunner) and found.service_id == service_id]


@pytest.mark.parametrize("url", ["", "tcp://127.0.0.1:1"], ids=["in a task", "in a batch"])
@CHANGES
@in_virtual_time
async def test_what_a_replaced_or_removed_service_leaves_is_freed_at_once_without_garbage_collection(
    change: Callable[[NodeState], None], url: str
) -> None:
    """A reload may replace thousands of services: one collection of all they leave would hold the event loop."""
    node = make_node()
    node.register("db-1", probe=url or ScriptedProbe(duration_s=1.0), interval="10s")
    gc.disable()
    try:
        async with make_scheduler(node) as scheduler:
            await asyncio.sleep(5.0)  # the next check is in the timers
            assert runners_of("db-1") == [scheduler._runners["db-1"]]
            change(node)
            await asyncio.sleep(1.0)
            assert runners_of("db-1") == list(scheduler._runners.values())
    finally:
        gc.enable()


@CHANGES
@in_virtual_time
async def test_a_probe_is_not_used_again_and_closed_after_its_running_check_has_ended(
    change: Callable[[NodeState], None],
) -> None:
    node, probe = make_node(), CachingProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(11.0)
        change(node)
        await asyncio.sleep(15.0)
    assert (probe.started_at_s, probe.cancelled_at_s) == ([0.0, 10.0], [11.0])
    assert probe.closed_at_s == [(11.0, 0)]


@pytest.mark.parametrize("duration_s", [0.0, 2.0], ids=["between checks", "during a check"])
@in_virtual_time
async def test_every_check_is_cancelled_and_every_probe_closed_when_probing_stops(
    duration_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    node, probes = make_node(), [CachingProbe(duration_s=duration_s) for _ in range(3)]
    for number, probe in enumerate(probes):
        node.register(f"svc-{number}", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(11.5)
    assert not running_checks()
    assert [probe.closed_at_s for probe in probes] == [[(11.5, 0)]] * 3
    assert caplog.records == []


@in_virtual_time
async def test_a_probe_whose_check_is_cancelled_before_its_first_step_is_closed() -> None:
    node, probe = make_node(), CachingProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node) as scheduler:
        (runner,) = scheduler._runners.values()
        runner.start()  # the task is created and has not run yet
        runner.stop()
        await asyncio.sleep(1.0)
        assert (probe.started_at_s, probe.closed_at_s) == ([], [(0.0, 0)])


@in_virtual_time
async def test_a_probe_that_waits_for_a_slot_is_closed_when_its_service_is_removed() -> None:
    node, waiting = make_node(), CachingProbe()
    node.register("hung", probe=ScriptedProbe(duration_s=HUNG_S), interval="60s", timeout="50s")
    node.register("db-1", probe=waiting, interval="60s")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(5.0)
        node.deregister("db-1")
        await asyncio.sleep(1.0)
    assert (waiting.started_at_s, waiting.closed_at_s) == ([], [(5.0, 0)])


@in_virtual_time
async def test_an_error_in_close_does_not_keep_other_probes_open(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(eq=False)
    class NotClosableProbe(ScriptedProbe):
        def close(self) -> None:
            raise RuntimeError

    node, other, hung = make_node(), CachingProbe(), ScriptedProbe(duration_s=4.0)
    node.register("not-closable", probe=NotClosableProbe(), interval="10s")
    node.register("hung", probe=hung, interval="10s", timeout="5s")
    node.register("db-1", probe=other, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(3.0)
    assert other.closed_at_s == [(3.0, 0)]
    assert hung.cancelled_at_s == [3.0]
    assert not running_checks()
    [record] = caplog.records
    assert record.exc_info is not None
