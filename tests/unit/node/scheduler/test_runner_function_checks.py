"""Check functions of an embedding program, which may block, exit, hang or ignore cancellation."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Status
from svcnode.net.timers import RECANCEL_AFTER_S
from svcnode.probes.function import FunctionProbe
from tests.support.scheduling import (
    HUNG_S,
    block_loop,
    make_node,
    make_scheduler,
    now_s,
)
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from svcnode.node.node_state import NodeState

F = TypeVar("F", bound="Callable[[], Any]")


def check_function(node: NodeState, service_id: str, **options: Any) -> Callable[[F], F]:
    def register(function: F) -> F:
        node.register(service_id, probe=FunctionProbe(function), **options)
        return function

    return register


@pytest.mark.parametrize("result", [(False, "no connection"), "down"], ids=str)
@in_virtual_time
async def test_a_check_that_returns_no_result_is_never_up_and_logs_what_to_return_once(
    result: object, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    caplog.set_level(logging.WARNING)

    @check_function(node, "cache", interval="10s", start_period=0.0)
    async def check() -> object:
        return result

    async with make_scheduler(node):
        for _ in range(100):
            assert node.status("cache") is Status.INITIALIZING
            await asyncio.sleep(1.0)
    (record,) = caplog.records
    assert (record.code, record.outcome) == (ReasonCode.BAD_RETURN, Outcome.UNKNOWN)  # type: ignore[attr-defined]
    assert "Verdict" in record.getMessage() or "raise" in record.getMessage()


@pytest.mark.parametrize(
    ("before_s", "after_s"), [(0.0, 0.0), (0.0, HUNG_S), (0.25, 0.0)], ids=["at once", "and hangs", "at the end"]
)
@in_virtual_time
async def test_a_check_that_blocks_the_loop_past_its_timeout_fails_and_is_logged_once(
    before_s: float, after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()

    @check_function(node, "db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)
    async def check() -> None:
        await asyncio.sleep(before_s)
        block_loop(1.5)
        await asyncio.sleep(after_s)

    async with make_scheduler(node):
        await asyncio.sleep(20.0)
        state = node.state("db-1")
        assert (state.status, state.code) == (Status.DOWN, ReasonCode.BLOCKED_LOOP)
    [record] = [record for record in caplog.records if vars(record)["event"] == "blocked_loop"]
    assert (vars(record)["service"], vars(record)["blocked_s"]) == ("db-1", 1.5)


def test_a_check_that_blocks_the_loop_does_not_make_other_checks_fail(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    sender, receiver = socket_pair
    outcomes: dict[str, list[Outcome]] = {"blocks": [], "receives": []}

    async def scenario() -> None:
        node = make_node()
        node.subscribe(
            on_evidence=lambda service_id, evidence, _: outcomes[service_id].append(evidence.verdict.outcome)
        )
        check_function(node, "receives", interval="10s", timeout="2s")(receives)
        check_function(node, "blocks", interval="10s", timeout="500ms")(blocks)
        async with make_scheduler(node):
            await asyncio.sleep(9.0)

    async def receives() -> None:
        await asyncio.get_running_loop().sock_recv(receiver, 1)

    async def blocks() -> None:
        sender.send(b"!")
        block_loop(5.0)

    run_in_virtual_time(scenario())
    assert outcomes["receives"][0] is Outcome.READY
    assert set(outcomes["blocks"]) == {Outcome.FAILED}


async def ignores_cancellation() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HUNG_S)


async def awaits_a_task_that_ignores_cancellation() -> None:
    await asyncio.gather(ignore_cancellation_for_a_minute())


async def ignore_cancellation_for_a_minute() -> None:
    until_s = now_s() + 60.0
    while now_s() < until_s:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(until_s - now_s())


@pytest.mark.parametrize("check", [ignores_cancellation, awaits_a_task_that_ignores_cancellation])
@in_virtual_time
async def test_a_check_that_ignores_its_cancellation_takes_its_service_down(
    check: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    node = make_node()
    codes: list[str] = []
    node.subscribe(on_evidence=lambda _, evidence, __: codes.append(evidence.verdict.code))
    check_function(node, "db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)(check)
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        assert node.state("db-1").status is Status.DOWN
        stop_requested_s = now_s()
    assert now_s() - stop_requested_s <= 2 * RECANCEL_AFTER_S
    assert codes[:2] == [ReasonCode.TIMEOUT, ReasonCode.STILL_RUNNING]


@in_virtual_time
async def test_a_check_that_ignored_its_cancellation_runs_again_after_it_has_ended() -> None:
    node, hang = make_node(), asyncio.Event()
    hang.set()

    @check_function(node, "db-1", interval="2s", timeout="500ms", fall=2, rise=1, start_period=0.0)
    async def check() -> None:
        if hang.is_set():
            await awaits_a_task_that_ignores_cancellation()

    async with make_scheduler(node):
        await asyncio.sleep(30.0)
        hang.clear()
        assert node.status("db-1") is Status.DOWN
        await asyncio.sleep(60.0)
        assert node.status("db-1") is Status.UP


@in_virtual_time
async def test_the_text_of_a_check_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()

    @check_function(node, "db-1", interval="10s")
    async def check() -> None:
        raise ValueError("gone\n12:00:00 fine\x1b[2J")

    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(1.0)
    [message] = caplog.messages
    assert message.endswith(r"ValueError: gone\n12:00:00 fine\x1b[2J")
