"""Running the agent: its file descriptors, its store and secrets, and the last log lines before exit."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent import agent
from svcnode.agent.agent import RESERVED_FDS, Agent, allocate_fds, exempt_from_collection
from svcnode.agent.logs import FLUSH_TIMEOUT_S
from svcnode.config import load
from svcnode.core.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNLIMITED = resource.RLIM_INFINITY
NEEDED_FDS = 4096 + 8192 + RESERVED_FDS


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


class NoThread:
    """A runner that cannot start the thread that waits for the threads of its executor."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def __enter__(self) -> asyncio.Runner:
        return self._runner.__enter__()

    def __exit__(self, *args: Any) -> None:
        self._runner.__exit__(*args)
        raise RuntimeError("can't start new thread")


def test_the_exit_code_does_not_change_if_the_end_has_no_thread_left_but_an_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve() -> int:
        return 0

    async def fail() -> int:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        agent.run_until_complete(fail())
    runner = asyncio.Runner
    monkeypatch.setattr(asyncio, "Runner", lambda **options: NoThread(runner(**options)))
    assert agent.run_until_complete(serve()) == 0


def test_the_secrets_of_a_configuration_are_forgotten_at_the_reload_after_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[[services]]\nid = "db"\nprobe = { url = "http://127.0.0.1:9", bearer = "${TOKEN}" }\n')
    settings = [load(file, {"HOME": "/nowhere", "TOKEN": f"token/{number}"}) for number in range(3)]
    running = Agent(settings[0], lambda: settings[0])
    shown = []
    for old in settings[:2]:
        running._forget_secrets_of(old)
        shown.append(redacted("token/0 token/1 token/2"))
    assert shown == ["*** *** ***", "token/0 *** ***"]


def test_a_store_on_a_mount_that_hangs_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_back = threading.Event()
    monkeypatch.setattr(agent, "STORE_TIMEOUT_S", 0.01)
    monkeypatch.setattr("svcnode.agent.store.is_missing", lambda _: is_back.wait(30))
    settings = load(None, {"HOME": str(tmp_path)})
    asyncio.run(Agent(settings, lambda: settings)._prepare_store(settings))
    is_back.set()
    assert [record.__dict__["event"] for record in caplog.records if record.levelname == "ERROR"] == ["store_failed"]


@pytest.mark.parametrize(
    ("soft", "hard", "shares", "raised_to"),
    [
        (1024, 20_000, (4096, 8192), NEEDED_FDS),
        (1024, UNLIMITED, (4096, 8192), NEEDED_FDS),
        (1024, 8192, (4096, 3968), 8192),
        (1024, 2048, (1440, 480), 2048),
        (1024, 1024, (672, 224), None),
        (128, 128, (1, 1), None),
        (64, 64, (1, 1), None),
        (20_000, 20_000, (4096, 8192), None),
        (UNLIMITED, UNLIMITED, (4096, 8192), None),
    ],
)
def test_connections_and_checks_share_the_file_descriptors(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    shares: tuple[int, int],
    raised_to: int | None,
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert allocate_fds() == shares
    assert raised == ([] if raised_to is None else [(raised_to, hard)])


@pytest.mark.parametrize(("limit", "shares"), [(20_000, []), (1024, [(224, 672)]), (128, [(1, 1)])])
def test_the_log_says_what_fewer_file_descriptors_allow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: int, shares: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    allocate_fds()
    logged = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [(record.__dict__["checks"], record.__dict__["connections"]) for record in logged] == shares


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_collections_search_what_is_new_and_not_what_was_exempted_from_them() -> None:
    kept, garbage = _Cycle(), weakref.ref(_Cycle())
    try:
        exempt_from_collection()
        assert garbage() is None, "garbage is not exempted"
        assert not any(found is kept for found in gc.get_objects())
        new = _Cycle()
        assert any(found is new for found in gc.get_objects())
    finally:
        gc.unfreeze()
