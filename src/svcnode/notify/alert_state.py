"""A *thing* is the node, or one of its services: what is so, what was told last, and so what is to be told, and when.

* After a message about a thing, changes for the better wait until its quiet period is over. What is worse than what was
  told last does not wait: somebody who was told that all is well would be told less than the truth. It can come only
  once after each good news, and those wait.
* A start is no news. A service that has not been Up since it was registered, or since another probe looks at it, is
  taken to be as well as it was last told to be, until it is decided that it is Down.
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
        self.service = service  # None: it is the node
        self.is_starting = True
        self.is_removed = False
        self.health = Health.HEALTHY  # as it is published
        self.effective_health = Health.HEALTHY  # the same, but for a start, which is no news
        self.is_unconfirmed = False  # what was told is from before a restart, and not all may have been told
        self.due_at_s = math.inf
        self._was_up = False
        self._published_since_s = now_s
        self._since_s = now_s
        self._reason = self._worst_reason = ""
        self._last_notified = Health.HEALTHY
        self._last_notified_at_s = -math.inf
        self._worst = Health.HEALTHY  # since it was told
        self._diverged_at_s = now_s  # when it was last as it was told
        self._unhealthy_since_s: float | None = None  # when it was last told, or seen, to be well
        self._changes = 0  # since then
        self._flap_detector = FlapDetector(now_s)
        self._is_restored = False  # what was told is from before a restart, and nobody has seen it since
        self._is_recurrence = False  # it is unsure, and it was well in between

    @property
    def key(self) -> str | None:
        return self.service.id if self.service else None

    @property
    def was_notified(self) -> bool:
        """To be well or not, since the start."""
        return self._last_notified_at_s > -math.inf or self._last_notified is not Health.HEALTHY

    @property
    def is_settling(self) -> bool:
        """Told as flapping, it has nothing to be told before it has kept still."""
        return self._flap_detector.state is FlapState.NOTIFIED

    @property
    def is_pending(self) -> bool:
        is_flapping = self._flap_detector.state is not FlapState.STABLE
        is_to_be_told_again = self.is_unconfirmed and not self.is_starting
        return not self._matches_last_notified or self._was_worse_than_notified or is_flapping or is_to_be_told_again

    @property
    def _matches_last_notified(self) -> bool:
        return self.effective_health is self._last_notified and not self.is_removed

    @property
    def _was_worse_than_notified(self) -> bool:
        """In a moment that may have passed since."""
        return self._worst > self._last_notified

    # ---- what is so

    def update(self, health: Health, reason: str, since_s: float, now_s: float) -> bool:
        """Returns whether that is a change."""
        self._is_restored = self._is_restored and self._is_healthy_or_starting(health)
        if health is not self.health:
            self.health, self._published_since_s = health, since_s
        self._reason = reason
        self._was_up = self._was_up or health is Health.HEALTHY
        level = self._effective_health_for(health)
        if level is self.effective_health:
            return False
        self._set_effective_health(level, since_s)
        self._flap_detector.record_change(now_s)
        return True

    def update_to_published(self, now_s: float) -> bool:
        """A start that was taken for what was told before a restart is so no longer. Returns whether it is a change."""
        if not self._is_restored or self.effective_health is self.health:
            return False
        self._is_restored = False
        return self.update(self.health, self._reason, self._published_since_s, now_s)

    def remove(self, now_s: float) -> None:
        self.is_removed = True
        self._flap_detector.reset()
        self.update(Health.HEALTHY, "", now_s, now_s)

    def _is_healthy_or_starting(self, health: Health) -> bool:
        return self.is_starting or health is Health.HEALTHY

    def _effective_health_for(self, health: Health) -> Health:
        is_start_no_news = self._last_notified is Health.HEALTHY or self._is_restored
        return self._last_notified if self.is_starting and is_start_no_news and health is not Health.HEALTHY else health

    def _set_effective_health(self, level: Health, since_s: float) -> None:
        if self.effective_health is self._last_notified:
            self._diverged_at_s = since_s
        is_again = self.is_unconfirmed and self.effective_health is Health.HEALTHY
        if self._unhealthy_since_s is None or is_again:
            self._unhealthy_since_s = since_s
        self._is_recurrence = self._is_recurrence or is_again
        self.effective_health, self._since_s = level, since_s
        if level > self._worst:
            self._worst, self._worst_reason = level, self._reason
        self._changes += 1

    # ---- when it is told

    def schedule(self, manners: AlertPolicy, now_s: float) -> None:
        """It has messages of its own."""
        match self._flap_detector.evaluate(now_s):
            case FlapState.NOTIFIED:
                self.due_at_s = self._flap_detector.settles_at_s
            case FlapState.STARTED:
                self.due_at_s = min(self.due_at_s, now_s + manners.group_wait_s)
            case FlapState.STABLE:
                self._schedule_change(
                    now_s + manners.group_wait_s, self._last_notified_at_s + manners.resolve_delay_s, now_s
                )

    def _schedule_change(self, soon_s: float, quiet_until_s: float, now_s: float) -> None:
        if self._matches_last_notified and now_s < quiet_until_s:
            self._discard_transient()
            self.due_at_s = math.inf
        elif not self.is_pending:
            self.due_at_s = math.inf
        elif self._was_worse_than_notified or now_s >= quiet_until_s:
            self.due_at_s = min(self.due_at_s, soon_s)
        else:
            self.due_at_s = max(quiet_until_s, soon_s)

    def schedule_with_others(self, *, is_any_due: bool) -> None:
        """It has no messages of its own."""
        self.due_at_s = math.inf
        if self.effective_health is self._last_notified and not is_any_due:
            self._discard_transient()

    def _discard_transient(self) -> None:
        """It is again as it was told, and what was in between had no message to go with."""
        self._worst = self._last_notified
        if self._last_notified is Health.HEALTHY:
            self._reset_incident()

    def _reset_incident(self) -> None:
        self._unhealthy_since_s = None
        self._changes = 0

    # ---- what is told

    def to_change(self, now_s: float) -> AlertChange:
        turn = self._change_type()
        return AlertChange(
            service=self.service,
            change_type=turn,
            health=self.effective_health,
            before=self._last_notified if self._was_up or self._last_notified is not Health.HEALTHY else None,
            worst=self._worst,
            reason=self._worst_reason if turn is ChangeType.TRANSIENT else self._reason,
            since_s=self._since_s,
            duration_s=max(0.0, self._duration_s(turn, now_s)),
            changes=self._flap_detector.change_count if turn is ChangeType.FLAPPING else self._changes,
            duration_is_upper_bound=self._is_restored and turn in (ChangeType.RECOVERED, ChangeType.REMOVED),
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

    def _duration_s(self, turn: ChangeType, now_s: float) -> float:
        match turn:
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
        """A message has said how it is, so a start is told by now, and the end of it is news."""
        if self.is_starting and self._flap_detector.state is FlapState.STABLE and self.health > self.effective_health:
            self.effective_health = self._last_notified = self._worst = self.health
            if self._unhealthy_since_s is None:
                self._unhealthy_since_s = self._published_since_s

    # ---- what is not over

    @property
    def incident(self) -> Incident | None:
        """What flaps is one, too, whatever it is at the moment: whoever was told waits to hear how it ends."""
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
        """From before a restart."""
        self._last_notified = self._worst = incident.notified_health
        self._unhealthy_since_s, self._since_s, self._changes = incident.since_s, self._published_since_s, 1
        self._is_restored, self.is_unconfirmed = self._is_healthy_or_starting(self.health), not incident.is_confirmed
        self._is_recurrence = incident.is_recurrence
        self.effective_health = self._effective_health_for(self.health)
