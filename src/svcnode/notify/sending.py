"""Messages on their way: each target has an outbox of its own, so a slow one keeps nobody else waiting.

An outbox is bounded. Its oldest message goes first, is tried again with growing pauses, and is given up after a day:
that is no news any more. Whoever was to be told hears with the next message how many were lost, also before a restart.
A message may arrive twice, when the first attempt succeeded but its answer was lost; both have the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.redaction import redacted
from svcnode.notify.incidents import not_over
from svcnode.notify.memory import Kept, Missed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from svcnode.notify.digest import Message
    from svcnode.notify.incidents import Incidents
    from svcnode.notify.notices import Notices
    from svcnode.notify.targets import Target

MAX_WAITING = 100
ATTEMPT_S = 15.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
GIVEN_UP_AFTER_S = 86_400.0
CLOSED_WITHIN_S = 2.0

log = logging.getLogger("svcnode.notify")


async def attempt(target: Target, message: Message, lost: int = 0) -> str | None:
    """One attempt within its deadline; returns why it failed, or None."""
    try:
        async with asyncio.timeout(ATTEMPT_S) as deadline:
            return await target.deliver(message, lost)
    except Exception as exc:  # noqa: BLE001  whatever a target does, its outbox goes on
        return f"no answer within {ATTEMPT_S:g} s" if deadline.expired() else redacted(f"{type(exc).__name__}: {exc}")


class _Letter(NamedTuple):
    posted_at_s: float
    message: Message
    incidents: Incidents  # what is not over for whoever has taken it


class Outbox:
    """What waits for one target, and the task that sends it."""

    def __init__(self, target: Target, notices: Notices, on_delivery: Callable[[], None], incidents: Incidents) -> None:
        self.target = target
        self.taken = incidents  # with the last message, or before there was one
        self._notices = notices
        self._on_delivery = on_delivery
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Letter] = deque()
        self._lost = 0  # since the last one that was delivered
        self._failures = 0  # in a row
        self._left = 0  # at the end
        self._is_sending = self._is_closing = False
        self._posted, self._hurried = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._send_all(), name=f"messages to {target.name}")

    @property
    def missed(self) -> Missed:
        """As many as are lost if this is the end."""
        return Missed(self.target.name, self._lost + len(self._waiting) + self._left)

    def add_lost(self, messages: int) -> None:
        self._lost += messages

    def recall(self, incidents: Incidents) -> None:
        """It took them before the start, and none of what waits says that they are over."""
        self.taken = {**self.taken, **incidents}
        for place, letter in enumerate(self._waiting):
            self._waiting[place] = letter._replace(incidents={**letter.incidents, **incidents})

    def post(self, message: Message, incidents: Incidents) -> None:
        self._waiting.append(_Letter(self._loop.time(), message, incidents))
        self._notices.waiting += 1
        if len(self._waiting) > MAX_WAITING:
            self._drop(1 if self._is_sending else 0, "too many wait")
        self._posted.set()

    def hand_over_to(self, target: Target) -> None:
        """The same place in the configuration has another address or key: what waits is tried there, at once."""
        self.target = target
        self._hurried.set()

    def close(self) -> None:
        """Try what is left once more, and end."""
        self._is_closing = True
        self._hurried.set()
        self._posted.set()

    def abandon(self) -> int:
        """End at once; returns how many messages were left at the end."""
        self.task.cancel()
        while self._waiting:
            self._leave()
        return self._left

    async def _send_all(self) -> None:
        while self._waiting or not self._is_closing:
            if self._waiting:
                await self._send_oldest()
            else:
                self._posted.clear()
                await self._posted.wait()

    async def _send_oldest(self) -> None:
        lost, self._is_sending = self._lost, True
        self._hurried.clear()
        fault = await attempt(self.target, self._waiting[0].message, lost)
        self._is_sending = False
        letter = self._waiting[0]
        if fault is None:
            self.taken = letter.incidents
            self._take(0)
            self._note_delivery(lost)
            return
        self._note_failure(fault)
        if self._is_closing:
            self._leave()
        elif self._loop.time() - letter.posted_at_s >= GIVEN_UP_AFTER_S:
            self._drop(0, "it is too old")
        else:
            await self._pause()

    def _note_delivery(self, lost: int) -> None:
        self._notices.sent += 1
        self._lost -= lost
        if self._failures:
            log.info("messages to %s are delivered again, after %d failures", self.target.name, self._failures)
        self._failures = 0
        self._on_delivery()

    def _note_failure(self, fault: str) -> None:
        self._notices.failed += 1
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "a message to %s was not delivered: %s", self.target.name, fault)

    async def _pause(self) -> None:
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 30), LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._hurried.wait()
        except TimeoutError:
            pass

    def _leave(self) -> None:
        self._take(0)
        self._left += 1
        self._notices.dropped += 1

    def _take(self, place: int) -> None:
        del self._waiting[place]
        self._notices.waiting -= 1

    def _drop(self, place: int, why: str) -> None:
        self._take(place)
        self._lost += 1
        self._notices.dropped += 1
        log.warning("a message to %s is lost: %s", self.target.name, why)


class Sender:
    """All outboxes."""

    def __init__(self, notices: Notices, on_delivery: Callable[[], None] = lambda: None) -> None:
        self._notices = notices
        self._on_delivery = on_delivery
        self._outboxes: list[Outbox] = []
        self._posted: Incidents = {}  # with the last message, or recalled since

    @property
    def kept(self) -> Kept:
        """What is to outlive the process, should this be the end."""
        return Kept(
            incidents=not_over(self._posted, [outbox.taken for outbox in self._outboxes]),
            missed=[outbox.missed for outbox in self._outboxes],
        )

    def recall(self, incidents: Incidents, missed: Iterable[Missed]) -> None:
        """What is not over by now, with what was told before the start; and what was not delivered then."""
        # Who took what is not known any more. Whoever was told, though not all may have been, waits to hear the end.
        before = {key: one for key, one in incidents.items() if key not in self._posted}
        for outbox in self._outboxes:
            outbox.recall(before)
        self._posted = incidents
        self._add_missed(missed)

    def forget(self) -> None:
        """There is nobody who waits to hear the end of it."""
        self._posted = {}

    def _add_missed(self, before: Iterable[Missed]) -> None:
        """Of those with the same name, the first is the first."""
        known = list(self._outboxes)
        for target, messages in before:
            outbox = next((one for one in known if one.target.name == target), None)
            if outbox is not None:
                known.remove(outbox)
                outbox.add_lost(messages)

    def post(self, message: Message, incidents: Incidents) -> None:
        self._posted = incidents
        for outbox in self._outboxes:
            outbox.post(message, incidents)

    def set_targets(self, targets: Sequence[Target]) -> bool:
        """Returns whether they are others than before.

        What waits for a target that stays is kept; what waits for one that was changed goes to the one in its place. It
        may have been changed because its address was wrong, and then what waits is what it was changed for.
        """
        old = {outbox.target: outbox for outbox in self._outboxes}
        if list(old) == list(targets):
            return False
        staying = {target: old.pop(target) for target in targets if target in old}
        freed = list(old.values())
        self._outboxes = [staying.get(target) or self._outbox_for(target, freed) for target in targets]
        for outbox in freed:
            if left := outbox.abandon():
                log.warning("%s is no longer told; %s lost", outbox.target.name, _counted(left, "for it", "is", "are"))
        return True

    def _outbox_for(self, target: Target, freed: list[Outbox]) -> Outbox:
        for outbox in freed:
            if type(outbox.target) is type(target):
                freed.remove(outbox)
                outbox.hand_over_to(target)
                return outbox
        return Outbox(target, self._notices, self._on_delivery, self._posted)

    async def close(self, within_s: float = CLOSED_WITHIN_S) -> None:
        for outbox in self._outboxes:
            outbox.close()
        try:
            if tasks := [outbox.task for outbox in self._outboxes]:
                await asyncio.wait(tasks, timeout=within_s)
        finally:  # somebody may be in a hurry
            self.abandon()

    def abandon(self) -> None:
        for outbox in self._outboxes:
            if left := outbox.abandon():
                lost = _counted(left, f"to {outbox.target.name}", "was", "were")
                log.warning("%s not delivered before the end", lost)
        self._outboxes = []


def _counted(messages: int, to: str, is_: str, are: str) -> str:
    return f"1 message {to} {is_}" if messages == 1 else f"{messages} messages {to} {are}"
