"""The history, the notifications and the operator surface of one node inside another program."""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.config import HistorySettings, embedded_history, embedded_notify
from svcnode.history import MAX_AGE_S, MAX_BYTES, History
from svcnode.history.follower import HistoryFollower
from svcnode.operator.surface import OperatorSurface

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from svcnode.agent.embed.stream import LoopStream
    from svcnode.node.checks import Checks
    from svcnode.node.node_state import NodeState
    from svcnode.notify.notifier import AlertStateStorage, NotifySettings
    from svcnode.operator.context import OperatorContext


class Runtime(NamedTuple):
    """What exists only while the checks run."""

    pid: int  # a fork copies the object, but not the event loop
    loop: asyncio.AbstractEventLoop
    context: OperatorContext


class Embedding:
    """Runs the history, the notifications and the operator surface for as long as the checks of the node run."""

    def __init__(self, node: NodeState, checks: Checks) -> None:
        self._node, self._checks = node, checks
        checks.while_running, checks.while_waiting = self.running, self.waiting
        self.surface = OperatorSurface(node, checks)
        self._history = HistorySettings(path=None, max_age_s=MAX_AGE_S, max_bytes=MAX_BYTES)
        self._notify: NotifySettings | None = None
        self._runtime: Runtime | None = None
        self._stops_at_exit = False
        self.open_streams: set[LoopStream] = set()  # used on the event loop of the checks only

    @property
    def runtime(self) -> Runtime | None:
        """None while the checks do not run in this process."""
        runtime = self._runtime  # another thread may set it to None
        is_running = runtime is not None and runtime.pid == os.getpid() and runtime.loop.is_running()
        return runtime if is_running else None

    def running(self, workers: AlertStateStorage | None = None) -> AbstractAsyncContextManager[None]:
        """Workers save the state of the notifications if there is no history file that does."""
        path, max_age_s, max_bytes, *_ = self._history
        history = History(self._node, path, max_age_s=max_age_s, max_bytes=max_bytes)
        return self._run(history, self._notify, workers if path is None else None)

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """Another worker writes the file and sends the messages."""
        path = self._history.path
        return self._run(History(self._node, None) if path is None else HistoryFollower(self._node, path))

    @asynccontextmanager
    async def _run(
        self, history: History, notify: NotifySettings | None = None, storage: AlertStateStorage | None = None
    ) -> AsyncIterator[None]:
        async with self.surface.recording(history) as context, self.surface.notifying(notify, storage):
            self._runtime = runtime = Runtime(os.getpid(), asyncio.get_running_loop(), context)
            try:
                yield
            finally:
                if self._runtime is runtime:  # not of a later start, if the event loop ended without this one
                    self._runtime = None
                for stream in tuple(self.open_streams):
                    stream.close()

    def record_history(self, options: Mapping[str, Any]) -> None:
        self._checks.require_not_running("record_history")
        self._history = embedded_history(options)
        self._stop_at_exit()

    def notify(self, options: Mapping[str, Any]) -> None:
        self._checks.require_not_running("notify")
        self._notify = embedded_notify(options, os.environ)
        self._stop_at_exit()

    def _stop_at_exit(self) -> None:
        """Checks in a background thread end with the process; the history and the messages need to be written."""
        if not self._stops_at_exit:
            self._stops_at_exit = True
            atexit.register(_stop, weakref.ref(self._checks))


def _stop(checks: weakref.ref[Checks]) -> None:
    if (alive := checks()) is not None:
        alive.stop()
