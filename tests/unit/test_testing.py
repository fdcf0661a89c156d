"""The helpers for the tests of other programs. tests/integration/test_testing.py has the pytest plugin."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent.embed.node import Node
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import Outcome, Status, Verdict
from svcnode.probes import make_probe
from svcnode.probes.base import Probe, time_left_s
from svcnode.testing import FakeClock, assert_health, assert_status, run_check, run_check_async
from tests.support.scheduling import HUNG_S, ScriptedProbe
from tests.support.virtual_time import run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_READY = Verdict.not_ready("block 7 of 9", code=ReasonCode.SYNCING)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def node(clock: FakeClock) -> Node:
    return Node("under-test", version="v1", clock=clock)


@pytest.mark.parametrize("duration", [-1, "-1s", "soon", float("nan"), float("inf")])
def test_a_fake_clock_runs_only_when_it_is_advanced_by_a_valid_duration(duration: Any) -> None:
    clock = FakeClock(100.0)
    assert (clock(), clock()) == (100.0, 100.0)
    clock.advance("1500ms")
    clock.advance(2)
    with pytest.raises(InvalidValueError):
        clock.advance(duration)
    assert clock() == clock.now_s == 103.5
    assert FakeClock()() == 0.0


def test_a_heartbeat_expires_when_the_clock_is_advanced(node: Node, clock: FakeClock) -> None:
    node.register("worker", ttl="30s").up()
    clock.advance("29s")
    assert_status(node, "worker", Status.UP)
    clock.advance("1s")
    assert_status(node, "worker", Status.DOWN, code=ReasonCode.TTL_EXPIRED)


@dataclass(eq=False)
class RecordingProbe(Probe):
    verdict: Any = NOT_READY
    time_left_s: list[float] = field(default_factory=list)
    closed_in: list[asyncio.AbstractEventLoop] = field(default_factory=list)

    async def check(self) -> Verdict:
        self.time_left_s.append(time_left_s())
        result: Verdict = self.verdict
        return result

    def close(self) -> None:
        self.closed_in.append(asyncio.get_running_loop())


def test_a_probe_is_checked_once_and_closed_in_its_event_loop() -> None:
    probe = RecordingProbe()
    assert run_check(probe) == NOT_READY
    assert len(probe.time_left_s) == len(probe.closed_in) == 1

    async def check_again() -> asyncio.AbstractEventLoop:
        assert await run_check_async(probe) == NOT_READY
        return asyncio.get_running_loop()

    assert run_in_virtual_time(check_again()) is probe.closed_in[1]


def test_run_check_refuses_to_block_a_running_event_loop() -> None:
    probe = RecordingProbe()

    async def block() -> None:
        run_check(probe)

    with pytest.raises(RuntimeError, match="run_check_async"):
        asyncio.run(block())
    assert probe.time_left_s == []


@pytest.mark.parametrize("as_table", [False, True])
def test_a_url_or_a_table_names_the_probe(tmp_path: Path, as_table: bool) -> None:
    url = f"file:{tmp_path}/done"
    probe: Any = {"url": url, "max_age": "1h"} if as_table else url
    assert run_check(probe).code == ReasonCode.FILE_NOT_FOUND
    (tmp_path / "done").touch()
    assert run_check(probe) == Verdict.ready()


@pytest.mark.parametrize(
    ("options", "timeout_s"), [({}, 3.0), ({"timeout": "500ms"}, 0.5), ({"timeout": 20, "max_latency": "15s"}, 20.0)]
)
def test_the_check_knows_its_deadline(options: dict[str, Any], timeout_s: float) -> None:
    probe = RecordingProbe()
    run_in_virtual_time(run_check_async(probe, **options))
    assert probe.time_left_s == [timeout_s]


def test_a_success_that_takes_longer_than_max_latency_is_not_ready() -> None:
    verdict = run_check(ScriptedProbe(duration_s=0.002), max_latency="1ms")
    assert (verdict.outcome, verdict.code) == (Outcome.NOT_READY, ReasonCode.SLOW)


@pytest.mark.parametrize("probe", [ScriptedProbe(error=KeyError("missing")), RecordingProbe(verdict="ready")])
def test_a_probe_with_an_error_is_unknown_and_its_traceback_is_logged(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = run_check(probe)
    assert (verdict.outcome, verdict.code) == (Outcome.UNKNOWN, ReasonCode.PROBE_ERROR)
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("probe", "error"),
    [
        ("nonsense:/", ProbeError),
        ("exec:/bin/true", ProbeError),
        ({"url": "file:/run/done", "max_age": "old"}, OptionError),
        ("heartbeat:30s", InvalidValueError),
        (make_probe("heartbeat:30s"), InvalidValueError),
        (7, InvalidValueError),
        (None, InvalidValueError),
    ],
)
def test_what_a_node_refuses_is_refused_before_the_check(probe: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_check(probe)


def failure(assertion: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion()
    return str(caught.value)


def test_a_wrong_status_shows_reason_code_and_the_age_of_the_evidence(node: Node, clock: FakeClock) -> None:
    worker = node.register("worker")
    worker.up()
    clock.advance("2m")
    worker.down("out of\ndisk", code="x_disk")
    clock.advance("42s")
    assert_status(node, "worker", Status.DOWN, code="x_disk")
    wrong_code = failure(lambda: assert_status(node, "worker", Status.DOWN, code=ReasonCode.REPORTED))
    assert wrong_code.startswith("service 'worker' is Down (x_disk), expected Down (reported)\n")
    text = failure(lambda: assert_status(node, "worker", "Up"))
    assert text.splitlines() == [
        "service 'worker' is Down (x_disk), expected Up",
        r"  reason:       out of\ndisk",
        "  evidence:     42 s ago",
        "  last success: 2 min 42 s ago",
    ]


def test_a_service_without_evidence_on_a_node_that_does_not_probe_says_so(node: Node) -> None:
    node.register("db", probe=ScriptedProbe(duration_s=HUNG_S))
    text = failure(lambda: assert_status(node, "db", Status.UP))
    assert "evidence:     none" in text
    assert "not probing" in text

    async def assert_while_probing() -> str:
        async with node.probing():
            return failure(lambda: assert_status(node, "db", Status.UP))

    assert "not probing" not in run_in_virtual_time(assert_while_probing())


def test_an_unknown_service_fails_with_the_likely_one(node: Node) -> None:
    assert failure(lambda: assert_status(node, "workr", Status.UP)) == "service 'workr' is not registered"
    node.register("worker")
    assert '"worker"' in failure(lambda: assert_status(node, "workr", Status.UP))


def test_a_wrong_health_shows_what_it_follows_from(clock: FakeClock) -> None:
    node = Node("under-test", version="v1", clock=clock, starting=True)
    assert_health(node, 206)
    node.register("api").up()
    node.register("db", impact="critical").down("refused", code=ReasonCode.CONNECTION_REFUSED)
    node.register("cache", impact="none").initializing()
    node.set_issue("the key store\nis locked")
    node.drain()
    assert failure(lambda: assert_health(node, 200)).splitlines() == [
        "the health is 503 (unhealthy), expected 200 (healthy)",
        "  draining",
        "  starting: started() was not called",
        r"  issue: the key store\nis locked",
        "  1 of 3 services are Up",
        "  db (critical) is Down (connection_refused): refused",
        "  cache (not counted) is Initializing (reported)",
    ]


def test_a_wrong_health_shows_only_the_first_of_many_services(node: Node) -> None:
    for number in range(12):
        node.register(f"s{number}")
    lines = failure(lambda: assert_health(node, 200)).splitlines()
    assert lines[1] == "  0 of 12 services are Up"
    assert (len(lines), lines[-1]) == (13, "  and 2 more")


def test_a_health_or_status_that_does_not_exist_is_a_mistake_of_the_test(node: Node) -> None:
    with pytest.raises(ValueError, match="204"):
        assert_health(node, 204)
    node.register("worker")
    with pytest.raises(ValueError, match="online"):
        assert_status(node, "worker", "online")
