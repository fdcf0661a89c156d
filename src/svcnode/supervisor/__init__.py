"""When to look: every service on its own interval, one look at a time, each with a deadline.

The supervisor follows the node: a service registered, redefined or removed while it runs starts, restarts or stops its
own looks and nobody else's. It only ever reports; what a verdict means is the rules' business.

Thousands of services a second are to cost little. So a service that is not being looked at has no task, only an entry
in the agenda, which one timer serves; a look is a task of its own, and its deadline another entry.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import TYPE_CHECKING, Self

from svcnode.core import rules
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Outcome, Verdict
from svcnode.look import judged, look_once, own_fault, too_late  # noqa: F401
from svcnode.supervisor.agenda import TIMER_GRAIN_S, Agenda
from svcnode.supervisor.places import SLOW_SHARE, Places  # noqa: F401
from svcnode.supervisor.thread import SupervisorThread  # noqa: F401

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.definition import Watch
    from svcnode.node import Node

FIRST_LOOKS_WITHIN_S = 2.0
SETTLE_EVERY_S = 0.5
JITTER = 0.05  # of the interval, either way, so that services with one interval do not march in step
LOOKS_AT_ONCE = 1024
SLOW_LOOK_S = 0.25  # from then on, a service is looked at from the places for slow ones
LATE_S = 0.1
LATENESS_TOLD_EVERY_S = 60.0

_REDEFINING = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.supervisor")


class Supervisor:
    """Looks for as long as its `async with` block runs."""

    def __init__(self, node: Node, chance: random.Random | None = None, *, looks_at_once: int = LOOKS_AT_ONCE) -> None:
        self.node = node
        self._chance = chance or random.Random()  # noqa: S311  it spreads load, it guards nothing
        self._lookers: dict[str, _Looker] = {}
        self.places = Places(looks_at_once)
        self._looks = self._late_looks = 0

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self.agenda = Agenda(self.loop)
        self._is_running = True
        self._unsubscribe = self.node.subscribe(self._heard)
        self._keep_settled()
        self.agenda.add(self.loop.time() + LATENESS_TOLD_EVERY_S, self._tell_lateness)
        watched = [service.id for service, _ in self.node if self.node.watch(service.id) is not None]
        for place, service_id in enumerate(watched):
            self._follow(service_id, first_look_in_s=FIRST_LOOKS_WITHIN_S * place / len(watched))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unsubscribe()
        self._is_running = False  # a change heard just now has its `_follow` still to come
        self.agenda.close()
        tasks = [looker.stop() for looker in self._lookers.values()]
        self._lookers.clear()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    def _heard(self, change: Change) -> None:
        # Called on whichever thread made the change.
        if change.kind in _REDEFINING and change.service_id is not None:
            self.loop.call_soon_threadsafe(self._follow, change.service_id)

    def _follow(self, service_id: str, first_look_in_s: float = 0.0) -> None:
        """Bring the looking in line with what the node now says of a service."""
        wanted = self.node.watch(service_id) if self._is_running else None
        looker = self._lookers.get(service_id)
        if wanted == (None if looker is None else looker.watch):
            return
        if looker is not None:
            looker.stop()
            del self._lookers[service_id]
        if wanted is not None:
            looker = self._lookers[service_id] = _Looker(self, service_id, wanted)
            looker.look_at(self.loop.time() + first_look_in_s)

    def _keep_settled(self) -> None:
        """Let silence be heard by those who follow the changes, even when nobody asks."""
        self.node.settle()
        self.agenda.add(self.loop.time() + SETTLE_EVERY_S, self._keep_settled)

    def _tell_lateness(self) -> None:
        if self._late_looks:
            log.warning(
                "%d of %d looks began more than %g ms late: this process has too much to do, or too much is slow",
                self._late_looks,
                self._looks,
                LATE_S * 1000,
            )
        self._looks = self._late_looks = 0
        self.agenda.add(self.loop.time() + LATENESS_TOLD_EVERY_S, self._tell_lateness)

    # ---- for the lookers

    def _note_begin(self, service_id: str, late_s: float) -> None:
        self._looks += 1
        if late_s > LATE_S:
            self._late_looks += 1

    def report(self, looker: _Looker, verdict: Verdict, duration_s: float, began_at_s: float) -> bool:
        """Returns whether a change of status is pending now."""
        # What was removed or redefined while we looked is not what we saw; `_follow` is about to end this.
        watch = self.node.watch(looker.service_id)
        if watch is not looker.watch and watch != looker.watch:
            return False
        try:
            # Dated when it began: what was seen cannot be older, and may not be any newer.
            state = self.node.report(looker.service_id, verdict, duration_s=duration_s, at_s=began_at_s)
        except UnknownServiceError:
            return False
        return rules.is_change_pending(state)

    def next_due_s(self, began_s: float, wait_s: float) -> float:
        return max(began_s + wait_s * (1 + self._chance.uniform(-JITTER, JITTER)), self.loop.time())


class _Looker:
    """The looking at one service: never more than one look at a time."""

    __slots__ = (
        "_deadline_s",
        "_due_s",
        "_is_overdue",
        "_is_probe_sound",
        "_is_slow",
        "_is_stopped",
        "_seen",
        "_supervisor",
        "_task",
        "service_id",
        "watch",
    )

    def __init__(self, supervisor: Supervisor, service_id: str, watch: Watch) -> None:
        self._supervisor = supervisor
        self.service_id = service_id
        self.watch = watch
        self._is_slow = self._is_stopped = self._is_overdue = False
        self._is_probe_sound = True
        self._seen = Outcome.READY
        self._task: asyncio.Task[None] | None = None
        self._deadline_s = math.inf

    def look_at(self, due_s: float) -> None:
        self._due_s = due_s
        self._supervisor.agenda.add(due_s, self._ask_for_a_place)

    def stop(self) -> asyncio.Task[None] | None:
        """Returns the look that is being ended, where there is one."""
        self._is_stopped = True
        if self._task is not None and self._deadline_s < math.inf:  # one without has its first step still to take
            self._task.cancel()
        return self._task

    def _ask_for_a_place(self) -> None:
        if not self._is_stopped:
            self._supervisor.places.ask(self._begin, is_slow=self._is_slow)

    def _begin(self) -> bool:
        """Returns whether the place is taken: not by a service that went while it waited."""
        if not self._is_stopped:
            self._task = self._supervisor.loop.create_task(self._look())
        return not self._is_stopped

    def _set_deadline(self, began_s: float) -> None:
        # Only here, in the first step of a look: one that is cancelled before that would not even reach its `finally`.
        self._is_overdue = False
        self._deadline_s = began_s + self.watch.schedule.timeout_s
        self._supervisor.agenda.add(self._deadline_s, self._check_deadline)

    def _check_deadline(self) -> None:
        # An entry for a look that is over finds none in flight, or one with a later deadline. Its own may come early by
        # one grain for sharing a millisecond, and by another as timers do.
        if self._task is not None and self._deadline_s <= self._supervisor.loop.time() + 2 * TIMER_GRAIN_S:
            self._is_overdue = True
            self._task.cancel()

    async def _look(self) -> None:
        node, is_slow = self._supervisor.node, self._is_slow
        began_s, began_at_s = self._supervisor.loop.time(), node.now_s()
        try:
            if self._is_stopped:
                return
            self._supervisor._note_begin(self.service_id, began_s - self._due_s)
            self._set_deadline(began_s)
            verdict, fault = await self._verdict()
        finally:
            self._task, self._deadline_s = None, math.inf
            self._supervisor.places.give_back(is_slow=is_slow)
        duration_s = node.now_s() - began_at_s
        verdict = judged(verdict, duration_s, self.watch.max_latency_s)
        self._is_slow = duration_s > SLOW_LOOK_S
        self._log(verdict, fault)
        is_change_pending = self._supervisor.report(self, verdict, duration_s, began_at_s)
        wait_s = self.watch.schedule.wait_s(is_change_pending=is_change_pending)
        self.look_at(self._supervisor.next_due_s(began_s, wait_s))

    async def _verdict(self) -> tuple[Verdict, BaseException | None]:
        """And the probe's own fault, where that is why there is no better one."""
        error: BaseException | None = None
        try:
            verdict = await self.watch.probe.look()
        except (asyncio.CancelledError, Exception) as exc:  # noqa: BLE001  whatever a probe does, the looking goes on
            error = exc
        # A probe may have made something else of being cancelled.
        if self._is_stopped:
            raise asyncio.CancelledError from error
        if self._is_overdue:
            return too_late(self.watch.schedule.timeout_s, error), None
        return (verdict, None) if error is None else (own_fault(error), error)

    def _log(self, verdict: Verdict, fault: BaseException | None) -> None:
        if fault is not None and self._is_probe_sound:  # once, not at every interval
            log.error("the probe of service %r failed by itself", self.service_id, exc_info=fault)
        self._is_probe_sound = fault is None
        if verdict.outcome is not self._seen:  # each change once; what it comes to is the node's to say
            self._seen = verdict.outcome
            reason = f": {verdict.reason}" if verdict.reason else ""
            log.info("service %s %s%s", self.service_id, _SPOKEN[verdict.outcome], reason)


_SPOKEN = {
    Outcome.READY: "passed a look",
    Outcome.NOT_READY: "says that it is not ready",
    Outcome.FAILED: "failed a look",
    Outcome.UNKNOWN: "could not be looked at",
}
