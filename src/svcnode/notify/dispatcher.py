"""Delivers messages: each target has its own queue and task, so a slow target does not delay another.

A queue is bounded. It delivers the oldest message first, retries with increasing delays, and drops a message after a
day. The next delivered message says how many were lost, also before a restart. A message may arrive twice, if it was
received but the response was lost; both copies have the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.redaction import redacted
from svcnode.core.text import error_text
from svcnode.net.tasks import log_failure
from svcnode.notify.incidents import LostMessages, SavedState, open_incidents
from svcnode.notify.targets import DeliveryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from svcnode.notify import NotifyStatus
    from svcnode.notify.incidents import Incidents
    from svcnode.notify.message import Message
    from svcnode.notify.targets import NotificationTarget

MAX_QUEUED = 100
DELIVERY_TIMEOUT_S = 15.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 300.0
MAX_MESSAGE_AGE_S = 86_400.0
STUCK_AFTER_S = 300.0  # a target may fail for this time, or a message be overdue, before it counts as a problem
CLOSE_TIMEOUT_S = 2.0

log = logging.getLogger("svcnode.notify")


async def try_deliver(target: NotificationTarget, message: Message, lost: int = 0) -> DeliveryError | None:
    return await attempt(target.deliver(message, lost), DELIVERY_TIMEOUT_S)


async def attempt(delivery: Awaitable[DeliveryError | None], timeout_s: float) -> DeliveryError | None:
    """One attempt with a timeout."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await delivery
    except Exception as exc:  # noqa: BLE001  no error of a target may stop its queue
        if deadline.expired():
            return DeliveryError(f"timeout: no response within {timeout_s:g} s", ReasonCode.TIMEOUT)
        return DeliveryError(redacted(error_text(exc)), ReasonCode.OTHER)


class _QueuedMessage(NamedTuple):
    queued_at_s: float
    message: Message
    incidents: Incidents  # the open incidents for a target that has received it


class DeliveryQueue:
    """The messages for one target, and the task that delivers them."""

    def __init__(
        self, target: NotificationTarget, status: NotifyStatus, on_delivery: Callable[[], None], incidents: Incidents
    ) -> None:
        self.target = target
        self.delivered_incidents = incidents  # with the last delivered message, or at the start
        self._status = status
        self._on_delivery = on_delivery
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_QueuedMessage] = deque()
        self._delivered: Message | None = None  # the last one
        self.lost = 0  # since the last delivered message
        self._failures = 0  # in a row
        self._failing_since_s: float | None = None
        self._undelivered = 0  # at the end
        self._is_sending = self._is_closing = False
        self._wake, self._retry_now = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._send_all(), name=f"notifications to {target.name}")
        self.task.add_done_callback(log_failure)

    @property
    def lost_messages(self) -> LostMessages:
        """How many messages are lost if the process ends now."""
        return LostMessages(self.target.name, self.lost + len(self._queue) + self._undelivered)

    @property
    def problem(self) -> str:
        """Why messages do not arrive at the target; empty if they do."""
        if self.task.done():
            return f"nothing delivers notifications to {self.target.name}"
        if self._failing_since_s is None or self._loop.time() - self._failing_since_s < STUCK_AFTER_S:
            return ""
        return f"notifications to {self.target.name} have failed for more than {STUCK_AFTER_S / 60:g} minutes"

    def restore_incidents(self, incidents: Incidents) -> None:
        """The target received these before the restart, and no queued message resolves them."""
        self.delivered_incidents = {**self.delivered_incidents, **incidents}
        for index, queued in enumerate(self._queue):
            self._queue[index] = queued._replace(incidents={**queued.incidents, **incidents})

    def enqueue(self, message: Message, incidents: Incidents) -> None:
        self._queue.append(_QueuedMessage(self._loop.time(), message, incidents))
        self._status.queued += 1
        if len(self._queue) > MAX_QUEUED:
            self._drop(1 if self._is_sending else 0, f"queue full ({MAX_QUEUED} messages)")
        self._wake.set()

    def enqueue_alerts(self, message: Message, incidents: Incidents) -> None:
        """A target that receives all alerts again and again gets those of now, too."""
        if message.alerts and self.target.resend_interval_s is not None:
            self.enqueue(message, incidents)

    def set_target(self, target: NotificationTarget) -> None:
        """The configuration changed the URL or the options of the target: retry the queued messages at once."""
        self.target = target
        self._failing_since_s = None
        self._retry_now.set()

    def close(self) -> None:
        """Try each queued message once more, and end the task."""
        self._is_closing = True
        self._retry_now.set()
        self._wake.set()

    def abandon(self) -> int:
        """End the task at once; returns the number of undelivered messages."""
        self.task.cancel()
        while self._queue:
            self._discard_oldest()
        return self._undelivered

    async def _send_all(self) -> None:
        while self._queue or not self._is_closing:
            if self._queue:
                await self._send_oldest()
            elif not await self._wait_for_message():
                await self._resend()

    async def _wait_for_message(self) -> bool:
        """False: it is time to deliver the last message again."""
        self._wake.clear()
        try:
            async with asyncio.timeout(self.target.resend_interval_s):
                return await self._wake.wait()
        except TimeoutError:
            return False

    async def _resend(self) -> None:
        if self._delivered is None or not self._delivered.alerts:
            return
        error = await try_deliver(self.target, self._delivered)
        if error is None:
            self._end_failures()
        else:
            self._record_failure(error)

    async def _send_oldest(self) -> None:
        lost, self._is_sending = self.lost, True
        self._retry_now.clear()
        error = await try_deliver(self.target, self._queue[0].message, lost)
        self._is_sending = False
        queued = self._queue[0]
        if error is None:
            self.delivered_incidents, self._delivered = queued.incidents, queued.message
            self._remove(0)
            self._record_delivery(lost)
            return
        self._record_failure(error)
        if self._is_closing:
            self._discard_oldest()
        elif self._loop.time() - queued.queued_at_s >= MAX_MESSAGE_AGE_S:
            self._drop(0, f"not delivered within {MAX_MESSAGE_AGE_S / 3600:g} h")
        else:
            await self._back_off()

    def _record_delivery(self, lost: int) -> None:
        self._status.sent += 1
        self.lost -= lost
        self._end_failures()
        self._on_delivery()

    def _end_failures(self) -> None:
        if self._failures:
            text = "notifications to %s are delivered again after %d failed attempts"
            log.info(text, self.target.name, self._failures, extra=_extra("notification_recovered", self.target))
        self._failures, self._failing_since_s = 0, None

    def _record_failure(self, error: DeliveryError) -> None:
        self._status.failed += 1
        self._failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = self._loop.time()
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        extra = _extra("notification_failed", self.target, code=error.code, reason=error.reason)
        log.log(level, "notification to %s failed: %s", self.target.name, error.reason, extra=extra)

    async def _back_off(self) -> None:
        delay_s = min(MIN_BACKOFF_S * 2 ** min(self._failures - 1, 30), MAX_BACKOFF_S)
        try:
            async with asyncio.timeout(delay_s):
                await self._retry_now.wait()
        except TimeoutError:
            pass

    def _discard_oldest(self) -> None:
        self._remove(0)
        self._undelivered += 1
        self._status.dropped += 1

    def _remove(self, index: int) -> None:
        del self._queue[index]
        self._status.queued -= 1

    def _drop(self, index: int, reason: str) -> None:
        self._remove(index)
        self.lost += 1
        self._status.dropped += 1
        extra = _extra("notification_dropped", self.target, reason=reason)
        log.warning("notification to %s dropped: %s", self.target.name, reason, extra=extra)


class Dispatcher:
    """The queues of all targets."""

    def __init__(self, status: NotifyStatus, on_delivery: Callable[[], None] = lambda: None) -> None:
        self._status = status
        self._on_delivery = on_delivery
        self._queues: list[DeliveryQueue] = []
        self._last_message: Message | None = None
        self._last_incidents: Incidents = {}  # with the last dispatched message, or restored since

    @property
    def state(self) -> SavedState:
        """The state to save."""
        return SavedState(
            incidents=open_incidents(self._last_incidents, [queue.delivered_incidents for queue in self._queues]),
            lost=[queue.lost_messages for queue in self._queues],
        )

    @property
    def problem(self) -> str:
        """Of the first target that has one; empty if all messages arrive."""
        return next((queue.problem for queue in self._queues if queue.problem), "")

    def restore(self, incidents: Incidents, lost: Iterable[LostMessages], message: Message) -> None:
        """`incidents` are all open incidents now; `lost` comes from the previous process.

        `message` has the alerts of the incidents, for targets to which the last message is delivered again.
        """
        # It is not saved which target received which message, so each target gets the end of each incident.
        before = {key: incident for key, incident in incidents.items() if key not in self._last_incidents}
        for queue in self._queues:
            queue.restore_incidents(before)
            queue.enqueue_alerts(message, incidents)
        self._last_message, self._last_incidents = message, incidents
        remaining = list(self._queues)
        for name, messages in lost:  # targets with the same name are matched in their order
            if same_name := [queue for queue in remaining if queue.target.name == name]:
                remaining.remove(same_name[0])
                same_name[0].lost += messages

    def dispatch(self, message: Message, incidents: Incidents) -> None:
        self._last_message, self._last_incidents = message, incidents
        for queue in self._queues:
            queue.enqueue(message, incidents)

    def set_targets(self, targets: Sequence[NotificationTarget]) -> bool:
        """Returns whether the targets changed.

        A target that stays keeps its queue. The queue of a target that was changed goes to its replacement: the change
        may have fixed its URL.
        """
        old = {queue.target: queue for queue in self._queues}
        if list(old) == list(targets):
            return False
        unchanged = {target: old.pop(target) for target in targets if target in old}
        unused = list(old.values())
        self._queues = [unchanged.get(target) or self._queue_for(target, unused) for target in targets]
        if not targets:
            self._last_message, self._last_incidents = None, {}  # nothing has to be resolved any more
        _abandon(unused, "target removed: %s; undelivered notifications: %d")
        return True

    def _queue_for(self, target: NotificationTarget, unused: list[DeliveryQueue]) -> DeliveryQueue:
        for queue in unused:
            if type(queue.target) is type(target):
                unused.remove(queue)
                queue.set_target(target)
                return queue
        new = DeliveryQueue(target, self._status, self._on_delivery, self._last_incidents)
        if self._last_message is not None:
            new.enqueue_alerts(self._last_message, self._last_incidents)
        return new

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        for queue in self._queues:
            queue.close()
        try:
            if tasks := [queue.task for queue in self._queues]:
                await asyncio.wait(tasks, timeout=timeout_s)
        finally:  # also if it is cancelled
            self.abandon()

    def abandon(self) -> None:
        _abandon(self._queues, "shutdown: undelivered notifications to %s: %d")
        self._queues = []


def _abandon(queues: Iterable[DeliveryQueue], text: str) -> None:
    for queue in queues:
        if undelivered := queue.abandon():
            extra = _extra("notifications_undelivered", queue.target, count=undelivered)
            log.warning(text, queue.target.name, undelivered, extra=extra)


def _extra(event: str, target: NotificationTarget, **fields: object) -> dict[str, object]:
    return {"event": event, "target": target.name, **fields}
