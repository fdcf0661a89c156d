"""A node with its alerts in virtual time."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from svcnode.core.model import Acknowledgement, Maintenance, Verdict
from svcnode.core.state_machine import service_health
from svcnode.node.definition import define
from svcnode.node.node_state import Handle
from svcnode.notify.alerts import Alerts
from svcnode.notify.content import find_help
from svcnode.notify.message import MessageContext, build_message
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.probes.function import FunctionProbe
from tests.support.nodes import make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Change
    from svcnode.node.definition import Definition
    from svcnode.notify.routes import Entry, Report, Route
    from svcnode.notify.rule import Kind
    from svcnode.notify.targets import DeliveryError, Message

ImpactName = Literal["critical", "partial", "none"]

GROUP_WAIT_S, RESOLVE_DELAY_S, START_LIMIT_S = 5.0, 300.0, 300.0
STARTED_AT_S = 1_767_225_600.0  # the start of 2026 at the virtual time 0


class FakeTarget:
    fingerprint = "0"
    resend_interval_s: ClassVar[float | None] = None

    def __init__(self, name: str = "chat") -> None:
        self.name = name
        self.is_failing = False
        self.reports: list[Report] = []

    async def deliver(self, message: Message) -> DeliveryError | None:
        raise NotImplementedError


class FakeAlertmanager(FakeTarget):
    resend_interval_s: ClassVar[float | None] = 60.0


class Harness:
    """A node whose services a test sets, and all messages about it. Its steps can be chained."""

    def __init__(self, policy: AlertPolicy | None = None, *targets: FakeTarget, **route: Any) -> None:
        self.clock = VirtualClock(1000.0)
        self.wall = VirtualClock(STARTED_AT_S - 1000.0)
        self.policy = policy or AlertPolicy()
        self.targets = targets or (FakeTarget(),)
        self.routes = [RouteSettings(target=target, **route) for target in self.targets]
        self.retry_at_s: dict[str, float] = {}
        self.saved: str | None = None
        self.start()

    def start(self) -> None:
        clock = self.clock
        self.node = make_node("validator-7", version="v1.4.2", clock=clock, wall_clock=lambda: self.wall() + clock())
        self.alerts = Alerts(self.node, self.routes, self.policy, clock.now_s)
        self.node.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        found = None if change.service_id is None else self.node.find(change.service_id)
        self.alerts.record_change(change, None if found is None else found[0])

    def restart(self, *service_ids: str, is_killed: bool = True) -> Self:
        """The process ends and starts again, with these services."""
        if not is_killed:
            for route in self.alerts.routes:
                self._send(route, is_final=True)
            self.saved = self.alerts.to_json(self.clock.now_s)
        self.start()
        self.add(*service_ids, up=False)
        self.alerts.restore(self.saved, self.clock.now_s)
        return self

    # ---- the services

    def add(self, *service_ids: str, impact: ImpactName = "critical", up: bool = True, **more: Any) -> Self:
        for service_id in service_ids:
            handle = self.node.register(service_id, name=service_id, description="", impact=impact, **more)
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

    def remove(self, service_id: str) -> Self:
        self.node.deregister(service_id)
        return self

    def maintain(self, service_id: str | None, for_s: float) -> Self:
        self.node.maintenance.set(Maintenance("control", self.clock.now_s + for_s), service_id)
        return self

    def acknowledge(self, service_id: str | None, *, for_s: float | None = None) -> Self:
        """Until the problem has cleared, or for some seconds."""
        wall_s = self.node.wall_time_s(self.clock.now_s)
        found = None if service_id is None else self.node.find(service_id)
        health = self.node.health if found is None else service_health(found[1].status)
        until_s = None if for_s is None else wall_s + for_s
        self.node.acknowledgements.make(Acknowledgement(health, wall_s, until_s, "ops", "disk ordered"), service_id)
        return self

    def flap(self, *, times: int, every_s: float = 30.0) -> Self:
        for _ in range(times):
            self.down("db").wait(every_s).up("db").wait(every_s)
        return self

    # ---- the messages

    def wait(self, seconds: float) -> Self:
        end_s = self.clock.now_s + seconds
        while (next_s := self._next_s()) <= end_s:
            self.clock.now_s = max(self.clock.now_s, next_s)
            self.node.expire_stale()
            self.alerts.subjects.end_starts(self.clock.now_s)
            for route in self.alerts.routes:
                if self._due_s(route) <= self.clock.now_s:
                    self._send(route)
        self.clock.now_s = end_s
        return self

    def _next_s(self) -> float:
        dues_s = [self._due_s(route) for route in self.alerts.routes]
        return min(*dues_s, self.node.next_expiry_at_s, self.alerts.subjects.due_at_s)

    def _due_s(self, route: Route) -> float:
        return max(route.due_at_s, self.retry_at_s.get(route.settings.target.name, -math.inf))

    def _send(self, route: Route, *, is_final: bool = False) -> None:
        report = route.report(self.clock.now_s, is_final=is_final)
        target = route.settings.target
        assert isinstance(target, FakeTarget)
        if report is None:
            assert route.due_at_s > self.clock.now_s or is_final, "due, but there is nothing to say"
        elif target.is_failing:
            route.failed(self.clock.now_s)
            self.retry_at_s[target.name] = self.clock.now_s + 60.0
        else:
            route.delivered(report, self.clock.now_s)
            target.reports.append(report)
            self.retry_at_s.pop(target.name, None)
        self.saved = self.alerts.to_json(self.clock.now_s)

    @property
    def reports(self) -> list[Report]:
        return self.targets[0].reports

    @property
    def last(self) -> Report:
        return self.reports[-1]

    @property
    def kinds(self) -> list[dict[str, Kind]]:
        return [kinds(report) for report in self.reports]

    def message(self, *, message_id: str = "0f0f", page_url: str = "") -> Message:
        """The last one as it is sent now, with all that helps."""
        context = MessageContext(
            identity=self.node.identity,
            situation=self.alerts.situation(),
            to_wall=self.node.wall_time_s,
            find_help=partial(find_help, node=self.node, outages=self.alerts.outages),
            page_url=page_url,
        )
        return build_message(self.last, context, message_id)

    def times_s(self) -> list[float]:
        return [report.at_s for report in self.reports]


def kinds(report: Report) -> dict[str, Kind]:
    """What a message says, by service id; the node is "node"."""
    return {entry.subject.key.name or "node": entry.kind for entry in report.entries}


def entry_of(report: Report, name: str) -> Entry:
    (found,) = (entry for entry in report.entries if (entry.subject.key.name or "node") == name)
    return found


def definition_with_a_new_probe(service_id: str, impact: ImpactName = "critical", **more: Any) -> Definition:
    """One check is enough for any status, and its evidence is valid for 7 days."""
    return define(
        service_id,
        name=service_id,
        description="",
        impact=impact,
        **{"probe": FunctionProbe(lambda: None), **more},
        rise=1,
        fall=1,
        start_period="0s",
        stale_after="7d",
    )
