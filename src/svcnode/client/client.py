"""The client for programs without an event loop: an AsyncClient on its own thread.

Blocking sockets would not do: their timeout limits one read, not the whole operation, so a node that sends its response
byte by byte would never time out.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from svcnode.client.async_client import DEFAULT_MAX_RESPONSE, DEFAULT_TIMEOUT_S, AsyncClient
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnreachableError
from svcnode.core.model import DEFAULT_PREFIX
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from svcnode.client.parse import BackingService
    from svcnode.core.model import Health, Identity

T = TypeVar("T")


class Client:
    """Sends requests to one node, from any thread. Options and operations are those of AsyncClient."""

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        version: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT_S,
        max_response: str = DEFAULT_MAX_RESPONSE,
        retries: int = 0,
        ca: str | os.PathLike[str] | ssl.SSLContext | None = None,
        trust_env: bool = False,
    ) -> None:
        self._async_client = AsyncClient(
            url,
            prefix=prefix,
            version=version,
            timeout=timeout,
            max_response=max_response,
            retries=retries,
            ca=ca,
            trust_env=trust_env,
        )
        self._loop_threads = _LoopThreads(self._async_client)
        # Closes the client also if the program does not.
        self._finalizer = weakref.finalize(self, self._loop_threads.close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Without the password and the prefix."""
        return self._async_client.url

    @property
    def root(self) -> str:
        """The URL with the prefix, without the password."""
        return self._async_client.root

    @property
    def deviations(self) -> tuple[str, ...]:
        """Deviations from the interface in the responses so far: each once, in order."""
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
    """One thread per process, because a fork copies no threads, and copies locks as they are, perhaps locked.

    A child does not close the loop of its parent: both share its epoll instance, and closing it in the child would
    break it in the parent.
    """

    def __init__(self, async_client: AsyncClient) -> None:
        self._async_client = async_client
        self._by_process: dict[int, _LoopThread] = {}

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        return self._current().run(operation)

    def close(self) -> None:
        self._current().close()

    def _current(self) -> _LoopThread:
        process = os.getpid()
        if process not in self._by_process:
            is_closed = any(thread.is_closed for thread in self._by_process.values())
            # If several threads get here at once, the first one wins; the objects of the others are not started.
            self._by_process.setdefault(process, _LoopThread(self._async_client, is_closed=is_closed))
        return self._by_process[process]


class _LoopThread:
    """Starts with the first operation; `close` cancels the operations that are running."""

    def __init__(self, async_client: AsyncClient, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self._async_client = async_client
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop_event: asyncio.Event

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        try:
            with self._lock:
                self._ensure_started()
                future = asyncio.run_coroutine_threadsafe(operation, self._loop)
        except BaseException:
            operation.close()  # it did not start
            raise
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the client was closed") from None
        finally:
            future.cancel()  # no effect unless the wait was interrupted

    def _ensure_started(self) -> None:
        if self.is_closed:
            raise RuntimeError("the client is closed")
        if self._thread is not None:
            return
        started: Future[None] = Future()
        thread = threading.Thread(target=self._run_loop, args=(started,), name="svcnode client", daemon=True)
        try:
            self._loop = DaemonResolverLoop()  # here, so that the caller gets the error if no file can be opened
        except OSError as exc:
            raise self._resource_error(os_error_text(exc)) from exc
        try:
            thread.start()
        except RuntimeError as exc:
            self._loop.close()
            raise self._resource_error(str(exc)) from exc
        started.result()
        self._thread = thread

    def _resource_error(self, problem: str) -> UnreachableError:
        return UnreachableError(problem, url=self._async_client.url, code=ReasonCode.RESOURCE_EXHAUSTED)

    def _run_loop(self, started: Future[None]) -> None:
        async def run_until_stopped() -> None:
            self._stop_event = asyncio.Event()
            async with self._async_client:
                started.set_result(None)
                await self._stop_event.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(run_until_stopped())

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            if self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stop_event.set)
        if threading.current_thread() is not self._thread:  # the finalizer may run on any thread
            self._thread.join()
