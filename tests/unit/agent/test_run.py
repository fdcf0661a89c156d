"""Running the agent: the last log lines before exit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from svcnode import agent
from svcnode.logs import FLUSH_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restore_switch_interval() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.parametrize(
    ("code", "timeout_s"), [(0, FLUSH_TIMEOUT_S), (1, FLUSH_TIMEOUT_S), (143, agent.FORCED_LOG_FLUSH_S)]
)
def test_a_forced_stop_waits_only_briefly_for_an_unread_log(
    code: int, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve() -> int:
        return code

    waited_s: list[float] = []
    monkeypatch.setattr(agent, "flush_logs", waited_s.append)
    assert agent.run_until_complete(serve()) == code
    assert waited_s == [timeout_s]
    assert agent.FORCED_LOG_FLUSH_S < FLUSH_TIMEOUT_S
