"""One look at one node or at many: who it is, how it is, which services it has."""

from __future__ import annotations

import asyncio
import math
import resource
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ClientError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status
from svcnode.terminal.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from svcnode.client import AsyncClient, BackingService, Identity

# Nodes asked at the same time. All at once as far as files can be opened: one that hangs keeps its place for the whole
# of its timeout, and must keep nobody waiting.
MAX_AT_ONCE = 1000
_OTHER_FILES = 50
_PATHS = {"identity": "/node", "health": "/node/health", "services": "/node/services"}
_OF_THE_WHOLE_NODE = (UnreachableError, VersionNotFoundError)
_HEAD_START = 0.25  # of the timeout: that long, a question has the node to itself


class Finding(IntEnum):
    """What a look came to; the value is the exit code, and the worst is the highest."""

    HEALTHY = 0
    PARTIAL = 1
    UNHEALTHY = 2
    UNCLEAR = 3


_FINDINGS = {
    Health.HEALTHY: Finding.HEALTHY,
    Health.PARTIAL: Finding.PARTIAL,
    Health.UNHEALTHY: Finding.UNHEALTHY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a node told; None where it told nothing."""

    url: str  # fit to be shown
    identity: Identity | None = None
    health: Health | None = None
    services: tuple[BackingService, ...] | None = None
    errors: tuple[ClientError, ...] = ()
    tolerated: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def is_told(self) -> bool:
        return any(part is not None for part in (self.identity, self.health, self.services))

    @property
    def is_reached(self) -> bool:
        return self.is_told or any(not isinstance(error, UnreachableError) for error in self.errors)

    @property
    def reasons(self) -> tuple[ClientError, ...]:
        """The errors to show. Where nothing could be had, one is enough: the others are of its kind."""
        return self.errors if self.is_told else self.errors[:1]

    @property
    def finding(self) -> Finding:
        """A 200 beside an answer that could not be had is no green light."""
        if self.errors or self.health is None:
            return Finding.UNCLEAR
        return _FINDINGS[self.health]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is no fault for sure, and worth a second look: the node may not count a service, or may not look."""
        not_up = sum(service.status in (Status.DOWN, Status.INITIALIZING) for service in self.services or ())
        if self.health is not Health.HEALTHY or not not_up:
            return ()
        return (f"it says 200 although {not_up} of its services {'is' if not_up == 1 else 'are'} not Up",)


async def look_at(client: AsyncClient, timeout_s: float, pulse: Pulse, began_s: float | None = None) -> Look:
    """Never raises for what a node does; `began_s`, by the clock of the loop, is when the timeout began, if not now."""
    clock = asyncio.get_running_loop().time
    began_s = clock() if began_s is None else began_s
    asking = _Asking(client, timeout_s, pulse, began_s)
    await asking.run()
    return asking.look(clock() - began_s)


class _Asking:
    """One question after another, on one connection; where one is kept waiting, the others do not wait for it."""

    def __init__(self, client: AsyncClient, timeout_s: float, pulse: Pulse, began_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._pulse = pulse
        self._began_s = began_s
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._unanswered: set[str] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for what in _PATHS:
                task = self._tasks[what] = loop.create_task(getattr(self._client, what)())
                await self._wait([task], loop.time() + self._timeout_s * _HEAD_START)
                if task.done() and not task.cancelled() and isinstance(task.exception(), _OF_THE_WHOLE_NODE):
                    return  # the others would say the same
            await self._wait(self._tasks.values(), math.inf)
        finally:
            self._unanswered = {what for what, task in self._tasks.items() if task.cancel() or task.cancelled()}
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _wait(self, tasks: Collection[asyncio.Task[Any]], until_s: float) -> None:
        await self._pulse.wait(tasks, min(until_s, self._began_s + self._timeout_s))

    def look(self, duration_s: float) -> Look:
        told: dict[str, Any] = {}
        errors: list[ClientError] = []
        for what, task in self._tasks.items():
            if what in self._unanswered:
                errors.append(self._no_answer(f"{self._client.root}{_PATHS[what]}"))
            elif (exc := task.exception()) is not None:
                errors.append(exc if isinstance(exc, ClientError) else _own_fault(exc))
            else:
                told[what] = task.result()
        if len(self._unanswered) == len(self._tasks):
            errors = [self._no_answer(self._client.url)]
        return Look(
            url=self._client.url,
            errors=tuple(errors),
            tolerated=self._client.tolerated,
            duration_s=duration_s,
            **told,
        )

    def _no_answer(self, where: str) -> ClientError:
        return UnreachableError(f"no whole answer from {where} within {self._timeout_s:g} s")


def _own_fault(exc: BaseException) -> ClientError:
    """What nobody has thought of must not take the other nodes along."""
    return ClientError(f"asking it failed by itself: {type(exc).__name__}: {exc}")


async def look_at_all(
    clients: Sequence[AsyncClient], timeout_s: float, *, on_look: Callable[[Look], object] = lambda _: None
) -> list[Look]:
    """In the order of the clients, each of which is closed; `on_look` is told of every look as soon as it is done."""
    places = asyncio.Semaphore(places_at_once())

    async def look(client: AsyncClient) -> Look:
        async with places, client:
            began_s = asyncio.get_running_loop().time()
            await asyncio.sleep(0)  # so that all who have a place begin before the first of them works
            seen = await look_at(client, timeout_s, pulse, began_s)
        on_look(seen)
        return seen

    with Pulse() as pulse:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(look(client)) for client in clients]
    return [task.result() for task in tasks]


def places_at_once() -> int:
    """Asks for as many files as we may have; often, fewer are given unasked."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_AT_ONCE * len(_PATHS) + _OTHER_FILES  # of a node that hangs, each question has a connection
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed == resource.RLIM_INFINITY:
        return MAX_AT_ONCE
    return max(1, min(MAX_AT_ONCE, (allowed - _OTHER_FILES) // len(_PATHS)))
