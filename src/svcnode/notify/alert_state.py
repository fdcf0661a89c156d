"""The alert state of the node or a service: health, last notified health, and when the next notification is due.

* After a notification, an improvement waits until the resolve delay is over. A health that is worse than the last
  notified one does not wait: otherwise the last notification would show too good a health. This cannot repeat
  quickly, because every improvement in between waits.
* A start is not notified. A service that has not been Up since its registration, or since its probe was replaced,
  keeps its last notified health until its status becomes Down.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svcnode.core.model import Health
from svcnode.notify.flapping import FlapDetector, FlapState
from svcnode.notify.model import AlertChange, ChangeType, Incident

if TYPE_CHECKING:
    from svcnode.core.model import Service
    from svcnode.notify.settings import AlertPolicy


class AlertState:
    def __init__(self, service: Service | None, now_s: float) -> None:
        self.service = service  # None: the node
        self.is_starting = True
        self.is_removed = False
        self.health = Health.HEALTHY  # as published
        self.effective_health = Health.HEALTHY  # as published, except during a start
        self.is_unconfirmed = False  # the last notification is from before a restart, and a target may not have it
        self.due_at_s = math.inf
        self._was_up = False
        self._published_since_s = now_s
        self._since_s = now_s
        self._reason = self._worst_reason = ""
        self._code: str | None = None
        self._worst_code: str | None = None
        self._first_failure_at_s: float | None = None
        self._last_notified = Health.HEALTHY
        self._last_notified_at_s = -math.inf
        self._worst = Health.HEALTHY  # since the last notification
        self._diverged_at_s = now_s  # when the health was last the notified one
        self._unhealthy_since_s: float | None = None  # when it was last healthy
        self._changes = 0  # since then
        self._flap_detector = FlapDetector(now_s)
        self._is_restored = False  # the last notification is from before a restart, and no check has confirmed it since
        self._is_recurrence = False  # it is unconfirmed and was healthy in between

    @property
    def key(self) -> str | None:
        return self.service.id if self.service else None

    @property
    def was_notified(self) -> bool:
        """Whether there was a notification since the start, of any health."""
        return self._last_notified_at_s > -math.inf or self._last_notified is not Health.HEALTHY

    @property
    def is_settling(self) -> bool:
        """Notified as flapping: there is no further notification before it has settled."""
        return self._flap_detector.state is FlapState.NOTIFIED

    @property
    def is_pending(self) -> bool:
        is_flapping = self._flap_detector.state is not FlapState.STABLE
        is_repeated = self.is_unconfirmed and not self.is_starting
        return not self._matches_last_notified or self._was_worse_than_notified or is_flapping or is_repeated

    @property
    def _matches_last_notified(self) -> bool:
        return self.effective_health is self._last_notified and not self.is_removed

    @property
    def _was_worse_than_notified(self) -> bool:
        """Whether it is, or was for a short time, worse than the last notified health."""
        return self._worst > self._last_notified

    # ---- changes in

    def update(  # noqa: PLR0913  each is a field of the state
        self,
        health: Health,
        reason: str,
        code: str | None,
        since_s: float,
        now_s: float,
        *,
        first_failure_at_s: float | None = None,
    ) -> bool:
        """Returns whether the effective health changed."""
        self._is_restored = self._is_restored and self._is_healthy_or_starting(health)
        if health is not self.health:
            self.health, self._published_since_s = health, since_s
        self._reason, self._code, self._first_failure_at_s = reason, code, first_failure_at_s
        self._was_up = self._was_up or health is Health.HEALTHY
        effective_health = self._effective_health_for(health)
        if effective_health is self.effective_health:
            return False
        self._set_effective_health(effective_health, since_s)
        self._flap_detector.record_change(now_s)
        return True

    def update_to_published(self, now_s: float) -> bool:
        """After a restart, stop hiding the published health. Returns whether the effective health changed."""
        if not self._is_restored or self.effective_health is self.health:
            return False
        self._is_restored = False
        return self.update(
            self.health,
            self._reason,
            self._code,
            self._published_since_s,
            now_s,
            first_failure_at_s=self._first_failure_at_s,
        )

    def remove(self, now_s: float) -> None:
        self.is_removed = True
        self._flap_detector.reset()
        self.update(Health.HEALTHY, "", None, now_s, now_s)

    def _is_healthy_or_starting(self, health: Health) -> bool:
        return self.is_starting or health is Health.HEALTHY

    def _effective_health_for(self, health: Health) -> Health:
        hides_start = self._last_notified is Health.HEALTHY or self._is_restored
        return self._last_notified if self.is_starting and hides_start and health is not Health.HEALTHY else health

    def _set_effective_health(self, health: Health, since_s: float) -> None:
        if self.effective_health is self._last_notified:
            self._diverged_at_s = since_s
        is_recurrence = self.is_unconfirmed and self.effective_health is Health.HEALTHY
        if self._unhealthy_since_s is None or is_recurrence:
            self._unhealthy_since_s = since_s
        self._is_recurrence = self._is_recurrence or is_recurrence
        self.effective_health, self._since_s = health, since_s
        if health > self._worst:
            self._worst, self._worst_reason, self._worst_code = health, self._reason, self._code
        self._changes += 1

    # ---- when a notification is due

    def schedule(self, policy: AlertPolicy, now_s: float) -> None:
        """For the node, and for a service that causes notifications itself."""
        match self._flap_detector.evaluate(now_s):
            case FlapState.NOTIFIED:
                self.due_at_s = self._flap_detector.settles_at_s
            case FlapState.STARTED:
                self.due_at_s = min(self.due_at_s, now_s + policy.group_wait_s)
            case FlapState.STABLE:
                self._schedule_change(
                    now_s + policy.group_wait_s, self._last_notified_at_s + policy.resolve_delay_s, now_s
                )

    def _schedule_change(self, group_end_s: float, resolve_at_s: float, now_s: float) -> None:
        if self._matches_last_notified and now_s < resolve_at_s:
            self._discard_transient()
            self.due_at_s = math.inf
        elif not self.is_pending:
            self.due_at_s = math.inf
        elif self._was_worse_than_notified or now_s >= resolve_at_s:
            self.due_at_s = min(self.due_at_s, group_end_s)
        else:
            self.due_at_s = max(resolve_at_s, group_end_s)

    def schedule_with_others(self, *, is_any_due: bool) -> None:
        """For a service that does not cause notifications itself."""
        self.due_at_s = math.inf
        if self.effective_health is self._last_notified and not is_any_due:
            self._discard_transient()

    def _discard_transient(self) -> None:
        """The health is the last notified one again, and no notification contains the time in between."""
        self._worst = self._last_notified
        if self._last_notified is Health.HEALTHY:
            self._reset_incident()

    def _reset_incident(self) -> None:
        self._unhealthy_since_s = None
        self._changes = 0

    # ---- notifications out

    def to_change(self, now_s: float) -> AlertChange:
        change_type = self._change_type()
        is_transient = change_type is ChangeType.TRANSIENT
        return AlertChange(
            service=self.service,
            change_type=change_type,
            health=self.effective_health,
            before=self._last_notified if self._was_up or self._last_notified is not Health.HEALTHY else None,
            worst=self._worst,
            reason=self._worst_reason if is_transient else self._reason,
            code=self._worst_code if is_transient else self._code,
            since_s=self._since_s,
            first_failure_at_s=self._first_failure_at_s if self.effective_health is Health.UNHEALTHY else None,
            duration_s=max(0.0, self._duration_s(change_type, now_s)),
            changes=self._flap_detector.change_count if change_type is ChangeType.FLAPPING else self._changes,
            duration_is_upper_bound=self._is_restored and change_type in (ChangeType.RECOVERED, ChangeType.REMOVED),
        )

    def _change_type(self) -> ChangeType:
        if self.is_removed:
            return ChangeType.REMOVED
        if self._flap_detector.state is not FlapState.STABLE:
            return ChangeType.SETTLED if self.is_settling else ChangeType.FLAPPING
        if self.effective_health is self._last_notified:
            if self._was_worse_than_notified or not self.is_unconfirmed:
                return ChangeType.TRANSIENT
            return ChangeType.RECURRED if self._is_recurrence else ChangeType.ONGOING
        if self.effective_health > self._last_notified:
            return ChangeType.WORSE
        return ChangeType.RECOVERED if self.effective_health is Health.HEALTHY else ChangeType.BETTER

    def _duration_s(self, change_type: ChangeType, now_s: float) -> float:
        match change_type:
            case ChangeType.FLAPPING:
                return now_s - self._flap_detector.since_s
            case ChangeType.SETTLED:
                return now_s - self._since_s
            case ChangeType.ONGOING | ChangeType.RECURRED if self._unhealthy_since_s is not None:
                return now_s - self._unhealthy_since_s
            case ChangeType.RECOVERED | ChangeType.REMOVED if self._unhealthy_since_s is not None:
                return self._since_s - self._unhealthy_since_s
            case _:
                return self._since_s - self._diverged_at_s

    def mark_notified(self, now_s: float) -> None:
        self._last_notified = self._worst = self.effective_health
        self._last_notified_at_s = now_s
        self._is_restored = self.is_unconfirmed = self._is_recurrence = False
        self._flap_detector.mark_notified()
        if self.is_settling:
            self.due_at_s = self._flap_detector.settles_at_s
            return
        self.due_at_s = math.inf
        if self.effective_health is Health.HEALTHY:
            self._reset_incident()

    def mark_start_notified(self) -> None:
        """A notification contained the published health during a start, so the end of the start is notified, too."""
        if self.is_starting and self._flap_detector.state is FlapState.STABLE and self.health > self.effective_health:
            self.effective_health = self._last_notified = self._worst = self.health
            if self._unhealthy_since_s is None:
                self._unhealthy_since_s = self._published_since_s

    # ---- open incidents

    @property
    def incident(self) -> Incident | None:
        """None if the last notification said healthy. Flapping is an incident with any health until it settles."""
        if self._last_notified is Health.HEALTHY and not self.is_settling:
            return None
        return Incident(
            service=self.service,
            notified_health=max(self._last_notified, Health.PARTIAL),
            since_s=self._since_s if self._unhealthy_since_s is None else self._unhealthy_since_s,
            is_confirmed=not (self.is_unconfirmed or self.is_settling),
            is_recurrence=self._is_recurrence,
        )

    def restore(self, incident: Incident) -> None:
        """Continue an incident from before a restart."""
        self._last_notified = self._worst = incident.notified_health
        self._unhealthy_since_s, self._since_s, self._changes = incident.since_s, self._published_since_s, 1
        self._is_restored, self.is_unconfirmed = self._is_healthy_or_starting(self.health), not incident.is_confirmed
        self._is_recurrence = incident.is_recurrence
        self.effective_health = self._effective_health_for(self.health)
