"""When to look: every service on its own interval, one look at a time, each with a deadline.

The supervisor follows the node: a service registered, redefined or removed while it runs starts, restarts or stops its
own looks and nobody else's. It only ever reports; what a verdict means is the rules' business.

Looks in flight have places, and there are only so many. Those that took long last time share a quarter of them, so that
however many services hang, the others find a place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

from svcnode.core import rules
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.probes.tools.steps import step_cut_short

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.definition import Watch
    from svcnode.node import Node
    from svcnode.probes import Probe

FIRST_LOOKS_WITHIN_S = 2.0
SETTLE_EVERY_S = 0.5
JITTER = 0.05  # of the interval, either way, so that services with one interval do not march in step
LOOKS_AT_ONCE = 1024
SLOW_LOOK_S = 0.25
SLOW_SHARE = 4  # a quarter of the places is for slow looks
LATE_S = 0.1
LATENESS_TOLD_EVERY_S = 60.0

_REDEFINING = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.supervisor")


class _Look(NamedTuple):
    verdict: Verdict
    fault: BaseException | None
    began_s: float  # by the loop's clock
    began_at_s: float  # by the node's
    duration_s: float


class Supervisor:
    """Looks for as long as its `async with` block runs."""

    def __init__(self, node: Node, chance: random.Random | None = None, *, looks_at_once: int = LOOKS_AT_ONCE) -> None:
        self._node = node
        self._chance = chance or random.Random()  # noqa: S311  it spreads load, it guards nothing
        self._looking: dict[str, tuple[Watch, asyncio.Task[None]]] = {}
        self._places = asyncio.Semaphore(looks_at_once)
        self._slow_places = asyncio.Semaphore(max(1, looks_at_once // SLOW_SHARE))
        self._looks = self._late_looks = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._is_running = True
        self._unsubscribe = self._node.subscribe(self._heard)
        self._chores = [
            self._loop.create_task(self._keep_settled(), name="svcnode settle"),
            self._loop.create_task(self._keep_telling_lateness(), name="svcnode lateness"),
        ]
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
        tasks = [*self._chores, *(task for _, task in self._looking.values())]
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

    async def _keep_telling_lateness(self) -> None:
        while True:
            await asyncio.sleep(LATENESS_TOLD_EVERY_S)
            if self._late_looks:
                log.warning(
                    "%d of %d looks began more than %g ms late: this process has too much to do, or too much is slow",
                    self._late_looks,
                    self._looks,
                    LATE_S * 1000,
                )
            self._looks = self._late_looks = 0

    async def _keep_looking(self, service_id: str, watch: Watch, first_look_in_s: float) -> None:
        schedule = watch.schedule
        is_probe_sound, is_slow = True, False
        seen = Outcome.READY
        due_s = self._loop.time() + first_look_in_s
        while not _is_cancelled():  # by itself that ends the wait, unless a probe swallows it
            await asyncio.sleep(due_s - self._loop.time())
            look = await self._look_in_its_place(service_id, watch, due_s, is_slow=is_slow)
            is_slow = look.duration_s > SLOW_LOOK_S
            if look.fault is not None and is_probe_sound:  # once, not at every interval
                log.error("the probe of service %r failed by itself", service_id, exc_info=look.fault)
            is_probe_sound = look.fault is None
            if look.verdict.outcome is not seen:  # each change once; what it comes to is the node's to say
                seen = look.verdict.outcome
                reason = f": {look.verdict.reason}" if look.verdict.reason else ""
                log.info("service %s %s%s", service_id, _SPOKEN[seen], reason)
            wait_s = schedule.wait_s(is_change_pending=self._report(service_id, watch, look))
            due_s = max(look.began_s + wait_s * (1 + self._chance.uniform(-JITTER, JITTER)), self._loop.time())

    async def _look_in_its_place(self, service_id: str, watch: Watch, due_s: float, *, is_slow: bool) -> _Look:
        if is_slow:
            async with self._slow_places, self._places:
                return await self._look(service_id, watch, due_s)
        async with self._places:
            return await self._look(service_id, watch, due_s)

    async def _look(self, service_id: str, watch: Watch, due_s: float) -> _Look:
        began_s, began_at_s = self._loop.time(), self._node.now_s()
        self._note_begin(service_id, began_s - due_s)
        verdict, fault = await look_once(watch.probe, watch.schedule.timeout_s, watch.max_latency_s)
        return _Look(verdict, fault, began_s, began_at_s, self._loop.time() - began_s)

    def _note_begin(self, service_id: str, late_s: float) -> None:
        self._looks += 1
        if late_s > LATE_S:
            self._late_looks += 1

    def _report(self, service_id: str, watch: Watch, look: _Look) -> bool:
        """Returns whether a change of status is pending now."""
        # What was removed or redefined while we looked is not what we saw; `_follow` is about to end this.
        if self._node.watch(service_id) != watch:
            return False
        try:
            # Dated when it began: what was seen cannot be older, and may not be any newer.
            state = self._node.report(service_id, look.verdict, duration_s=look.duration_s, at_s=look.began_at_s)
        except UnknownServiceError:
            return False
        return rules.is_change_pending(state)


_SPOKEN = {
    Outcome.READY: "passed a look",
    Outcome.NOT_READY: "says that it is not ready",
    Outcome.FAILED: "failed a look",
    Outcome.UNKNOWN: "could not be looked at",
}


async def look_once(
    probe: Probe, timeout_s: float, max_latency_s: float | None = None
) -> tuple[Verdict, BaseException | None]:
    """The verdict, and the probe's own fault where that is why there is none. No reason holds a secret."""
    time = asyncio.get_running_loop().time
    began_s = time()
    verdict, fault = await _look(probe, timeout_s)
    if max_latency_s is not None and verdict.outcome is Outcome.READY and time() - began_s > max_latency_s:
        verdict = Verdict.not_ready(f"slow: it took {time() - began_s:.3g} s, max_latency is {max_latency_s:g} s")
    if verdict.reason:
        verdict = Verdict(verdict.outcome, redacted(verdict.reason))
    return verdict, fault


async def _look(probe: Probe, timeout_s: float) -> tuple[Verdict, BaseException | None]:
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await probe.look(), None
    except asyncio.CancelledError as exc:
        if _is_cancelled():
            raise
        return Verdict.unknown("the probe itself failed: what it waited for was cancelled"), exc
    except Exception as exc:  # noqa: BLE001  whatever a probe does, the looking goes on
        if deadline.expired():
            return _too_late(timeout_s, step_cut_short(exc.__cause__)), None
        return Verdict.unknown(f"the probe itself failed: {type(exc).__name__}: {exc}"), exc


def _too_late(timeout_s: float, step: str | None) -> Verdict:
    if step == "resolve":  # the resolver is ours, and says nothing about the service
        return Verdict.unknown(f"the resolver did not answer within {timeout_s:g} s")
    return Verdict.failed(f"no answer within {timeout_s:g} s" + (f", in its step {step}" if step else ""))


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
