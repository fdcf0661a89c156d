"""A node that stood still: what expired meanwhile is a fault of this machine."""

from __future__ import annotations

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Status, Verdict
from svcnode.node.standstill import Standstill
from tests.support.nodes import make_node, record
from tests.support.scheduling import ScriptedProbe
from tests.support.virtual_time import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1000.0)


def test_the_time_from_the_last_tick_until_now_or_until_the_next_one_is_a_standstill(clock: VirtualClock) -> None:
    standstill = Standstill(clock)
    standstill.tick()
    assert standstill.duration_s(1000.0, 9000.0) == 0.0, "nothing ticks yet"
    standstill.start()
    clock.advance(1.5)
    standstill.tick()
    assert standstill.duration_s(1001.0, 1002.0) == 0.0
    assert standstill.duration_s(1030.0, 8701.5) == 7200.0 + 500.0, "before the next tick"
    clock.advance(7200.0)
    standstill.tick()
    assert standstill.duration_s(1030.0, clock() + 1.0) == 7200.0
    assert standstill.duration_s(clock() + 1.0, clock() + 1.5) == 0.0, "what expires later has another cause"
    assert standstill.duration_s(1000.0, clock()) == 0.0, "as what expired before"
    standstill.stop()
    assert standstill.duration_s(clock() + 60.0, clock() + 100.0) == 0.0


@pytest.mark.parametrize(("is_down", "status"), [(False, Status.INITIALIZING), (True, Status.DOWN)])
@pytest.mark.parametrize("reads_first", [True, False])
def test_a_service_whose_evidence_expired_while_the_node_stood_still_says_so(
    clock: VirtualClock, is_down: bool, status: Status, reads_first: bool
) -> None:
    node = make_node(clock=clock)
    node.register("db", probe=ScriptedProbe(), start_period="0s", fall=1)
    node.standstill.start()
    record(node, "db", Verdict.failed("refused") if is_down else Verdict.ready())
    clock.advance(7200.0)
    if not reads_first:
        node.standstill.tick()
        clock.advance(0.5)
    state = node.state("db")
    assert (state.status, state.code) == (status, ReasonCode.CANNOT_CHECK)
    assert "2 h" in state.reason
    assert ("refused" in state.reason) is is_down


def test_a_fork_ends_the_ticks(clock: VirtualClock) -> None:
    node = make_node(clock=clock)
    node.register("db", probe=ScriptedProbe())
    node.standstill.start()
    record(node, "db", Verdict.ready())
    node.after_fork()
    clock.advance(60.0)
    assert node.state("db").code == ReasonCode.STALE
