"""The client for programs without an event loop: the other one, on a thread of its own.

Only so does its timeout hold for an operation as a whole: a call that blocks bounds each step, and a node that drips
its answer byte by byte takes as many steps as it likes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from svcnode.client.address import DEFAULT_PREFIX
from svcnode.client.async_client import DEFAULT_TIMEOUT_S, AsyncClient
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.errors import UnreachableError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from svcnode.client.parse import BackingService
    from svcnode.core.model import Health, Identity

T = TypeVar("T")


class Client:
    """Asks one node, from any thread; for all else, see AsyncClient, whose options and operations it has."""

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        version: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT_S,
        retries: int = 0,
        ca: str | os.PathLike[str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self._async_client = AsyncClient(
            url, prefix=prefix, version=version, timeout=timeout, retries=retries, ca=ca, trust_env=trust_env
        )
        self._loop_threads = _LoopThreads(self._async_client)
        # A client that is forgotten without having been closed ends as well.
        self._finalizer = weakref.finalize(self, self._loop_threads.close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Fit to be shown: without the password, and without the prefix."""
        return self._async_client.url

    @property
    def root(self) -> str:
        """What the paths of the interface stand under, prefix and all; fit to be shown."""
        return self._async_client.root

    @property
    def deviations(self) -> tuple[str, ...]:
        """What was not as the interface has it, and was understood nevertheless: each thing once, in order."""
        return self._async_client.deviations

    def identity(self) -> Identity:
        return self._loop_threads.run(self._async_client.identity())

    def health(self) -> Health:
        return self._loop_threads.run(self._async_client.health())

    def services(self) -> tuple[BackingService, ...]:
        return self._loop_threads.run(self._async_client.services())

    def service_health(self, service_id: str) -> Health:
        return self._loop_threads.run(self._async_client.service_health(service_id))

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LoopThreads:
    """One for each process: a fork takes no threads along, but it does take locks, which may then be held for ever.

    That of the process which forked is kept, and left alone: its loop and ours share what the system knows of it, so
    that closing it here would leave it deaf there.
    """

    def __init__(self, asking: AsyncClient) -> None:
        self._async_client = asking
        self._by_process: dict[int, _LoopThread] = {}

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        return self._current().run(operation)

    def close(self) -> None:
        self._current().close()

    def _current(self) -> _LoopThread:
        process = os.getpid()
        if process not in self._by_process:
            is_ended = any(one.is_closed for one in self._by_process.values())
            # Of threads that come here at once, one is first; what the others made has not begun, and is forgotten.
            self._by_process.setdefault(process, _LoopThread(self._async_client, is_closed=is_ended))
        return self._by_process[process]


class _LoopThread:
    """Begins with the first operation; ends what is still under way when it ends."""

    def __init__(self, asking: AsyncClient, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self._async_client = asking
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop_event: asyncio.Event

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        try:
            with self._lock:
                self._ensure_started()
                outcome = asyncio.run_coroutine_threadsafe(operation, self._loop)
        except BaseException:
            operation.close()  # it did not begin
            raise
        try:
            return outcome.result()
        except CancelledError:
            raise RuntimeError("the client was closed") from None
        finally:
            outcome.cancel()  # the wait for it was interrupted

    def _ensure_started(self) -> None:
        if self.is_closed:
            raise RuntimeError("the client is closed")
        if self._thread is not None:
            return
        begun: Future[None] = Future()
        thread = threading.Thread(target=self._run_loop, args=(begun,), name="svcnode client", daemon=True)
        try:
            self._loop = DaemonResolverLoop()  # here, where somebody hears of it if no more files can be opened
        except OSError as exc:
            raise self._unreachable_error(os_error_text(exc)) from exc
        try:
            thread.start()
        except RuntimeError as exc:
            self._loop.close()
            raise self._unreachable_error(str(exc)) from exc
        begun.result()
        self._thread = thread

    def _unreachable_error(self, why: str) -> UnreachableError:
        return UnreachableError(f"cannot reach {self._async_client.url}: {why}")

    def _run_loop(self, begun: Future[None]) -> None:
        async def stay() -> None:
            self._stop_event = asyncio.Event()
            async with self._async_client:
                begun.set_result(None)
                await self._stop_event.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(stay())

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            if self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stop_event.set)
        if threading.current_thread() is not self._thread:  # a forgotten client may end anywhere
            self._thread.join()
