"""Follows a node and sends notifications. Everything but the callback of the node runs on the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from svcnode.core.model import MAINTENANCE_CHANGES, ChangeKind
from svcnode.notify.alertmanager import to_alerts
from svcnode.notify.dispatcher import STUCK_AFTER_S, Dispatcher
from svcnode.notify.engine import AlertEngine
from svcnode.notify.heartbeat import HeartbeatSender
from svcnode.notify.incidents import from_json, to_json
from svcnode.notify.message import Message, build_message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from svcnode.core.model import Change, Service
    from svcnode.node.node_state import NodeState
    from svcnode.notify import NotifyStatus
    from svcnode.notify.alert import AlertPolicy
    from svcnode.notify.heartbeat import Heartbeat
    from svcnode.notify.incidents import Incidents
    from svcnode.notify.targets import NotificationTarget

log = logging.getLogger("svcnode.notify")

# After these, the definition of the service may be another one.
_DEFINITION_CHANGES = (ChangeKind.REGISTERED, ChangeKind.REPLACED, *MAINTENANCE_CHANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """The [notify] section of the configuration."""

    targets: tuple[NotificationTarget, ...] = field(repr=False)  # their URLs may contain secrets
    policy: AlertPolicy
    heartbeat: Heartbeat | None = None


class AlertStateStorage(Protocol):
    """Stores one text; svcnode.history.History implements it."""

    def save_state(self, text: str) -> None: ...

    async def load_state(self) -> str | None:
        """The text of the previous process. Waits until the storage is open."""


class Notifier:
    """Sends notifications while its `async with` block runs. Without settings it sends none."""

    def __init__(
        self,
        node: NodeState,
        settings: NotifySettings | None,
        status: NotifyStatus,
        *,
        storage: AlertStateStorage | None = None,
        ping_scheduler: Callable[[Callable[[], object]], bool] = lambda _: False,
    ) -> None:
        """`ping_scheduler` calls its argument from the scheduler of the checks, or returns False: no heartbeat then."""
        self._node = node
        self._initial_settings = settings
        self._status = status
        self._storage = storage
        self._dispatcher = Dispatcher(status, self._save_state)
        self._heartbeat = HeartbeatSender(
            status, ping_scheduler=ping_scheduler, delivery_problem=lambda: self.problem, clock=node.now_s
        )
        self._restore_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf  # when the timer asks the engine for the next notification

    @property
    def _engine(self) -> AlertEngine | None:
        """None while there are no targets, and after the stop."""
        return self._status.engine

    @property
    def problem(self) -> str:
        """Why messages do not arrive; empty if they do."""
        if self._engine is not None and self._engine.due_at_s + STUCK_AFTER_S <= self._node.now_s():
            return f"a notification has been due for more than {STUCK_AFTER_S / 60:g} minutes"
        return self._dispatcher.problem

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
        if exc_type is None:
            await self._dispatcher.close()
        else:
            self._dispatcher.abandon()

    def apply(self, settings: NotifySettings | None) -> None:
        """Apply new settings. Pending changes and queued messages are kept."""
        targets = () if settings is None else settings.targets
        if self._dispatcher.set_targets(targets):
            extra = {"event": "notification_targets", "count": len(targets)}
            if targets:
                log.info("notification targets: %s", ", ".join(target.name for target in targets), extra=extra)
            else:
                log.info("no notification targets are configured", extra=extra)
        if settings is None or not settings.targets:
            self._stop_following()
            self._clear_state()
        elif self._engine is None:
            self._unsubscribe = self._node.subscribe(self._on_change)
            self._status.engine = AlertEngine(settings.policy, self._node, self._node.now_s())
        else:
            self._engine.set_policy(settings.policy, self._node.now_s())
        self._set_timer()
        self._heartbeat.apply(None if settings is None else settings.heartbeat)

    def flush(self) -> None:
        """Send the pending changes and stop following the node: a planned stop is not notified."""
        self._heartbeat.stop()
        self._notify(is_final=True)
        self._stop_following()

    def _stop_following(self) -> None:
        self._unsubscribe()
        self._status.engine = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at_s = None, math.inf

    def _on_change(self, change: Change) -> None:
        # Called in the thread that made the change.
        condition = self._node.condition
        if condition.draining:
            return
        entry = self._node.find(change.service_id) if change.service_id and change.kind in _DEFINITION_CHANGES else None
        self._loop.call_soon_threadsafe(self._record_change, change, entry and entry[0], condition.issues)

    def _record_change(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        if self._engine is not None:
            self._engine.record_change(change, service, issues)
            self._set_timer()

    def _set_timer(self) -> None:
        due_at_s = math.inf if self._engine is None else self._engine.due_at_s
        if due_at_s >= self._timer_at_s:
            return  # the current timer fires earlier, and sets the next one
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = due_at_s
        self._timer = self._loop.call_later(max(0.0, due_at_s - self._node.now_s()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at_s = None, math.inf
        self._notify()
        self._set_timer()

    def _notify(self, *, is_final: bool = False) -> None:
        if self._engine is None:
            return
        now_s = self._node.now_s()
        notification = self._engine.take_all(now_s) if is_final else self._engine.take_due(now_s)
        if notification is not None:
            message_id = os.urandom(8).hex()
            message = build_message(notification, self._node.identity, message_id, self._node.wall_time_s)
            incidents = self._engine.incidents()
            self._dispatcher.dispatch(replace(message, alerts=self._alerts(incidents)), incidents)
            self._save_state()

    def _alerts(self, incidents: Incidents) -> tuple[dict[str, Any], ...]:
        return to_alerts(incidents.values(), self._node.identity, self._node.wall_time_s)

    # ---- across a restart

    async def _restore(self, storage: AlertStateStorage) -> None:
        """Loading may take long; until then, changes are notified as if there were no saved state."""
        text = await storage.load_state()
        if self._engine is None:
            return  # stopped
        self._restore_task = None
        now_s = self._node.now_s()
        wall_s = self._node.wall_time_s(now_s)
        saved = from_json(text, lambda at_s: now_s - max(0.0, wall_s - at_s))
        self._engine.restore(saved.incidents, now_s)
        self._set_timer()
        incidents = self._engine.incidents()
        message = Message(title="", lines=(), notify_type="info", alerts=self._alerts(incidents))
        self._dispatcher.restore(incidents, saved.lost, message)
        self._save_state()

    def _clear_state(self) -> None:
        if self._restore_task is not None:
            self._restore_task.cancel()
            self._restore_task = None
        self._save_state()

    def _save_state(self) -> None:
        if self._storage is None or self._restore_task is not None:
            return  # do not overwrite the state before it is loaded
        self._storage.save_state(to_json(self._dispatcher.state, self._node.wall_time_s))
