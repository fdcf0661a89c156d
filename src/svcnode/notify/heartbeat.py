"""Heartbeats to a dead man's switch, such as Healthchecks: it raises the alarm when they stop, because the node cannot.

A heartbeat is evidence that bad news would arrive. It is sent from the event loop, only when the scheduler has answered
a ping, and only while messages are delivered. The health of the node does not matter, because alerts report it. If
anything else goes wrong, even a bug here, no heartbeat is sent.

The first one is sent after the node has worked for an interval, so that a node that keeps crashing sends none.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.net.tasks import log_failure
from svcnode.notify.delivery import attempt
from svcnode.notify.targets import http_client_from, send_request, url_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from svcnode.core.codes import ReasonCode
    from svcnode.net.http1 import Http1Client
    from svcnode.notify import NotifyStatus
    from svcnode.notify.targets import DeliveryError

MAX_TIMEOUT_S = 10.0  # of the scheduler, and then of the request; at most half of the interval

log = logging.getLogger("svcnode.notify")


@dataclass(frozen=True, slots=True, repr=False)
class Heartbeat:
    """Where heartbeats are sent, and how often."""

    options: Http1Client
    interval_s: float

    @property
    def name(self) -> str:
        return url_name(self.options.url)

    def __repr__(self) -> str:
        return f"<Heartbeat {self.name}>"

    async def send(self) -> DeliveryError | None:
        """One attempt. The caller sets the deadline."""
        return await send_request(self.options, self.options.build_request(self.options.url.target))


def heartbeat_from(entry: object, environ: Mapping[str, str], interval_s: float) -> Heartbeat:
    return Heartbeat(http_client_from(entry, environ, "a heartbeat"), interval_s)


class HeartbeatResult(Enum):
    SENT = "sent"
    FAILED = "failed"  # it was not accepted
    WITHHELD = "withheld"  # the node does not work


class _Outcome(NamedTuple):
    result: HeartbeatResult
    reason: str = ""
    code: ReasonCode | None = None


class HeartbeatSender:
    """Sends the heartbeats of a node from `apply` to `stop`, one at a time. A failed one is not repeated early."""

    def __init__(
        self,
        status: NotifyStatus,
        *,
        ping_scheduler: Callable[[Callable[[], object]], bool],
        delivery_problem: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        """`ping_scheduler` calls its argument from the scheduler, or returns False. `clock` dates what is shown."""
        self._status = status
        self._ping_scheduler = ping_scheduler
        self._delivery_problem = delivery_problem
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.heartbeat: Heartbeat | None = None
        self.result: HeartbeatResult | None = None  # the last one
        self.reason = ""  # of the last one, if it was not sent
        self.sent_at_s: float | None = None

    def apply(self, heartbeat: Heartbeat | None) -> None:
        if heartbeat == self.heartbeat:
            return
        self.stop()
        self.heartbeat, self.result, self.reason, self.sent_at_s = heartbeat, None, "", None
        if heartbeat is not None:
            self._task = asyncio.create_task(self._run(heartbeat), name=f"heartbeats to {heartbeat.name}")
            self._task.add_done_callback(log_failure)
            self._status.heartbeat = self

    def stop(self) -> None:
        self._status.heartbeat = None
        if self._task is not None:
            self._task.cancel()

    async def _run(self, heartbeat: Heartbeat) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + heartbeat.interval_s, loop.time())  # what was missed is not sent later
            await asyncio.sleep(due_s - loop.time())
            self._record(heartbeat, await self._beat(heartbeat))

    async def _beat(self, heartbeat: Heartbeat) -> _Outcome:
        timeout_s = min(MAX_TIMEOUT_S, heartbeat.interval_s / 2)
        problem = await self._scheduler_problem(timeout_s) or self._delivery_problem()
        if problem:
            return _Outcome(HeartbeatResult.WITHHELD, problem)
        error = await attempt(heartbeat.send(), timeout_s)
        return _Outcome(HeartbeatResult.SENT) if error is None else _Outcome(HeartbeatResult.FAILED, *error)

    async def _scheduler_problem(self, timeout_s: float) -> str:
        answered = asyncio.Event()
        if not self._ping_scheduler(answered.set):
            return "no checks are running"
        try:
            async with asyncio.timeout(timeout_s):
                await answered.wait()
        except TimeoutError:
            return f"the scheduler has not run for {timeout_s:g} s"
        return ""

    def _record(self, heartbeat: Heartbeat, outcome: _Outcome) -> None:
        before, self.result, self.reason = self.result, outcome.result, outcome.reason
        self._status.heartbeats[outcome.result.value] += 1
        is_new = outcome.result is not before
        level = logging.WARNING if is_new else logging.DEBUG
        name, reason = heartbeat.name, outcome.reason
        match outcome.result:
            case HeartbeatResult.SENT:
                self.sent_at_s = self._clock()
                if is_new:
                    log.info("heartbeats are sent to %s", name, extra={"event": "heartbeat_sent", "target": name})
            case HeartbeatResult.FAILED:
                extra = {"event": "heartbeat_failed", "target": name, "code": outcome.code, "reason": reason}
                log.log(level, "heartbeat to %s failed: %s", name, reason, extra=extra)
            case HeartbeatResult.WITHHELD:
                extra = {"event": "heartbeat_withheld", "target": name, "reason": reason}
                log.log(level, "heartbeat to %s withheld: %s", name, reason, extra=extra)
