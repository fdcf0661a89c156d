"""What ends a look at one service, and what becomes of it, told in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.model import ServiceState, Status, Verdict
from svcnode.core.redaction import register_secret
from svcnode.net.trace import step
from svcnode.node import Node
from svcnode.probes.run import RECANCEL_AFTER_S
from svcnode.scheduler.runner import is_late_from_blocking
from tests.support.scheduling import (
    FAILED,
    HUNG_S,
    READY,
    CancelIgnoringProbe,
    CancelSwallowingProbe,
    ScriptedProbe,
    block_loop,
    make_node,
    make_scheduler,
    now_s,
    raise_cleanup_error,
)
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    import socket

    from svcnode.probes.base import Probe


# ---- what comes of a look


@in_virtual_time
async def test_what_a_probe_sees_is_what_is_believed() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=2)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        assert node.status("db-1") is Status.UP
        probe.verdict = FAILED
        await asyncio.sleep(20.0)
        assert node.state("db-1").reason == "refused"
        probe.verdict = Verdict.not_ready("syncing")
        await asyncio.sleep(10.0)
        assert node.state("db-1").reason == "syncing"


@in_virtual_time
async def test_no_answer_within_the_timeout_is_a_failure() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=60.0)
    node.register("db-1", probe=probe, interval="10s", timeout="3s", fall=1, start_period=0.0)
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        state = node.state("db-1")
        assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")
    assert probe.started_at_s == [0.0]
    assert probe.cancelled_at_s == [3.0]


@in_virtual_time
async def test_a_probe_that_raises_is_our_own_fault_and_lets_the_evidence_grow_stale(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", stale_after="25s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        probe.error = RuntimeError("no file descriptors")
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.UP
        await asyncio.sleep(5.0)
        assert node.state("db-1").reason == "no fresh success for 25 s"
        probe.error = None
        await asyncio.sleep(10.0)
        assert node.state("db-1").status is Status.UP
    [record] = caplog.records
    assert record.getMessage() == "the probe of service 'db-1' failed by itself"
    assert record.exc_info is not None


@in_virtual_time
async def test_a_probe_that_fails_by_itself_is_logged_once_per_spell(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), ScriptedProbe(error=RuntimeError("no driver"))
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(100.0)
        assert len(caplog.records) == 1
        probe.error = None
        await asyncio.sleep(20.0)
        probe.error = RuntimeError("no driver again")
        await asyncio.sleep(100.0)
    assert len(caplog.records) == 2


@in_virtual_time
async def test_a_probe_that_times_out_by_its_own_clock_is_not_taken_for_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = make_node(), ScriptedProbe(error=TimeoutError())
    node.register("db-1", probe=probe, interval="10s", fall=1, start_period=0.0)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert node.status("db-1") is Status.INITIALIZING
    assert len(caplog.records) == 1


@in_virtual_time
async def test_a_probe_whose_own_wait_was_cancelled_is_looked_through_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = make_node(), ScriptedProbe(error=asyncio.CancelledError())
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        probe.error = None
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP
    assert len(caplog.records) == 1


@in_virtual_time
async def test_a_report_says_how_long_the_look_took() -> None:
    class Ledger(Node):
        durations_s: list[float]

        def record(self, service_id: str, verdict: Verdict, **when: Any) -> ServiceState:
            self.durations_s.append(when["duration_s"])
            return super().record(service_id, verdict, **when)

    node = Ledger("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.durations_s = []
    node.register("db-1", probe=ScriptedProbe(duration_s=1.5), interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
    assert node.durations_s == [1.5, 1.5]


@in_virtual_time
async def test_a_success_is_as_old_as_the_look_that_saw_it() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(duration_s=2.5), interval="10s")
    began_s = now_s()
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        assert node.state("db-1").last_ready_at_s == began_s


@in_virtual_time
async def test_each_change_of_what_is_seen_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), ScriptedProbe(verdict=FAILED)
    node.register("db-1", probe=probe, interval="10s")
    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(25.0)
            probe.verdict = READY
            await asyncio.sleep(20.0)
    assert caplog.messages == [f"service db-1 failed a look: {FAILED.reason}", "service db-1 passed a look"]


# ---- slow, and too slow


@in_virtual_time
async def test_a_success_that_took_too_long_says_that_the_service_is_not_ready() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="3s", max_latency="1500ms")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        state = node.state("db-1")
        assert (state.status, state.reason) == (Status.INITIALIZING, "slow: it took 2 s, max_latency is 1.5 s")
        probe.duration_s = 1.5
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP


async def after_a_look(probe: Probe, **words: Any) -> ServiceState:
    """What is believed after one look that would bring a change at once."""
    node = make_node()
    node.register("db-1", probe=probe, interval="10s", timeout="3s", fall=1, start_period=0.0, **words)
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        return node.state("db-1")


@pytest.mark.parametrize(
    ("verdict", "status", "reason"),
    [
        (FAILED, Status.DOWN, "refused"),
        (Verdict.not_ready("syncing"), Status.INITIALIZING, "syncing"),
        (Verdict.unknown("no driver"), Status.INITIALIZING, "no evidence yet"),
    ],
)
@in_virtual_time
async def test_whatever_is_no_success_is_not_called_slow(verdict: Verdict, status: Status, reason: str) -> None:
    state = await after_a_look(ScriptedProbe(verdict, duration_s=2.0), max_latency="500ms")
    assert (state.status, state.reason) == (status, reason)


@in_virtual_time
async def test_without_a_max_latency_a_success_may_take_its_time() -> None:
    assert (await after_a_look(ScriptedProbe(duration_s=2.9))).status is Status.UP


@in_virtual_time
async def test_a_look_without_an_answer_is_a_failure_however_slow_a_success_may_be() -> None:
    state = await after_a_look(ScriptedProbe(duration_s=HUNG_S), max_latency="500ms")
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")


@dataclass(eq=False)
class SteppingProbe:
    """Goes into one step after the other, and gets stuck in the last."""

    steps: tuple[str, ...]

    async def check(self) -> Verdict:
        with ExitStack() as under_way:
            for name in self.steps:
                under_way.enter_context(step(name))
            await asyncio.sleep(60.0)
        return READY


@pytest.mark.parametrize("steps", [("connect",), ("connect", "handshake"), ("resolve", "exchange")])
@in_virtual_time
async def test_a_look_that_ran_out_of_time_says_how_far_it_got(steps: tuple[str, ...]) -> None:
    state = await after_a_look(SteppingProbe(steps))
    assert (state.status, state.reason) == (Status.DOWN, f"no answer within 3 s, in its step {steps[-1]}")


@in_virtual_time
async def test_a_resolver_that_does_not_answer_is_our_own_fault(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    node.register("db-1", probe=SteppingProbe(("resolve",)), interval="10s", timeout="3s", fall=1, start_period=0.0)
    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(100.0)
            state = node.state("db-1")
    assert (state.status, state.failures_in_a_row) == (Status.INITIALIZING, 0)
    assert caplog.messages == ["service db-1 could not be looked at: the resolver did not answer within 3 s"]


@in_virtual_time
async def test_a_probe_that_swallows_its_deadline_has_seen_nothing() -> None:
    state = await after_a_look(CancelSwallowingProbe(lambda: READY))
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")


@in_virtual_time
async def test_a_probe_that_fails_while_it_is_cut_short_ran_out_of_time(caplog: pytest.LogCaptureFixture) -> None:
    state = await after_a_look(CancelSwallowingProbe(raise_cleanup_error))
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")
    assert caplog.records == []


@pytest.mark.parametrize("deaf_times", [1, 2, 10])
@in_virtual_time
async def test_a_look_that_does_not_hear_its_deadline_is_told_again_until_it_does(deaf_times: int) -> None:
    node, probe = make_node(), CancelIgnoringProbe(deaf_times)
    node.register("db-1", probe=probe, interval="10s", timeout="2s", start_period="1h")
    async with make_scheduler(node):
        await asyncio.sleep(16.0)
        assert probe.ended_at_s[0] == pytest.approx(2.0 + RECANCEL_AFTER_S * deaf_times, abs=0.01)
        assert node.state("db-1").reason == "no answer within 2 s"
        assert len(probe.ended_at_s) > 1, "and it is looked at again"


@in_virtual_time
async def test_a_look_that_is_over_in_time_is_not_told_anything() -> None:
    node, hung = make_node(), ScriptedProbe(duration_s=HUNG_S)
    node.register("db-1", probe=hung, interval="1s", timeout="500ms")
    async with make_scheduler(node):
        await asyncio.sleep(100.0)
    assert len(hung.cancelled_at_s) == len(hung.started_at_s)
    assert all(ended_s - began_s == pytest.approx(0.5, abs=0.01) for began_s, ended_s in _finished(hung))


def _finished(probe: ScriptedProbe) -> list[tuple[float, float]]:
    return list(zip(probe.started_at_s, probe.cancelled_at_s, strict=True))[:-1]  # the last one ended with the block


# ---- when we are held up ourselves


@dataclass(eq=False)
class ListeningProbe:
    """Ready as soon as it hears something."""

    ear: socket.socket

    async def check(self) -> Verdict:
        await asyncio.get_running_loop().sock_recv(self.ear, 1)
        return READY


def test_an_answer_that_came_while_we_were_held_up_past_the_deadline_counts(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    mouth, ear = socket_pair

    async def story() -> None:
        node = make_node()
        node.register("db-1", probe=ListeningProbe(ear), interval="10s", timeout="3s")
        async with make_scheduler(node):
            await asyncio.sleep(2.9)
            mouth.send(b"!")
            block_loop(by_s=1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").status is Status.UP

    run_in_virtual_time(story())


def test_silence_past_the_deadline_counts_even_when_we_were_held_up(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    async def story() -> None:
        node = make_node()
        node.register("db-1", probe=ListeningProbe(socket_pair[1]), interval="10s", timeout="3s")
        async with make_scheduler(node):
            await asyncio.sleep(2.9)
            block_loop(by_s=1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").reason == "no answer within 3 s"

    run_in_virtual_time(story())


@pytest.mark.parametrize(
    ("duration_s", "blocked_s", "is_late"),
    [
        (1.5, 1.5, True),
        (0.4, 0.4, False),
        (0.8, 0.4, True),  # 0.4 s of waiting would have been in time
        (1.5, 0.4, False),  # it was others who held it up
        (9.0, 0.6, True),  # others did, too
        (0.51, 0.02, False),  # a hair's breadth is for the deadline to judge
    ],
)
def test_a_look_is_late_by_itself_when_it_would_have_been_in_time_without_holding_the_loop(
    duration_s: float, blocked_s: float, is_late: bool
) -> None:
    assert is_late_from_blocking(duration_s, blocked_s, 0.5) is is_late


# ---- probes of other people


@dataclass(eq=False)
class ForgetfulProbe:
    """Forgets once to say what it saw."""

    looks: int = 0

    async def check(self) -> Verdict:
        self.looks += 1
        return cast("Verdict", None) if self.looks == 2 else READY


@in_virtual_time
async def test_a_look_without_a_verdict_is_the_fault_of_the_probe_and_the_looking_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = make_node(), ForgetfulProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert probe.looks == 4
    assert "returned None, which is no Verdict" in caplog.text


@in_virtual_time
async def test_a_probe_that_would_end_the_program_or_has_no_words_is_at_fault_and_the_looking_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    node, leaving, silent = (
        make_node(),
        ScriptedProbe(error=SystemExit("enough")),
        ScriptedProbe(error=UnspeakableError()),
    )
    node.register("leaving", probe=leaving, interval="10s")
    node.register("silent", probe=silent, interval="10s")
    seen: dict[str, str] = {}
    node.subscribe(on_evidence=lambda service_id, evidence, _: seen.update({service_id: evidence.verdict.reason}))
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert (len(leaving.started_at_s), len(silent.started_at_s)) == (4, 4)
    assert seen == {
        "leaving": "the probe itself failed: SystemExit: enough",
        "silent": "the probe itself failed: UnspeakableError",
    }
    assert len(caplog.records) == 2


# ---- nothing that others do ends the looking


class _NoWords:
    def __str__(self) -> str:
        raise ValueError("no words for it")


@pytest.mark.parametrize("verdict", [Verdict(cast("Any", "ready")), Verdict.failed(cast("Any", _NoWords()))])
@in_virtual_time
async def test_a_verdict_that_makes_no_sense_is_the_probes_own_fault(verdict: Verdict) -> None:
    node, probe = make_node(), ScriptedProbe(verdict=verdict)
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        assert node.status("db-1") is Status.INITIALIZING
        probe.verdict = READY
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP


def _stumble(*seen: object) -> None:
    raise ValueError("not today")


@in_virtual_time
async def test_an_observer_that_fails_does_not_end_the_looking(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.subscribe(on_evidence=_stumble)
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert len(probe.started_at_s) >= 3
    assert "what was seen of service 'db-1' could not be told to all" in caplog.messages


@in_virtual_time
async def test_a_secret_in_the_fault_of_a_probe_is_in_no_record_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    register_secret("correct horse battery")
    node, probe = make_node(), ScriptedProbe(error=RuntimeError("no login with correct horse battery"))
    node.register("db-1", probe=probe)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    [record] = caplog.records
    assert "the probe of service 'db-1' failed by itself" in record.getMessage()
    assert "RuntimeError: no login with ***" in caplog.text
    assert "correct horse battery" not in caplog.text
