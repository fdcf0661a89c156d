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

from svcnode.core.errors import is_user_interrupt
from svcnode.core.model import ChangeKind, Outcome
from svcnode.core.redaction import redacted
from svcnode.history.aggregator import MinuteAggregator
from svcnode.history.backlog import Backlog
from svcnode.history.query import HistoryQuery, QueryThread
from svcnode.history.records import Bucket, Resolution, RetentionLimits, Transition
from svcnode.history.writer import Writer, WriterCallbacks
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from svcnode.core.model import Change, Evidence, ServiceState
    from svcnode.node import Node

__all__ = ["Bucket", "History", "Resolution", "Transition"]

MAX_AGE_S, MAX_BYTES = 400 * 86_400.0, 256 * 1024**2
OPEN_TIMEOUT_S = 0.2  # the start of the node waits no longer for the file
CLOSE_TIMEOUT_S = 2.0  # nor does its end
TICK_S = 1.0
SERVICES_CLOSED_PER_STEP = (
    200  # services of a minute that is over: the event loop is held for a fraction of a millisecond
)
TRANSITIONS_PUBLISHED_PER_STEP = 50

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
        self._opened, self._closed = asyncio.Event(), asyncio.Event()
        self._saved_state: str | None = None  # as the process before this one left it
        self._saved_state_loaded = asyncio.Event()
        self._is_subscribed = False
        self._timer: asyncio.TimerHandle | None = None
        self._backlog = Backlog()
        self._aggregator = MinuteAggregator(wall_clock(), self._on_minute_closed)
        self._aggregator_lock = threading.Lock()
        self._writer: Writer | None = None
        if path is not None:
            ears = WriterCallbacks(
                on_acknowledged=lambda up_to_id: self._call_on_loop(self._on_acknowledged, up_to_id),
                on_opened=lambda: self._call_on_loop(self._opened.set),
                on_state_loaded=lambda note: self._call_on_loop(self._on_state_loaded, note),
                on_closed=lambda: self._call_on_loop(self._closed.set),
            )
            self._writer = Writer(path, self._backlog, RetentionLimits(max_age_s, max_bytes), wall_clock, ears)
        self._query_thread = QueryThread()
        self._query = HistoryQuery(self._backlog, self._aggregator, self._aggregator_lock, self._writer)
        self._publish_to_id = 0
        self._is_publishing = False
        self._previous_last_ids = (0, 0)  # the newest at the tick before the last, and at the last
        self._published_early_to = 0  # up to here, some were told before they were written; 0 when all is well
        self._restart_needed: str | None = None  # between what is wanted by now, and what this was made for
        self.last_id = 0  # of the newest transition that was told

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.last_id = int(self._wall_clock() * 1e6)
        if self._writer is not None:
            self._writer.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), OPEN_TIMEOUT_S)
        if self._writer is not None and self._writer.is_readable:
            self.last_id = self._writer.last_id
        else:
            self._backlog.continue_after(self.last_id)
        if self._writer is None:
            self._backlog.pruned_to = self.last_id
        self._record(self._process_transition("started", self._start_text()))
        self._subscribe_to_node()
        self._tick()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_subscribed = False
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        with self._aggregator_lock:
            self._aggregator.finish(self._wall_clock())
        self._record(self._process_transition("stopped", f"svcnode {__version__}"))
        if self._writer is not None:
            self._writer.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), CLOSE_TIMEOUT_S)
            if len(self._backlog) and not self._writer.has_never_written:
                log.warning("history: the last of it could not be written in time")
        self._publish(self._backlog.last_id)
        while self._is_publishing:
            self._publish_some()
        self._query_thread.close()

    def reconfigure(self, path: Path | None, *, max_age_s: float = MAX_AGE_S, max_bytes: int = MAX_BYTES) -> None:
        """Go on with other limits. Another file, or none, takes a restart: until then all stays, and that is told."""
        used = None if self._writer is None else self._writer.path
        if path == used and self._writer is not None:
            self._writer.set_limits(RetentionLimits(max_age_s, max_bytes))
        self._restart_needed = None if path == used else _restart_text(used, path)
        if self._restart_needed is not None:
            log.warning("history: %s", self._restart_needed)

    # ---- what others see

    @property
    def problem(self) -> str | None:
        """Why nothing is written, or that it is not where it is wanted, or that a damaged file was set aside."""
        return "; ".join(filter(None, (self._writer_problem, self._restart_needed))) or None

    @property
    def _writer_problem(self) -> str | None:
        if self._writer is None:
            return None
        if self._published_early_to and not self._writer.status.is_failing:
            return f"the disk of {self._writer.path} takes long to write; what comes is told before it is kept"
        return self._writer.status.problem

    @property
    def is_healthy(self) -> bool:
        """Whether what comes is being written; where no file is wanted, nothing is missing."""
        return self._writer is None or not (self._published_early_to or self._writer.status.is_failing)

    @property
    def pruned_to(self) -> int:
        """The newest transition that is no longer kept; all before it are gone, too."""
        return max(self._backlog.pruned_to, 0 if self._writer is None else self._writer.pruned_to)

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        """Call `listener` on the event loop for every transition, in order, once it is kept (or cannot be)."""
        self._listeners = (*self._listeners, listener)

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        """The oldest transitions that came after this one, of those that were told."""
        up_to = self.last_id
        return await self._query_thread.run(lambda: self._query.after(transition_id, up_to, limit))

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        """The newest transitions first, of one service or of all and the node."""
        up_to = self.last_id
        return await self._query_thread.run(lambda: self._query.latest(service_id, up_to, limit))

    async def buckets(self, service_ids: Sequence[str], span: Resolution) -> dict[str, list[Bucket]]:
        """As many bars as the span shows, the oldest first and the one that is under way last, with none left out."""
        now_s = self._wall_clock()
        with self._aggregator_lock:
            self._aggregator.tick(now_s)
        return await self._query_thread.run(lambda: self._query.buckets(service_ids, span, now_s))

    async def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        """Those of them of which anything is kept."""
        return await self._query_thread.run(lambda: self._query.known_ids(service_ids))

    # ---- what others want to find again after a restart

    def save_state(self, text: str) -> None:
        """In the place of the one before; where no file is wanted, it is not kept."""
        if self._writer is not None:
            self._backlog.set_saved_state(text)
            self._writer.wake()

    async def load_state(self) -> str | None:
        """As the process before this one left it. A file that cannot be opened yet is waited for."""
        if self._writer is not None:
            await self._saved_state_loaded.wait()
        return self._saved_state

    def _on_state_loaded(self, note: str | None) -> None:
        if not self._saved_state_loaded.is_set():
            self._saved_state = note
            self._saved_state_loaded.set()

    # ---- what is heard, on whichever thread

    def _subscribe_to_node(self) -> None:
        self._is_subscribed = True
        self._unsubscribe = self._node.subscribe(self._on_change, on_evidence=self._on_evidence)
        services = list(self._node)  # not with the lock held: whoever reads may hear of silence first
        now_s = self._wall_clock()
        with self._aggregator_lock:
            for service, state in services:
                self._aggregator.set_status(service.id, state.status, now_s, now_s)

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        outcome = evidence.verdict.outcome
        # What was reported took no time, and what is unknown says nothing of the service.
        if outcome is Outcome.UNKNOWN or self._node.probe_config(service_id) is None or not self._is_subscribed:
            return
        with self._aggregator_lock:
            self._aggregator.add_check(service_id, evidence.duration_s, is_failure=outcome is Outcome.FAILED)

    def _on_change(self, change: Change) -> None:
        now_s = self._wall_clock()
        # Silence is noticed after it has come to pass, and so is what a look sees that takes its time.
        passed_s = change.after.since_s if change.kind is ChangeKind.STATUS and change.after else change.at_s
        at_s = now_s - max(0.0, self._node.now_s() - passed_s)
        if change.service_id is not None:
            with self._aggregator_lock:
                status = None if change.after is None else change.after.status
                self._aggregator.set_status(change.service_id, status, at_s, now_s)
        self._record(
            Transition(
                id=int(now_s * 1e6),
                at_s=int(at_s * 1e6) / 1e6,  # as exactly as it is kept
                kind=change.kind.value,
                service_id=change.service_id,
                before=None if change.before is None else change.before.status.value,
                after=None if change.after is None else change.after.status.value,
                reason="" if change.after is None else _storable_text(change.after.reason),
                health_before=int(change.health_before),
                health=int(change.health),
            )
        )

    def _record(self, draft: Transition) -> None:
        transition = self._backlog.add(draft)
        if self._writer is None:
            self._call_on_loop(self._publish, transition.id)
        else:
            self._writer.wake()

    def _on_minute_closed(self, begin_s: int, bars: dict[str, Bucket]) -> None:
        self._backlog.add_minute(begin_s, bars)
        if self._writer is not None:
            self._writer.wake()

    def _process_transition(self, kind: str, reason: str) -> Transition:
        now_s, health = self._wall_clock(), int(self._node.health)
        return Transition(int(now_s * 1e6), int(now_s * 1e6) / 1e6, kind, None, None, None, reason, health, health)

    def _start_text(self) -> str:
        if self._writer is None or self._writer.last_kind in (None, "stopped"):
            return f"svcnode {__version__}"
        return f"svcnode {__version__}; the one before it ended without a word: it was killed, or the power failed"

    # ---- on the event loop

    def _call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(function, *args)

    def _publish(self, up_to_id: int) -> None:
        self._publish_to_id = max(self._publish_to_id, up_to_id)
        if not self._is_publishing:
            self._publish_some()

    def _publish_some(self) -> None:
        """A few at a time: who listens may have much to do with each."""
        some = self._backlog.take_unpublished(self._publish_to_id, TRANSITIONS_PUBLISHED_PER_STEP)
        for transition in some:
            self.last_id = transition.id
            for listener in self._listeners:
                try:
                    listener(transition)
                except BaseException as exc:
                    if is_user_interrupt(exc):
                        raise
                    log.exception("a listener to the history failed; the others go on")
        self._is_publishing = len(some) == TRANSITIONS_PUBLISHED_PER_STEP
        if self._is_publishing:
            self._loop.call_soon(self._publish_some)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        with self._aggregator_lock:
            self._aggregator.tick(self._wall_clock())
        self._close_minute()
        self._publish_overdue()

    def _close_minute(self) -> None:
        with self._aggregator_lock:
            is_more = self._aggregator.close_some(SERVICES_CLOSED_PER_STEP)
        if is_more:
            self._loop.call_soon(self._close_minute)

    def _publish_overdue(self) -> None:
        """A disk may take its time; those who follow are told within two ticks."""
        waited_for, newest_before = self._previous_last_ids
        self._previous_last_ids = (newest_before, self._backlog.last_id)
        if waited_for > self._publish_to_id and self._backlog.is_unpublished(waited_for):
            self._published_early_to = waited_for
            self._publish(waited_for)

    def _on_acknowledged(self, up_to_id: int) -> None:
        if up_to_id >= self._published_early_to:
            self._published_early_to = 0
        self._publish(up_to_id)


def _restart_text(used: Path | None, wanted: Path | None) -> str:
    is_ = "none is kept in a file" if used is None else f"it is kept in {used}"
    ought = "not to be kept" if wanted is None else f"to be kept in {wanted}"
    return f"{is_}, as it was at the start; the configuration now wants it {ought}: restart the node for that"


def _storable_text(text: str) -> str:
    """Without secrets, and without what no database can carry: halves of characters, and the end of a C string."""
    return redacted(text).encode("utf-8", "replace").decode().replace("\0", "�")
