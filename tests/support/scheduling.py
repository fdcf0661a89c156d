"""Probes that do as they are told and keep a diary, and a node that is looked at in virtual time, without chance."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Verdict
from svcnode.node import Node
from svcnode.scheduler import ProbeScheduler
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Callable


READY = Verdict.ready()
FAILED = Verdict.failed("refused")
HUNG_S = 3600.0


class NoJitter(random.Random):
    """Every draw falls in the middle, so that an interval is exactly as long as it says."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def now_s() -> float:
    return asyncio.get_running_loop().time()


def block_loop(by_s: float) -> None:
    """As a callback does that takes so long: the time goes by, and nobody else has a turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


@dataclass(eq=False)
class ConcurrencyCounter:
    """How many looks are in flight, and how many ever were at once."""

    open_buckets: int = 0
    peak: int = 0

    def add(self) -> None:
        self.open_buckets += 1
        self.peak = max(self.peak, self.open_buckets)

    def leave(self) -> None:
        self.open_buckets -= 1


@dataclass(eq=False)
class ScriptedProbe:
    """Sees what it is told to, takes as long as it is told to, and keeps a diary."""

    verdict: Verdict = READY
    duration_s: float = 0.0
    error: BaseException | None = None
    started_at_s: list[float] = field(default_factory=list)
    cancelled_at_s: list[float] = field(default_factory=list)
    concurrency: ConcurrencyCounter = field(default_factory=ConcurrencyCounter)  # its own, or one that it shares

    async def check(self) -> Verdict:
        self.started_at_s.append(now_s())
        self.concurrency.add()
        try:
            await asyncio.sleep(self.duration_s)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        finally:
            self.concurrency.leave()
        return self.verdict

    @property
    def intervals_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.started_at_s)]


@dataclass(eq=False)
class CancelSwallowingProbe:
    """Answers its cancellation in its own way."""

    on_cancel: Callable[[], Verdict]

    async def check(self) -> Verdict:
        try:
            await asyncio.sleep(4.0)
        except asyncio.CancelledError:
            return self.on_cancel()
        return READY


def raise_cleanup_error() -> Verdict:
    raise RuntimeError("cleaning up failed")


@dataclass(eq=False)
class CancelIgnoringProbe:
    """Does not hear that it is cut off until it was told so often, as drivers do that lose a cancellation."""

    ignored_cancels: int
    ended_at_s: list[float] = field(default_factory=list)

    async def check(self) -> Verdict:
        for _ in range(self.ignored_cancels):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            await asyncio.sleep(HUNG_S)
        finally:
            self.ended_at_s.append(now_s())
        return READY


def make_node() -> Node:
    return Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)


def make_scheduler(node: Node, *, max_concurrent_checks: int = 1024) -> ProbeScheduler:
    return ProbeScheduler(node, NoJitter(), max_concurrent_checks=max_concurrent_checks)


def register_many(node: Node, count: int, probe: Callable[[], ScriptedProbe], **words: Any) -> list[ScriptedProbe]:
    probes = [probe() for _ in range(count)]
    for one in probes:
        node.register(f"svc-{len(node)}", probe=one, **words)
    return probes


def running_checks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
