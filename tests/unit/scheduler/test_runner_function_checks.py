"""Checks of the embedding program, which may do to the looking whatever Python can do."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Outcome, Status
from svcnode.probes.run import RECANCEL_AFTER_S
from tests.support.scheduling import (
    HUNG_S,
    CancelIgnoringProbe,
    ScriptedProbe,
    block_loop,
    make_node,
    make_scheduler,
    now_s,
)
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine


@in_virtual_time
async def test_a_coroutine_function_is_a_check() -> None:
    node, is_warm = make_node(), asyncio.Event()

    @node.check("cache", interval="10s", fall=1, start_period=0.0)
    async def cache_is_warm() -> bool:
        return is_warm.is_set()

    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        assert node.state("cache").reason == "the check returned False"
        is_warm.set()
        await asyncio.sleep(20.0)
        assert node.status("cache") is Status.UP


@in_virtual_time
async def test_a_check_that_would_end_the_program_takes_its_service_down_and_nothing_else() -> None:
    node, other = make_node(), ScriptedProbe()
    node.register("other", probe=other, interval="10s")

    @node.check("db-1", interval="10s", fall=2, start_period=0.0)
    async def check() -> None:
        sys.exit("config lost")

    async with make_scheduler(node):
        await asyncio.sleep(35.0)
        state = node.state("db-1")
    assert (state.status, state.reason) == (Status.DOWN, "SystemExit: config lost")
    assert len(other.started_at_s) == 4


@in_virtual_time
async def test_a_check_whose_client_was_cancelled_takes_its_service_down(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    client = asyncio.create_task(asyncio.sleep(HUNG_S))

    @node.check("db-1", interval="10s", fall=2, start_period=0.0)
    async def check() -> None:
        if client.done():
            await client

    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        assert node.status("db-1") is Status.UP
        client.cancel()
        await asyncio.sleep(20.0)
        state = node.state("db-1")
    assert (state.status, state.reason) == (Status.DOWN, "what it waited for was cancelled")
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


@in_virtual_time
async def test_a_check_that_raises_what_ends_coroutines_is_failed_and_looked_through_again() -> None:
    node, reasons = make_node(), list[str]()
    node.subscribe(on_evidence=lambda _, evidence, __: reasons.append(evidence.verdict.reason))

    @node.check("db-1", interval="10s", start_period=0.0)
    async def check() -> None:
        if not reasons:
            raise GeneratorExit

    async with make_scheduler(node):
        await asyncio.sleep(15.0)
    assert reasons[:2] == ["GeneratorExit", ""]


@in_virtual_time
async def test_a_listener_that_would_end_the_looking_does_not() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")

    def ends(change: object) -> None:
        raise asyncio.CancelledError

    node.subscribe(ends)
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert len(probe.started_at_s) == 4


BLOCKED = "it blocked the event loop for 1.5 s, its timeout is 0.5 s"


def holds_at_once() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        block_loop(by_s=1.5)

    return check


def holds_before_it_waits() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        block_loop(by_s=1.5)
        await asyncio.sleep(0)

    return check


def holds_and_never_answers() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        block_loop(by_s=1.5)
        await asyncio.sleep(HUNG_S)

    return check


def holds_at_its_last_moment() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        await asyncio.sleep(0.25)
        block_loop(by_s=1.5)

    return check


@pytest.mark.parametrize(
    "style", [holds_at_once, holds_before_it_waits, holds_and_never_answers, holds_at_its_last_moment]
)
@in_virtual_time
async def test_a_check_that_holds_the_loop_past_its_own_timeout_is_failed_and_told_once(
    style: Callable[[], Callable[[], Coroutine[Any, Any, None]]], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    node.check("db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)(style())
    async with make_scheduler(node):
        await asyncio.sleep(20.0)
        assert node.state("db-1").status is Status.DOWN
        assert node.state("db-1").reason == BLOCKED
    [told] = [message for message in caplog.messages if "began more than" not in message]
    assert told == (
        "the check of service 'db-1' blocked the event loop for 1.5 s, and all else in it had to wait: "
        "let it await, or make it a plain function, which runs in a thread"
    )


def test_that_one_check_held_the_loop_is_no_fault_of_the_others(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    mouth, ear = socket_pair
    seen: dict[str, list[Outcome]] = {"holds": [], "listens": []}

    async def story() -> None:
        node = make_node()
        node.subscribe(on_evidence=lambda service_id, evidence, _: seen[service_id].append(evidence.verdict.outcome))
        node.check("listens", interval="10s", timeout="2s")(listens)
        node.check("holds", interval="10s", timeout="500ms")(holds)
        async with make_scheduler(node):
            await asyncio.sleep(9.0)

    async def listens() -> None:
        await asyncio.get_running_loop().sock_recv(ear, 1)

    async def holds() -> None:
        mouth.send(b"!")
        block_loop(by_s=5.0)

    run_in_virtual_time(story())
    assert seen["listens"][0] is Outcome.READY
    assert set(seen["holds"]) == {Outcome.FAILED}


async def hears_nothing() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HUNG_S)


async def waits_for_one_that_hears_nothing() -> None:
    await asyncio.gather(is_deaf_for_a_minute())


async def is_deaf_for_a_minute() -> None:
    until_s = now_s() + 60.0
    while now_s() < until_s:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(until_s - now_s())


@pytest.mark.parametrize("check", [hears_nothing, waits_for_one_that_hears_nothing])
@in_virtual_time
async def test_a_check_that_does_not_hear_its_deadline_takes_its_service_down_all_the_same(
    check: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    node = make_node()
    reasons: list[str] = []
    node.subscribe(on_evidence=lambda _, evidence, __: reasons.append(evidence.verdict.reason))
    node.check("db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)(check)
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        assert node.state("db-1").status is Status.DOWN
        began_to_stop_s = now_s()
    assert now_s() - began_to_stop_s <= 2 * RECANCEL_AFTER_S
    assert reasons[:2] == ["no answer within 0.5 s", "its previous run has not returned yet"]


@in_virtual_time
async def test_a_check_that_did_not_hear_its_deadlines_is_run_again_once_it_has_ended() -> None:
    node, hang = make_node(), asyncio.Event()
    hang.set()

    @node.check("db-1", interval="2s", timeout="500ms", fall=2, rise=1, start_period=0.0)
    async def check() -> None:
        if hang.is_set():
            await waits_for_one_that_hears_nothing()

    async with make_scheduler(node):
        await asyncio.sleep(30.0)
        hang.clear()
        assert node.status("db-1") is Status.DOWN
        await asyncio.sleep(60.0)
        assert node.status("db-1") is Status.UP


@in_virtual_time
async def test_a_check_that_lost_its_cancellation_is_told_again_at_every_look() -> None:
    node, deaf = make_node(), CancelIgnoringProbe(ignored_cancels=3)
    node.check("db-1", interval="2s", timeout="500ms", start_period=0.0)(deaf.check)
    async with make_scheduler(node):
        await asyncio.sleep(10.0)
    assert len(deaf.ended_at_s) > 1


@in_virtual_time
async def test_a_check_that_hears_nothing_is_gone_soon_after_the_end_of_the_block() -> None:
    node = make_node()
    node.check("db-1", interval="20s", timeout="10s")(hears_nothing)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert now_s() == pytest.approx(1.0 + RECANCEL_AFTER_S)
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_the_words_of_a_check_forge_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()

    @node.check("db-1", interval="10s")
    async def check() -> None:
        raise ValueError("gone\n12:00:00 all is well\x1b[2J")

    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(1.0)
    assert caplog.messages == [r"service db-1 failed a look: ValueError: gone\n12:00:00 all is well\x1b[2J"]
