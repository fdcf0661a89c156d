from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from svcnode.agent import signals as module
from svcnode.agent.signals import Signals
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def make_signals(log_state: Callable[[], None] = lambda: None, *, ignore_hangup: bool = True) -> Signals:
    return Signals(ignore_hangup=ignore_hangup, log_state=log_state)


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in HANDLED]
    yield
    for number, handler in zip(HANDLED, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("ignore_hangup", "has_terminal", "is_reload"),
    [
        pytest.param(False, [False], True, id="no terminal"),
        pytest.param(True, [], True, id="under nohup"),
        pytest.param(False, [True, True], True, id="a terminal that stays"),
        pytest.param(False, [True, False], False, id="a closed terminal"),
    ],
)
@in_virtual_time
async def test_sighup_requests_a_reload_and_that_of_a_closed_terminal_a_stop(
    ignore_hangup: bool, has_terminal: list[bool], is_reload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_terminal", lambda: has_terminal.pop(0))
    signals = make_signals(ignore_hangup=ignore_hangup)
    requested, other = signals.reload_requested, signals.stop_requested
    if not is_reload:
        requested, other = other, requested
    with signals.installed():
        signal.raise_signal(signal.SIGHUP)
        await requested.wait()
    assert not other.is_set()


@in_virtual_time
async def test_the_handlers_from_before_are_back_after_the_block() -> None:
    """A signal that does not end the process before does not end it while it exits."""

    def do_nothing(*_: object) -> None:
        pass

    signal.signal(signal.SIGUSR1, do_nothing)
    before = [signal.getsignal(number) for number in HANDLED]
    with make_signals().installed():
        during = [signal.getsignal(number) for number in HANDLED]
    after = [signal.getsignal(number) for number in HANDLED]
    assert after == before
    assert all(handler not in during for handler in after)


@in_virtual_time
async def test_sigusr1_asks_for_the_state_each_time() -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()
    signals = make_signals(lambda: asked.put_nowait(None))
    with signals.installed():
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR1)
            await asked.get()
    assert not signals.stop_requested.is_set()
    assert not signals.reload_requested.is_set()


@in_virtual_time
async def test_the_second_stop_signal_cancels_the_task() -> None:
    signals = make_signals()

    async def serve() -> None:
        with signals.installed():
            signal.raise_signal(signal.SIGTERM)
            await signals.stop_requested.wait()
            assert signals.forced_by is None
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(serve())
    assert signals.forced_by is signal.SIGINT
