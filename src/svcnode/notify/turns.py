"""The targets of a node on several machines: one replica sends, and all know what the target was told.

Each replica follows the node by itself, and follows what the others have told the targets. So when the one that sends
is lost, any other one can continue: it does not tell again what was told, and what was not told is due there, too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from svcnode.notify.record import MAX_SAVED
from svcnode.notify.subjects import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.notify.record import Record
    from svcnode.notify.routes import Report, Route

Rows = list[dict[str, Any]]

log = logging.getLogger("svcnode.notify")


class Turn(Protocol):
    """The turn to send to one target; svcnode.sharing.turns.Turn implements it."""

    name: str

    @property
    def may_send(self) -> bool:
        """Asked right before each attempt."""

    @property
    def sender(self) -> str | None:
        """The replica that sends; None if it is not known."""

    def save(self, told: Rows) -> None: ...

    def pass_on(self, until_s: float) -> None:
        """Let another replica try until then."""

    def set_wanted(self, is_wanted: bool) -> None: ...

    async def leave(self) -> None:
        """Let another replica continue, as soon as what was told is saved."""

    def drop(self) -> None:
        """The target is no longer configured here."""


class Turns(Protocol):
    """svcnode.sharing.turns.Turns implements it."""

    def join(self, name: str, listener: SharedTarget, /) -> Turn: ...


class _Fact(NamedTuple):
    """What tells one message about a subject from the message before it."""

    told: object
    at: object
    over_at: object


def _facts(rows: Rows) -> dict[Key, _Fact]:
    return {Key(row["type"], row["name"]): _Fact(row["told"], row["at"], row["over_at"]) for row in rows}


class SharedTarget:
    """A target that several replicas can send to, and what it was told."""

    def __init__(  # noqa: PLR0913  the callbacks have names
        self,
        name: str,
        route: Route,
        turns: Turns,
        *,
        clock: Callable[[], float],
        read: Callable[[Rows, float], list[Record]],
        on_turn: Callable[[], None],
        on_told: Callable[[], None],
        on_known: Callable[[], None],
    ) -> None:
        """`read` makes records of rows. The callbacks: the turn has changed; others have told something; what this
        replica has told is known to all.
        """
        self.route = route
        self._clock = clock
        self._read = read
        self.on_turn, self._on_told, self._on_known = on_turn, on_told, on_known
        self.has_followed = False  # another replica has said what was told
        self._known: dict[Key, _Fact] = {}  # what all replicas know, or will soon
        self.own: set[Key] = set()  # what this replica has told, and the others do not know yet
        self.turn = turns.join(name, self)

    # ---- what this replica tells

    def delivered(self, report: Report) -> None:
        self.own |= report.told.keys()
        self._save()

    def restore(self, records: list[Record], own: set[Key], now_s: float) -> None:
        """Continue with what was told before a restart. What others know counts more, except what they do not know."""
        for record in records:
            if not self.has_followed:
                self.route.restore(record, now_s)
            elif record.subject.key in own:
                self.route.add_told(record.subject.key, record, now_s)
        self.own |= own
        if own:
            self._save()
        self.save_restored()

    def save_restored(self) -> None:
        """What this replica knows from before its start, if no other one has said anything."""
        if not self.has_followed and self.turn.may_send and (own := self.route.keys() - self._known.keys()):
            self.own |= own
            self._save()

    def _save(self) -> None:
        rows = self.route.to_rows(self._clock())
        self._known = _facts(rows)
        self.turn.save(rows)

    # ---- what the registry says

    def on_saved(self) -> None:
        self.own.clear()
        self._on_known()

    def on_restored(self) -> None:
        self.own |= self.route.keys()
        self._save()

    def on_told(self, told: Rows) -> None:
        now_s = self._clock()
        try:
            facts, records = _facts(told), {record.subject.key: record for record in self._read(told, now_s)}
        except (KeyError, TypeError, ValueError) as exc:
            text = "invalid notification state in the registry: %s; open problems may be reported again"
            log.warning(text, exc, extra={"event": "notification_state_invalid"})
            return
        is_first, self.has_followed = not self.has_followed, True
        missing = () if len(told) >= MAX_SAVED else self._known.keys() | (self.route.keys() if is_first else set())
        for key in {*facts, *missing}:
            if key in self.own:
                self.route.add_told(key, records.get(key), now_s)
            elif is_first or facts.get(key) != self._known.get(key):
                self.route.follow(key, records.get(key), now_s)
        self._known = facts
        self.route.update_due(now_s)
        if self.own:
            self._save()
        self._on_told()
