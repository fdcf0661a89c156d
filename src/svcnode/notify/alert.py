"""The alert of the node or of one service: a state machine. Observations and the time come in; there is no I/O.

                worse              notified               better
    INACTIVE ──────────► PENDING ────────────► FIRING ──────────────► RESOLVING
      ▲  ▲                │ ▲ ▲                │ ▲                     │ │ │
      │  └─ as notified ──┘ │ └─ worse, or a ──┘ └─ as notified again, ┘ │ │
      │     again           │    reminder           or notified          │ │
      │                     └────────── worse than notified ─────────────┘ │
      └───────────────────────────── notified ─────────────────────────────┘

PENDING is notified after the group wait, RESOLVING after the resolve delay. An alert that does not cause notifications
itself is notified together with another one.

* After a notification, an improvement waits until the resolve delay is over. A health that is worse than the last
  notified one does not wait: otherwise the last notification would show too good a health. This cannot repeat
  quickly, because every improvement in between waits.
* Flapping is not a state, and delays only improvements: after too many changes, they wait until there was no change for
  some time.
* A problem that ends while it is PENDING is notified as transient, unless the resolve delay is not over. Then its group
  wait goes on, and if the problem returns after it, it is notified at once. Otherwise, a problem that always ends
  shortly before its group wait does would never be notified. One that was FIRING before is FIRING again.
* A start is not notified. A service that has not been Up since its registration, or since its probe was replaced,
  keeps its last notified health until its status becomes Down or the start limit is over. Without any evidence since a
  restart, it stays Down if it was notified as Down before.
* After a restart, an alert continues in FIRING or RESOLVING. If a target may not have received the last notification,
  it is PENDING once more as soon as its health is known, and RESOLVING if it is better then.
* A removed service is RESOLVING, or PENDING if it was worse than notified, and is not flapping any more.
* Flapping counts changes and does not weight them: a change of status already takes several checks in a row, and an
  operator can verify a count.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from svcnode.core.model import Health, Impact
from svcnode.notify.incidents import Incident

if TYPE_CHECKING:
    from svcnode.core.model import Service

FLAP_THRESHOLD = 6  # changes within the window
FLAP_WINDOW_S = 600.0
COALESCE_S = 5.0  # changes within this time count as one: a node that goes down service by service changes once
SETTLED_AFTER_S = 300.0  # a flapping service or node: without a change


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Which changes cause a notification, and when. In the methods, a service of None is the node."""

    services: Literal["critical", "all", "none"] = "critical"  # the services that cause notifications themselves
    group_wait_s: float = 5.0
    resolve_delay_s: float = 300.0
    repeat_interval_s: float = 0.0  # 0: no reminders
    start_limit_s: float = 300.0  # after the start period, a service that was never Up is a problem

    def has_own_alert(self, service: Service | None) -> bool:
        """Whether a change causes a notification, also if the health of the node does not change."""
        if service is None or self.services == "all":
            return True
        return self.services == "critical" and service.impact is Impact.CRITICAL

    def is_reported(self, service: Service | None) -> bool:
        """Whether a notification contains a change, also if it was caused by another change."""
        return self.has_own_alert(service) or (service is not None and service.impact is not Impact.NONE)


class AlertState(Enum):
    INACTIVE = "inactive"  # healthy, as last notified
    PENDING = "pending"  # is or was worse than last notified
    FIRING = "firing"  # not healthy, as last notified
    RESOLVING = "resolving"  # better than last notified, or removed


class ChangeType(Enum):
    """A change of the node or of a service since its last notification."""

    WORSE = "worse"
    BETTER = "better"  # but not healthy
    RECOVERED = "recovered"
    TRANSIENT = "transient"  # worse for a short time, now as before
    REMOVED = "removed"  # the service is no longer registered
    ONGOING = "ongoing"  # unchanged since before a restart; sent again because a target may not have received it
    RECURRED = "recurred"  # like ONGOING, but it was healthy after the last notification that a target received
    REMINDER = "reminder"  # unchanged for the repeat interval


_IMPROVEMENTS = (ChangeType.BETTER, ChangeType.RECOVERED, ChangeType.TRANSIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """One change in a notification. The status of a service is given as the health that belongs to it."""

    service: Service | None  # None: the node
    change_type: ChangeType
    health: Health
    before: Health | None  # the last notified health; None for a service that was never Up
    worst: Health  # since the last notification
    reason: str
    code: str | None = None  # the reason code; None for the node, and if it is not known
    since_s: float
    first_failure_at_s: float | None = None  # of a service that is Down
    duration_s: float  # of the problem
    changes: int
    duration_is_upper_bound: bool = False  # the problem may have ended earlier, while svcnode did not run


class PublishedHealth(NamedTuple):
    """The health of the node or of a service, as published."""

    health: Health
    since_s: float
    reason: str = ""
    code: str | None = None
    first_failure_at_s: float | None = None
    is_starting: bool = False
    is_removed: bool = False


class _Notified(NamedTuple):
    """The last notification; at the start, it is as if healthy was notified long ago."""

    health: Health = Health.HEALTHY
    at_s: float = -math.inf
    is_restored: bool = False  # it is from before a restart, and no check has confirmed it since
    repeat_as: ChangeType | None = None  # ONGOING, RECURRED or REMINDER, if it is to be sent again


class _Problem(NamedTuple):
    since_s: float  # when it was last healthy
    changes: int  # since then


class Alert:
    def __init__(self, service: Service | None, now_s: float) -> None:
        self.service = service  # None: the node
        self.created_at_s = now_s
        self.state = AlertState.INACTIVE
        self.due_at_s = math.inf  # when its notification is due
        self.observed = PublishedHealth(Health.HEALTHY, now_s, is_starting=True)
        self.health = Health.HEALTHY  # as observed, except during a start
        self._since_s = now_s
        self._was_up = False
        self._notified = _Notified()
        self._group_end_s = math.inf  # of the group wait that began after the last notification
        self._worst: PublishedHealth | None = None  # since the last notification, if worse than notified
        self._diverged_at_s = now_s  # when the health was last the notified one
        self._problem: _Problem | None = None
        self._change_times_s: deque[float] = deque(maxlen=FLAP_THRESHOLD)

    @property
    def key(self) -> str | None:
        return self.service.id if self.service else None

    @property
    def notified_health(self) -> Health:
        return self._notified.health

    @property
    def was_notified(self) -> bool:
        """Whether there was a notification since the start, of any health."""
        return self._notified != _Notified()

    @property
    def was_down_before_restart(self) -> bool:
        """Whether every target was notified of it as Down before a restart, and nothing is known since."""
        notified = self._notified
        return notified.is_restored and notified.health is Health.UNHEALTHY and notified.repeat_as is None

    @property
    def is_waiting(self) -> bool:
        """Whether the next notification contains it; a recovery that is settling has to be due itself."""
        return self.state not in (AlertState.INACTIVE, AlertState.FIRING)

    @property
    def is_settling(self) -> bool:
        """Whether it is better than notified, and was flapping before."""
        return self.state is AlertState.RESOLVING and self._is_flapping and self.due_at_s < math.inf

    @property
    def _is_flapping(self) -> bool:
        times_s = self._change_times_s
        return len(times_s) == FLAP_THRESHOLD and times_s[-1] - times_s[0] < FLAP_WINDOW_S

    # ---- observations in

    def observe(self, observed: PublishedHealth) -> None:
        if observed.is_removed:
            self._change_times_s.clear()
        if not observed.is_starting and observed.health is not Health.HEALTHY:
            self._notified = self._notified._replace(is_restored=False)
        is_same = observed.health is self.observed.health
        self.observed = observed._replace(since_s=self.observed.since_s) if is_same else observed
        self._was_up = self._was_up or observed.health is Health.HEALTHY
        self._set_health(self._effective_health(), self.observed.since_s)

    def end_hold(self) -> None:
        """After the first observation since a maintenance: what was not notified before it counts only if it lasts."""
        self._change_times_s.clear()
        self._group_end_s = math.inf
        if self.health is self._notified.health:
            self._worst = None

    def end_start_after_restart(self) -> None:
        """Stop hiding the observed health behind the one that was notified before a restart."""
        if self._notified.is_restored and self.health is not self.observed.health:
            self._notified = self._notified._replace(is_restored=False)
            self._set_health(self.observed.health, self.observed.since_s)

    def _effective_health(self) -> Health:
        is_hidden = self._notified.health is Health.HEALTHY or self._notified.is_restored
        if self.observed.is_starting and is_hidden and self.observed.health is not Health.HEALTHY:
            return self._notified.health
        return self.observed.health

    def _set_health(self, health: Health, since_s: float) -> None:
        if health is self.health:
            return
        if self.health is self._notified.health:
            self._diverged_at_s = since_s
        is_recurrence = self._notified.repeat_as is not None and self.health is Health.HEALTHY
        if is_recurrence:
            self._notified = self._notified._replace(repeat_as=ChangeType.RECURRED)
        problem = self._problem or _Problem(since_s, changes=0)
        self._problem = _Problem(since_s if is_recurrence else problem.since_s, problem.changes + 1)
        self.health, self._since_s = health, since_s
        if health > (self._worst or self._notified).health:
            self._worst = self.observed
        if not self._change_times_s or since_s - self._change_times_s[-1] >= COALESCE_S:
            self._change_times_s.append(since_s)

    # ---- the next state

    def update_state(self, policy: AlertPolicy, now_s: float, *, is_other_due: bool) -> None:
        """`is_other_due`: a notification is due that contains this alert, too, if it is waiting."""
        has_own_alert = policy.has_own_alert(self.service)
        resolve_at_s = self._notified.at_s + policy.resolve_delay_s
        settled_at_s = self._since_s + SETTLED_AFTER_S if self._is_flapping else -math.inf
        group_end_s = min(self.due_at_s, now_s + policy.group_wait_s)
        was_pending = self.state is AlertState.PENDING
        self.state = self._next_state(keeps_transient=now_s >= resolve_at_s if has_own_alert else is_other_due)
        match self.state:
            case AlertState.INACTIVE | AlertState.FIRING:
                self._set_quiet()
            case AlertState.PENDING if not has_own_alert:
                self.due_at_s = math.inf
            case AlertState.RESOLVING if not has_own_alert and policy.is_reported(self.service):
                self.due_at_s = math.inf  # the recovery of the node contains it
            case AlertState.PENDING:
                if was_pending or now_s < resolve_at_s:
                    group_end_s = min(group_end_s, self._group_end_s)
                self._group_end_s = group_end_s
                is_over = self._change_type() in _IMPROVEMENTS
                self.due_at_s = max(group_end_s, settled_at_s) if is_over else group_end_s
            case AlertState.RESOLVING:
                self.due_at_s = max(resolve_at_s, settled_at_s, group_end_s)
            case _:
                assert_never(self.state)

    def _next_state(self, *, keeps_transient: bool) -> AlertState:
        if self.observed.is_removed or self.health is not self._notified.health:
            return AlertState.RESOLVING if self._worst is None else AlertState.PENDING
        is_repeated = self._notified.repeat_as is not None and not self.observed.is_starting
        if is_repeated or (self._worst is not None and keeps_transient):
            return AlertState.PENDING
        return self._quiet_state()

    def _quiet_state(self) -> AlertState:
        return AlertState.INACTIVE if self.health is Health.HEALTHY else AlertState.FIRING

    def _set_quiet(self) -> None:
        self.state = self._quiet_state()
        self.due_at_s = math.inf
        self._worst = None
        if self.state is AlertState.INACTIVE:
            self._problem = None

    # ---- notifications out

    def remind(self) -> None:
        """Notify it once more, although it has not changed."""
        self._notified = self._notified._replace(repeat_as=self._notified.repeat_as or ChangeType.REMINDER)

    def to_change(self, now_s: float) -> AlertChange:
        change_type = self._change_type()
        shown = self._worst if change_type is ChangeType.TRANSIENT and self._worst else self.observed
        was_up = self._was_up or self._notified.health is not Health.HEALTHY
        return AlertChange(
            service=self.service,
            change_type=change_type,
            health=self.health,
            before=self._notified.health if was_up else None,
            worst=(self._worst or self._notified).health,
            reason=shown.reason,
            code=shown.code,
            since_s=self._since_s,
            first_failure_at_s=self.observed.first_failure_at_s if self.health is Health.UNHEALTHY else None,
            duration_s=max(0.0, self._duration_s(change_type, now_s)),
            changes=0 if self._problem is None else self._problem.changes,
            duration_is_upper_bound=self._notified.is_restored
            and change_type in (ChangeType.RECOVERED, ChangeType.REMOVED),
        )

    def _change_type(self) -> ChangeType:
        if self.observed.is_removed:
            return ChangeType.REMOVED
        if self.health is self._notified.health:
            repeat_as = self._notified.repeat_as
            return ChangeType.TRANSIENT if self._worst is not None or repeat_as is None else repeat_as
        if self.health > self._notified.health:
            return ChangeType.WORSE
        return ChangeType.RECOVERED if self.health is Health.HEALTHY else ChangeType.BETTER

    def _duration_s(self, change_type: ChangeType, now_s: float) -> float:
        match change_type:
            case ChangeType.ONGOING | ChangeType.RECURRED | ChangeType.REMINDER if self._problem is not None:
                return now_s - self._problem.since_s
            case ChangeType.RECOVERED | ChangeType.REMOVED if self._problem is not None:
                return self._since_s - self._problem.since_s
            case _:
                return self._since_s - self._diverged_at_s

    def mark_notified(self, now_s: float) -> None:
        self._notified = _Notified(self.health, now_s)
        self._group_end_s = math.inf
        self._set_quiet()

    def mark_start_notified(self) -> None:
        """A notification contained the published health during a start, so the end of the start is notified, too."""
        if self.observed.is_starting and not self.is_waiting and self.observed.health > self.health:
            self.health = self.observed.health
            self._notified = self._notified._replace(health=self.health)
            self._problem = self._problem or _Problem(self.observed.since_s, changes=0)
            self.state = AlertState.FIRING

    # ---- open incidents

    @property
    def incident(self) -> Incident | None:
        """None if the last notification said healthy."""
        if self._notified.health is Health.HEALTHY:
            return None
        return Incident(
            service=self.service,
            notified_health=self._notified.health,
            since_s=self._since_s if self._problem is None else self._problem.since_s,
            is_confirmed=self._notified.repeat_as is None,
            is_recurrence=self._notified.repeat_as is ChangeType.RECURRED,
            reason=self.observed.reason,
        )

    def restore(self, incident: Incident) -> None:
        """Continue an incident from before a restart."""
        repeat_as = ChangeType.RECURRED if incident.is_recurrence else ChangeType.ONGOING
        self._notified = _Notified(
            incident.notified_health,
            is_restored=self.observed.is_starting or self.observed.health is Health.HEALTHY,
            repeat_as=None if incident.is_confirmed else repeat_as,
        )
        self._problem = _Problem(incident.since_s, changes=1)
        self.health, self._since_s = self._effective_health(), self.observed.since_s
        self._worst = self.observed if self.health > incident.notified_health else None
