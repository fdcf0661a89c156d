"""What is worth a message, and when: changes in, news out. Time is passed in; nothing here waits, and nothing is sent.

The first change that is to be told opens a group; at its end everything that differs from what was told last is told in
one message. So after every message, what was told is the truth.

What is to be told of each thing, and when, it knows itself: see thing.py.
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
    """Follows the changes of one node, and says when there is something to tell, and what."""

    def __init__(self, manners: AlertPolicy, now_s: float) -> None:
        self._policy = manners
        self._node = AlertState(None, now_s)
        self._services: dict[str, AlertState] = {}
        self._issues: tuple[str, ...] = ()
        # Those that count and are not Up; and of these, those for which a start is no excuse.
        self._not_up: dict[str, AlertState] = {}
        self._failing: set[str] = set()
        self._pending: dict[str | None, AlertState] = {}
        self.due_at_s = math.inf  # there is nothing to tell before then

    def start(
        self,
        services: Iterable[tuple[Service, ServiceState]],
        health: Health,
        issues: tuple[str, ...],
        now_s: float,
    ) -> None:
        """What is so when we begin; what is Down has not been told by anybody."""
        self._issues = issues
        for service, state in services:
            self._register(service, state, now_s)
        self._update_node(health, now_s)

    def record_change(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        """`service` as it is defined now, where the change is about its definition."""
        self._issues = issues
        match change.kind:
            case ChangeKind.REGISTERED | ChangeKind.REPLACED if service is not None and change.after is not None:
                self._register(service, change.after, change.at_s)
            case ChangeKind.DEREGISTERED:
                self._deregister(change.service_id or "", change.at_s)
            case ChangeKind.STATUS if change.after is not None and change.service_id in self._services:
                self._update_service(self._services[change.service_id], change.after, change.at_s)
        self._update_node(change.health, change.at_s)

    def set_policy(self, manners: AlertPolicy, now_s: float) -> None:
        """Other manners from now on, also for what waits to be told."""
        self._policy = manners
        for thing in (*self._services.values(), self._node):
            if thing.is_pending and not thing.is_settling:
                self._schedule(thing, now_s)

    def take_due(self, now_s: float) -> Notification | None:
        """What is to be told now, if anything; from then on it counts as told."""
        return self._take(now_s, is_due=any(thing.due_at_s <= now_s for thing in self._pending.values()))

    def take_all(self, now_s: float) -> Notification | None:
        """At the end: also what was held back."""
        held_back = (thing for thing in self._pending.values() if not thing.is_settling)
        return self._take(now_s, is_due=any(thing.due_at_s < math.inf for thing in held_back))

    # ---- over a restart

    def restore(self, incidents: Iterable[Incident], now_s: float) -> None:
        """What a process before this one told; what was told since it ended stands."""
        for incident in incidents:
            service = incident.service
            is_watched = service is None or service.id in self._services
            thing = self._node if service is None else self._alert_for(service, now_s)
            if thing.was_notified:
                continue
            thing.restore(incident)
            self._schedule(thing, now_s)
            if service is not None and not is_watched:
                self._deregister(service.id, now_s)

    def incidents(self) -> dict[str | None, Incident]:
        """There is an end to them, since they are asked for after every message."""
        things = chain([self._node], self._services.values())
        known = ((thing.key, incident) for thing in things if (incident := thing.incident) is not None)
        return dict(islice(known, MAX_INCIDENTS))

    # ---- changes in

    def _alert_for(self, service: Service, now_s: float) -> AlertState:
        if service.id not in self._services:
            self._services[service.id] = AlertState(service, now_s)
        return self._services[service.id]

    def _register(self, service: Service, state: ServiceState, now_s: float) -> None:
        thing = self._alert_for(service, now_s)
        thing.service, thing.is_removed = service, False
        if state.last_evidence_at_s is None:  # nobody has seen it yet, or another probe looks at it now
            thing.is_starting = True
        self._update_service(thing, state, now_s)

    def _deregister(self, service_id: str, now_s: float) -> None:
        thing = self._services.get(service_id)
        if thing is None:
            return
        self._track_not_up(service_id, None)
        if thing.incident is None:
            self._discard(service_id)
            return
        thing.remove(now_s)
        self._schedule(thing, now_s)

    def _discard(self, service_id: str) -> None:
        del self._services[service_id]
        self._pending.pop(service_id, None)

    def _update_service(self, thing: AlertState, state: ServiceState, now_s: float) -> None:
        assert thing.service is not None, "the node is seen elsewhere"
        service = thing.service
        thing.is_starting = thing.is_starting and state.status is Status.INITIALIZING
        is_counted = service.impact is not Impact.NONE and state.status is not Status.UP
        self._track_not_up(service.id, thing if is_counted else None)
        thing.update(service_health(state.status), state.reason, state.since_s, now_s)
        self._schedule(thing, now_s)

    def _track_not_up(self, service_id: str, not_up: AlertState | None) -> None:
        self._not_up.pop(service_id, None)
        self._failing.discard(service_id)
        if not_up is not None:
            self._not_up[service_id] = not_up
            if not not_up.is_starting:
                self._failing.add(service_id)

    def _update_node(self, health: Health, now_s: float) -> None:
        self._node.is_starting = not (self._failing or self._issues)
        if self._node.update(health, "", now_s, now_s) or self._node.is_unconfirmed:
            self._schedule(self._node, now_s)

    def _schedule(self, thing: AlertState, now_s: float) -> None:
        if self._policy.has_own_alert(thing.service):
            thing.schedule(self._policy, now_s)
        else:
            thing.schedule_with_others(is_any_due=self._node.due_at_s < math.inf)
        if thing.is_pending and self._policy.is_reported(thing.service):
            self._pending[thing.key] = thing
        else:
            self._pending.pop(thing.key, None)
        self.due_at_s = min(self.due_at_s, thing.due_at_s)

    # ---- news out

    def _take(self, now_s: float, *, is_due: bool) -> Notification | None:
        news = self._notify_pending(now_s) if is_due else None
        self.due_at_s = min((thing.due_at_s for thing in self._pending.values()), default=math.inf)
        return news

    def _notify_pending(self, now_s: float) -> Notification:
        # Every message says how the node is, so one that starts cannot be said to be as it was told before a restart.
        if self._node.update_to_published(now_s):
            self._pending[None] = self._node
        told = {key: one for key, one in self._pending.items() if not one.is_settling or one.due_at_s <= now_s}
        news = self._build_notification(told, now_s)
        for key, thing in told.items():
            self._mark_notified(key, thing, now_s)
        self._node.mark_start_notified()
        return news

    def _build_notification(self, told: dict[str | None, AlertState], now_s: float) -> Notification:
        """Thousands may have changed: what is not told one by one has no item made of it."""
        services = [thing for key, thing in told.items() if key is not None]
        worst = heapq.nsmallest(MAX_LISTED_SERVICES, services, key=_by_severity)
        return Notification(
            at_s=now_s,
            health=self._node.health,
            node=self._node.to_change(now_s) if None in told else None,
            services=tuple(thing.to_change(now_s) for thing in worst),
            truncated_services=len(services) - len(worst),
            issues=self._issues,
            not_up=tuple(thing.service for key, thing in self._not_up.items() if thing.service and key not in told),
        )

    def _mark_notified(self, key: str | None, thing: AlertState, now_s: float) -> None:
        thing.mark_notified(now_s)
        if thing.is_removed and key is not None:
            self._discard(key)
        elif not thing.is_settling:
            del self._pending[key]


def _by_severity(thing: AlertState) -> tuple[int, bool, str]:
    assert thing.service is not None, "the node stands apart"
    return -thing.effective_health, thing.service.impact is not Impact.CRITICAL, thing.service.id
