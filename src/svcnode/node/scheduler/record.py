"""Records the evidence of checks, and counts the checks that start late."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol

from svcnode.core.state_machine import host_fault
from svcnode.core.text import one_line
from svcnode.net.timers import LATE_AFTER_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from svcnode.core.model import Evidence, ServiceState
    from svcnode.node.node_state import NodeState
    from svcnode.node.scheduler.runner import ProbeRunner

# Late checks are logged only when at least 5 per minute and 5 % of all checks are late.
MIN_LATE_CHECKS_LOGGED, MIN_LATE_SHARE_LOGGED = 5, 0.05
FAULT_LOG_INTERVAL_S = 60.0

log = logging.getLogger("svcnode.scheduler")


class CheckRecorder(Protocol):
    """Where the evidence of checks goes: to the node, or to another object that decides the states."""

    def record(self, checks: Mapping[str, Evidence], /) -> Mapping[str, ServiceState]:
        """Record evidence by service id; returns the new states, which decide when the next checks run."""
        ...


class Recorder:
    """Records all evidence of one iteration of the event loop together."""

    def __init__(
        self,
        node: NodeState,
        check_recorder: CheckRecorder,
        loop: asyncio.AbstractEventLoop,
        on_recorded: Callable[[ProbeRunner, ServiceState | None], None],
    ) -> None:
        """`on_recorded` gets the new state of the service, or None if the evidence was not recorded."""
        self._node = node
        self._check_recorder = check_recorder
        self._loop = loop
        self._on_recorded = on_recorded
        self._evidence: dict[ProbeRunner, Evidence] = {}
        self._check_count = self._late_check_count = 0  # since the last call of `log_late_checks`
        self._faults_logged_s: dict[str, float] = {}  # of this machine

    def add(self, runner: ProbeRunner, evidence: Evidence) -> None:
        self._check_count += 1
        if runner.started_s - runner.due_s > LATE_AFTER_S:
            self._late_check_count += 1
        if fault := host_fault(evidence.verdict):
            self._log_fault(fault)
        if not self._evidence:
            self._loop.call_soon(self.flush)
        self._evidence[runner] = evidence

    def flush(self) -> None:
        if not self._evidence:
            return
        added, self._evidence = self._evidence, {}
        states: Mapping[str, ServiceState] = {}
        try:
            states = self._check_recorder.record(
                {runner.service_id: evidence for runner, evidence in added.items() if self._is_current(runner)}
            )
        except Exception:  # the checks of the services must continue
            ids = [runner.service_id for runner in added]
            log.exception("recording %d checks failed", len(ids), extra={"event": "record_failed", "services": ids})
        for runner in added:
            self._on_recorded(runner, states.get(runner.service_id))

    def _log_fault(self, fault: str) -> None:
        """One line for all services, and one a minute as long as it lasts."""
        now_s = self._loop.time()
        if now_s - self._faults_logged_s.get(fault, -math.inf) >= FAULT_LOG_INTERVAL_S:
            self._faults_logged_s = {fault: now_s} | {
                text: at_s for text, at_s in self._faults_logged_s.items() if now_s - at_s < FAULT_LOG_INTERVAL_S
            }
            log.warning("%s", one_line(fault), extra={"event": "host_fault", "reason": fault})

    def log_late_checks(self) -> None:
        late, total = self._late_check_count, self._check_count
        self._check_count = self._late_check_count = 0
        if should_log_late_checks(late, total):
            log.warning(
                "%d of %d checks started more than %g ms late: the process is overloaded or many services are slow",
                late,
                total,
                LATE_AFTER_S * 1000,
                extra={"event": "late_checks", "late": late, "checks": total},
            )

    def _is_current(self, runner: ProbeRunner) -> bool:
        """False if the service was removed or redefined during the check: the scheduler is about to stop the runner."""
        probe_config = self._node.probe_config(runner.service_id)
        return probe_config is runner.probe_config or probe_config == runner.probe_config


def should_log_late_checks(late: int, total: int) -> bool:
    return late >= MIN_LATE_CHECKS_LOGGED and late >= MIN_LATE_SHARE_LOGGED * total
