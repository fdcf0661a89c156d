"""One look at one node or at many: who it is, how it is, which services it has."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ClientError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from svcnode.client import AsyncClient, BackingService, Identity

# Nodes asked at the same time, each on one connection. All at once as far as files can be opened: one that hangs keeps
# its place for the whole of its timeout, and must keep nobody waiting.
MAX_AT_ONCE = 1000
_OTHER_FILES = 50


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


async def look_at(client: AsyncClient, timeout_s: float, began_s: float | None = None) -> Look:
    """Never raises a ClientError; `began_s`, by the clock of the loop, is when the timeout began, if not now."""
    clock = asyncio.get_running_loop().time
    began_s = clock() if began_s is None else began_s
    told: dict[str, Any] = {}
    errors: list[ClientError] = []
    try:
        async with asyncio.timeout_at(began_s + timeout_s):
            for what, ask in (("identity", client.identity), ("health", client.health), ("services", client.services)):
                try:
                    told[what] = await ask()
                except (UnreachableError, VersionNotFoundError) as exc:
                    errors.append(exc)
                    break  # the others would say the same
                except ClientError as exc:
                    errors.append(exc)
    except TimeoutError:
        errors.append(UnreachableError(f"no whole answer from {client.url} within {timeout_s:g} s"))
    return Look(url=client.url, errors=tuple(errors), tolerated=client.tolerated, duration_s=clock() - began_s, **told)


async def look_at_all(
    clients: Sequence[AsyncClient], timeout_s: float, *, on_look: Callable[[Look], object] = lambda _: None
) -> list[Look]:
    """In the order of the clients, each of which is closed; `on_look` is told of every look as soon as it is done."""
    places = asyncio.Semaphore(places_at_once())

    async def look(client: AsyncClient) -> Look:
        async with places, client:
            began_s = asyncio.get_running_loop().time()
            await asyncio.sleep(0)  # so that all who have a place begin before the first of them works
            seen = await look_at(client, timeout_s, began_s)
        on_look(seen)
        return seen

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(look(client)) for client in clients]
    return [task.result() for task in tasks]


def places_at_once() -> int:
    """Asks for as many files as we may have; often, fewer are given unasked."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_AT_ONCE + _OTHER_FILES
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return MAX_AT_ONCE if allowed == resource.RLIM_INFINITY else max(1, min(MAX_AT_ONCE, allowed - _OTHER_FILES))
