"""The last resort: ends the process when it can neither work nor stop, so that the service manager can restart it.

A process that is out of memory can fail anywhere: callbacks of the event loop are lost, threads die before their first
step, and the code that waits for them, or that handles SIGTERM, never runs. So the process ends with the first
MemoryError that is logged or that nobody handles. It also ends when the event loop or the scheduler no longer runs: a
ping passes through both, and its answer also feeds the watchdog of systemd. Everything here was allocated at the start.

Without memory, the interpreter itself may crash or loop endlessly. A limit of processor time ends an endless loop, and
needs no interpreter: the kernel sends SIGPROF, whose default action is to end the process. In both cases, faulthandler
writes the cause to stderr.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TICK_S = 1.0
# In ticks of the watchdog's own thread: they do not pass while the process is stopped or the machine sleeps.
QUIET_TICKS = 5  # between two pings of a loop that answers: an idle process should rarely wake up
LOOP_TICKS = 30
LATE_TICKS = 2  # from then on the watchdog tests whether there is memory
START_TICKS = 5  # how long the loop may wait for a new thread to start
STOP_TICKS = 30  # in addition to the drain
STOP_TIMEOUT_S = STOP_TICKS * TICK_S
LOOP_CPU_S = 30.0  # processor time of all threads without an answer of the loop
RESERVE_BYTES = 1024**2

STDERR = 2
EXIT_CODE = 1
OUT_OF_MEMORY = b"svcnode: out of memory; exit code 1\n"
LOOP_HANGS = b"svcnode: the event loop or the scheduler has not run for 30 s; exit code 1\n"
STOP_HANGS = b"svcnode: the node did not stop within 30 s; exit code 1\n"


def exit_now(line: bytes) -> NoReturn:
    try:
        if select.select((), (STDERR,), (), 0)[1]:  # a log that is not read must not block the exit
            os.write(STDERR, line)
    finally:
        os._exit(EXIT_CODE)


class Watchdog:
    """Watches the event loop and the scheduler from `start` to `close`."""

    def __init__(
        self,
        ping_scheduler: Callable[[Callable[[], object]], bool],
        *,
        on_alive: Callable[[], object] = lambda: None,
        alive_within_s: float | None = None,
        exit_process: Callable[[bytes], object] = exit_now,
        tick_s: float = TICK_S,
    ) -> None:
        """`ping_scheduler` calls its argument from the scheduler, or returns False if none runs. `on_alive` is called
        for every answer: at least twice in `alive_within_s`, if that is 2 ticks or more.
        """
        self._ping_scheduler = ping_scheduler
        self._on_alive = on_alive
        self._exit = exit_process
        self._tick_s = tick_s
        self._quiet_ticks = QUIET_TICKS
        if alive_within_s is not None:
            self._quiet_ticks = max(1, min(QUIET_TICKS, int(alive_within_s / 2 / tick_s)))
        # Freed at the first MemoryError, for the code that ends the process. Until then only reserved: `bytes` gets its
        # zeros from the kernel, a bytearray would write them.
        self._reserve = bytes(RESERVE_BYTES)
        self._closed = threading.Event()
        self._has_answered = True
        self._stop_ticks: int | None = None  # until the node must have stopped
        self._log_handler = _MemoryErrorHandler(self._on_memory_error)

    def start(self) -> None:
        """In the main thread."""
        faulthandler.enable(STDERR)
        faulthandler.register(signal.SIGPROF, STDERR, all_threads=False, chain=True)
        self._loop_thread_id = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._loop_handler = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._on_loop_error)
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._on_unraisable, self._on_thread_error
        logging.getLogger().addHandler(self._log_handler)
        self._answer_ping()
        start_thread(threading.Thread(target=self._run, name="svcnode watchdog", daemon=True))

    def expect_stop(self, drain_s: float) -> None:
        """The node stops: from now on it has the time of the drain and 30 s."""
        self._stop_ticks = int(drain_s / self._tick_s) + STOP_TICKS

    def close(self) -> None:
        self._closed.set()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)
        sys.unraisablehook, threading.excepthook = self._hooks
        logging.getLogger().removeHandler(self._log_handler)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._watch()
        except MemoryError:
            self._on_memory_error()

    def _watch(self) -> None:
        missed_ticks, ticks = 0, self._quiet_ticks
        started: FrameType | None = None  # the thread start that the loop is in
        start_ticks = 0  # for how long
        while not self._closed.wait(ticks * self._tick_s):
            missed_ticks = 0 if self._has_answered else missed_ticks + ticks
            if self._has_answered:
                self._ping_loop()
            ticks = 1 if missed_ticks or self._stop_ticks is not None else self._quiet_ticks
            if missed_ticks >= LATE_TICKS:
                bytes(RESERVE_BYTES)
            before, started = started, self._thread_start() if missed_ticks else None
            # The same one: on a busy machine, a loop that starts many threads may be seen in several of them.
            start_ticks = start_ticks + ticks if started is not None and started is before else 0
            if start_ticks >= START_TICKS:
                self._exit(OUT_OF_MEMORY)
            if missed_ticks >= LOOP_TICKS:
                self._exit(LOOP_HANGS)
            if self._stop_ticks is not None:
                self._stop_ticks -= 1
                if self._stop_ticks <= 0:
                    self._exit(STOP_HANGS)

    def _thread_start(self) -> FrameType | None:
        """The call of `Thread.start` that the loop is in: it never returns for a thread without memory."""
        frame = sys._current_frames().get(self._loop_thread_id)
        while frame is not None and frame.f_code is not threading.Thread.start.__code__:
            frame = frame.f_back
        return frame

    def _ping_loop(self) -> None:
        self._has_answered = False
        with suppress(RuntimeError):  # the loop is closed: the process ends, or the watchdog ends it
            self._loop.call_soon_threadsafe(self._ping)

    # ---- the event loop

    def _ping(self) -> None:
        if not self._ping_scheduler(self._answer_ping):
            self._answer_ping()

    def _answer_ping(self) -> None:
        self._has_answered = True
        signal.setitimer(signal.ITIMER_PROF, LOOP_CPU_S)
        self._on_alive()

    # ---- errors that nothing has handled

    def _on_memory_error(self) -> None:
        self._reserve = b""
        self._exit(OUT_OF_MEMORY)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            self._on_memory_error()
        if self._loop_handler is None:
            loop.default_exception_handler(context)
        else:
            self._loop_handler(loop, context)

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, MemoryError):
            self._on_memory_error()
        self._hooks[0](unraisable)

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        # A thread without memory for its first step ends with a SystemError.
        if issubclass(args.exc_type, MemoryError | SystemError):
            self._on_memory_error()
        self._hooks[1](args)


class _MemoryErrorHandler(logging.Handler):
    """Notices a MemoryError in the log: code that continues after an exception logs it."""

    def __init__(self, on_memory_error: Callable[[], None]) -> None:
        super().__init__()
        self._on_memory_error = on_memory_error

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], MemoryError):
            self._on_memory_error()
