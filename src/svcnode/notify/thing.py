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
from svcnode.notify.flapping import Flap, Flapping
from svcnode.notify.incidents import Incident
from svcnode.notify.news import Item, Turn

if TYPE_CHECKING:
    from svcnode.core.model import Service
    from svcnode.notify.settings import Manners


class Thing:
    def __init__(self, service: Service | None, now_s: float) -> None:
        self.service = service  # None: it is the node
        self.is_starting = True
        self.is_gone = False
        self.health = Health.HEALTHY  # as it is published
        self.level = Health.HEALTHY  # the same, but for a start, which is no news
        self.is_unsure = False  # what was told is from before a restart, and not all may have been told
        self.due_at_s = math.inf
        self._was_up = False
        self._published_since_s = now_s
        self._since_s = now_s
        self._reason = self._worst_reason = ""
        self._told = Health.HEALTHY
        self._told_at_s = -math.inf
        self._worst = Health.HEALTHY  # since it was told
        self._left_told_at_s = now_s  # when it was last as it was told
        self._left_good_at_s: float | None = None  # when it was last told, or seen, to be well
        self._changes = 0  # since then
        self._flapping = Flapping(now_s)
        self._is_recalled = False  # what was told is from before a restart, and nobody has seen it since
        self._is_again = False  # it is unsure, and it was well in between

    @property
    def key(self) -> str | None:
        return self.service.id if self.service else None

    @property
    def was_told(self) -> bool:
        """To be well or not, since the start."""
        return self._told_at_s > -math.inf or self._told is not Health.HEALTHY

    @property
    def is_settling(self) -> bool:
        """Told as flapping, it has nothing to be told before it has kept still."""
        return self._flapping.flap is Flap.TOLD

    @property
    def is_news(self) -> bool:
        is_flapping = self._flapping.flap is not Flap.NO
        is_to_be_told_again = self.is_unsure and not self.is_starting
        return not self._is_as_told or self._was_worse_than_told or is_flapping or is_to_be_told_again

    @property
    def _is_as_told(self) -> bool:
        return self.level is self._told and not self.is_gone

    @property
    def _was_worse_than_told(self) -> bool:
        """In a moment that may have passed since."""
        return self._worst > self._told

    # ---- what is so

    def see(self, health: Health, reason: str, since_s: float, now_s: float) -> bool:
        """Returns whether that is a change."""
        self._is_recalled = self._is_recalled and self._is_well_or_starting(health)
        if health is not self.health:
            self.health, self._published_since_s = health, since_s
        self._reason = reason
        self._was_up = self._was_up or health is Health.HEALTHY
        level = self._level_at(health)
        if level is self.level:
            return False
        self._change_to(level, since_s)
        self._flapping.note_change(now_s)
        return True

    def see_as_published(self, now_s: float) -> bool:
        """A start that was taken for what was told before a restart is so no longer. Returns whether it is a change."""
        if not self._is_recalled or self.level is self.health:
            return False
        self._is_recalled = False
        return self.see(self.health, self._reason, self._published_since_s, now_s)

    def remove(self, now_s: float) -> None:
        self.is_gone = True
        self._flapping.end()
        self.see(Health.HEALTHY, "", now_s, now_s)

    def _is_well_or_starting(self, health: Health) -> bool:
        return self.is_starting or health is Health.HEALTHY

    def _level_at(self, health: Health) -> Health:
        is_start_no_news = self._told is Health.HEALTHY or self._is_recalled
        return self._told if self.is_starting and is_start_no_news and health is not Health.HEALTHY else health

    def _change_to(self, level: Health, since_s: float) -> None:
        if self.level is self._told:
            self._left_told_at_s = since_s
        is_again = self.is_unsure and self.level is Health.HEALTHY
        if self._left_good_at_s is None or is_again:
            self._left_good_at_s = since_s
        self._is_again = self._is_again or is_again
        self.level, self._since_s = level, since_s
        if level > self._worst:
            self._worst, self._worst_reason = level, self._reason
        self._changes += 1

    # ---- when it is told

    def schedule(self, manners: Manners, now_s: float) -> None:
        """It has messages of its own."""
        match self._flapping.judge(now_s):
            case Flap.TOLD:
                self.due_at_s = self._flapping.settles_at_s
            case Flap.BEGUN:
                self.due_at_s = min(self.due_at_s, now_s + manners.group_within_s)
            case Flap.NO:
                self._schedule_change(now_s + manners.group_within_s, self._told_at_s + manners.quiet_s, now_s)

    def _schedule_change(self, soon_s: float, quiet_until_s: float, now_s: float) -> None:
        if self._is_as_told and now_s < quiet_until_s:
            self._forget_what_passed()
            self.due_at_s = math.inf
        elif not self.is_news:
            self.due_at_s = math.inf
        elif self._was_worse_than_told or now_s >= quiet_until_s:
            self.due_at_s = min(self.due_at_s, soon_s)
        else:
            self.due_at_s = max(quiet_until_s, soon_s)

    def join_others(self, *, is_any_due: bool) -> None:
        """It has no messages of its own."""
        self.due_at_s = math.inf
        if self.level is self._told and not is_any_due:
            self._forget_what_passed()

    def _forget_what_passed(self) -> None:
        """It is again as it was told, and what was in between had no message to go with."""
        self._worst = self._told
        if self._told is Health.HEALTHY:
            self._begin_well()

    def _begin_well(self) -> None:
        self._left_good_at_s = None
        self._changes = 0

    # ---- what is told

    def item(self, now_s: float) -> Item:
        turn = self._turn()
        return Item(
            service=self.service,
            turn=turn,
            health=self.level,
            before=self._told if self._was_up or self._told is not Health.HEALTHY else None,
            worst=self._worst,
            reason=self._worst_reason if turn is Turn.PASSED else self._reason,
            since_s=self._since_s,
            lasted_s=max(0.0, self._lasted_s(turn, now_s)),
            changes=self._flapping.moments if turn is Turn.FLAPPING else self._changes,
            is_at_most=self._is_recalled and turn in (Turn.RECOVERED, Turn.REMOVED),
        )

    def _turn(self) -> Turn:
        if self.is_gone:
            return Turn.REMOVED
        if self._flapping.flap is not Flap.NO:
            return Turn.SETTLED if self.is_settling else Turn.FLAPPING
        if self.level is self._told:
            if self._was_worse_than_told or not self.is_unsure:
                return Turn.PASSED
            return Turn.AGAIN if self._is_again else Turn.STILL
        if self.level > self._told:
            return Turn.WORSE
        return Turn.RECOVERED if self.level is Health.HEALTHY else Turn.BETTER

    def _lasted_s(self, turn: Turn, now_s: float) -> float:
        match turn:
            case Turn.FLAPPING:
                return now_s - self._flapping.since_s
            case Turn.SETTLED:
                return now_s - self._since_s
            case Turn.STILL | Turn.AGAIN if self._left_good_at_s is not None:
                return now_s - self._left_good_at_s
            case Turn.RECOVERED | Turn.REMOVED if self._left_good_at_s is not None:
                return self._since_s - self._left_good_at_s
            case _:
                return self._since_s - self._left_told_at_s

    def note_told(self, now_s: float) -> None:
        self._told = self._worst = self.level
        self._told_at_s = now_s
        self._is_recalled = self.is_unsure = self._is_again = False
        self._flapping.note_told()
        if self.is_settling:
            self.due_at_s = self._flapping.settles_at_s
            return
        self.due_at_s = math.inf
        if self.level is Health.HEALTHY:
            self._begin_well()

    def note_start_as_told(self) -> None:
        """A message has said how it is, so a start is told by now, and the end of it is news."""
        if self.is_starting and self._flapping.flap is Flap.NO and self.health > self.level:
            self.level = self._told = self._worst = self.health
            if self._left_good_at_s is None:
                self._left_good_at_s = self._published_since_s

    # ---- what is not over

    @property
    def incident(self) -> Incident | None:
        """What flaps is one, too, whatever it is at the moment: whoever was told waits to hear how it ends."""
        if self._told is Health.HEALTHY and not self.is_settling:
            return None
        return Incident(
            service=self.service,
            told=max(self._told, Health.PARTIAL),
            since_s=self._since_s if self._left_good_at_s is None else self._left_good_at_s,
            is_sure=not (self.is_unsure or self.is_settling),
            is_again=self._is_again,
        )

    def recall(self, incident: Incident) -> None:
        """From before a restart."""
        self._told = self._worst = incident.told
        self._left_good_at_s, self._since_s, self._changes = incident.since_s, self._published_since_s, 1
        self._is_recalled, self.is_unsure = self._is_well_or_starting(self.health), not incident.is_sure
        self._is_again = incident.is_again
        self.level = self._level_at(self.health)
