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
from svcnode.core.rules import service_health
from svcnode.notify.incidents import MAX_INCIDENTS
from svcnode.notify.news import TOLD_ONE_BY_ONE, News
from svcnode.notify.thing import Thing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.core.model import Change, Health, Service, ServiceState
    from svcnode.notify.incidents import Incident
    from svcnode.notify.settings import Manners


class Rules:
    """Follows the changes of one node, and says when there is something to tell, and what."""

    def __init__(self, manners: Manners, now_s: float) -> None:
        self._manners = manners
        self._node = Thing(None, now_s)
        self._services: dict[str, Thing] = {}
        self._issues: tuple[str, ...] = ()
        # Those that count and are not Up; and of these, those for which a start is no excuse.
        self._not_up: dict[str, Thing] = {}
        self._sick: set[str] = set()
        self._news: dict[str | None, Thing] = {}
        self.due_at_s = math.inf  # there is nothing to tell before then

    def begin(
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
        self._see_node(health, now_s)

    def note(self, change: Change, service: Service | None, issues: tuple[str, ...]) -> None:
        """`service` as it is defined now, where the change is about its definition."""
        self._issues = issues
        match change.kind:
            case ChangeKind.REGISTERED | ChangeKind.REPLACED if service is not None and change.after is not None:
                self._register(service, change.after, change.at_s)
            case ChangeKind.DEREGISTERED:
                self._deregister(change.service_id or "", change.at_s)
            case ChangeKind.STATUS if change.after is not None and change.service_id in self._services:
                self._see_service(self._services[change.service_id], change.after, change.at_s)
        self._see_node(change.health, change.at_s)

    def adopt(self, manners: Manners, now_s: float) -> None:
        """Other manners from now on, also for what waits to be told."""
        self._manners = manners
        for thing in (*self._services.values(), self._node):
            if thing.is_news and not thing.is_settling:
                self._schedule(thing, now_s)

    def take(self, now_s: float) -> News | None:
        """What is to be told now, if anything; from then on it counts as told."""
        return self._take(now_s, is_due=any(thing.due_at_s <= now_s for thing in self._news.values()))

    def take_all(self, now_s: float) -> News | None:
        """At the end: also what was held back."""
        held_back = (thing for thing in self._news.values() if not thing.is_settling)
        return self._take(now_s, is_due=any(thing.due_at_s < math.inf for thing in held_back))

    # ---- over a restart

    def recall(self, incidents: Iterable[Incident], now_s: float) -> None:
        """What a process before this one told; what was told since it ended stands."""
        for incident in incidents:
            service = incident.service
            is_watched = service is None or service.id in self._services
            thing = self._node if service is None else self._thing_of(service, now_s)
            if thing.was_told:
                continue
            thing.recall(incident)
            self._schedule(thing, now_s)
            if service is not None and not is_watched:
                self._deregister(service.id, now_s)

    def incidents(self) -> dict[str | None, Incident]:
        """There is an end to them, since they are asked for after every message."""
        things = chain([self._node], self._services.values())
        known = ((thing.key, incident) for thing in things if (incident := thing.incident) is not None)
        return dict(islice(known, MAX_INCIDENTS))

    # ---- changes in

    def _thing_of(self, service: Service, now_s: float) -> Thing:
        if service.id not in self._services:
            self._services[service.id] = Thing(service, now_s)
        return self._services[service.id]

    def _register(self, service: Service, state: ServiceState, now_s: float) -> None:
        thing = self._thing_of(service, now_s)
        thing.service, thing.is_gone = service, False
        if state.counted_at_s is None:  # nobody has seen it yet, or another probe looks at it now
            thing.is_starting = True
        self._see_service(thing, state, now_s)

    def _deregister(self, service_id: str, now_s: float) -> None:
        thing = self._services.get(service_id)
        if thing is None:
            return
        self._count(service_id, None)
        if thing.incident is None:
            self._forget(service_id)
            return
        thing.remove(now_s)
        self._schedule(thing, now_s)

    def _forget(self, service_id: str) -> None:
        del self._services[service_id]
        self._news.pop(service_id, None)

    def _see_service(self, thing: Thing, state: ServiceState, now_s: float) -> None:
        assert thing.service is not None, "the node is seen elsewhere"
        service = thing.service
        thing.is_starting = thing.is_starting and state.status is Status.INITIALIZING
        is_counted = service.impact is not Impact.NONE and state.status is not Status.UP
        self._count(service.id, thing if is_counted else None)
        thing.see(service_health(state.status), state.reason, state.since_s, now_s)
        self._schedule(thing, now_s)

    def _count(self, service_id: str, not_up: Thing | None) -> None:
        self._not_up.pop(service_id, None)
        self._sick.discard(service_id)
        if not_up is not None:
            self._not_up[service_id] = not_up
            if not not_up.is_starting:
                self._sick.add(service_id)

    def _see_node(self, health: Health, now_s: float) -> None:
        self._node.is_starting = not (self._sick or self._issues)
        if self._node.see(health, "", now_s, now_s) or self._node.is_unsure:
            self._schedule(self._node, now_s)

    def _schedule(self, thing: Thing, now_s: float) -> None:
        if self._manners.has_messages(thing.service):
            thing.schedule(self._manners, now_s)
        else:
            thing.join_others(is_any_due=self._node.due_at_s < math.inf)
        if thing.is_news and self._manners.is_told(thing.service):
            self._news[thing.key] = thing
        else:
            self._news.pop(thing.key, None)
        self.due_at_s = min(self.due_at_s, thing.due_at_s)

    # ---- news out

    def _take(self, now_s: float, *, is_due: bool) -> News | None:
        news = self._told(now_s) if is_due else None
        self.due_at_s = min((thing.due_at_s for thing in self._news.values()), default=math.inf)
        return news

    def _told(self, now_s: float) -> News:
        # Every message says how the node is, so one that starts cannot be said to be as it was told before a restart.
        if self._node.see_as_published(now_s):
            self._news[None] = self._node
        told = {key: one for key, one in self._news.items() if not one.is_settling or one.due_at_s <= now_s}
        news = self._news_of(told, now_s)
        for key, thing in told.items():
            self._note_told(key, thing, now_s)
        self._node.note_start_as_told()
        return news

    def _news_of(self, told: dict[str | None, Thing], now_s: float) -> News:
        """Thousands may have changed: what is not told one by one has no item made of it."""
        services = [thing for key, thing in told.items() if key is not None]
        worst = heapq.nsmallest(TOLD_ONE_BY_ONE, services, key=_by_weight)
        return News(
            at_s=now_s,
            health=self._node.health,
            node=self._node.item(now_s) if None in told else None,
            services=tuple(thing.item(now_s) for thing in worst),
            more_services=len(services) - len(worst),
            issues=self._issues,
            not_up=tuple(thing.service for key, thing in self._not_up.items() if thing.service and key not in told),
        )

    def _note_told(self, key: str | None, thing: Thing, now_s: float) -> None:
        thing.note_told(now_s)
        if thing.is_gone and key is not None:
            self._forget(key)
        elif not thing.is_settling:
            del self._news[key]


def _by_weight(thing: Thing) -> tuple[int, bool, str]:
    assert thing.service is not None, "the node stands apart"
    return -thing.level, thing.service.impact is not Impact.CRITICAL, thing.service.id
