"""The rule of alerts: what one target is told about one subject, and when. Times come in; there is no I/O.

1. A subject gets worse than the target was last told: the target is always told, `group_wait` after it first got worse.
   If the problem is over by then, the target is told once, that it is over. If the problem returns within
   `resolve_delay` of that message, the target is told that it is open.
2. A subject has been better than last told for `resolve_delay` without a break: the target is told, with the number of
   changes in between.
3. A subject is not Up `start_limit` after the start period: the target is told. Until then, the subject is starting
   (subjects.py).
4. A message says what is true when it is sent. A restart forgets nothing that was told.
5. A problem is acknowledged: there are no reminders, and a target that gets only problems that stay open for a while
   (`escalate_after`) is not told. That time begins again when nobody takes care of the problem any more. All else is
   told as always. subjects.py decides what is acknowledged; an acknowledgement ends when the problem gets worse.

So a subject that flaps only adds to the number of changes. Flapping delays recoveries, never bad news.

A subject is the node, one of its issues, a service, or another target. What a target was told changes when a message
has been delivered, not when it is due. So a retry never sends an old message: it is built from what is true by then.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, assert_never

from svcnode.core.model import Health

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of the rule for one target."""

    group_wait_s: float = 5.0
    resolve_delay_s: float = 300.0
    repeat_interval_s: float = 0.0  # 0: no reminders
    escalate_after_s: float = 0.0  # more than 0: only what is still open this long after it got worse
    # False: what is over before it was told is told as open, since the target cannot be told of an end alone.
    tells_what_is_over: bool = True


class Kind(Enum):
    """What a message says about a subject."""

    WORSE = "worse"  # than last told
    BETTER = "better"  # but not healthy
    RECOVERED = "recovered"
    TRANSIENT = "transient"  # it was worse for a short time, and that is over
    RECURRED = "recurred"  # the same again within the resolve delay: open, although it is better at the moment
    REMOVED = "removed"  # no longer monitored
    REMINDER = "reminder"  # as last told


OPEN = (Kind.WORSE, Kind.BETTER, Kind.RECURRED, Kind.REMINDER)  # the problem goes on
ENDED = (Kind.RECOVERED, Kind.REMOVED)
PAST = (Kind.TRANSIENT, Kind.RECURRED)  # about a health that is over


class Seen(NamedTuple):
    """A subject as it is now."""

    health: Health
    since_s: float = -math.inf
    reason: str = ""
    code: str | None = None
    first_failure_at_s: float | None = None
    is_starting: bool = False  # not worse
    is_held: bool = False  # by maintenance or a drain: its changes do not count
    is_known: bool = True  # False: there is no evidence that it is better
    is_removed: bool = False
    is_lost: bool = False  # only that there is no evidence from other replicas: no news if it is over
    is_acknowledged: bool = False  # somebody takes care of it
    host: str = ""  # that its probe connects to

    def began_s(self, at_s: float) -> float:
        """When it got like this, which may be before it was seen, as in maintenance."""
        return at_s if self.since_s == -math.inf else min(at_s, self.since_s)


class Told:
    """What one target was told about one subject, and what has happened since."""

    def __init__(self) -> None:
        self.health = Health.HEALTHY  # as last told
        self.at_s = -math.inf  # when
        self.over_at_s = -math.inf  # when it was last told that something is over
        self.opened_at_s: float | None = None  # since when there is a problem; None: there is none
        self.changes = 0  # since then
        # What has happened since the last message.
        self.level = Health.HEALTHY  # as last seen, counted as the target counts it
        self.is_visible = False  # whether it is as last seen, and not starting or held
        self.is_known = False  # and there is evidence for that
        self.is_acknowledged = False
        self.unacknowledged_since_s = -math.inf  # when that ended
        self.since_s = -math.inf  # since when it has this level
        self.not_down_since_s = -math.inf
        self.worse_at_s: float | None = None  # when it first got worse than told
        self.escalates_from_s = math.inf  # the same, also from before a restart
        self.worst_level = Health.HEALTHY
        self.worst: Seen | None = None
        self.worst_at_s = -math.inf  # when it first was like that
        self.is_restored = False  # nothing is known since a restart but that it is better

    # ---- what happens

    def see(self, seen: Seen, level: Health, at_s: float, timing: Timing) -> None:
        if self.is_acknowledged and not seen.is_acknowledged:
            self.unacknowledged_since_s = at_s
        self.is_acknowledged = seen.is_acknowledged
        if seen.is_held or seen.is_removed:
            self._forget_untold()  # that a removed service got worse before, nobody needs to know
        is_hidden = seen.is_starting and not (seen.is_known and level < self.health)
        if seen.is_held or is_hidden:
            self.is_visible = self.is_known = False
            return
        if self._is_well_for(timing.resolve_delay_s, at_s):
            if timing.escalate_after_s:
                self._forget_untold()
            elif level > self.health:
                self._begin_again()
        is_change = level is not self.level
        if is_change or not self.is_known:
            if self.level is Health.UNHEALTHY or not self.is_known:
                self.not_down_since_s = at_s
            self.since_s, self.level = at_s, level
        self.is_visible, self.is_known = True, seen.is_known
        self.is_restored = self.is_restored and level is Health.HEALTHY
        self._note_worst(seen, level, at_s)
        if is_change and self.opened_at_s is not None:
            self.changes += 1

    def _note_worst(self, seen: Seen, level: Health, at_s: float) -> None:
        if level > self.health or self.worst is not None:
            self.worse_at_s = at_s if self.worse_at_s is None else self.worse_at_s
            self.escalates_from_s = min(self.escalates_from_s, self.worse_at_s)
            if self.opened_at_s is None:
                self.opened_at_s = at_s if level is Health.HEALTHY else seen.began_s(at_s)
        is_first_evidence = self.worst is not None and self.worst.is_lost and level is self.worst_level
        if level > max(self.health, self.worst_level) or is_first_evidence:
            self.worst, self.worst_level, self.worst_at_s = seen, level, seen.began_s(at_s)
        if self.worst is not None and self.worst.is_lost and level <= self.health:
            self._forget_untold()

    def _begin_again(self) -> None:
        """It was worse, which could not be told yet, as in quiet hours; then it was well for long.

        So what begins now is another problem.
        """
        self.worse_at_s = None
        if self.health is Health.HEALTHY:
            self.opened_at_s = None

    def _forget_untold(self) -> None:
        self.worse_at_s = self.worst = None
        self.escalates_from_s = math.inf
        self.worst_level = Health.HEALTHY
        if self.health is Health.HEALTHY:
            self.opened_at_s, self.changes = None, 0

    # ---- when a message is due, and what it says

    def due_at_s(self, timing: Timing) -> float:
        if self.worse_at_s is not None:
            if not timing.escalate_after_s:
                return self.worse_at_s + timing.group_wait_s
            if self.is_worse:
                since_s = max(min(self.worse_at_s, self.escalates_from_s), self.unacknowledged_since_s)
                return math.inf if self.is_acknowledged else since_s + timing.escalate_after_s
        if self.is_better:
            return self._well_since_s + timing.resolve_delay_s
        return math.inf

    def kind(self, timing: Timing, now_s: float) -> Kind | None:
        """What a message says that is sent now; None: nothing has to be said."""
        is_well = self._is_well_for(timing.resolve_delay_s, now_s)
        if self.worse_at_s is not None and (self.is_worse or not timing.escalate_after_s):
            is_first = timing.tells_what_is_over and self.worse_at_s >= self.over_at_s + timing.resolve_delay_s
            if self.is_worse and (is_first or self.level is self.worst_level):
                return Kind.WORSE
            if not (self.is_better and is_well):
                return Kind.TRANSIENT if is_first or is_well else Kind.RECURRED
        if self.is_better and is_well:
            return Kind.RECOVERED if self.level is Health.HEALTHY else Kind.BETTER
        return None

    def after(self, kind: Kind, now_s: float) -> Self:
        """As it is when a message of this kind has been delivered, in which all was as it is now."""
        told = copy(self)
        match kind:
            case Kind.WORSE:
                told.health = self.level
                if self.worst_level > self.level:
                    told.over_at_s = now_s
            case Kind.RECURRED:
                told.health = self.worst_level
            case Kind.TRANSIENT:
                told.over_at_s = now_s
            case Kind.BETTER | Kind.RECOVERED | Kind.REMOVED:
                told.health, told.over_at_s = self.level, now_s
            case Kind.REMINDER:
                pass
            case _:
                assert_never(kind)
        told.at_s = now_s
        told._forget_untold()
        return told

    def follow(self, told: Told, at_s: float) -> None:
        """Another process has told the target this. So what happened before is told.

        What is worse than that waits for the group wait again: processes that see different things, and both send,
        must not answer each other at once.
        """
        self.health, self.at_s, self.over_at_s = told.health, told.at_s, told.over_at_s
        self.opened_at_s, self.changes = told.opened_at_s, told.changes
        self.worst, self.worst_level, self.worst_at_s = told.worst, told.worst_level, told.worst_at_s
        self.escalates_from_s = told.escalates_from_s
        if told.worst is None:
            self.worse_at_s = at_s if self.is_worse else None
            self.opened_at_s = self.worse_at_s if self.opened_at_s is None else self.opened_at_s

    # ---- what is true

    @property
    def is_open(self) -> bool:
        return self.health is not Health.HEALTHY

    @property
    def is_worse(self) -> bool:
        """Than last told."""
        return self.is_visible and self.level > self.health

    @property
    def is_better(self) -> bool:
        return self.is_known and self.level < self.health

    def is_recovering(self, timing: Timing) -> bool:
        """Whether its next message is about that it is better."""
        return self.is_better and (self.worse_at_s is None or timing.escalate_after_s > 0)

    @property
    def _well_since_s(self) -> float:
        """Since when it has been at most as bad as now."""
        return self.since_s if self.level is Health.HEALTHY else self.not_down_since_s

    def _is_well_for(self, time_s: float, now_s: float) -> bool:
        return self.is_known and self.level <= self.health and now_s >= self._well_since_s + time_s

    def is_settled(self, timing: Timing, now_s: float) -> bool:
        """Whether it may be forgotten: it is as if nothing had ever been told."""
        is_as_told = self.health is self.level is Health.HEALTHY and self.worst is None
        return is_as_told and now_s >= self.over_at_s + timing.resolve_delay_s
