"""What the process is told by signals, and what it makes of that."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from svcnode.agent import signals as module
from svcnode.agent.signals import Signals
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in HEEDED]
    yield
    for number, handler in zip(HEEDED, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there is one, each time that somebody asks."""
    answers: list[bool] = []
    monkeypatch.setattr(module, "has_terminal", lambda: answers.pop(0))
    return answers


@pytest.mark.parametrize(
    ("outlives_terminal", "has_terminal"),
    [
        pytest.param(False, [False], id="no terminal"),
        pytest.param(True, [], id="a terminal that does not matter"),
        pytest.param(False, [True, True], id="a terminal that stays"),
    ],
)
@in_virtual_time
async def test_a_hangup_asks_for_a_reload(
    outlives_terminal: bool, has_terminal: list[bool], terminal: list[bool]
) -> None:
    terminal += has_terminal
    signals = Signals(ignore_hangup=outlives_terminal)
    with signals.installed():
        signal.raise_signal(signal.SIGHUP)
        await signals.reload_requested.wait()
    assert not signals.stop_requested.is_set()


@in_virtual_time
async def test_the_end_of_its_terminal_asks_it_to_stop(terminal: list[bool]) -> None:
    terminal += [True, False]
    signals = Signals(ignore_hangup=False)
    with signals.installed():
        signal.raise_signal(signal.SIGHUP)
        await signals.stop_requested.wait()
    assert not signals.reload_requested.is_set()


@in_virtual_time
async def test_one_signal_asks_to_stop_and_a_second_ends_it_at_once() -> None:
    signals = Signals(ignore_hangup=True)

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


@in_virtual_time
async def test_in_the_end_signals_do_what_they_do_in_any_program() -> None:
    with Signals(ignore_hangup=True).installed():
        pass
    assert [signal.getsignal(number) for number in HEEDED] == [
        signal.SIG_DFL,
        signal.default_int_handler,
        signal.SIG_DFL,
    ]
