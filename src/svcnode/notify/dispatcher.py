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
from svcnode.notify.model import open_incidents
from svcnode.notify.persistence import LostMessages, NotifyState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from svcnode.notify.message import Message
    from svcnode.notify.model import DeliveryStats, Incidents
    from svcnode.notify.targets import NotificationTarget

MAX_QUEUED = 100
DELIVERY_TIMEOUT_S = 15.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 300.0
MAX_MESSAGE_AGE_S = 86_400.0
CLOSE_TIMEOUT_S = 2.0

log = logging.getLogger("svcnode.notify")


async def try_deliver(target: NotificationTarget, message: Message, lost: int = 0) -> str | None:
    """One attempt within its deadline; returns why it failed, or None."""
    try:
        async with asyncio.timeout(DELIVERY_TIMEOUT_S) as deadline:
            return await target.deliver(message, lost)
    except Exception as exc:  # noqa: BLE001  whatever a target does, its outbox goes on
        return (
            f"no answer within {DELIVERY_TIMEOUT_S:g} s"
            if deadline.expired()
            else redacted(f"{type(exc).__name__}: {exc}")
        )


class _QueuedMessage(NamedTuple):
    queued_at_s: float
    message: Message
    incidents: Incidents  # what is not over for whoever has taken it


class Outbox:
    """What waits for one target, and the task that sends it."""

    def __init__(
        self, target: NotificationTarget, notices: DeliveryStats, on_delivery: Callable[[], None], incidents: Incidents
    ) -> None:
        self.target = target
        self.delivered_incidents = incidents  # with the last message, or before there was one
        self._stats = notices
        self._on_delivery = on_delivery
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_QueuedMessage] = deque()
        self._lost = 0  # since the last one that was delivered
        self._failures = 0  # in a row
        self._undelivered = 0  # at the end
        self._is_sending = self._is_closing = False
        self._wake, self._retry_now = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._send_all(), name=f"messages to {target.name}")

    @property
    def lost_messages(self) -> LostMessages:
        """As many as are lost if this is the end."""
        return LostMessages(self.target.name, self._lost + len(self._queue) + self._undelivered)

    def add_lost(self, messages: int) -> None:
        self._lost += messages

    def restore_incidents(self, incidents: Incidents) -> None:
        """It took them before the start, and none of what waits says that they are over."""
        self.delivered_incidents = {**self.delivered_incidents, **incidents}
        for place, letter in enumerate(self._queue):
            self._queue[place] = letter._replace(incidents={**letter.incidents, **incidents})

    def enqueue(self, message: Message, incidents: Incidents) -> None:
        self._queue.append(_QueuedMessage(self._loop.time(), message, incidents))
        self._stats.queued += 1
        if len(self._queue) > MAX_QUEUED:
            self._drop(1 if self._is_sending else 0, "too many wait")
        self._wake.set()

    def set_target(self, target: NotificationTarget) -> None:
        """The same place in the configuration has another address or key: what waits is tried there, at once."""
        self.target = target
        self._retry_now.set()

    def close(self) -> None:
        """Try what is left once more, and end."""
        self._is_closing = True
        self._retry_now.set()
        self._wake.set()

    def abandon(self) -> int:
        """End at once; returns how many messages were left at the end."""
        self.task.cancel()
        while self._queue:
            self._discard_oldest()
        return self._undelivered

    async def _send_all(self) -> None:
        while self._queue or not self._is_closing:
            if self._queue:
                await self._send_oldest()
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _send_oldest(self) -> None:
        lost, self._is_sending = self._lost, True
        self._retry_now.clear()
        fault = await try_deliver(self.target, self._queue[0].message, lost)
        self._is_sending = False
        letter = self._queue[0]
        if fault is None:
            self.delivered_incidents = letter.incidents
            self._remove(0)
            self._record_delivery(lost)
            return
        self._record_failure(fault)
        if self._is_closing:
            self._discard_oldest()
        elif self._loop.time() - letter.queued_at_s >= MAX_MESSAGE_AGE_S:
            self._drop(0, "it is too old")
        else:
            await self._back_off()

    def _record_delivery(self, lost: int) -> None:
        self._stats.sent += 1
        self._lost -= lost
        if self._failures:
            log.info("messages to %s are delivered again, after %d failures", self.target.name, self._failures)
        self._failures = 0
        self._on_delivery()

    def _record_failure(self, fault: str) -> None:
        self._stats.failed += 1
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "a message to %s was not delivered: %s", self.target.name, fault)

    async def _back_off(self) -> None:
        pause_s = min(MIN_BACKOFF_S * 2 ** min(self._failures - 1, 30), MAX_BACKOFF_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._retry_now.wait()
        except TimeoutError:
            pass

    def _discard_oldest(self) -> None:
        self._remove(0)
        self._undelivered += 1
        self._stats.dropped += 1

    def _remove(self, place: int) -> None:
        del self._queue[place]
        self._stats.queued -= 1

    def _drop(self, place: int, why: str) -> None:
        self._remove(place)
        self._lost += 1
        self._stats.dropped += 1
        log.warning("a message to %s is lost: %s", self.target.name, why)


class Dispatcher:
    """All outboxes."""

    def __init__(self, notices: DeliveryStats, on_delivery: Callable[[], None] = lambda: None) -> None:
        self._stats = notices
        self._on_delivery = on_delivery
        self._outboxes: list[Outbox] = []
        self._last_incidents: Incidents = {}  # with the last message, or recalled since

    @property
    def state(self) -> NotifyState:
        """What is to outlive the process, should this be the end."""
        return NotifyState(
            incidents=open_incidents(self._last_incidents, [outbox.delivered_incidents for outbox in self._outboxes]),
            lost=[outbox.lost_messages for outbox in self._outboxes],
        )

    def restore(self, incidents: Incidents, missed: Iterable[LostMessages]) -> None:
        """What is not over by now, with what was told before the start; and what was not delivered then."""
        # Who took what is not known any more. Whoever was told, though not all may have been, waits to hear the end.
        before = {key: one for key, one in incidents.items() if key not in self._last_incidents}
        for outbox in self._outboxes:
            outbox.restore_incidents(before)
        self._last_incidents = incidents
        self._restore_lost(missed)

    def clear_incidents(self) -> None:
        """There is nobody who waits to hear the end of it."""
        self._last_incidents = {}

    def _restore_lost(self, before: Iterable[LostMessages]) -> None:
        """Of those with the same name, the first is the first."""
        known = list(self._outboxes)
        for target, messages in before:
            outbox = next((one for one in known if one.target.name == target), None)
            if outbox is not None:
                known.remove(outbox)
                outbox.add_lost(messages)

    def dispatch(self, message: Message, incidents: Incidents) -> None:
        self._last_incidents = incidents
        for outbox in self._outboxes:
            outbox.enqueue(message, incidents)

    def set_targets(self, targets: Sequence[NotificationTarget]) -> bool:
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
                log.warning(
                    "%s is no longer told; %s lost", outbox.target.name, _count_text(left, "for it", "is", "are")
                )
        return True

    def _outbox_for(self, target: NotificationTarget, freed: list[Outbox]) -> Outbox:
        for outbox in freed:
            if type(outbox.target) is type(target):
                freed.remove(outbox)
                outbox.set_target(target)
                return outbox
        return Outbox(target, self._stats, self._on_delivery, self._last_incidents)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        for outbox in self._outboxes:
            outbox.close()
        try:
            if tasks := [outbox.task for outbox in self._outboxes]:
                await asyncio.wait(tasks, timeout=timeout_s)
        finally:  # somebody may be in a hurry
            self.abandon()

    def abandon(self) -> None:
        for outbox in self._outboxes:
            if left := outbox.abandon():
                lost = _count_text(left, f"to {outbox.target.name}", "was", "were")
                log.warning("%s not delivered before the end", lost)
        self._outboxes = []


def _count_text(messages: int, to: str, is_: str, are: str) -> str:
    return f"1 message {to} {is_}" if messages == 1 else f"{messages} messages {to} {are}"
