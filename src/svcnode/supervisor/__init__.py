"""When to look: every service on its own interval, one look at a time, each with a deadline.

The supervisor follows the node: a service registered, redefined or removed while it runs starts, restarts or stops its
own looks and nobody else's. It only ever reports; what a verdict means is the rules' business.

Thousands of services a second are to cost little. So a service that is not being looked at has no task, only an entry
in the agenda, which one timer serves; a look is a task of its own, and its deadline another entry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Self

from svcnode.core import rules
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Verdict
from svcnode.look import INSIST_AFTER_S
from svcnode.supervisor.agenda import Agenda
from svcnode.supervisor.looker import LATE_S, Looker
from svcnode.supervisor.places import Places

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.node import Node

FIRST_LOOKS_WITHIN_S = 2.0
SETTLE_EVERY_S = 0.5
JITTER = 0.05  # of the interval, either way, so that services with one interval do not march in step
LOOKS_AT_ONCE = 1024
LATENESS_TOLD_EVERY_S = 60.0
# Fewer looks than these are late when the machine hiccups, and nobody has anything to mend.
LATE_LOOKS_TOLD, LATE_SHARE_TOLD = 5, 0.05

_REDEFINING = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.supervisor")


class Supervisor:
    """Looks for as long as its `async with` block runs."""

    def __init__(self, node: Node, chance: random.Random | None = None, *, looks_at_once: int = LOOKS_AT_ONCE) -> None:
        self.node = node
        self._chance = chance or random.Random()  # noqa: S311  it spreads load, it guards nothing
        self._lookers: dict[str, Looker] = {}
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
        stopped = [looker.stop() for looker in self._lookers.values()]
        self._lookers.clear()
        tasks = {task for task in stopped if task is not None}
        while pending := {task for task in tasks if not task.done()}:
            await asyncio.wait(pending, timeout=INSIST_AFTER_S)
            for task in pending:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            looker = self._lookers[service_id] = Looker(self, service_id, wanted)
            looker.look_at(self.loop.time() + first_look_in_s)

    def _keep_settled(self) -> None:
        """Let silence be heard by those who follow the changes, even when nobody asks."""
        self.node.settle()
        self.agenda.add(self.loop.time() + SETTLE_EVERY_S, self._keep_settled)

    def _tell_lateness(self) -> None:
        if is_lateness_worth_telling(self._late_looks, self._looks):
            log.warning(
                "%d of %d looks began more than %g ms late: this process has too much to do, or too much is slow",
                self._late_looks,
                self._looks,
                LATE_S * 1000,
            )
        self._looks = self._late_looks = 0
        self.agenda.add(self.loop.time() + LATENESS_TOLD_EVERY_S, self._tell_lateness)

    def next_look_in_s(self, service_id: str) -> float | None:
        looker = self._lookers.get(service_id)
        return None if looker is None else max(0.0, looker.due_s - self.loop.time())

    # ---- for the lookers

    def note_begin(self, service_id: str, late_s: float) -> None:
        self._looks += 1
        if late_s > LATE_S:
            self._late_looks += 1

    def report(self, looker: Looker, verdict: Verdict, duration_s: float, began_at_s: float) -> bool:
        """Returns whether a change of status is pending now."""
        # What was removed or redefined while we looked is not what we saw; `_follow` is about to end this.
        watch = self.node.watch(looker.service_id)
        if watch is not looker.watch and watch != looker.watch:
            return False
        try:
            # Dated when it began: what was seen cannot be older, and may not be any newer.
            state = self.node.saw(looker.service_id, verdict, duration_s=duration_s, at_s=began_at_s)
        except UnknownServiceError:
            return False
        except Exception:  # somebody who follows the node, and who must not end the looking
            log.exception("what was seen of service %r could not be told to all", looker.service_id)
            return False
        return rules.is_change_pending(state)

    def next_due_s(self, began_s: float, wait_s: float) -> float:
        return max(began_s + wait_s * (1 + self._chance.uniform(-JITTER, JITTER)), self.loop.time())


def is_lateness_worth_telling(late: int, looks: int) -> bool:
    return late >= LATE_LOOKS_TOLD and late >= LATE_SHARE_TOLD * looks
