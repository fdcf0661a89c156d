"""The one thread that writes.

What has come since the last commit goes into one transaction, so a burst costs little more than one change. When
something cannot be written, it stays in the backlog and is tried again, after a longer and longer pause; it is
acknowledged all the same, for nobody is to wait for a disk that is full.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from svcnode.history.faults import DamageError, FaultError, fault_from
from svcnode.history.files import Claim, begin_file, check_owner, make_folder, set_aside
from svcnode.history.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from svcnode.history.backlog import Backlog
    from svcnode.history.database import Database
    from svcnode.history.records import Limits

FORGETTING_PAUSE_S = 0.01  # from step to step
CLAIM_CHECK_S = 5.0  # how often it is looked whether the file is still ours, when there is nothing to write
MIN_APART_S = 60.0  # between two files that are set aside: a disk that damages each new one is no place to write to

log = logging.getLogger("svcnode.history")


class Ears(NamedTuple):
    """Who is told, on the thread that writes."""

    acknowledge: Callable[[int], None]  # all up to this id is written, or cannot be for now
    opened: Callable[[], None]  # the first attempt to open the file is over
    recalled: Callable[[str | None], None]  # the note that was in the file, once that is open
    ended: Callable[[], None]  # nothing more will be written


class Writer:
    def __init__(
        self, path: Path, backlog: Backlog, limits: Limits, wall_clock: Callable[[], float], ears: Ears
    ) -> None:
        self.path = path
        self._backlog = backlog
        self._limits = limits
        self._wall_clock = wall_clock
        self._ears = ears
        self._wake = threading.Event()
        self._is_ending = False
        self._claim: Claim | None = None
        self._database: Database | None = None
        self._is_forgetting = False
        self._set_aside_at_s: float | None = None
        self._suspicion: tuple[int, DamageError] | None = None  # and of which generation
        self._written_to = 0  # the newest transition that was
        self.trouble = Trouble()
        # For others to read.
        self.generation = 0  # of the file: it grows whenever another one is begun
        self.is_readable = False  # there is a file, and it is ours
        self.last_id = 0  # as the file had it when it was first opened
        self.last_kind: str | None = None
        self.forgotten_to = 0
        self._thread = threading.Thread(target=self._run, name="svcnode history", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as exc:
            self.trouble.rise(FaultError("there is no thread to be had that could write; nothing is kept"), exc)
            self._ears.opened()
            self._ears.ended()

    def wake(self) -> None:
        """Something has come."""
        self._wake.set()

    def set_limits(self, limits: Limits) -> None:
        """They hold from the next turn of the thread on."""
        self._limits = limits
        self._wake.set()

    def close(self) -> None:
        """Write what there is, and end."""
        self._is_ending = True
        self._wake.set()

    @property
    def is_known_to_fail(self) -> bool:
        """Nothing was ever written, and why has been told."""
        return self.trouble.is_there and not self._written_to

    def suspect(self, damage: DamageError, generation: int) -> None:
        """Somebody who read the file has found it damaged."""
        if generation == self.generation:  # which it may no longer be a moment later
            self._suspicion = generation, damage
            self._wake.set()

    # ---- on the thread

    def _run(self) -> None:
        self._work()
        self._ears.opened()
        while not self._is_ending:
            self._wake.wait(self._idle_s())
            self._wake.clear()
            self._work()
        self._work()  # what came just before the end
        self._let_go()
        self._give_up_claim()
        self._ears.ended()

    def _idle_s(self) -> float:
        if self.trouble.wait_s:
            return self.trouble.wait_s
        return FORGETTING_PAUSE_S if self._is_forgetting else CLAIM_CHECK_S

    def _work(self) -> None:
        if self.trouble.wait_s and not self._is_ending:
            self._ears.acknowledge(self._backlog.last_id)
            return
        try:
            self._write_or_begin_anew()
        except Exception as exc:  # noqa: BLE001  whatever it is, the node goes on
            self._let_go()
            self.trouble.rise(fault_from(exc, self.path), exc)
            self._ears.acknowledge(self._backlog.last_id)
        else:
            self.trouble.pass_over()

    def _write_or_begin_anew(self) -> None:
        try:
            self._write()
        except Exception as exc:
            fault = fault_from(exc, self.path)
            if not isinstance(fault, DamageError):
                raise
            self._begin_anew(fault)
            self._write()

    def _write(self) -> None:
        self._heed_suspicion()
        database = self._database_in_place()
        while (batch := self._backlog.batch()) is not None:
            with self._backlog.handing_over:
                database.write(batch)
                is_kept = database.is_in_place
                if is_kept:
                    self._backlog.drop(batch)
            if is_kept:
                self._written_to = max(self._written_to, batch.last_id)
                self._ears.acknowledge(batch.last_id)
            database = self._database_in_place()
            self._is_forgetting = True
        if database.set_limits(self._limits) or self._is_forgetting:
            self._is_forgetting = database.forget_some(self._wall_clock())
        self.forgotten_to = database.forgotten_to

    def _heed_suspicion(self) -> None:
        match self._suspicion:
            case (generation, damage) if generation == self.generation:
                raise damage

    # ---- the file

    def _database_in_place(self) -> Database:
        if self._database is not None and not self._database.is_in_place:
            log.warning("history: %s was removed or replaced while it was in use", self.path)
            self._let_go()
            self.generation += 1
            self._give_up_claim()
        elif self._claim is not None and not self._claim.is_in_place:
            log.warning("history: %s was removed while it was in use", self._claim.path)
            self._give_up_claim()
            self._claim_file()
        if self._database is None:
            self._database = self._open()
        return self._database

    def _open(self) -> Database:
        make_folder(self.path.parent)
        check_owner(self.path)
        if self._claim is None:
            self._claim_file()
        begin_file(self.path)
        from svcnode.history.database import Database  # and with it SQLite, beside the start of the node

        is_first = not self.is_readable
        database = Database(self.path, self._limits, is_to_be_checked=is_first)
        if database.last_number < self._written_to:  # what was there is gone
            self._backlog.forget_what_is_written(int(self._wall_clock() * 1e6))
        self._backlog.go_on_after(database.last_number)
        if is_first:
            self.last_id, self.last_kind = database.last_id, database.last_kind
            self._ears.recalled(database.note)
        self.forgotten_to = database.forgotten_to
        self.is_readable = self._is_forgetting = True
        return database

    def _claim_file(self) -> None:
        try:
            self._claim = Claim(self.path)
        except FaultError:  # it is another's, and so is what stands in it from now on
            if self.is_readable:
                self.is_readable = False
                self.generation += 1
                self._backlog.forget_what_is_written(int(self._wall_clock() * 1e6))
            raise

    def _give_up_claim(self) -> None:
        if self._claim is not None:
            self._claim.end()
            self._claim = None

    def _let_go(self) -> None:
        if self._database is not None:
            with suppress(Exception):  # it was of no use any more
                self._database.close()
            self._database = None

    def _begin_anew(self, damage: DamageError) -> None:
        self._let_go()
        now_s = time.monotonic()
        if self._set_aside_at_s is not None and now_s - self._set_aside_at_s < MIN_APART_S:
            raise FaultError(f"{damage}, soon after another one; is the disk sound?")
        self.is_readable = False
        aside = set_aside(self.path, self._wall_clock())
        self._set_aside_at_s = now_s
        self.generation += 1
        # Also what a process before this one had written, of which nobody knows how far it went.
        self._backlog.forget_what_is_written(int(self._wall_clock() * 1e6))
        self.trouble.notify(f"{damage}; it was set aside as {aside.name}, and a new one begun")
