"""How one check of a service ends and what is recorded, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Evidence, Outcome, ServiceState, Status, Verdict
from svcnode.core.redaction import register_secret
from svcnode.probes.base import Probe
from svcnode.probes.run import is_late_from_blocking
from tests.support.scheduling import (
    FAILED,
    HUNG_S,
    READY,
    ScriptedProbe,
    block_loop,
    make_node,
    make_scheduler,
)
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    import socket


# ---- the result of a check


@in_virtual_time
async def test_a_probe_that_raises_says_nothing_about_the_service_and_the_evidence_becomes_stale(
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
        assert (node.state("db-1").status, node.state("db-1").code) == (Status.INITIALIZING, ReasonCode.STALE)
        probe.error = None
        await asyncio.sleep(10.0)
        assert node.state("db-1").status is Status.UP
    [record] = caplog.records
    assert (vars(record)["event"], vars(record)["service"]) == ("probe_error", "db-1")
    assert record.exc_info is not None


@in_virtual_time
async def test_a_probe_that_keeps_raising_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
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
async def test_a_probe_whose_own_task_was_cancelled_is_checked_again(
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
async def test_evidence_is_dated_at_the_start_of_its_check_and_has_its_duration() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(duration_s=1.5), interval="10s")
    checks: list[Evidence] = []
    node.subscribe(on_evidence=lambda _, evidence, __: checks.append(evidence))
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
    assert checks == [Evidence(READY, 0.0, 1.5), Evidence(READY, 10.0, 1.5)]


@in_virtual_time
async def test_each_change_of_the_outcome_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), ScriptedProbe(verdict=FAILED)
    node.register("db-1", probe=probe, interval="10s")
    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(25.0)
            probe.verdict = READY
            await asyncio.sleep(20.0)
    fields = [[vars(record)[key] for key in ("event", "service", "outcome", "code")] for record in caplog.records]
    assert fields == [
        ["check_outcome", "db-1", Outcome.FAILED, FAILED.code],
        ["check_outcome", "db-1", Outcome.READY, READY.code],
    ]


class AlternatingProbe(ScriptedProbe):
    """A load balancer that takes turns, with one broken server of two."""

    is_repaired = False

    async def check(self) -> Verdict:
        self.verdict = READY if self.is_repaired or self.verdict is not READY else FAILED
        return await super().check()


@in_virtual_time
async def test_an_outcome_that_changes_at_every_check_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), AlternatingProbe()
    node.register("db-1", probe=probe, interval="10s")
    with caplog.at_level("DEBUG", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(600.0)
            lines = [record for record in caplog.records if record.levelname == "INFO"]
            assert 10 <= len(lines) <= 15
            assert len(caplog.records) > 150  # the others have the level of debugging
            probe.is_repaired = True
            await asyncio.sleep(130.0)
    lines = [record for record in caplog.records if record.levelname == "INFO"]
    assert len(lines) <= 17
    assert vars(lines[-1])["outcome"] is Outcome.READY


@in_virtual_time
async def test_a_failure_after_a_quiet_minute_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), AlternatingProbe()
    node.register("db-1", probe=probe, interval="10s")
    with caplog.at_level("INFO", logger="svcnode.scheduler"):
        async with make_scheduler(node):
            await asyncio.sleep(300.0)
            probe.is_repaired = True
            await asyncio.sleep(300.0)
            caplog.clear()
            probe.is_repaired = False
            await asyncio.sleep(14.0)
    assert [vars(record)["outcome"] for record in caplog.records[:2]] == [Outcome.FAILED, Outcome.READY]


# ---- max_latency and timeout


@in_virtual_time
async def test_a_success_slower_than_max_latency_means_not_ready() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="3s", max_latency="1500ms")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        state = node.state("db-1")
        assert (state.status, state.code) == (Status.INITIALIZING, ReasonCode.SLOW)
        probe.duration_s = 1.5
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP


async def state_after_one_check(probe: Probe, **options: Any) -> ServiceState:
    """With a policy that changes the status at the first verdict."""
    node = make_node()
    node.register("db-1", probe=probe, interval="10s", timeout="3s", fall=1, start_period=0.0, **options)
    async with make_scheduler(node):
        await asyncio.sleep(4.0)
        return node.state("db-1")


@in_virtual_time
async def test_a_timeout_is_a_failure_also_with_max_latency() -> None:
    state = await state_after_one_check(ScriptedProbe(duration_s=HUNG_S), max_latency="500ms")
    assert (state.status, state.code) == (Status.DOWN, ReasonCode.TIMEOUT)


@in_virtual_time
async def test_a_check_is_cancelled_only_at_its_own_deadline() -> None:
    node, hung = make_node(), ScriptedProbe(duration_s=HUNG_S)
    node.register("db-1", probe=hung, interval="1s", timeout="500ms")
    async with make_scheduler(node):
        await asyncio.sleep(100.0)
    assert len(hung.cancelled_at_s) == len(hung.started_at_s)
    assert all(ended_s - began_s == pytest.approx(0.5, abs=0.01) for began_s, ended_s in _finished(hung))


def _finished(probe: ScriptedProbe) -> list[tuple[float, float]]:
    return list(zip(probe.started_at_s, probe.cancelled_at_s, strict=True))[:-1]  # the last one ended with the block


# ---- when the event loop is blocked


@dataclass(eq=False)
class ReceivingProbe(Probe):
    """Ready as soon as it receives a byte."""

    receiver: socket.socket

    async def check(self) -> Verdict:
        await asyncio.get_running_loop().sock_recv(self.receiver, 1)
        return READY


def test_a_response_that_arrived_while_the_loop_was_blocked_past_the_deadline_counts(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    sender, receiver = socket_pair

    async def scenario() -> None:
        node = make_node()
        node.register("db-1", probe=ReceivingProbe(receiver), interval="10s", timeout="3s")
        async with make_scheduler(node):
            await asyncio.sleep(2.9)
            sender.send(b"!")
            block_loop(1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").status is Status.UP

    run_in_virtual_time(scenario())


def test_no_response_past_the_deadline_is_a_timeout_also_if_the_loop_was_blocked(
    socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    async def scenario() -> None:
        node = make_node()
        node.register("db-1", probe=ReceivingProbe(socket_pair[1]), interval="10s", timeout="3s")
        async with make_scheduler(node):
            await asyncio.sleep(2.9)
            block_loop(1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").code == ReasonCode.TIMEOUT

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("duration_s", "blocked_s", "is_late"),
    [
        (1.5, 1.5, True),
        (0.4, 0.4, False),
        (0.8, 0.4, True),  # 0.4 s without blocking: in time
        (1.5, 0.4, False),  # late also without its own blocking
        (9.0, 0.6, True),  # blocked for longer than its timeout, as did other code
        (0.51, 0.02, False),  # below the threshold of 0.1 s: the deadline decides
    ],
)
def test_a_check_is_late_from_blocking_if_it_had_been_in_time_without_its_own_blocking(
    duration_s: float, blocked_s: float, is_late: bool
) -> None:
    assert is_late_from_blocking(duration_s, blocked_s, 0.5) is is_late


# ---- faulty probes


@in_virtual_time
async def test_a_probe_that_raises_system_exit_or_an_error_without_text_does_not_stop_the_checks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoTextError(Exception):
        def __str__(self) -> str:
            raise ValueError

    node = make_node()
    exiting, without_text = ScriptedProbe(error=SystemExit("enough")), ScriptedProbe(error=NoTextError())
    node.register("exiting", probe=exiting, interval="10s")
    node.register("without-text", probe=without_text, interval="10s")
    verdicts: dict[str, Verdict] = {}
    node.subscribe(on_evidence=lambda service_id, evidence, _: verdicts.update({service_id: evidence.verdict}))
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert (len(exiting.started_at_s), len(without_text.started_at_s)) == (4, 4)
    assert {verdict.code for verdict in verdicts.values()} == {ReasonCode.PROBE_ERROR}
    assert "SystemExit: enough" in verdicts["exiting"].reason
    assert "NoTextError" in verdicts["without-text"].reason
    assert len(caplog.records) == 2


class _NoText:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("verdict", [None, Verdict(cast("Any", "ready")), Verdict.failed(cast("Any", _NoText()))])
@in_virtual_time
async def test_an_invalid_verdict_is_a_probe_error_and_the_checks_continue(verdict: Any) -> None:
    node, probe = make_node(), ScriptedProbe(verdict=verdict)
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        assert node.status("db-1") is Status.INITIALIZING
        probe.verdict = READY
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP


@in_virtual_time
async def test_a_secret_in_an_exception_of_a_probe_is_neither_logged_nor_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register_secret("correct horse battery")
    error = RuntimeError("login with correct horse battery at http://u:boomsecret@h/")
    node, probe = make_node(), ScriptedProbe(error=error)
    node.register("db-1", probe=probe)
    reasons: list[str] = []
    node.subscribe(on_evidence=lambda _id, evidence, _state: reasons.append(evidence.verdict.reason))
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    [record], [reason] = caplog.records, reasons
    assert record.exc_info is None
    for text in (caplog.text, reason):
        assert "RuntimeError: login with *** at http://u:***@h/" in text
