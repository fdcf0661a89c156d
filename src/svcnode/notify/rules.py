"""What is worth a message, and when: changes in, news out. Time is passed in; nothing here waits, and nothing is sent.

A *thing* is the node, or one of its services. For each of them we know what is so and what was told last.

* The first change that is to be told opens a group; at its end everything that differs from what was told last is
  told in one message. So after every message, what was told is the truth.
* After a message about a thing, changes for the better wait until its quiet period is over. What is worse than what was
  told last does not wait: somebody who was told that all is well would be told less than the truth. It can come only
  once after each good news, and those wait.
* A thing that changes too often is told once as flapping, and once when it has kept still for a while. Changes are
  counted, not weighed: each was decided by several looks in a row already, and a count is what a person can check.
* A start is no news. A service that has not been Up since it was registered, or since another probe looks at it, is
  taken to be as well as it was last told to be, until it is decided that it is Down.
* What was told before a restart and is not over is an *incident*. Where it is certain that all were told, it is news
  again when it changes. Where it is not, it is told once more, as what it is by now.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from svcnode.core.model import ChangeKind, Health, Impact, Status
from svcnode.core.rules import service_health

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.core.model import Change, Service, ServiceState

FLAPPING_AFTER = 6  # moments of change, within
FLAPPING_WITHIN_S = 600.0
MOMENT_S = 5.0  # a node that falls or rises in steps, with one service after the other, changes once
SETTLED_AFTER_S = 300.0  # without a change
TOLD_ONE_BY_ONE = 20  # services in one message
MAX_INCIDENTS = 1000  # that are remembered over a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How people want to be told."""

    services: Literal["critical", "all", "none"] = "critical"  # which have messages of their own
    group_within_s: float = 5.0
    quiet_s: float = 300.0


class Turn(Enum):
    """What became of a thing since it was last told."""

    WORSE = "worse"
    BETTER = "better"
    RECOVERED = "recovered"
    PASSED = "passed"  # it was worse for a moment, and is as it was
    FLAPPING = "flapping"
    SETTLED = "settled"
    REMOVED = "removed"  # nobody watches it any more
    STILL = "still"  # as it was before a restart, which not all may have been told
    AGAIN = "again"  # the same, but it was well after what all were told


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is told of one thing. The status of a service is told by the health that goes with it."""

    service: Service | None  # None: it is the node
    turn: Turn
    health: Health
    before: Health | None  # what was told last; None for a service that was never Up
    worst: Health  # since then
    reason: str
    since_s: float
    lasted_s: float  # the trouble that is over; with flapping, the changes; once settled, the standing still
    changes: int
    is_at_most: bool = False  # it may have been over sooner, while nobody watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Somebody was told that a thing is not well, and not yet that it is."""

    service: Service | None  # None: it is the node
    told: Health
    since_s: float  # when it was last well
    is_sure: bool  # that all were told
    is_again: bool = False  # it was well after what all were told last


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One message, before it is put into words."""

    at_s: float
    health: Health
    node: Item | None  # None: its health is as it was told
    services: tuple[Item, ...]  # the worst, and they first
    more_services: int = 0  # that have changed as well
    issues: tuple[str, ...]
    not_up: tuple[Service, ...]  # those that count, and have not changed


class _Flap(Enum):
    NO = 0
    BEGUN = 1
    TOLD = 2


class _Thing:
    """The node, or a service: what is so, what was told, and when there is something to tell."""

    def __init__(self, service: Service | None, now_s: float) -> None:
        self.service = service
        self.is_starting = True
        self.is_gone = False
        self.was_up = False
        self.is_recalled = False  # what was told is from before a restart, and nobody has seen it since
        self.is_unsure = False  # and not all may have been told
        self.is_again = False  # and it was well in between
        self.health = Health.HEALTHY  # as it is published
        self.published_since_s = now_s
        self.level = Health.HEALTHY  # the same, but for a start, which is no news
        self.told = Health.HEALTHY
        self.worst = Health.HEALTHY  # since it was told
        self.reason = self.worst_reason = ""
        self.since_s = now_s
        self.left_told_at_s = now_s  # when it was last as it was told
        self.left_good_at_s: float | None = None  # when it was last told, or seen, to be well
        self.changes = 0  # since then
        self.changed_at_s = now_s
        self.moments_s: deque[float] = deque(maxlen=FLAPPING_AFTER)
        self.flap = _Flap.NO
        self.told_at_s = -math.inf
        self.due_at_s = math.inf

    @property
    def is_as_told(self) -> bool:
        return self.level is self.told and not self.is_gone

    @property
    def was_worse_than_told(self) -> bool:
        """In a moment that may have passed since."""
        return self.worst > self.told

    @property
    def is_news(self) -> bool:
        is_to_be_told_again = self.is_unsure and not self.is_starting
        return not self.is_as_told or self.was_worse_than_told or self.flap is not _Flap.NO or is_to_be_told_again

    @property
    def incident(self) -> Incident | None:
        """What flaps is one, too, whatever it is at the moment: whoever was told waits to hear how it ends."""
        is_flapping = self.flap is _Flap.TOLD
        if self.told is Health.HEALTHY and not is_flapping:
            return None
        return Incident(
            service=self.service,
            told=max(self.told, Health.PARTIAL),
            since_s=self.since_s if self.left_good_at_s is None else self.left_good_at_s,
            is_sure=not (self.is_unsure or is_flapping),
            is_again=self.is_again,
        )

    def recall(self, incident: Incident) -> None:
        self.told = self.worst = incident.told
        self.left_good_at_s, self.since_s, self.changes = incident.since_s, self.published_since_s, 1
        self.is_recalled, self.is_unsure = self._is_well_or_starting(self.health), not incident.is_sure
        self.is_again = incident.is_again
        self.level = self._level(self.health)

    def _is_well_or_starting(self, health: Health) -> bool:
        return self.is_starting or health is Health.HEALTHY

    def _level(self, health: Health) -> Health:
        is_start_no_news = self.told is Health.HEALTHY or self.is_recalled
        return self.told if self.is_starting and is_start_no_news and health is not Health.HEALTHY else health

    def see(self, health: Health, reason: str, since_s: float, now_s: float) -> bool:
        """Returns whether that is a change."""
        self.is_recalled = self.is_recalled and self._is_well_or_starting(health)
        level = self._level(health)
        if health is not self.health:
            self.health, self.published_since_s = health, since_s
        self.reason = reason
        self.was_up = self.was_up or health is Health.HEALTHY
        if level is self.level:
            return False
        if self.level is self.told:
            self.left_told_at_s = since_s
        is_again = self.is_unsure and self.level is Health.HEALTHY
        if self.left_good_at_s is None or is_again:
            self.left_good_at_s = since_s
        self.is_again = self.is_again or is_again
        self.level, self.since_s = level, since_s
        if level > self.worst:
            self.worst, self.worst_reason = level, reason
        self.changes += 1
        self.changed_at_s = now_s
        if not self.moments_s or now_s - self.moments_s[-1] >= MOMENT_S:
            self.moments_s.append(now_s)
        return True

    def schedule(self, manners: Manners, now_s: float) -> None:
        soon_s = now_s + manners.group_within_s
        quiet_until_s = self.told_at_s + manners.quiet_s
        if self.flap is _Flap.TOLD:
            self.due_at_s = self.changed_at_s + SETTLED_AFTER_S
        elif self.flap is _Flap.BEGUN or self._changes_too_often(now_s):
            self.flap = _Flap.BEGUN
            self.due_at_s = min(self.due_at_s, soon_s)
        elif self.is_as_told and now_s < quiet_until_s:
            self.forget_what_passed()
            self.due_at_s = math.inf
        elif not self.is_news:
            self.due_at_s = math.inf
        elif self.was_worse_than_told or now_s >= quiet_until_s:
            self.due_at_s = min(self.due_at_s, soon_s)
        else:
            self.due_at_s = max(quiet_until_s, soon_s)

    def _changes_too_often(self, now_s: float) -> bool:
        is_full = len(self.moments_s) == FLAPPING_AFTER
        return is_full and now_s - self.moments_s[0] < FLAPPING_WITHIN_S

    def forget_what_passed(self) -> None:
        """It is again as it was told, and what was in between had no message to go with."""
        self.worst = self.told
        if self.told is Health.HEALTHY:
            self._begin_well()

    def _begin_well(self) -> None:
        self.left_good_at_s = None
        self.changes = 0

    def item(self, now_s: float) -> Item:
        turn = self._turn()
        return Item(
            service=self.service,
            turn=turn,
            health=self.level,
            before=self.told if self.was_up or self.told is not Health.HEALTHY else None,
            worst=self.worst,
            reason=self.worst_reason if turn is Turn.PASSED else self.reason,
            since_s=self.since_s,
            lasted_s=max(0.0, self._lasted_s(turn, now_s)),
            changes=len(self.moments_s) if turn is Turn.FLAPPING else self.changes,
            is_at_most=self.is_recalled and turn in (Turn.RECOVERED, Turn.REMOVED),
        )

    def note_told(self, now_s: float) -> None:
        self.told = self.worst = self.level
        self.told_at_s = now_s
        self.is_recalled = self.is_unsure = self.is_again = False
        if self.flap is _Flap.BEGUN:
            self.flap, self.due_at_s = _Flap.TOLD, self.changed_at_s + SETTLED_AFTER_S
            return
        if self.flap is _Flap.TOLD:
            self.moments_s.clear()
        if self.level is Health.HEALTHY:
            self._begin_well()
        self.flap, self.due_at_s = _Flap.NO, math.inf

    def _turn(self) -> Turn:
        if self.is_gone:
            return Turn.REMOVED
        if self.flap is not _Flap.NO:
            return Turn.FLAPPING if self.flap is _Flap.BEGUN else Turn.SETTLED
        if self.level is self.told:
            if self.was_worse_than_told or not self.is_unsure:
                return Turn.PASSED
            return Turn.AGAIN if self.is_again else Turn.STILL
        if self.level > self.told:
            return Turn.WORSE
        return Turn.RECOVERED if self.level is Health.HEALTHY else Turn.BETTER

    def _lasted_s(self, turn: Turn, now_s: float) -> float:
        match turn:
            case Turn.FLAPPING:
                return now_s - self.moments_s[0]
            case Turn.SETTLED:
                return now_s - self.since_s
            case Turn.STILL | Turn.AGAIN if self.left_good_at_s is not None:
                return now_s - self.left_good_at_s
            case Turn.RECOVERED | Turn.REMOVED if self.left_good_at_s is not None:
                return self.since_s - self.left_good_at_s
            case _:
                return self.since_s - self.left_told_at_s


class Rules:
    """Follows the changes of one node, and says when there is something to tell, and what."""

    def __init__(self, manners: Manners, now_s: float) -> None:
        self._manners = manners
        self._node = _Thing(None, now_s)
        self._services: dict[str, _Thing] = {}
        self._issues: tuple[str, ...] = ()
        # Those that count and are not Up; and of these, those for which a start is no excuse.
        self._not_up: dict[str, _Thing] = {}
        self._sick: set[str] = set()
        self._news: dict[str | None, _Thing] = {}
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

    def recall(self, incidents: Iterable[Incident], now_s: float) -> None:
        """What a process before this one told; what was told since it ended stands."""
        for incident in incidents:
            service, thing = incident.service, self._node
            if service is not None:
                thing = self._services.setdefault(service.id, _Thing(service, now_s))
            if thing.told_at_s > -math.inf or thing.told is not Health.HEALTHY:
                continue
            thing.recall(incident)
            self._schedule(thing, now_s)
            if service is not None and thing.service is service:  # which nobody watches any more
                self._deregister(service.id, now_s)

    def incidents(self) -> dict[str | None, Incident]:
        """By id; that of the node is None. There is an end to them, since they are asked for after every message."""
        things = chain([(None, self._node)], self._services.items())
        known = ((key, incident) for key, thing in things if (incident := thing.incident) is not None)
        return dict(islice(known, MAX_INCIDENTS))

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
            if thing.is_news and thing.flap is not _Flap.TOLD:
                self._schedule(thing, now_s)

    def take(self, now_s: float) -> News | None:
        """What is to be told now, if anything; from then on it counts as told."""
        if now_s < self.due_at_s:
            return None
        is_due = any(thing.due_at_s <= now_s for thing in self._news.values())
        return self._take(now_s, is_due=is_due)

    def take_all(self, now_s: float) -> News | None:
        """At the end: also what was held back."""
        is_due = any(thing.due_at_s < math.inf and thing.flap is not _Flap.TOLD for thing in self._news.values())
        return self._take(now_s, is_due=is_due)

    # ---- changes in

    def _register(self, service: Service, state: ServiceState, now_s: float) -> None:
        thing = self._services.get(service.id)
        if thing is None:
            thing = self._services[service.id] = _Thing(service, now_s)
        thing.service, thing.is_gone = service, False
        if state.counted_at_s is None:  # nobody has seen it yet, or another probe looks at it now
            thing.is_starting = True
        self._see_service(thing, state, now_s)

    def _deregister(self, service_id: str, now_s: float) -> None:
        thing = self._services.get(service_id)
        if thing is None:
            return
        self._not_up.pop(service_id, None)
        self._sick.discard(service_id)
        if thing.told is Health.HEALTHY and thing.flap is not _Flap.TOLD:
            self._forget(service_id)
            return
        thing.is_gone, thing.flap = True, _Flap.NO
        thing.see(Health.HEALTHY, "", now_s, now_s)
        self._schedule(thing, now_s)

    def _forget(self, service_id: str) -> None:
        del self._services[service_id]
        self._news.pop(service_id, None)

    def _see_service(self, thing: _Thing, state: ServiceState, now_s: float) -> None:
        assert thing.service is not None, "the node is seen elsewhere"
        service = thing.service
        thing.is_starting = thing.is_starting and state.status is Status.INITIALIZING
        is_counted = service.impact is not Impact.NONE and state.status is not Status.UP
        self._not_up.pop(service.id, None)
        self._sick.discard(service.id)
        if is_counted:
            self._not_up[service.id] = thing
            if not thing.is_starting:
                self._sick.add(service.id)
        thing.see(service_health(state.status), state.reason, state.since_s, now_s)
        self._schedule(thing, now_s)

    def _see_node(self, health: Health, now_s: float) -> None:
        self._node.is_starting = not (self._sick or self._issues)
        if self._node.see(health, "", now_s, now_s) or self._node.is_unsure:
            self._schedule(self._node, now_s)

    def _schedule(self, thing: _Thing, now_s: float) -> None:
        if self._has_messages(thing):
            thing.schedule(self._manners, now_s)
        else:
            thing.due_at_s = math.inf
            if thing.level is thing.told and self._node.due_at_s == math.inf:
                thing.forget_what_passed()
        key = thing.service.id if thing.service else None
        if thing.is_news and self._is_told(thing):
            self._news[key] = thing
        else:
            self._news.pop(key, None)
        self.due_at_s = min(self.due_at_s, thing.due_at_s)

    def _has_messages(self, thing: _Thing) -> bool:
        """Whether it is told by itself, and not only as the cause of something."""
        if thing.service is None or self._manners.services == "all":
            return True
        return self._manners.services == "critical" and thing.service.impact is Impact.CRITICAL

    def _is_told(self, thing: _Thing) -> bool:
        return self._has_messages(thing) or (thing.service is not None and thing.service.impact is not Impact.NONE)

    # ---- news out

    def _take(self, now_s: float, *, is_due: bool) -> News | None:
        news = self._told(now_s) if is_due else None
        self.due_at_s = min((thing.due_at_s for thing in self._news.values()), default=math.inf)
        return news

    def _told(self, now_s: float) -> News:
        """Thousands may have changed: what is not told one by one has no item made of it."""
        self._see_node_as_published(now_s)
        told = {key: one for key, one in self._news.items() if one.flap is not _Flap.TOLD or one.due_at_s <= now_s}
        services = [thing for key, thing in told.items() if key is not None]
        worst = heapq.nsmallest(TOLD_ONE_BY_ONE, services, key=_by_weight)
        news = News(
            at_s=now_s,
            health=self._node.health,
            node=self._node.item(now_s) if None in told else None,
            services=tuple(thing.item(now_s) for thing in worst),
            more_services=len(services) - len(worst),
            issues=self._issues,
            not_up=tuple(thing.service for key, thing in self._not_up.items() if thing.service and key not in told),
        )
        for key, thing in told.items():
            thing.note_told(now_s)
            if thing.is_gone and key is not None:
                self._forget(key)
            elif thing.flap is _Flap.NO:
                del self._news[key]
        self._note_start_as_told()
        return news

    def _see_node_as_published(self, now_s: float) -> None:
        """For the same reason as below: one that starts cannot be said to be as it was told before a restart."""
        node = self._node
        if node.is_recalled and node.level is not node.health:
            node.is_recalled = False
            node.see(node.health, "", node.published_since_s, now_s)
            self._news[None] = node

    def _note_start_as_told(self) -> None:
        """Every message says how the node is, so one that is only starting is told to be so, and its end is news."""
        node = self._node
        if node.is_starting and node.flap is _Flap.NO and node.health > node.level:
            node.level = node.told = node.worst = node.health
            if node.left_good_at_s is None:
                node.left_good_at_s = node.published_since_s


def _by_weight(thing: _Thing) -> tuple[int, bool, str]:
    assert thing.service is not None, "the node stands apart"
    return -thing.level, thing.service.impact is not Impact.CRITICAL, thing.service.id
