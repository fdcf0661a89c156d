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
from svcnode.supervisor import Supervisor
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Callable


READY = Verdict.ready()
FAILED = Verdict.failed("refused")
HUNG_S = 3600.0


class NoChance(random.Random):
    """Every draw falls in the middle, so that an interval is exactly as long as it says."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def now_s() -> float:
    return asyncio.get_running_loop().time()


def hold_up(by_s: float) -> None:
    """As a callback does that takes so long: the time goes by, and nobody else has a turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


@dataclass(eq=False)
class Crowd:
    """How many looks are in flight, and how many ever were at once."""

    running: int = 0
    most: int = 0

    def enter(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def leave(self) -> None:
        self.running -= 1


@dataclass(eq=False)
class ScriptedProbe:
    """Sees what it is told to, takes as long as it is told to, and keeps a diary."""

    verdict: Verdict = READY
    takes_s: float = 0.0
    error: BaseException | None = None
    began_at_s: list[float] = field(default_factory=list)
    cancelled_at_s: list[float] = field(default_factory=list)
    crowd: Crowd = field(default_factory=Crowd)  # its own, or one that it shares

    async def look(self) -> Verdict:
        self.began_at_s.append(now_s())
        self.crowd.enter()
        try:
            await asyncio.sleep(self.takes_s)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        finally:
            self.crowd.leave()
        return self.verdict

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.began_at_s)]


@dataclass(eq=False)
class StubbornProbe:
    """Answers its cancellation in its own way."""

    answer: Callable[[], Verdict]

    async def look(self) -> Verdict:
        try:
            await asyncio.sleep(4.0)
        except asyncio.CancelledError:
            return self.answer()
        return READY


def fails() -> Verdict:
    raise RuntimeError("cleaning up failed")


@dataclass(eq=False)
class DeafProbe:
    """Does not hear that it is cut off until it was told so often, as drivers do that lose a cancellation."""

    deaf_times: int
    ended_at_s: list[float] = field(default_factory=list)

    async def look(self) -> Verdict:
        for _ in range(self.deaf_times):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            await asyncio.sleep(HUNG_S)
        finally:
            self.ended_at_s.append(now_s())
        return READY


def a_node() -> Node:
    return Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)


def supervising(node: Node, *, looks_at_once: int = 1024) -> Supervisor:
    return Supervisor(node, NoChance(), looks_at_once=looks_at_once)


def register_many(node: Node, count: int, probe: Callable[[], ScriptedProbe], **words: Any) -> list[ScriptedProbe]:
    probes = [probe() for _ in range(count)]
    for one in probes:
        node.register(f"svc-{len(node)}", probe=one, **words)
    return probes


def looks_under_way() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
