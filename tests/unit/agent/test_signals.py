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

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in HANDLED]
    yield
    for number, handler in zip(HANDLED, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The results of the next calls of `has_terminal`."""
    results: list[bool] = []
    monkeypatch.setattr(module, "has_terminal", lambda: results.pop(0))
    return results


@pytest.mark.parametrize(
    ("ignore_hangup", "has_terminal"),
    [
        pytest.param(False, [False], id="no terminal"),
        pytest.param(True, [], id="under nohup"),
        pytest.param(False, [True, True], id="a terminal that stays"),
    ],
)
@in_virtual_time
async def test_sighup_requests_a_reload(ignore_hangup: bool, has_terminal: list[bool], terminal: list[bool]) -> None:
    terminal += has_terminal
    signals = Signals(ignore_hangup=ignore_hangup)
    with signals.installed():
        signal.raise_signal(signal.SIGHUP)
        await signals.reload_requested.wait()
    assert not signals.stop_requested.is_set()


@in_virtual_time
async def test_sighup_of_a_closed_terminal_requests_a_stop(terminal: list[bool]) -> None:
    terminal += [True, False]
    signals = Signals(ignore_hangup=False)
    with signals.installed():
        signal.raise_signal(signal.SIGHUP)
        await signals.stop_requested.wait()
    assert not signals.reload_requested.is_set()


@in_virtual_time
async def test_the_second_stop_signal_cancels_the_task() -> None:
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
