"""Texts of the core, the node, the scheduler and the log."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.agent.embed.node import Node
from svcnode.agent.logs import JsonFormatter, TextFormatter, _lost_lines_record
from svcnode.agent.store import ensure_store
from svcnode.core import model, state_machine
from svcnode.core.errors import DuplicateServiceError, SvcnodeError, UnknownServiceError
from svcnode.core.model import Evidence, Policy, Schedule, Status, Verdict
from svcnode.core.strict_json import parse_strict_json
from svcnode.core.units import parse_duration_s, parse_size_bytes
from svcnode.net.trace import step
from svcnode.node.definition import define
from svcnode.probes.base import Probe
from svcnode.probes.function import FunctionProbe
from svcnode.probes.run import finalize_verdict, probe_error_verdict, run_check, validate_verdict
from tests.support.scheduling import (
    FAILED,
    CancelIgnoringProbe,
    ScriptedProbe,
    block_loop,
    make_node,
    make_scheduler,
    register_many,
)
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.wording.conftest import Snapshot


def table(rows: Iterable[tuple[object, object]]) -> str:
    return "\n".join(f"{left}\n    {right}" for left, right in rows)


def error(call: Callable[[], object]) -> str:
    with pytest.raises((SvcnodeError, ValueError, TypeError)) as caught:
        call()
    return str(caught.value)


def test_invalid_values(snapshot: Snapshot) -> None:
    """A few that tests/bad_configs does not have; most others are there."""
    calls: dict[str, Callable[[], object]] = {
        "stale_after and ttl": lambda: Policy(stale_after_s=1.0, ttl_s=1.0),
        "interval = 25h": lambda: Schedule(interval_s=90_000.0),
        "duration -1": lambda: parse_duration_s(-1),
        "size of 400 digits": lambda: parse_size_bytes("9" * 400 + "B"),
        "probe and ttl": lambda: define("db", probe="tcp://127.0.0.1:1", ttl="5s"),
        "probe = 5": lambda: define("db", probe=cast("Any", 5)),
    }
    snapshot("invalid_values", table((name, error(call)) for name, call in calls.items()))


def test_errors_of_the_node(snapshot: Snapshot, tmp_path: Path) -> None:
    node = Node("validator-7", version="v1")
    node.register("db", probe="tcp://127.0.0.1:1")
    (tmp_path / "file").touch()

    def open_store() -> None:
        ensure_store(tmp_path / "file" / "store.db")

    rows = [
        ("unknown service", UnknownServiceError("db-1")),
        ("duplicate service", DuplicateServiceError("db-1")),
        ("report of a service with a probe", error(node.handle("db").up)),
        ("@node.check without an id", error(lambda: node.check(cast("Any", print)))),
        ("store", error(open_store).replace(str(tmp_path), "/srv")),
    ]
    snapshot("node_errors", table(rows))


def test_json_errors(snapshot: Snapshot) -> None:
    bodies = (b'{"a": 1, "a": 2}', b"[NaN]", b"[" + b"9" * 4001 + b"]", b'"\xff"', b"[" * 100_000)
    snapshot("json_errors", table((body[:20], error(partial(parse_strict_json, body))) for body in bodies))


def test_reasons_of_states(snapshot: Snapshot) -> None:
    probed, heartbeat = Policy(fall=1, start_period_s=0.0, stale_after_s=33.0), Policy(rise=1, ttl_s=10.0)
    initial = state_machine.initial_state(0.0)
    up = state_machine.next_state(initial, Evidence(Verdict.ready(), 0.0), probed)
    down = state_machine.next_state(initial, Evidence(FAILED, 0.0), probed)
    states = [
        initial,
        state_machine.as_of(up, 33.0, probed),
        state_machine.as_of(down, 33.0, probed),
        state_machine.as_of(initial, 10.0, heartbeat),
    ]
    snapshot("states", table((f"{state.status.value} {state.code}", state.reason) for state in states))


class HangingProbe(Probe):
    def __init__(self, name: str) -> None:
        self._name = name

    async def check(self) -> Verdict:
        with step(self._name):
            await asyncio.sleep(3600.0)
        return Verdict.ready()


def test_reasons_of_checks(snapshot: Snapshot) -> None:
    verdicts = [
        run_in_virtual_time(run_check(ScriptedProbe(duration_s=3600.0), 3.0))[0],
        *(
            run_in_virtual_time(run_check(HangingProbe(name), 3.0))[0]
            for name in ("resolve", "connect", "tunnel", "handshake", "login", "exchange")
        ),
        finalize_verdict(Verdict.ready(), 2.0, 1.5),
        probe_error_verdict(RuntimeError("no driver")),
        probe_error_verdict(asyncio.CancelledError()),
    ]
    rows = [(f"{verdict.outcome.value} {verdict.code}", verdict.reason) for verdict in verdicts]
    rows.append(("no verdict", error(lambda: validate_verdict(None))))
    rows.append(("no outcome", error(lambda: validate_verdict(Verdict(cast("Any", "ready"))))))
    snapshot("checks", table(rows))


def log_text(records: Iterable[logging.LogRecord]) -> str:
    return "\n".join(f"{record.levelname.lower()} {record.getMessage()}" for record in records)


@in_virtual_time
async def scheduler_scenario() -> None:
    """Every message of the scheduler."""
    node = make_node()
    node.register("raises", probe=ScriptedProbe(error=RuntimeError("no driver")), interval="10s")
    changing = ScriptedProbe(verdict=FAILED)
    node.register("changing", probe=changing, interval="10s")
    register_many(node, 3, lambda: ScriptedProbe(duration_s=0.2), interval="500ms")

    async def block() -> None:
        block_loop(1.5)

    node.register("blocks", probe=FunctionProbe(block), interval="30s", timeout="500ms")

    async with make_scheduler(node, max_concurrent_checks=1):
        for verdict in (Verdict.ready(), Verdict.not_ready("syncing"), Verdict.unknown("no file descriptors")):
            await asyncio.sleep(20.0)
            changing.verdict = verdict
        await asyncio.sleep(20.0)
    node.subscribe(cast("Any", raise_error))
    node.register("last", probe=CancelIgnoringProbe(0))


def raise_error(*_: object) -> None:
    raise ValueError


def test_log_lines_of_the_scheduler(snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="svcnode"):
        scheduler_scenario()
    snapshot("scheduler_log", log_text(caplog.records))


def test_log_formats(snapshot: Snapshot) -> None:
    fields = {
        "event": "service_status",
        "service": "db",
        "status": Status.DOWN,
        "previous": Status.UP,
        "code": FAILED.code,
        "reason": FAILED.reason,
        "node_health": model.Health.UNHEALTHY,
    }
    records = [
        logging.makeLogRecord({"name": "svcnode.agent", "levelname": "INFO", "msg": "service db is Down", **fields}),
        _lost_lines_record(1),
        _lost_lines_record(12),
    ]
    for record in records:
        record.created = 1_767_225_600.25
    lines = [formatter.format(record) for formatter in (TextFormatter(), JsonFormatter()) for record in records]
    snapshot("log_formats", "\n".join(lines))
