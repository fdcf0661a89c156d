"""Remembers: every transition, and how each service fared per minute, hour and day, in SQLite.

records.py    what history is made of
minutes.py    the minute that is running
backlog.py    what is not written yet, or not told
writer.py     the thread that writes; trouble.py, faults.py: what it says when it cannot
database.py   the file; schema.py, transactions.py: its tables; retention.py: what is forgotten; files.py: whose it is
reader.py     the thread that reads; recall.py, queries.py: from the file and from memory

Nothing that happens to the file reaches the event loop, the looking or the answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from svcnode.core.interrupts import is_ctrl_c
from svcnode.core.model import ChangeKind, Outcome
from svcnode.core.redaction import redacted
from svcnode.history.backlog import Backlog
from svcnode.history.minutes import Minutes
from svcnode.history.reader import Reader
from svcnode.history.recall import Recall
from svcnode.history.records import Bar, Limits, Span, Transition
from svcnode.history.writer import Ears, Writer
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from svcnode.core.model import Change, Evidence, ServiceState
    from svcnode.node import Node

__all__ = ["Bar", "History", "Span", "Transition"]

MAX_AGE_S, MAX_BYTES = 400 * 86_400.0, 256 * 1024**2
OPEN_WITHIN_S = 0.2  # the start of the node waits no longer for the file
CLOSE_WITHIN_S = 2.0  # nor does its end
TICK_S = 1.0
CLOSED_AT_ONCE = 200  # services of a minute that is over: the event loop is held for a fraction of a millisecond
TOLD_AT_ONCE = 50

log = logging.getLogger("svcnode.history")


class History:
    """Follows a node for as long as its `async with` block runs; without a path, it has memory and nothing else."""

    def __init__(
        self,
        node: Node,
        path: Path | None,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._wall_clock = wall_clock
        self._listeners: tuple[Callable[[Transition], None], ...] = ()
        self._loop: asyncio.AbstractEventLoop
        self._opened, self._ended = asyncio.Event(), asyncio.Event()
        self._note: str | None = None  # as the process before this one left it
        self._is_note_known = asyncio.Event()
        self._is_following = False
        self._timer: asyncio.TimerHandle | None = None
        self._backlog = Backlog()
        self._minutes = Minutes(wall_clock(), self._minute_is_over)
        self._minutes_lock = threading.Lock()
        self._writer: Writer | None = None
        if path is not None:
            ears = Ears(
                acknowledge=lambda up_to_id: self._on_loop(self._acknowledged, up_to_id),
                opened=lambda: self._on_loop(self._opened.set),
                recalled=lambda note: self._on_loop(self._recalled, note),
                ended=lambda: self._on_loop(self._ended.set),
            )
            self._writer = Writer(path, self._backlog, Limits(max_age_s, max_bytes), wall_clock, ears)
        self._reader = Reader()
        self._recall = Recall(self._backlog, self._minutes, self._minutes_lock, self._writer)
        self._tell_to_id = 0
        self._is_telling = False
        self._ids_before = (0, 0)  # the newest at the tick before the last, and at the last
        self._told_early_to = 0  # up to here, some were told before they were written; 0 when all is well
        self._difference: str | None = None  # between what is wanted by now, and what this was made for
        self.last_id = 0  # of the newest transition that was told

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.last_id = int(self._wall_clock() * 1e6)
        if self._writer is not None:
            self._writer.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), OPEN_WITHIN_S)
        if self._writer is not None and self._writer.is_readable:
            self.last_id = self._writer.last_id
        else:
            self._backlog.go_on_after(self.last_id)
        if self._writer is None:
            self._backlog.forgotten_to = self.last_id
        self._take_down(self._of_process("started", self._words_at_start()))
        self._follow()
        self._tick()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_following = False
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        with self._minutes_lock:
            self._minutes.finish(self._wall_clock())
        self._take_down(self._of_process("stopped", f"svcnode {__version__}"))
        if self._writer is not None:
            self._writer.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CLOSE_WITHIN_S)
            if len(self._backlog) and not self._writer.is_known_to_fail:
                log.warning("history: the last of it could not be written in time")
        self._tell(self._backlog.last_id)
        while self._is_telling:
            self._tell_some()
        self._reader.close()

    def adopt(self, path: Path | None, *, max_age_s: float = MAX_AGE_S, max_bytes: int = MAX_BYTES) -> None:
        """Go on with other limits. Another file, or none, takes a restart: until then all stays, and that is told."""
        used = None if self._writer is None else self._writer.path
        if path == used and self._writer is not None:
            self._writer.set_limits(Limits(max_age_s, max_bytes))
        self._difference = None if path == used else _difference(used, path)
        if self._difference is not None:
            log.warning("history: %s", self._difference)

    # ---- what others see

    @property
    def problem(self) -> str | None:
        """Why nothing is written, or that it is not where it is wanted, or that a damaged file was set aside."""
        return "; ".join(filter(None, (self._trouble, self._difference))) or None

    @property
    def _trouble(self) -> str | None:
        if self._writer is None:
            return None
        if self._told_early_to and not self._writer.trouble.is_there:
            return f"the disk of {self._writer.path} takes long to write; what comes is told before it is kept"
        return self._writer.trouble.said

    @property
    def is_kept(self) -> bool:
        """Whether what comes is being written; where no file is wanted, nothing is missing."""
        return self._writer is None or not (self._told_early_to or self._writer.trouble.is_there)

    @property
    def forgotten_to(self) -> int:
        """The newest transition that is no longer kept; all before it are gone, too."""
        return max(self._backlog.forgotten_to, 0 if self._writer is None else self._writer.forgotten_to)

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        """Call `listener` on the event loop for every transition, in order, once it is kept (or cannot be)."""
        self._listeners = (*self._listeners, listener)

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        """The oldest transitions that came after this one, of those that were told."""
        up_to = self.last_id
        return await self._reader.ask(lambda: self._recall.after(transition_id, up_to, limit))

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        """The newest transitions first, of one service or of all and the node."""
        up_to = self.last_id
        return await self._reader.ask(lambda: self._recall.latest(service_id, up_to, limit))

    async def bars(self, service_ids: Sequence[str], span: Span) -> dict[str, list[Bar]]:
        """As many bars as the span shows, the oldest first and the one that is under way last, with none left out."""
        now_s = self._wall_clock()
        with self._minutes_lock:
            self._minutes.tick(now_s)
        return await self._reader.ask(lambda: self._recall.bars(service_ids, span, now_s))

    async def known(self, service_ids: Sequence[str]) -> set[str]:
        """Those of them of which anything is kept."""
        return await self._reader.ask(lambda: self._recall.known(service_ids))

    # ---- what others want to find again after a restart

    def keep_note(self, text: str) -> None:
        """In the place of the one before; where no file is wanted, it is not kept."""
        if self._writer is not None:
            self._backlog.set_note(text)
            self._writer.wake()

    async def kept_note(self) -> str | None:
        """As the process before this one left it. A file that cannot be opened yet is waited for."""
        if self._writer is not None:
            await self._is_note_known.wait()
        return self._note

    def _recalled(self, note: str | None) -> None:
        if not self._is_note_known.is_set():
            self._note = note
            self._is_note_known.set()

    # ---- what is heard, on whichever thread

    def _follow(self) -> None:
        self._is_following = True
        self._unsubscribe = self._node.subscribe(self._heard)
        self._node.observe(self._seen)
        services = list(self._node)  # not with the lock held: whoever reads may hear of silence first
        now_s = self._wall_clock()
        with self._minutes_lock:
            for service, state in services:
                self._minutes.set_status(service.id, state.status, now_s, now_s)

    def _seen(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        outcome = evidence.verdict.outcome
        # What was reported took no time, and what is unknown says nothing of the service.
        if outcome is Outcome.UNKNOWN or self._node.watch(service_id) is None or not self._is_following:
            return
        with self._minutes_lock:
            self._minutes.add_look(service_id, evidence.duration_s, is_failure=outcome is Outcome.FAILED)

    def _heard(self, change: Change) -> None:
        now_s = self._wall_clock()
        # Silence is noticed after it has come to pass, and so is what a look sees that takes its time.
        passed_s = change.after.since_s if change.kind is ChangeKind.STATUS and change.after else change.at_s
        at_s = now_s - max(0.0, self._node.now_s() - passed_s)
        if change.service_id is not None:
            with self._minutes_lock:
                status = None if change.after is None else change.after.status
                self._minutes.set_status(change.service_id, status, at_s, now_s)
        self._take_down(
            Transition(
                id=int(now_s * 1e6),
                at_s=int(at_s * 1e6) / 1e6,  # as exactly as it is kept
                kind=change.kind.value,
                service_id=change.service_id,
                before=None if change.before is None else change.before.status.value,
                after=None if change.after is None else change.after.status.value,
                reason="" if change.after is None else _storable(change.after.reason),
                health_before=int(change.health_before),
                health=int(change.health),
            )
        )

    def _take_down(self, draft: Transition) -> None:
        transition = self._backlog.add(draft)
        if self._writer is None:
            self._on_loop(self._tell, transition.id)
        else:
            self._writer.wake()

    def _minute_is_over(self, begin_s: int, bars: dict[str, Bar]) -> None:
        self._backlog.add_minute(begin_s, bars)
        if self._writer is not None:
            self._writer.wake()

    def _of_process(self, kind: str, reason: str) -> Transition:
        now_s, health = self._wall_clock(), int(self._node.health)
        return Transition(int(now_s * 1e6), int(now_s * 1e6) / 1e6, kind, None, None, None, reason, health, health)

    def _words_at_start(self) -> str:
        if self._writer is None or self._writer.last_kind in (None, "stopped"):
            return f"svcnode {__version__}"
        return f"svcnode {__version__}; the one before it ended without a word: it was killed, or the power failed"

    # ---- on the event loop

    def _on_loop(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(function, *args)

    def _tell(self, up_to_id: int) -> None:
        self._tell_to_id = max(self._tell_to_id, up_to_id)
        if not self._is_telling:
            self._tell_some()

    def _tell_some(self) -> None:
        """A few at a time: who listens may have much to do with each."""
        some = self._backlog.to_tell(self._tell_to_id, TOLD_AT_ONCE)
        for transition in some:
            self.last_id = transition.id
            for listener in self._listeners:
                try:
                    listener(transition)
                except BaseException as exc:
                    if is_ctrl_c(exc):
                        raise
                    log.exception("a listener to the history failed; the others go on")
        self._is_telling = len(some) == TOLD_AT_ONCE
        if self._is_telling:
            self._loop.call_soon(self._tell_some)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        with self._minutes_lock:
            self._minutes.tick(self._wall_clock())
        self._close_minute()
        self._tell_what_has_waited()

    def _close_minute(self) -> None:
        with self._minutes_lock:
            is_more = self._minutes.close_some(CLOSED_AT_ONCE)
        if is_more:
            self._loop.call_soon(self._close_minute)

    def _tell_what_has_waited(self) -> None:
        """A disk may take its time; those who follow are told within two ticks."""
        waited_for, newest_before = self._ids_before
        self._ids_before = (newest_before, self._backlog.last_id)
        if waited_for > self._tell_to_id and self._backlog.is_untold(waited_for):
            self._told_early_to = waited_for
            self._tell(waited_for)

    def _acknowledged(self, up_to_id: int) -> None:
        if up_to_id >= self._told_early_to:
            self._told_early_to = 0
        self._tell(up_to_id)


def _difference(used: Path | None, wanted: Path | None) -> str:
    is_ = "none is kept in a file" if used is None else f"it is kept in {used}"
    ought = "not to be kept" if wanted is None else f"to be kept in {wanted}"
    return f"{is_}, as it was at the start; the configuration now wants it {ought}: restart the node for that"


def _storable(text: str) -> str:
    """Without secrets, and without what no database can carry: halves of characters, and the end of a C string."""
    return redacted(text).encode("utf-8", "replace").decode().replace("\0", "�")
