"""The looking at one service: when a look begins, what ends it, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from svcnode.core.model import Outcome, Verdict
from svcnode.core.wording import one_line
from svcnode.look import INSIST_AFTER_S, checked, judged, let_go, log_fault, own_fault, too_late
from svcnode.supervisor.agenda import GRAIN_S, TIMER_GRAIN_S
from svcnode.supervisor.places import Pace

if TYPE_CHECKING:
    from svcnode.definition import Watch
    from svcnode.supervisor import Supervisor

SLOW_LOOK_S = 0.25  # from then on, a service is looked at from the places for slow ones
LATE_S = 0.1
GRACE_S = 0.02

log = logging.getLogger("svcnode.supervisor")


class Looker:
    """The looking at one service: never more than one look at a time."""

    __slots__ = (
        "_deadline_s",
        "_has_blocked",
        "_is_overdue",
        "_is_probe_sound",
        "_is_stopped",
        "_pace",
        "_seen",
        "_supervisor",
        "_task",
        "due_s",
        "service_id",
        "watch",
    )

    def __init__(self, supervisor: Supervisor, service_id: str, watch: Watch) -> None:
        self._supervisor = supervisor
        self.service_id = service_id
        self.watch = watch
        self._is_stopped = self._is_overdue = False
        self._pace = Pace.QUICK
        self._is_probe_sound = True
        self._has_blocked = False
        self._seen = Outcome.READY
        self.due_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._deadline_s = math.inf

    def look_at(self, due_s: float) -> None:
        self.due_s = due_s
        self._supervisor.agenda.add(due_s, self._ask_for_a_place)

    def stop(self) -> asyncio.Task[None] | None:
        """Returns the look that is being ended, where there is one."""
        self._is_stopped = True
        if self._task is None:
            let_go(self.watch.probe)
        elif self._deadline_s < math.inf:  # one without has its first step still to take
            self._task.cancel()
        return self._task

    def _ask_for_a_place(self) -> None:
        if not self._is_stopped:
            self._supervisor.places.ask(self._begin, self._pace)

    def _begin(self) -> bool:
        """Returns whether the place is taken: not by a service that went while it waited."""
        if self._is_stopped:
            return False
        self._task = self._supervisor.loop.create_task(self._look())
        return True

    def _set_deadline(self, at_s: float) -> None:
        self._deadline_s = at_s
        self._supervisor.agenda.add(at_s, self._check_deadline)

    def _check_deadline(self) -> None:
        # An entry for a look that is over finds none in flight, or one with a later deadline. Its own may come early,
        # by a grain for being done together with others and by another as timers do.
        late_s = self._supervisor.loop.time() - self._deadline_s
        if self._task is None or late_s < -(GRAIN_S + TIMER_GRAIN_S):
            return
        if late_s > LATE_S and not self._is_overdue:
            # We were held up ourselves: an answer that waits to be read is read first.
            self._set_deadline(self._deadline_s + late_s + GRACE_S)
            return
        self._is_overdue = True
        self._task.cancel()
        self._supervisor.agenda.add(self._supervisor.loop.time() + INSIST_AFTER_S, self._check_deadline)

    async def _look(self) -> None:
        supervisor, pace = self._supervisor, self._pace
        began_s, began_at_s = supervisor.loop.time(), supervisor.node.now_s()
        try:
            if self._is_stopped:
                return
            supervisor.note_begin(self.service_id, began_s - self.due_s)
            verdict, fault = await self._verdict(began_s)
        finally:
            self._task, self._deadline_s = None, math.inf
            supervisor.places.give_back(pace)
            if self._is_stopped:
                let_go(self.watch.probe)
        duration_s = supervisor.node.now_s() - began_at_s
        self._pace = Pace.HUNG if self._is_overdue else Pace.SLOW if duration_s > SLOW_LOOK_S else Pace.QUICK
        verdict = judged(verdict, duration_s, self.watch.max_latency_s)
        if verdict.outcome is not self._seen or fault is not None or not self._is_probe_sound:
            self._log(verdict, fault)
        is_change_pending = supervisor.report(self, verdict, duration_s, began_at_s)
        self.look_at(supervisor.next_due_s(began_s, self.watch.schedule.wait_s(is_change_pending=is_change_pending)))

    async def _verdict(self, began_s: float) -> tuple[Verdict, BaseException | None]:
        """And the probe's own fault, where that is why there is no better one."""
        timeout_s = self.watch.schedule.timeout_s
        error: BaseException | None = None
        self._is_overdue = False
        # Not earlier than here: a look that is cancelled before its first step would not even reach its `finally`.
        self._set_deadline(began_s + timeout_s)
        try:
            verdict = checked(await self.watch.probe.look())
        except (asyncio.CancelledError, Exception, SystemExit) as exc:  # noqa: BLE001  whatever a probe does, the looking goes on
            error = exc
        # A probe may have made something else of being cancelled.
        if self._is_stopped:
            raise asyncio.CancelledError from error
        # A check of the embedding program may hold the loop, and so its own deadline.
        held_s = getattr(self.watch.probe, "held_loop_s", 0.0)
        if is_late_by_itself(self._supervisor.loop.time() - began_s, held_s, timeout_s):
            self._tell_blocking(held_s)
            return Verdict.failed(f"it blocked the event loop for {held_s:.3g} s, its timeout is {timeout_s:g} s"), None
        if self._is_overdue:
            return too_late(timeout_s, error), None
        return (verdict, None) if error is None else (own_fault(error), error)

    def _tell_blocking(self, held_s: float) -> None:
        if not self._has_blocked:  # once, not at every interval
            self._has_blocked = True
            log.warning(
                "the check of service %r blocked the event loop for %.3g s, and all else in it had to wait: "
                "let it await, or make it a plain function, which runs in a thread",
                self.service_id,
                held_s,
            )

    def _log(self, verdict: Verdict, fault: BaseException | None) -> None:
        if fault is not None and self._is_probe_sound:  # once, not at every interval
            log_fault(log, f"the probe of service {self.service_id!r} failed by itself", fault)
        self._is_probe_sound = fault is None
        if verdict.outcome is not self._seen:  # each change once; what it comes to is the node's to say
            self._seen = verdict.outcome
            reason = f": {one_line(verdict.reason)}" if verdict.reason else ""
            log.info("service %s %s%s", self.service_id, _SPOKEN[verdict.outcome], reason)


def is_late_by_itself(duration_s: float, held_s: float, timeout_s: float) -> bool:
    """Whether a look would have been in time, had it not held the loop; that others held it is no fault of its own."""
    return held_s > timeout_s or (held_s > LATE_S and duration_s - held_s <= timeout_s < duration_s)


_SPOKEN = {
    Outcome.READY: "passed a look",
    Outcome.NOT_READY: "says that it is not ready",
    Outcome.FAILED: "failed a look",
    Outcome.UNKNOWN: "could not be looked at",
}
