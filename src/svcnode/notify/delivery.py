"""Delivers what is due to one target, in a task of its own, so that a slow target delays no other.

A failed attempt is repeated with increasing delays until it succeeds. Each attempt is built anew, so there is no queue
of old messages. A message may arrive twice, if it was received but the response was lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.model import ChangeKind
from svcnode.core.redaction import redacted
from svcnode.core.text import error_text, safe_reason
from svcnode.net.tasks import log_failure
from svcnode.notify import Deliveries
from svcnode.notify.rule import Kind
from svcnode.notify.targets import DeliveryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.notify.routes import Report, Route
    from svcnode.notify.targets import Message, NotificationTarget
    from svcnode.notify.turns import SharedTarget

DELIVERY_TIMEOUT_S = 15.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 300.0
PASS_ON_AFTER_S = 10.0  # a replica that waits longer for its next attempt lets another one try
TURN_POLL_S = 1.0  # while something is due, and another replica has the turn
STUCK_AFTER_S = 300.0  # a target may fail for this time, or a message be overdue, before it counts as a problem

log = logging.getLogger("svcnode.notify")


async def try_deliver(target: NotificationTarget, message: Message) -> DeliveryError | None:
    return await attempt(target.deliver(message), DELIVERY_TIMEOUT_S)


async def attempt(delivery: Awaitable[DeliveryError | None], timeout_s: float) -> DeliveryError | None:
    """One attempt with a timeout."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await delivery
    except Exception as exc:  # noqa: BLE001  no error of a target may stop its deliveries
        if deadline.expired():
            return DeliveryError(f"timeout: no response within {timeout_s:g} s", ReasonCode.TIMEOUT)
        return DeliveryError(redacted(error_text(exc)), ReasonCode.OTHER)


class Sender:
    """Sends what its route reports."""

    def __init__(
        self,
        route: Route,
        *,
        clock: Callable[[], float],
        build: Callable[[Report, Deliveries], Message],
        on_attempt: Callable[[Sender], None],
    ) -> None:
        self.route = route
        self.deliveries = Deliveries(route.settings.name)
        self._clock = clock
        self._build = build
        self._on_attempt = on_attempt
        self.shared: SharedTarget | None = None  # None: only this process sends to it
        self.announcement: tuple[ChangeKind, str] | None = None  # what the timeline says of the last attempt
        self._title = ""  # of the last message
        self.is_problem_at_s = math.inf  # when it will have failed for so long that others are told
        self._is_closing = False
        self._retry_now = False
        self._wake = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"notifications to {self.name}")
        self.task.add_done_callback(log_failure)

    @property
    def target(self) -> NotificationTarget:
        return self.route.settings.target

    @property
    def name(self) -> str:
        return self.route.settings.name

    @property
    def problem(self) -> str:
        """Why messages do not arrive at the target; empty if they do."""
        since_s, now_s = self.deliveries.failing_since_s, self._clock()
        if self.task.done():
            return f"the task that delivers notifications to {self.name} has ended"
        if max(self.route.due_at_s, self.deliveries.retry_at_s) + STUCK_AFTER_S <= now_s:
            return f"a notification to {self.name} has been due for more than {STUCK_AFTER_S / 60:g} minutes"
        if since_s is None or not self._may_send or now_s - since_s < STUCK_AFTER_S:
            return ""
        return f"notifications to {self.name} have failed for more than {STUCK_AFTER_S / 60:g} minutes"

    @property
    def _may_send(self) -> bool:
        return self.shared is None or self.shared.turn.may_send

    def wake(self, *, retry_now: bool = False) -> None:
        """After each change. `retry_now`: the configuration may have fixed the target."""
        self._retry_now = self._retry_now or retry_now
        self.deliveries.target = self.name
        self._wake.set()

    def set_shared(self, shared: SharedTarget | None) -> None:
        if self.shared is not None:
            self.shared.turn.drop()
        self.shared, self.deliveries.turn = shared, None if shared is None else shared.turn

    def close(self) -> None:
        """Try once more what has not been delivered, without the group wait, and end the task."""
        self._is_closing = True
        self.wake(retry_now=True)

    async def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            wait_s = max(self.route.due_at_s, self.deliveries.retry_at_s) - self._clock()
            if wait_s > 0 and not self._retry_now:
                await self._wait(wait_s)
            elif not self._may_send:
                await self._wait(TURN_POLL_S)
            else:
                self._retry_now = False
                await self._send()
        if self._may_send:
            await self._send(is_final=True)
        if self.shared is not None:
            await self.shared.turn.leave()

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _send(self, *, is_final: bool = False) -> None:
        report = self.route.report(self._clock(), is_final=is_final)
        if report is None:
            self.deliveries.waiting_since_s = None
            return
        self.deliveries.begin(report.at_s)
        error = await attempt(self._deliver(report), DELIVERY_TIMEOUT_S)
        now_s = self._clock()
        if error is None:
            self.route.delivered(report, now_s)
            if self.shared is not None:
                self.shared.delivered(report)
            is_news = any(entry.kind is not Kind.REMINDER for entry in report.entries)
            self._record_success(now_s, is_message=is_news or self.target.resend_interval_s is None)
        else:
            self.route.failed(now_s)
            self._record_failure(error, now_s)
        self._on_attempt(self)

    async def _deliver(self, report: Report) -> DeliveryError | None:
        message = self._build(report, self.deliveries)
        self._title = message.title
        return await self.target.deliver(message)

    def _record_success(self, now_s: float, *, is_message: bool) -> None:
        if self.deliveries.failures_in_a_row:
            text = "notifications to %s are delivered again after %d failed attempts"
            failures = self.deliveries.failures_in_a_row
            log.info(text, self.name, failures, extra=_extra("notification_recovered", self.name))
        self.deliveries.succeed(now_s, is_message=is_message)
        self._announce(ChangeKind.MESSAGE_SENT, self._title if is_message else "")

    def _record_failure(self, error: DeliveryError, now_s: float) -> None:
        failures = self.deliveries.failures_in_a_row
        level = logging.DEBUG if failures else logging.WARNING
        extra = _extra("notification_failed", self.name, code=error.code, reason=error.reason)
        log.log(level, "notification to %s failed: %s", self.name, error.reason, extra=extra)
        backoff_s = min(MIN_BACKOFF_S * 2 ** min(failures, 30), MAX_BACKOFF_S)
        self.deliveries.fail(error.reason, error.code, now_s, retry_at_s=now_s + backoff_s)
        self._announce(ChangeKind.MESSAGE_FAILED, "" if failures else error.reason)
        if self.shared is not None and backoff_s > PASS_ON_AFTER_S:
            self.shared.turn.pass_on(until_s=now_s + backoff_s)

    def _announce(self, kind: ChangeKind, text: str) -> None:
        self.announcement = (kind, safe_reason(f"{self.name}: {text}")) if text else None

    def abandon(self, text: str) -> None:
        """End the task at once, and log what has not been delivered."""
        self.task.cancel()
        if self.deliveries.waiting_since_s is not None:
            log.warning(text, self.name, extra=_extra("notifications_undelivered", self.name))


def _extra(event: str, target: str, **fields: object) -> dict[str, object]:
    return {"event": event, "target": target, **fields}
