"""Follows a node and sends notifications. Everything but the callback of the node runs on the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from svcnode.core.model import ANNOUNCEMENTS, MAINTENANCE_CHANGES, ChangeKind
from svcnode.net.tasks import log_failure
from svcnode.notify.alertmanager import to_alerts
from svcnode.notify.alerts import Alerts, empty_state
from svcnode.notify.content import find_help
from svcnode.notify.delivery import STUCK_AFTER_S, Sender
from svcnode.notify.heartbeat import HeartbeatSender
from svcnode.notify.message import MessageContext, build_message
from svcnode.notify.turns import SharedTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from svcnode.core.model import Change, Service
    from svcnode.node.node_state import NodeState
    from svcnode.notify import Deliveries, NotifyStatus
    from svcnode.notify.heartbeat import Heartbeat
    from svcnode.notify.outages import PastTransitions
    from svcnode.notify.routes import AlertPolicy, Report, Route, RouteSettings
    from svcnode.notify.targets import Message
    from svcnode.notify.turns import Turns

CLOSE_TIMEOUT_S = 2.0
SAVE_AFTER_S = 1.0
MAX_NAME_CHARS = 240  # of a target that is shared
FAILING_AFTER_S = 600.0  # a target that fails for this long is a problem that the others are told

log = logging.getLogger("svcnode.notify")

# After these, the definition of the service may be another one.
_DEFINITION_CHANGES = (ChangeKind.REGISTERED, ChangeKind.REPLACED, *MAINTENANCE_CHANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """The [notify] section of the configuration."""

    routes: tuple[RouteSettings, ...]
    policy: AlertPolicy
    heartbeat: Heartbeat | None = None
    page_url: str = ""  # of the operator surface; empty: not known


class AlertStateStorage(Protocol):
    """Stores one text; svcnode.history.History implements it."""

    def save_state(self, text: str) -> None: ...

    async def load_state(self) -> str | None:
        """The text of the previous process. Waits until the storage is open."""


class Notifier:
    """Sends notifications while its `async with` block runs. Without settings it sends none."""

    def __init__(  # noqa: PLR0913  all that it connects
        self,
        node: NodeState,
        settings: NotifySettings | None,
        status: NotifyStatus,
        *,
        storage: AlertStateStorage | None = None,
        turns: Turns | None = None,
        history: PastTransitions | None = None,
        ping_scheduler: Callable[[Callable[[], object]], bool] = lambda _: False,
    ) -> None:
        """`turns` are those of the replicas of a node on several machines.

        `ping_scheduler` calls its argument from the scheduler of the checks, or returns False: no heartbeat then.
        """
        self._node = node
        self._initial_settings = settings
        self._status = status
        self._storage = storage
        self._turns = turns
        self._history = history
        self._page_url = ""
        self._senders: list[Sender] = []
        self._heartbeat = HeartbeatSender(
            status, ping_scheduler=ping_scheduler, delivery_problem=lambda: self.problem, clock=node.now_s
        )
        self._restore_task: asyncio.Task[None] | None = None
        self._outages_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None  # for the end of the next start limit
        self._timer_at_s = math.inf
        self._saving: asyncio.TimerHandle | None = None  # since when a problem lasts, before anything is sent

    @property
    def _alerts(self) -> Alerts | None:
        """None while there are no targets, and after the stop."""
        return self._status.alerts

    @property
    def problem(self) -> str:
        """Why messages do not arrive; empty if they do."""
        if self._alerts is not None and self._alerts.subjects.due_at_s + STUCK_AFTER_S <= self._node.now_s():
            return f"a notification has been due for more than {STUCK_AFTER_S / 60:g} minutes"
        return next((sender.problem for sender in self._senders if sender.problem), "")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.apply(self._initial_settings)
        if self._storage is not None:
            self._restore_task = asyncio.create_task(self._restore(self._storage), name="restore notification state")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()
        if self._restore_task is not None:
            self._restore_task.cancel()  # the attribute stays set, so that the unread state is not overwritten
        try:
            if exc_type is None and self._senders:
                await asyncio.wait([sender.task for sender in self._senders], timeout=CLOSE_TIMEOUT_S)
        finally:  # also if it is cancelled
            for sender in self._senders:
                sender.set_shared(None)
                sender.abandon("shutdown: a notification to %s was not delivered")
            self._senders = []
            self._stop_following()

    def apply(self, settings: NotifySettings | None) -> None:
        """Apply new settings. A target that stays keeps what it was told, and what it waits for."""
        names = [] if settings is None else [route.name for route in settings.routes]
        if names != [sender.name for sender in self._senders]:
            extra = {"event": "notification_targets", "count": len(names)}
            if names:
                log.info("notification targets: %s", ", ".join(names), extra=extra)
            else:
                log.info("no notification targets are configured", extra=extra)
        now_s = self._node.now_s()
        if settings is None or not settings.routes:
            self._stop_following()
            self._set_senders([])
            self._clear_state()
        elif self._alerts is None:
            self._unsubscribe = self._node.subscribe(self._on_change)
            self._status.alerts = alerts = Alerts(self._node, settings.routes, settings.policy, now_s)
            loading = alerts.load_outages(self._history, now_s)
            self._outages_task = asyncio.create_task(loading, name="count past outages")
            self._outages_task.add_done_callback(log_failure)
        else:
            self._alerts.apply(settings.routes, settings.policy, now_s)
        if self._alerts is not None:
            senders = {sender.route: sender for sender in self._senders}
            self._set_senders([senders.get(route) or self._new_sender(route) for route in self._alerts.routes])
        self._page_url = "" if settings is None else settings.page_url
        self._wake(retry_now=True)
        self._heartbeat.apply(None if settings is None else settings.heartbeat)

    def _new_sender(self, route: Route) -> Sender:
        return Sender(route, clock=self._node.now_s, build=self._build, on_attempt=self._on_attempt)

    def _set_senders(self, senders: list[Sender]) -> None:
        unused = [sender for sender in self._senders if sender not in senders]
        self._senders = senders
        self._status.deliveries = [sender.deliveries for sender in senders]
        for sender in unused:
            sender.set_shared(None)
            sender.abandon("target removed: a notification to %s was not delivered")
        if self._turns is not None:
            self._share_targets(self._turns)

    def _share_targets(self, turns: Turns) -> None:
        """Not Alertmanager: it gets what is open from every replica, and sends one message."""
        for sender in self._senders:
            if sender.target.resend_interval_s is None:
                name = sender.route.settings.id[-MAX_NAME_CHARS:]
                if sender.shared is None or sender.shared.turn.name != name:
                    sender.set_shared(None)
                    sender.set_shared(self._new_shared(name, sender, turns))

    def _new_shared(self, name: str, sender: Sender, turns: Turns) -> SharedTarget:
        assert self._alerts is not None, "there are targets"
        shared = SharedTarget(
            name,
            sender.route,
            turns,
            clock=self._node.now_s,
            read=self._alerts.records,
            on_turn=lambda: self._on_turn(sender),
            on_told=lambda: self._on_told(sender),
            on_known=self._save_state,
        )
        shared.turn.set_wanted(not self._node.condition.draining)
        return shared

    def _on_turn(self, sender: Sender) -> None:
        if sender.shared is not None and self._restore_task is None:
            sender.shared.save_restored()
        sender.wake()

    def _on_told(self, sender: Sender) -> None:
        """Another replica has delivered something."""
        sender.deliveries.forget_failures()
        if self._alerts is not None:
            self._alerts.subjects.see_target(sender.name, "", None, self._node.now_s())
        self._save_state()
        self._wake()

    def flush(self) -> None:
        """Send what waits and stop following the node: a planned stop is not notified."""
        self._heartbeat.stop()
        for sender in self._senders:
            sender.close()
        self._unsubscribe()
        self._cancel_timer()

    def _stop_following(self) -> None:
        self._unsubscribe()
        self._status.alerts = None
        self._cancel_timer()
        if self._saving is not None:
            self._saving.cancel()
        if self._outages_task is not None:
            self._outages_task.cancel()

    # ---- what happens

    def _on_change(self, change: Change) -> None:
        # Called in the thread that made the change.
        if change.kind in ANNOUNCEMENTS:
            return
        entry = self._node.find(change.service_id) if change.service_id and change.kind in _DEFINITION_CHANGES else None
        self._loop.call_soon_threadsafe(self._record_change, change, entry and entry[0])

    def _record_change(self, change: Change, service: Service | None) -> None:
        if self._alerts is not None:
            self._alerts.record_change(change, service)
            self._let_others_send_in_a_drain()
            self._wake()
            if self._saving is None and any(route.settings.escalate_after_s for route in self._alerts.routes):
                self._saving = self._loop.call_later(SAVE_AFTER_S, self._save_state)

    def _let_others_send_in_a_drain(self) -> None:
        for sender in self._senders:
            if sender.shared is not None:
                sender.shared.turn.set_wanted(not self._node.condition.draining)

    def _wake(self, *, retry_now: bool = False) -> None:
        for sender in self._senders:
            sender.wake(retry_now=retry_now)
        self._set_timer()

    def _set_timer(self) -> None:
        due_at_s = math.inf if self._alerts is None else self._alerts.subjects.due_at_s
        due_at_s = min((due_at_s, *(sender.is_problem_at_s for sender in self._senders)))
        if due_at_s >= self._timer_at_s:
            return  # the current timer fires earlier, and sets the next one
        self._cancel_timer()
        self._timer_at_s = due_at_s
        self._timer = self._loop.call_later(max(0.0, due_at_s - self._node.now_s()), self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at_s = None, math.inf

    def _on_timer(self) -> None:
        self._cancel_timer()
        if self._alerts is not None:
            self._alerts.subjects.end_starts(self._node.now_s())
            for sender in self._senders:
                self._see_failing(sender)
            self._wake()

    def _build(self, report: Report, deliveries: Deliveries) -> Message:
        assert self._alerts is not None, "senders end before"
        since_s = deliveries.waiting_since_s
        context = MessageContext(
            identity=self._node.identity,
            situation=self._alerts.situation(),
            to_wall=self._node.wall_time_s,
            delayed_s=0.0 if since_s is None else report.at_s - since_s,
            find_help=partial(find_help, node=self._node, outages=self._alerts.outages),
            page_url=self._page_url,
        )
        message = build_message(report, context, os.urandom(8).hex())
        return replace(message, alerts=to_alerts(report.open, context))

    def _on_attempt(self, sender: Sender) -> None:
        """Save what was told, and tell the other targets of one that has failed for long, or works again."""
        if sender.announcement is not None:
            self._node.announce(*sender.announcement)
        self._see_failing(sender)
        self._save_state()
        self._wake()

    def _see_failing(self, sender: Sender) -> None:
        deliveries, now_s = sender.deliveries, self._node.now_s()
        since_s = deliveries.failing_since_s
        if self._alerts is not None and (since_s is None or now_s - since_s >= FAILING_AFTER_S):
            self._alerts.subjects.see_target(sender.name, deliveries.error, deliveries.code, now_s, since_s)
            sender.is_problem_at_s = math.inf
        elif since_s is not None:
            sender.is_problem_at_s = since_s + FAILING_AFTER_S

    # ---- across a restart

    async def _restore(self, storage: AlertStateStorage) -> None:
        """Loading may take long; until then, changes are notified as if there were no saved state."""
        text = await storage.load_state()
        if self._alerts is None:
            return  # stopped
        self._restore_task = None
        self._alerts.restore(text, self._node.now_s(), self._shared())
        self._wake()
        self._save_state()

    def _clear_state(self) -> None:
        if self._restore_task is not None:
            self._restore_task.cancel()
            self._restore_task = None
        self._save_state()

    def _save_state(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        if self._storage is None or self._restore_task is not None:
            return  # do not overwrite the state before it is loaded
        alerts = self._alerts
        text = empty_state() if alerts is None else alerts.to_json(self._node.now_s(), self._shared())
        self._storage.save_state(text)

    def _shared(self) -> dict[Route, SharedTarget]:
        return {sender.route: sender.shared for sender in self._senders if sender.shared is not None}
