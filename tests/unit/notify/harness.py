"""A node with an alert engine in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from svcnode.core.model import Maintenance, Verdict
from svcnode.node.definition import define
from svcnode.node.node_state import Handle
from svcnode.notify.alert import AlertPolicy
from svcnode.notify.engine import AlertEngine
from svcnode.probes.function import FunctionProbe
from tests.support.nodes import make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Change
    from svcnode.node.definition import Definition
    from svcnode.notify.alert import AlertChange, ChangeType
    from svcnode.notify.engine import Notification

ImpactName = Literal["critical", "partial", "none"]

GROUP_WAIT_S, RESOLVE_DELAY_S = 5.0, 300.0
POLICY = AlertPolicy(group_wait_s=GROUP_WAIT_S, resolve_delay_s=RESOLVE_DELAY_S)


class Harness:
    """A node whose services a test sets, and all notifications about it. Its steps can be chained."""

    def __init__(self, policy: AlertPolicy = POLICY, *, is_starting: bool = False) -> None:
        self.clock = VirtualClock(1000.0)
        self.node = make_node("validator-7", version="v1.4.2", starting=is_starting, clock=self.clock)
        self.policy = policy
        self.engine = AlertEngine(policy, self.node, self.clock.now_s)
        self.notifications: list[Notification] = []
        self.node.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        found = None if change.service_id is None else self.node.find(change.service_id)
        self.engine.record_change(change, None if found is None else found[0], self.node.condition.issues)

    def add(self, *service_ids: str, impact: ImpactName = "critical", up: bool = True) -> Self:
        for service_id in service_ids:
            handle = self.node.register(service_id, name=service_id, description="", impact=impact)
            if up:
                handle.up()
        return self

    def up(self, *service_ids: str) -> Self:
        for service_id in service_ids:
            record(self.node, service_id, Verdict.ready())
        return self

    def down(self, *service_ids: str, reason: str = "refused") -> Self:
        for service_id in service_ids:
            Handle(self.node, service_id).down(reason)
        return self

    def starting(self, service_id: str, reason: str = "loading") -> Self:
        Handle(self.node, service_id).initializing(reason)
        return self

    def wait(self, seconds: float) -> Self:
        end_s = self.clock.now_s + seconds
        while (next_s := min(self.engine.due_at_s, self.node.next_expiry_at_s)) <= end_s:
            self.clock.now_s = max(self.clock.now_s, next_s)
            self.node.expire_stale()
            self._record(self.engine.take_due(self.clock.now_s))
        self.clock.now_s = end_s
        return self

    def restart(self, *, is_confirmed: bool) -> Self:
        """The process is killed and starts again."""
        incidents = [replace(one, is_confirmed=is_confirmed) for one in self.engine.incidents().values()]
        self.engine = AlertEngine(self.policy, self.node, self.clock.now_s)
        self.engine.restore(incidents, self.clock.now_s)
        return self

    def maintain(self, service_id: str | None, for_s: float) -> Self:
        self.node.maintenance.set(Maintenance("control", self.clock.now_s + for_s), service_id)
        return self

    def flap(self, *, times: int, every_s: float = 30.0) -> Self:
        for _ in range(times):
            self.down("db").wait(every_s).up("db").wait(every_s)
        return self

    def stop(self) -> Self:
        self._record(self.engine.take_all(self.clock.now_s))
        return self

    def _record(self, notification: Notification | None) -> None:
        if notification is not None:
            self.notifications.append(notification)

    @property
    def last(self) -> Notification:
        return self.notifications[-1]


def change_types(notification: Notification) -> dict[str | None, ChangeType]:
    """The change types of a notification by service id; the node is None."""
    changes = (*([notification.node] if notification.node else []), *notification.services)
    return {change.service.id if change.service else None: change.change_type for change in changes}


def change_of(notification: Notification, service_id: str) -> AlertChange:
    (found,) = (one for one in notification.services if one.service and one.service.id == service_id)
    return found


def definition_with_a_new_probe(service_id: str, impact: ImpactName = "critical") -> Definition:
    """One check is enough for any status, and its evidence is valid for 7 days."""
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
