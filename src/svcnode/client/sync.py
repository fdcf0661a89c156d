"""The client for programs without an event loop: the other one, on a thread of its own.

Only so does its timeout hold for an operation as a whole: a call that blocks bounds each step, and a node that drips
its answer byte by byte takes as many steps as it likes.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from svcnode.client.address import DEFAULT_PREFIX
from svcnode.client.aio import DEFAULT_TIMEOUT_S, AsyncClient
from svcnode.client.loops import PromptLoop

if TYPE_CHECKING:
    import os
    from collections.abc import Coroutine

    from svcnode.client.results import BackingService
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
        self._asking = AsyncClient(
            url, prefix=prefix, version=version, timeout=timeout, retries=retries, ca=ca, trust_env=trust_env
        )
        self._thread = _LoopThread(self._asking)
        # A client that is forgotten without having been closed ends as well.
        self._end = weakref.finalize(self, self._thread.end)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Fit to be shown: without the password, and without the prefix."""
        return self._asking.url

    @property
    def root(self) -> str:
        """What the paths of the interface stand under, prefix and all; fit to be shown."""
        return self._asking.root

    @property
    def tolerated(self) -> tuple[str, ...]:
        """What was not as the interface has it, and was understood nevertheless: each thing once, in order."""
        return self._asking.tolerated

    def identity(self) -> Identity:
        return self._thread.run(self._asking.identity())

    def health(self) -> Health:
        return self._thread.run(self._asking.health())

    def services(self) -> tuple[BackingService, ...]:
        return self._thread.run(self._asking.services())

    def service_health(self, service_id: str) -> Health:
        return self._thread.run(self._asking.service_health(service_id))

    def close(self) -> None:
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LoopThread:
    """Begins with the first operation; ends what is still under way when it ends."""

    def __init__(self, asking: AsyncClient) -> None:
        self._asking = asking
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ended = False
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_ended:
                operation.close()
                raise RuntimeError("the client is closed")
            if self._thread is None:
                self._begin()
            outcome = asyncio.run_coroutine_threadsafe(operation, self._loop)
        try:
            return outcome.result()
        except CancelledError:
            raise RuntimeError("the client was closed") from None
        finally:
            outcome.cancel()  # the wait for it was interrupted

    def _begin(self) -> None:
        begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(begun,), name="svcnode client", daemon=True)
        self._thread.start()
        begun.result()

    def _serve(self, begun: Future[None]) -> None:
        async def stay() -> None:
            self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
            async with self._asking:
                begun.set_result(None)
                await self._stopped.wait()

        with asyncio.Runner(loop_factory=PromptLoop) as runner:
            runner.run(stay())

    def end(self) -> None:
        with self._lock:
            self._is_ended = True
            if self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stopped.set)
        if threading.current_thread() is not self._thread:  # a forgotten client may end anywhere
            self._thread.join()
