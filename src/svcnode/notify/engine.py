"""The alerts of a node, grouped into notifications. The caller passes changes and the time in; there is no I/O.

The node is one group in the sense of Alertmanager. The first change that causes a notification starts the group wait;
at its end, one notification contains every difference from the last notified state, so after each notification the
notified state is the true state. A reminder contains every alert that is firing, one repeat interval after the last
notification.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from svcnode.core.model import ChangeKind, Health, Impact, Status
from svcnode.core.state_machine import service_health
from svcnode.notify.alert import Alert, AlertState, PublishedHealth
from svcnode.notify.incidents import MAX_INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.core.model import Change, Service, ServiceState
    from svcnode.node.node_state import NodeState
    from svcnode.notify.alert import AlertChange, AlertPolicy
    from svcnode.notify.incidents import Incident

MAX_LISTED_SERVICES = 20  # per notification


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    at_s: float
    health: Health
    node: AlertChange | None  # None: the health of the node has not changed, or its change is held
    held_before: Health | None = None  # the health that was last notified, if its change is held
    services: tuple[AlertChange, ...]  # the most severe first
    truncated_services: int = 0  # changed services that are not listed
    issues: tuple[str, ...]
    not_up: tuple[Service, ...]  # counted services that are not Up and have not changed


class AlertEngine:
    """Begins with the state of a node; a service that is Down counts as not notified.

    During maintenance, an alert is held: it sees no changes. At the end, it sees the state of then: what is still wrong
    is notified, and the end of a problem that was notified before. The alert of the node is also held while only
    services in maintenance keep it from being healthy, or make it better than notified.
    """

    def __init__(self, policy: AlertPolicy, node: NodeState, now_s: float) -> None:
        self._policy = policy
        self._node = Alert(None, now_s)
        self._alerts: dict[str | None, Alert] = {None: self._node}  # of the node, and of services by id
        self._registry = node
        self._health = node.health
        self._issues = node.condition.issues
        # The counted services that are not Up, and of these the ones that are not starting.
        self._not_up: dict[str, Alert] = {}
        self._failing: set[str] = set()
        self._held: set[str | None] = set()  # alerts of what is in maintenance; at its end, they see the state of then
        self._not_up_in_maintenance: set[str] = set()  # counted services that are not Up and not in `_not_up`
        self._starting: dict[str, float] = {}  # services that were never Up: the end of the start period
        self._waiting: dict[str | None, Alert] = {}  # for the next notification, or to settle
        self._notified_at_s = now_s
        self.due_at_s = math.inf  # no notification is due before this time
        for service, state in node:
            self._register(service, state, now_s)
        self._update_node(node.health, now_s)

    def record_change(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        """`service` is the current definition, if the change is a registration or a replacement."""
        self._issues = issues
        match change.kind:
            case (
                ChangeKind.REGISTERED | ChangeKind.REPLACED | ChangeKind.MAINTENANCE | ChangeKind.MAINTENANCE_ENDED
            ) if service is not None and change.after is not None:
                self._register(service, change.after, change.at_s)
            case ChangeKind.MAINTENANCE | ChangeKind.MAINTENANCE_ENDED if change.service_id is None:
                for current, state in self._registry:
                    self._register(current, state, change.at_s)
            case ChangeKind.DEREGISTERED:
                self._deregister(change.service_id, change.at_s)
            case ChangeKind.STATUS if change.after is not None and change.service_id in self._alerts:
                self._update_service(self._alerts[change.service_id], change.after, change.at_s)
        self._update_node(change.health, change.at_s)

    def set_policy(self, policy: AlertPolicy, now_s: float) -> None:
        """Apply a new policy, also to waiting alerts."""
        self._policy = policy
        for alert in self._alerts.values():
            if alert.is_waiting:
                self._schedule(alert, now_s)
        self._update_due()

    def find(self, key: str | None) -> Alert | None:
        """The alert of a service, or of the node if `key` is None."""
        return self._alerts.get(key)

    def take_due(self, now_s: float) -> Notification | None:
        """The notification that is due, if any; its changes are then marked as notified."""
        self._end_starts(now_s)
        is_due = self._remind(now_s) or any(alert.due_at_s <= now_s for alert in self._waiting.values())
        return self._take(now_s, is_due=is_due)

    def take_all(self, now_s: float) -> Notification | None:
        """The last notification before shutdown: also the changes that are not due yet."""
        waiting = (alert for alert in self._waiting.values() if not alert.is_settling)
        return self._take(now_s, is_due=any(alert.due_at_s < math.inf for alert in waiting))

    # ---- across a restart

    def restore(self, incidents: Iterable[Incident], now_s: float) -> None:
        """Continue the incidents of the previous process, except where this process has sent a notification already."""
        for incident in incidents:
            service = incident.service
            is_removed = service is not None and service.id not in self._alerts
            alert = self._node if service is None else self._alert_for(service, now_s)
            if alert.was_notified:
                continue
            alert.restore(incident)
            self._schedule(alert, now_s)
            if is_removed:
                self._deregister(alert.key, now_s)

    def incidents(self) -> dict[str | None, Incident]:
        """The open incidents, at most MAX_INCIDENTS: they are saved after every notification."""
        incidents = (
            (alert.key, incident) for alert in self._alerts.values() if (incident := alert.incident) is not None
        )
        return dict(islice(incidents, MAX_INCIDENTS))

    # ---- changes in

    def _alert_for(self, service: Service, now_s: float) -> Alert:
        if service.id not in self._alerts:
            self._alerts[service.id] = Alert(service, now_s)
        return self._alerts[service.id]

    def _register(self, service: Service, state: ServiceState, now_s: float) -> None:
        alert = self._alert_for(service, now_s)
        alert.service = service
        self._update_service(alert, state, now_s)

    def _deregister(self, service_id: str | None, now_s: float) -> None:
        alert = self._alerts.get(service_id)
        if service_id is None or alert is None:
            return
        self._track_not_up(service_id, None)
        self._held.discard(service_id)
        if alert.incident is None:
            self._discard(service_id)
            return
        alert.observe(PublishedHealth(Health.HEALTHY, now_s, is_starting=True, is_removed=True))
        self._schedule(alert, now_s)

    def _discard(self, service_id: str) -> None:
        del self._alerts[service_id]
        self._waiting.pop(service_id, None)

    def _update_service(self, alert: Alert, state: ServiceState, now_s: float) -> None:
        assert alert.service is not None, "_update_node updates the node"
        is_counted = alert.service.affects_health and state.status is not Status.UP
        # After a restart, a service may have been registered long ago.
        started_s = max(state.registered_at_s, alert.created_at_s) + alert.service.policy.start_period_s
        is_overdue = now_s >= started_s + self._policy.start_limit_s
        if self._registry.maintenance.current(alert.service.id) is not None:
            self._track_not_up(alert.service.id, None)
            if is_counted:
                self._not_up_in_maintenance.add(alert.service.id)
            self._hold(alert)
            return
        # Without evidence, no check has finished since the registration or the new probe. A service that was ready
        # before this engine existed is not starting: another worker may have followed it until now.
        was_starting = state.last_ready_at_s is None and (
            alert.observed.is_starting or state.last_evidence_at_s is None
        )
        alert.observe(
            PublishedHealth(
                service_health(state.status),
                state.since_s,
                state.reason,
                str(state.code),
                state.first_failure_at_s,
                is_starting=was_starting
                and state.status is Status.INITIALIZING
                and (not is_overdue or (state.last_evidence_at_s is None and alert.was_down_before_restart)),
            )
        )
        self._end_hold(alert)
        self._track_not_up(alert.service.id, alert if is_counted else None)
        if alert.observed.is_starting and not is_overdue:
            self._starting[alert.service.id] = started_s
            self.due_at_s = min(self.due_at_s, started_s + self._policy.start_limit_s)
        self._schedule(alert, now_s)

    def _end_starts(self, now_s: float) -> None:
        """Services that are not Up at the start limit are problems, although their status has not changed."""
        limit_s = self._policy.start_limit_s
        overdue = [service_id for service_id, started_s in self._starting.items() if started_s + limit_s <= now_s]
        for service_id in overdue:
            del self._starting[service_id]
            if (found := self._registry.find(service_id)) is not None:
                self._register(*found, now_s)  # the reason may be a new one
        if overdue:
            self._update_node(self._health, now_s)

    def _track_not_up(self, service_id: str, alert: Alert | None) -> None:
        """`alert` is None if the service is Up, not counted, in maintenance or removed."""
        self._not_up.pop(service_id, None)
        self._not_up_in_maintenance.discard(service_id)
        self._failing.discard(service_id)
        self._starting.pop(service_id, None)
        if alert is not None:
            self._not_up[service_id] = alert
            if not alert.observed.is_starting:
                self._failing.add(service_id)

    def _hold(self, alert: Alert) -> None:
        """Until the maintenance ends, the alert sees no changes and is not notified."""
        self._held.add(alert.key)
        self._waiting.pop(alert.key, None)
        alert.due_at_s = math.inf

    def _end_hold(self, alert: Alert) -> None:
        if alert.key in self._held:
            self._held.discard(alert.key)
            alert.end_hold()

    def _update_node(self, health: Health, now_s: float) -> None:
        self._health = health
        if self._registry.maintenance.current() is not None or self._is_by_maintenance(health):
            self._hold(self._node)
            return
        self._node.observe(PublishedHealth(health, now_s, is_starting=not (self._failing or self._issues)))
        self._end_hold(self._node)
        self._schedule(self._node, now_s)

    def _is_by_maintenance(self, health: Health) -> bool:
        if health < self._node.notified_health:
            held = (self._alerts[key] for key in self._held if key is not None)
            return any(alert.notified_health is not Health.HEALTHY for alert in held)
        is_only_cause = bool(self._not_up_in_maintenance) and not (self._not_up or self._issues)
        return health is not Health.HEALTHY and is_only_cause

    def _schedule(self, alert: Alert, now_s: float) -> None:
        if alert.key in self._held:
            return
        alert.update_state(self._policy, now_s, is_other_due=self._node.due_at_s < math.inf)
        # A problem that was notified is ended by a notification, also if the service no longer causes any.
        is_reported = self._policy.is_reported(alert.service) or alert.state is AlertState.RESOLVING
        if alert.is_waiting and is_reported:
            self._waiting[alert.key] = alert
        else:
            self._waiting.pop(alert.key, None)
        self.due_at_s = min(self.due_at_s, alert.due_at_s, self._remind_at_s if self._is_reminded(alert) else math.inf)

    # ---- notifications out

    @property
    def _remind_at_s(self) -> float:
        return self._notified_at_s + self._policy.repeat_interval_s if self._policy.repeat_interval_s else math.inf

    def _is_reminded(self, alert: Alert) -> bool:
        is_firing = alert.state is AlertState.FIRING and not alert.observed.is_starting and alert.key not in self._held
        return is_firing and self._policy.is_reported(alert.service)

    def _remind(self, now_s: float) -> bool:
        """Whether a reminder is due. The alerts that it contains are then waiting."""
        if now_s < self._remind_at_s:
            return False
        reminded = [alert for alert in self._alerts.values() if self._is_reminded(alert)]
        for alert in reminded:
            alert.remind()
            self._schedule(alert, now_s)
        return bool(reminded)

    def _take(self, now_s: float, *, is_due: bool) -> Notification | None:
        notification = self._notify_waiting(now_s) if is_due else None
        self._update_due()
        return notification

    def _update_due(self) -> None:
        dues_s = (alert.due_at_s for alert in self._waiting.values())
        reminders_s = (self._remind_at_s for alert in self._alerts.values() if self._is_reminded(alert))
        starts_s = (started_s + self._policy.start_limit_s for started_s in self._starting.values())
        self.due_at_s = min(chain(dues_s, reminders_s, starts_s), default=math.inf)

    def _notify_waiting(self, now_s: float) -> Notification:
        # Every notification contains the health of the node, so it must not show the health from before a restart.
        self._node.end_start_after_restart()
        self._schedule(self._node, now_s)
        notified = {
            key: alert for key, alert in self._waiting.items() if not alert.is_settling or alert.due_at_s <= now_s
        }
        notification = self._build_notification(notified, now_s)
        for key, alert in notified.items():
            self._mark_notified(key, alert, now_s)
        self._node.mark_start_notified()
        self._notified_at_s = now_s
        return notification

    def _build_notification(self, notified: dict[str | None, Alert], now_s: float) -> Notification:
        """Build changes only for the listed services, since thousands may have changed."""
        services = [alert for key, alert in notified.items() if key is not None]
        listed = heapq.nsmallest(MAX_LISTED_SERVICES, services, key=_by_severity)
        return Notification(
            at_s=now_s,
            health=self._health,
            node=self._node.to_change(now_s) if None in notified else None,
            held_before=self._held_before,
            services=tuple(alert.to_change(now_s) for alert in listed),
            truncated_services=len(services) - len(listed),
            issues=self._issues,
            not_up=tuple(alert.service for key, alert in self._not_up.items() if alert.service and key not in notified),
        )

    @property
    def _held_before(self) -> Health | None:
        is_held = None in self._held or self._node.is_settling
        is_different = self._health is not self._node.notified_health
        return self._node.notified_health if is_held and is_different else None

    def _mark_notified(self, key: str | None, alert: Alert, now_s: float) -> None:
        alert.mark_notified(now_s)
        if alert.observed.is_removed and key is not None:
            self._discard(key)
        else:
            del self._waiting[key]


def _by_severity(alert: Alert) -> tuple[int, bool, str]:
    assert alert.service is not None, "the node is not in the list"
    return -alert.health, alert.service.impact is not Impact.CRITICAL, alert.service.id
