"""A node whose changes are told, with hours in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from svcnode.core.model import Verdict
from svcnode.definition import define
from svcnode.node import Node
from svcnode.notify.engine import AlertEngine
from svcnode.notify.settings import AlertPolicy
from svcnode.probes.function import FunctionProbe
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Change
    from svcnode.definition import Definition
    from svcnode.notify.model import AlertChange, ChangeType, Notification

ImpactWord = Literal["critical", "partial", "none"]

GROUP_S, QUIET_S = 5.0, 300.0
MANNERS = AlertPolicy(group_wait_s=GROUP_S, resolve_delay_s=QUIET_S)


class World:
    """A node whose services are set by hand, and everything that was told about it."""

    def __init__(self, manners: AlertPolicy = MANNERS, *, is_starting: bool = False) -> None:
        self.clock = VirtualClock(1000.0)
        self.node = Node("validator-7", version="v1.4.2", starting=is_starting, clock=self.clock)
        self.rules = AlertEngine(manners, self.clock.now_s)
        self.rules.start(self.node, self.node.health, (), self.clock.now_s)
        self.told: list[Notification] = []
        self.node.subscribe(self._heard)

    def _heard(self, change: Change) -> None:
        found = None if change.service_id is None else self.node.find(change.service_id)
        self.rules.record_change(change, None if found is None else found[0], self.node.condition.issues)

    def add(self, *service_ids: str, impact: ImpactWord = "critical", up: bool = True) -> None:
        for service_id in service_ids:
            handle = self.node.register(service_id, name=service_id, description="", impact=impact)
            if up:
                handle.up()

    def up(self, *service_ids: str) -> None:
        for service_id in service_ids:
            self.node.record(service_id, Verdict.ready())

    def down(self, *service_ids: str, why: str = "refused") -> None:
        for service_id in service_ids:
            self.node.handle(service_id).down(why)

    def starting(self, service_id: str, why: str = "loading") -> None:
        self.node.handle(service_id).initializing(why)

    def wait(self, seconds: float) -> None:
        end_s = self.clock.now_s + seconds
        while (next_s := min(self.rules.due_at_s, self.node.next_expiry_at_s)) <= end_s:
            self.clock.now_s = max(self.clock.now_s, next_s)
            self.node.expire_stale()
            self._record(self.rules.take_due(self.clock.now_s))
        self.clock.now_s = end_s

    def stop(self) -> None:
        self._record(self.rules.take_all(self.clock.now_s))

    def _record(self, news: Notification | None) -> None:
        if news is not None:
            self.told.append(news)

    @property
    def last(self) -> Notification:
        return self.told[-1]


def turns(news: Notification) -> dict[str | None, ChangeType]:
    """What a message says, by id; the node is None."""
    items = (*([news.node] if news.node else []), *news.services)
    return {item.service.id if item.service else None: item.change_type for item in items}


def item(news: Notification, service_id: str) -> AlertChange:
    (found,) = (one for one in news.services if one.service and one.service.id == service_id)
    return found


def flap(world: World, *, times: int, every_s: float = 30.0) -> None:
    for _ in range(times):
        world.down("db")
        world.wait(every_s)
        world.up("db")
        world.wait(every_s)


def definition_with_a_new_probe(service_id: str, impact: ImpactWord = "critical") -> Definition:
    """One report is enough for any status, and holds for long."""
    return define(
        service_id,
        name=service_id,
        description="",
        impact=impact,
        probe=FunctionProbe(lambda: None),
        rise=1,
        fall=1,
        start_period="0s",
        stale_after="7d",
    )
