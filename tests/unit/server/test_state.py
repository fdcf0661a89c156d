"""The backlog of pipelined requests, bounded in each turn of the event loop, and the timer of the time limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from svcnode.server import state as server_state
from svcnode.server.state import BACKLOG_BUDGET_S, ServerLimits, ServerState
from tests.support.virtual_time import in_virtual_time
from tests.unit.server.test_timeouts import FakeConnection

if TYPE_CHECKING:
    import pytest

    from svcnode.server.response_cache import ResponseCache

REQUEST_S = 0.0001


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakePipelining(FakeConnection):
    """Each request takes the same time."""

    def __init__(self, name: str, requests: int, clock: Clock, log: list[str]) -> None:
        super().__init__()
        self.name = name
        self.requests = requests
        self._clock = clock
        self._log = log

    def answer_queued(self, deadline_s: float) -> bool:
        self._log.append(self.name)
        while self.requests:
            self.requests -= 1
            self._clock.now_s += REQUEST_S
            if self._clock.now_s >= deadline_s:
                break
        return self.requests > 0


def make_state(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ServerState:
    monkeypatch.setattr(server_state, "monotonic_s", clock)
    return ServerState(cast("ResponseCache", None), ServerLimits())


@in_virtual_time
async def test_a_turn_of_the_loop_takes_a_bounded_time_for_any_number_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    state = make_state(monkeypatch, clock)
    connections = [FakePipelining(str(number), 100, clock, log) for number in range(1000)]
    for connection in connections:
        state.enqueue(connection)
    for _ in range(5):
        before_s = clock.now_s
        await asyncio.sleep(0)
        assert clock.now_s - before_s <= BACKLOG_BUDGET_S + REQUEST_S


@in_virtual_time
async def test_connections_take_turns_until_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    state = make_state(monkeypatch, clock)
    for connection in (FakePipelining("many", 200, clock, log), FakePipelining("few", 1, clock, log)):
        state.enqueue(connection)
    for _ in range(100):
        await asyncio.sleep(0)
    assert log[:3] == ["many", "few", "many"]
    assert clock.now_s >= 200 * REQUEST_S


@in_virtual_time
async def test_the_time_limits_are_checked_only_while_there_are_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    checked_at_s: list[float] = []
    state = make_state(monkeypatch, Clock())
    monkeypatch.setattr(state, "enforce_unread_limit", lambda: checked_at_s.append(loop.time()))
    await asyncio.sleep(100.5)
    connection = FakeConnection()
    state.add_connection(connection)
    await asyncio.sleep(2.0)
    state.remove_connection(connection)
    await asyncio.sleep(100.0)
    assert checked_at_s == [101.0, 102.0]
