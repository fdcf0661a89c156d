"""The watchdog: when it ends the process."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent import watchdog
from svcnode.agent.watchdog import LOOP_HANGS, LOOP_TICKS, OUT_OF_MEMORY, QUIET_TICKS, STOP_HANGS, Watchdog
from svcnode.net.threads import start_thread
from tests.unit.net.test_threads import START_FUNCTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# `Exit` ends threads by an exception.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEADLINE_S = 30.0
TICK_S = 0.005


class Exit:
    """Stands for the end of the process: the code that caused it does not continue."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_called = threading.Event()

    def __call__(self, line: bytes) -> None:
        self.lines.append(line)
        self.is_called.set()
        raise SystemExit

    def wait(self) -> None:
        assert self.is_called.wait(DEADLINE_S)


@pytest.fixture
def ended() -> Exit:
    return Exit()


@pytest.fixture(autouse=True)
def _no_crash_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest uses faulthandler itself."""
    for name in ("enable", "register", "unregister"):
        monkeypatch.setattr(faulthandler, name, lambda *_, **__: None)


def answer_at_once(answer: Callable[[], object]) -> bool:
    answer()
    return True


def make_watchdog(ended: Exit, **options: Any) -> Watchdog:
    return Watchdog(**{"ping_scheduler": answer_at_once, "exit_process": ended, "tick_s": TICK_S, **options})


@contextmanager
def watched(ended: Exit, **options: Any) -> Iterator[Watchdog]:
    started = make_watchdog(ended, **options)
    started.start()
    try:
        yield started
    finally:
        started.close()


def run_watched(ended: Exit, work: Callable[[Watchdog], object]) -> list[bytes]:
    async def scenario() -> None:
        with watched(ended) as started:
            work(started)
            await asyncio.sleep(0)

    with suppress(SystemExit):
        asyncio.run(scenario())
    return ended.lines


def test_a_loop_that_runs_is_left_alone_and_its_exception_handler_stays_in_use(ended: Exit) -> None:
    handled: list[object] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: handled.append(context["message"]))
        with watched(ended):
            loop.call_exception_handler({"message": "a write to a closed connection"})
            await asyncio.sleep(3 * LOOP_TICKS * TICK_S)

    asyncio.run(scenario())
    assert handled == ["a write to a closed connection"]
    assert ended.lines == []


def test_a_loop_that_answers_is_rarely_asked(ended: Exit, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    started = make_watchdog(ended)

    def wait(duration_s: float) -> bool:
        waits.append(duration_s)
        return len(waits) > 20

    async def scenario() -> None:
        started.start()
        started.close()
        monkeypatch.setattr(started, "_closed", SimpleNamespace(wait=wait))
        monkeypatch.setattr(started, "_ping_loop", lambda: None)  # answered at once
        started._watch()

    asyncio.run(scenario())
    assert set(waits) == {QUIET_TICKS * TICK_S}


def test_a_loop_that_hangs_ends_the_process(ended: Exit) -> None:
    assert run_watched(ended, lambda _: ended.wait()) == [LOOP_HANGS]


async def until_ended(ended: Exit) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not ended.lines:  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(TICK_S)


def test_a_scheduler_that_hangs_ends_the_process_and_is_not_alive(ended: Exit) -> None:
    alive: list[bool] = []

    async def scenario() -> None:
        with watched(ended, ping_scheduler=lambda _: True, on_alive=lambda: alive.append(True)):
            alive.clear()  # of the start
            await until_ended(ended)

    asyncio.run(scenario())
    assert (ended.lines, alive) == ([LOOP_HANGS], [])


@pytest.mark.parametrize(("within_ticks", "quiet_ticks"), [(None, 5), (60, 5), (10, 5), (6, 3), (2, 1), (1, 1)])
def test_the_process_shows_twice_in_the_given_time_that_it_is_alive(
    ended: Exit, within_ticks: int | None, quiet_ticks: int
) -> None:
    within_s = None if within_ticks is None else within_ticks * TICK_S
    assert make_watchdog(ended, alive_within_s=within_s)._quiet_ticks == quiet_ticks


def test_a_loop_that_waits_for_a_thread_that_died_ends_the_process(
    ended: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_dead_thread(_: Watchdog) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading, START_FUNCTION, lambda *_, **__: None)
            thread = threading.Thread()
            monkeypatch.setattr(thread._started, "wait", ended.wait)  # type: ignore[attr-defined]
            thread.start()

    assert run_watched(ended, wait_for_dead_thread) == [OUT_OF_MEMORY]


def test_a_busy_loop_that_is_seen_in_several_thread_starts_is_not_out_of_memory(
    ended: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "_thread_start", lambda _: object())
    assert run_watched(ended, lambda _: ended.wait()) == [LOOP_HANGS]


def test_a_node_that_does_not_stop_ends_the_process(ended: Exit) -> None:
    async def scenario() -> None:
        with watched(ended) as started:
            started.expect_stop(drain_s=3 * TICK_S)
            await until_ended(ended)

    asyncio.run(scenario())
    assert ended.lines == [STOP_HANGS]


def out_of_memory(*_: object) -> None:
    raise MemoryError


class Unraisable:
    def __del__(self) -> None:
        raise MemoryError


def in_callback() -> None:
    asyncio.get_running_loop().call_soon(out_of_memory)


def in_thread() -> None:
    thread = threading.Thread(target=out_of_memory)
    start_thread(thread)
    thread.join()


def in_destructor() -> None:
    Unraisable()


def in_log() -> None:
    try:
        out_of_memory()
    except MemoryError:
        logging.getLogger("svcnode").exception("scheduled callback failed")


@pytest.mark.parametrize("fail", [in_callback, in_thread, in_destructor, in_log])
def test_a_memory_error_that_nothing_handles_ends_the_process(ended: Exit, fail: Callable[[], None]) -> None:
    assert run_watched(ended, lambda _: fail())[:1] == [OUT_OF_MEMORY]


def test_the_watchdog_itself_without_memory_ends_the_process(ended: Exit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "bytes", out_of_memory, raising=False)
    monkeypatch.setattr(Watchdog, "_on_memory_error", lambda self: self._exit(OUT_OF_MEMORY))
    with pytest.raises(MemoryError):
        make_watchdog(ended)
    monkeypatch.delattr(watchdog, "bytes")
    started = make_watchdog(ended)
    monkeypatch.setattr(started._closed, "wait", out_of_memory)
    with pytest.raises(SystemExit):
        started._run()
    assert ended.lines == [OUT_OF_MEMORY]


def test_other_errors_are_reported_as_before(
    ended: Exit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_type))
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    before = sys.unraisablehook, threading.excepthook

    class Broken:
        def __del__(self) -> None:
            raise KeyError

    def fail(_: Watchdog) -> None:
        asyncio.get_running_loop().call_soon({}.popitem)
        Broken()
        thread = threading.Thread(target=lambda: 1 / 0)
        start_thread(thread)
        thread.join()

    assert run_watched(ended, fail) == []
    assert reported == [KeyError, ZeroDivisionError]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]
    assert (sys.unraisablehook, threading.excepthook) == before


EXIT = "from svcnode.agent.watchdog import OUT_OF_MEMORY, exit_now; exit_now(OUT_OF_MEMORY)"


def test_the_process_ends_with_one_line_also_if_the_log_is_not_read() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (1, OUT_OF_MEMORY)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    try:
        done = subprocess.run([sys.executable, "-c", EXIT], stderr=writer, timeout=DEADLINE_S, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 1


SPIN = """
import asyncio
from svcnode.agent import watchdog

async def spin():
    watchdog.LOOP_CPU_S = 0.2
    watchdog.Watchdog(lambda answer: False, tick_s=3600.0).start()
    while True:
        pass

asyncio.run(spin())
"""


def test_an_interpreter_that_loops_is_ended_by_the_kernel_and_says_where() -> None:
    done = subprocess.run([sys.executable, "-c", SPIN], stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert done.returncode == -signal.SIGPROF
    assert b"in spin" in done.stderr
