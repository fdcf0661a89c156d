"""When to look: every service on its own interval, one look at a time, each with a deadline.

The supervisor follows the node: a service registered, redefined or removed while it runs starts, restarts or stops its
own looks and nobody else's. It only ever reports; what a verdict means is the rules' business.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Outcome, Verdict

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.definition import Watch
    from svcnode.node import Node

FIRST_LOOKS_WITHIN_S = 2.0
SETTLE_EVERY_S = 0.5
JITTER = 0.05  # of the interval, either way, so that services with one interval do not march in step

_REDEFINING = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.supervisor")


class Supervisor:
    """Looks for as long as its `async with` block runs."""

    def __init__(self, node: Node, chance: random.Random | None = None) -> None:
        self._node = node
        self._chance = chance or random.Random()  # noqa: S311  it spreads load, it guards nothing
        self._looking: dict[str, tuple[Watch, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._is_running = True
        self._unsubscribe = self._node.subscribe(self._heard)
        self._settling = self._loop.create_task(self._keep_settled(), name="svcnode settle")
        watched = [service.id for service, _ in self._node if self._node.watch(service.id) is not None]
        for place, service_id in enumerate(watched):
            self._follow(service_id, first_look_in_s=FIRST_LOOKS_WITHIN_S * place / len(watched))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unsubscribe()
        self._is_running = False  # a change heard just now has its `_follow` still to come
        tasks = [self._settling, *(task for _, task in self._looking.values())]
        self._looking.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _heard(self, change: Change) -> None:
        # Called on whichever thread made the change.
        if change.kind in _REDEFINING and change.service_id is not None:
            self._loop.call_soon_threadsafe(self._follow, change.service_id)

    def _follow(self, service_id: str, first_look_in_s: float = 0.0) -> None:
        """Bring the looking in line with what the node now says of a service."""
        wanted = self._node.watch(service_id) if self._is_running else None
        watch, task = self._looking.get(service_id, (None, None))
        if wanted == watch:
            return
        if task is not None:
            task.cancel()
            del self._looking[service_id]
        if wanted is not None:
            task = self._loop.create_task(
                self._keep_looking(service_id, wanted, first_look_in_s), name=f"svcnode watch {service_id}"
            )
            self._looking[service_id] = (wanted, task)

    async def _keep_settled(self) -> None:
        """Let silence be heard by those who follow the changes, even when nobody asks."""
        while True:
            await asyncio.sleep(SETTLE_EVERY_S)
            self._node.settle()

    async def _keep_looking(self, service_id: str, watch: Watch, first_look_in_s: float) -> None:
        schedule = watch.schedule
        is_probe_sound = True
        seen = Outcome.READY
        due_s = self._loop.time() + first_look_in_s
        while not _is_cancelled():  # by itself that ends the wait, unless a probe swallows it
            await asyncio.sleep(due_s - self._loop.time())
            began_s, began_at_s = self._loop.time(), self._node.now_s()
            verdict, fault = await _look(watch)
            if fault is not None and is_probe_sound:  # once, not at every interval
                log.error("the probe of service %r failed by itself", service_id, exc_info=fault)
            is_probe_sound = fault is None
            if verdict.outcome is not seen:  # each change once; what it comes to is the node's to say
                reason = f": {verdict.reason}" if verdict.reason else ""
                log.info("service %s %s%s", service_id, _SPOKEN[verdict.outcome], reason)
            seen = verdict.outcome
            # What was removed or redefined while we looked is not what we saw; `_follow` is about to end this.
            if self._node.watch(service_id) == watch:
                with suppress(UnknownServiceError):
                    # Dated when it began: what was seen cannot be older, and may not be any newer.
                    duration_s = self._loop.time() - began_s
                    self._node.report(service_id, verdict, duration_s=duration_s, at_s=began_at_s)
            due_s = began_s + schedule.interval_s * (1 + self._chance.uniform(-JITTER, JITTER))


_SPOKEN = {
    Outcome.READY: "passed a look",
    Outcome.NOT_READY: "says that it is not ready",
    Outcome.FAILED: "failed a look",
    Outcome.UNKNOWN: "could not be looked at",
}


async def _look(watch: Watch) -> tuple[Verdict, BaseException | None]:
    """The verdict, and the probe's own fault where that is why there is none."""
    timeout_s = watch.schedule.timeout_s
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await watch.probe.look(), None
    except asyncio.CancelledError as exc:
        if _is_cancelled():
            raise
        return Verdict.unknown("the probe itself failed: what it waited for was cancelled"), exc
    except Exception as exc:  # noqa: BLE001  whatever a probe does, the looking goes on
        if deadline.expired():
            return Verdict.failed(f"no answer within {timeout_s:g} s"), None
        return Verdict.unknown(f"the probe itself failed: {type(exc).__name__}: {exc}"), exc


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, as opposed to something it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class SupervisorThread:
    """A supervisor on an event loop and a thread of its own, for programs that have no loop."""

    def __init__(self, node: Node) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(node,), name="svcnode supervisor", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self, node: Node) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._look_until_stopped(node))

    async def _look_until_stopped(self, node: Node) -> None:
        async with node.supervised():
            await self._stopping.wait()
