"""The alert engine: changes of a node in, notifications out. The caller passes the time in; there is no I/O.

The first change that causes a notification starts a group. At the end of the group, one notification contains every
difference from the last notified state, so after each notification the notified state is the true state.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, islice
from typing import TYPE_CHECKING

from svcnode.core.model import ChangeKind, Impact, Status
from svcnode.core.state_machine import service_health
from svcnode.notify.alert_state import AlertState
from svcnode.notify.model import MAX_INCIDENTS, MAX_LISTED_SERVICES, Notification

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.core.model import Change, Health, Service, ServiceState
    from svcnode.notify.model import Incident
    from svcnode.notify.settings import AlertPolicy


class AlertEngine:
    def __init__(self, policy: AlertPolicy, now_s: float) -> None:
        self._policy = policy
        self._node = AlertState(None, now_s)
        self._services: dict[str, AlertState] = {}
        self._issues: tuple[str, ...] = ()
        # The counted services that are not Up, and of these the ones that are not starting.
        self._not_up: dict[str, AlertState] = {}
        self._failing: set[str] = set()
        self._pending: dict[str | None, AlertState] = {}
        self.due_at_s = math.inf  # no notification is due before this time

    def start(
        self,
        services: Iterable[tuple[Service, ServiceState]],
        health: Health,
        issues: tuple[str, ...],
        now_s: float,
    ) -> None:
        """Set the initial state. A service that is Down counts as not notified."""
        self._issues = issues
        for service, state in services:
            self._register(service, state, now_s)
        self._update_node(health, now_s)

    def record_change(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        """`service` is the current definition, if the change is a registration or a replacement."""
        self._issues = issues
        match change.kind:
            case ChangeKind.REGISTERED | ChangeKind.REPLACED if service is not None and change.after is not None:
                self._register(service, change.after, change.at_s)
            case ChangeKind.DEREGISTERED:
                self._deregister(change.service_id or "", change.at_s)
            case ChangeKind.STATUS if change.after is not None and change.service_id in self._services:
                self._update_service(self._services[change.service_id], change.after, change.at_s)
        self._update_node(change.health, change.at_s)

    def set_policy(self, policy: AlertPolicy, now_s: float) -> None:
        """Apply a new policy, also to pending changes."""
        self._policy = policy
        for alert in (*self._services.values(), self._node):
            if alert.is_pending and not alert.is_settling:
                self._schedule(alert, now_s)

    def take_due(self, now_s: float) -> Notification | None:
        """The notification that is due, if any; its changes are then marked as notified."""
        return self._take(now_s, is_due=any(alert.due_at_s <= now_s for alert in self._pending.values()))

    def take_all(self, now_s: float) -> Notification | None:
        """The last notification before shutdown: also the changes that are not due yet."""
        waiting = (alert for alert in self._pending.values() if not alert.is_settling)
        return self._take(now_s, is_due=any(alert.due_at_s < math.inf for alert in waiting))

    # ---- across a restart

    def restore(self, incidents: Iterable[Incident], now_s: float) -> None:
        """Continue the incidents of the previous process, except where this process has sent a notification already."""
        for incident in incidents:
            service = incident.service
            is_registered = service is None or service.id in self._services
            alert = self._node if service is None else self._alert_for(service, now_s)
            if alert.was_notified:
                continue
            alert.restore(incident)
            self._schedule(alert, now_s)
            if service is not None and not is_registered:
                self._deregister(service.id, now_s)

    def incidents(self) -> dict[str | None, Incident]:
        """The open incidents, at most MAX_INCIDENTS: they are saved after every notification."""
        alerts = chain([self._node], self._services.values())
        incidents = ((alert.key, incident) for alert in alerts if (incident := alert.incident) is not None)
        return dict(islice(incidents, MAX_INCIDENTS))

    # ---- changes in

    def _alert_for(self, service: Service, now_s: float) -> AlertState:
        if service.id not in self._services:
            self._services[service.id] = AlertState(service, now_s)
        return self._services[service.id]

    def _register(self, service: Service, state: ServiceState, now_s: float) -> None:
        alert = self._alert_for(service, now_s)
        alert.service, alert.is_removed = service, False
        if state.last_evidence_at_s is None:  # no check has finished since the registration or the new probe
            alert.is_starting = True
        self._update_service(alert, state, now_s)

    def _deregister(self, service_id: str, now_s: float) -> None:
        alert = self._services.get(service_id)
        if alert is None:
            return
        self._track_not_up(service_id, None)
        if alert.incident is None:
            self._discard(service_id)
            return
        alert.remove(now_s)
        self._schedule(alert, now_s)

    def _discard(self, service_id: str) -> None:
        del self._services[service_id]
        self._pending.pop(service_id, None)

    def _update_service(self, alert: AlertState, state: ServiceState, now_s: float) -> None:
        assert alert.service is not None, "_update_node updates the node"
        service = alert.service
        alert.is_starting = alert.is_starting and state.status is Status.INITIALIZING
        is_counted = service.impact is not Impact.NONE and state.status is not Status.UP
        self._track_not_up(service.id, alert if is_counted else None)
        alert.update(
            service_health(state.status),
            state.reason,
            str(state.code),
            state.since_s,
            now_s,
            first_failure_at_s=state.first_failure_at_s,
        )
        self._schedule(alert, now_s)

    def _track_not_up(self, service_id: str, alert: AlertState | None) -> None:
        """`alert` is None if the service is Up, not counted or removed."""
        self._not_up.pop(service_id, None)
        self._failing.discard(service_id)
        if alert is not None:
            self._not_up[service_id] = alert
            if not alert.is_starting:
                self._failing.add(service_id)

    def _update_node(self, health: Health, now_s: float) -> None:
        self._node.is_starting = not (self._failing or self._issues)
        if self._node.update(health, "", None, now_s, now_s) or self._node.is_unconfirmed:
            self._schedule(self._node, now_s)

    def _schedule(self, alert: AlertState, now_s: float) -> None:
        if self._policy.has_own_alert(alert.service):
            alert.schedule(self._policy, now_s)
        else:
            alert.schedule_with_others(is_any_due=self._node.due_at_s < math.inf)
        if alert.is_pending and self._policy.is_reported(alert.service):
            self._pending[alert.key] = alert
        else:
            self._pending.pop(alert.key, None)
        self.due_at_s = min(self.due_at_s, alert.due_at_s)

    # ---- notifications out

    def _take(self, now_s: float, *, is_due: bool) -> Notification | None:
        notification = self._notify_pending(now_s) if is_due else None
        self.due_at_s = min((alert.due_at_s for alert in self._pending.values()), default=math.inf)
        return notification

    def _notify_pending(self, now_s: float) -> Notification:
        # Every notification contains the health of the node, so it must not show the health from before a restart.
        if self._node.update_to_published(now_s):
            self._pending[None] = self._node
        notified = {
            key: alert for key, alert in self._pending.items() if not alert.is_settling or alert.due_at_s <= now_s
        }
        notification = self._build_notification(notified, now_s)
        for key, alert in notified.items():
            self._mark_notified(key, alert, now_s)
        self._node.mark_start_notified()
        return notification

    def _build_notification(self, notified: dict[str | None, AlertState], now_s: float) -> Notification:
        """Build changes only for the listed services, since thousands may have changed."""
        services = [alert for key, alert in notified.items() if key is not None]
        listed = heapq.nsmallest(MAX_LISTED_SERVICES, services, key=_by_severity)
        return Notification(
            at_s=now_s,
            health=self._node.health,
            node=self._node.to_change(now_s) if None in notified else None,
            services=tuple(alert.to_change(now_s) for alert in listed),
            truncated_services=len(services) - len(listed),
            issues=self._issues,
            not_up=tuple(alert.service for key, alert in self._not_up.items() if alert.service and key not in notified),
        )

    def _mark_notified(self, key: str | None, alert: AlertState, now_s: float) -> None:
        alert.mark_notified(now_s)
        if alert.is_removed and key is not None:
            self._discard(key)
        elif not alert.is_settling:
            del self._pending[key]


def _by_severity(alert: AlertState) -> tuple[int, bool, str]:
    assert alert.service is not None, "the node is not in the list"
    return -alert.effective_health, alert.service.impact is not Impact.CRITICAL, alert.service.id
