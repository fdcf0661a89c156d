"""The alerts of a node: its subjects, and a route to each target. Changes and times come in; there is no I/O."""

from __future__ import annotations

import json
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from svcnode.core.model import ChangeKind, Health
from svcnode.core.state_machine import common_fault, node_health_with_reason, service_health
from svcnode.notify.causes import Related, Relations
from svcnode.notify.outages import MAX_TRANSITIONS, OutageLog
from svcnode.notify.record import from_row
from svcnode.notify.routes import NodeView, Route, Situation
from svcnode.notify.rule import Seen
from svcnode.notify.subjects import NODE, Key, Subject, Subjects
from svcnode.probes.base import UrlProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from svcnode.core.model import Change, Service
    from svcnode.node.node_state import NodeState
    from svcnode.notify.outages import PastTransitions
    from svcnode.notify.record import Record
    from svcnode.notify.routes import AlertPolicy, AlertView, RouteSettings
    from svcnode.notify.turns import SharedTarget

_NONE_SHARED: Mapping[Route, SharedTarget] = MappingProxyType({})

log = logging.getLogger("svcnode.notify")


class Alerts:
    def __init__(self, node: NodeState, settings: Sequence[RouteSettings], policy: AlertPolicy, now_s: float) -> None:
        self._node = node
        self.outages = OutageLog()
        self._relations = Relations(lambda: (service for service, _ in node), self._find)
        self.routes: list[Route] = []
        self.subjects = Subjects(node, policy.start_limit_s, now_s, self._see)
        self.apply(settings, policy, now_s)

    def apply(self, settings: Sequence[RouteSettings], policy: AlertPolicy, now_s: float) -> None:
        """A target that stays keeps what it was told; a new one is told what is wrong."""
        self.subjects.set_start_limit(policy.start_limit_s, now_s)
        before = {route.settings.id: route for route in self.routes}
        names = {route.settings.name for route in self.routes}
        self.routes = [self._route(one, before.get(one.id), policy, now_s) for one in settings]
        for name in names - {route.settings.name for route in self.routes}:
            self.subjects.see_target(name, "", None, now_s)  # it fails no longer

    def _route(self, settings: RouteSettings, route: Route | None, policy: AlertPolicy, now_s: float) -> Route:
        if route is not None:
            route.apply(settings, policy, now_s)
            return route
        route = Route(settings, policy, now_s, NodeView(self._node.wall_time_s, self._look, self._relations))
        for subject in self.subjects.all():
            route.see(subject, now_s)
        return route

    # ---- what happens

    def record_change(self, change: Change, service: Service | None) -> None:
        if change.kind in (ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED):
            self._relations.forget(service)
        self.subjects.record_change(change, service)

    def _see(self, subject: Subject, at_s: float) -> None:
        self.outages.see(subject, at_s)
        for route in self.routes:
            route.see(subject, at_s)

    def _look(self, subject: Subject) -> Seen:
        """As it is now: the reason may have changed since its status has."""
        if subject.key == NODE:
            health, reason = self._node_health()
            return Seen(health, subject.seen.since_s, reason)
        found = self._node.find(subject.key.name) if subject.key.type == "service" else None
        if found is None:
            return subject.seen
        state = found[1]
        health = service_health(state.status)
        host = self._host(subject.key.name)
        return Seen(health, state.since_s, state.reason, str(state.code), state.first_failure_at_s, host=host)

    def _find(self, service_id: str) -> Related | None:
        found, made = self._node.find(service_id), self._node.acknowledgements.find(service_id)
        return None if found is None else Related(found[0], service_health(found[1].status), made is not None)

    def _host(self, service_id: str) -> str:
        config = self._node.probe_config(service_id)
        return config.probe.url.host if config is not None and isinstance(config.probe, UrlProbe) else ""

    def _node_health(self) -> tuple[Health, str]:
        services = list(self._node)
        fault = common_fault(state for _, state in services)
        return node_health_with_reason(
            [(service, state.status) for service, state in services], self._node.condition, fault
        )

    # ---- what is shown

    def find(self, service_id: str | None) -> AlertView:
        """Of a service or of the node, for the target that was told the worst."""
        key = NODE if service_id is None else Key("service", service_id)
        return max((route.view(key) for route in self.routes), key=lambda view: (view.told, -view.due_at_s))

    def situation(self) -> Situation:
        not_up = [found[0] for key in self.subjects.not_up if (found := self._node.find(key)) is not None]
        seen, (health, reason) = self.subjects.node.seen, self._node_health()
        return Situation(
            health=health,
            reason=reason if health is not Health.HEALTHY else "",
            issues=self._node.condition.issues,
            not_up=tuple(not_up),
            held_by="maintenance" if seen.is_held else "the start" if seen.is_starting else "",
            acknowledgement=self._node.acknowledgements.find(),
        )

    # ---- across a restart

    def _from_wall(self, now_s: float) -> Callable[[float], float]:
        """Converts a time of the wall clock, which is not in the future, to one of the node's clock."""
        wall_s = self._node.wall_time_s(now_s)
        return lambda at_s: now_s - max(0.0, wall_s - at_s)

    async def load_outages(self, history: PastTransitions | None, since_s: float) -> None:
        """Count the outages of the past, too, if there is a history."""
        found = [] if history is None else await history.load_latest(MAX_TRANSITIONS)
        now_s, since_wall_s = self._node.now_s(), self._node.wall_time_s(since_s)
        past = [one for one in found if one.at_s < since_wall_s]
        self.outages.start(since_s, past, self._from_wall(now_s))

    def to_json(self, now_s: float, shared: Mapping[Route, SharedTarget] = _NONE_SHARED) -> str:
        return json.dumps({"targets": [self._to_json(route, shared.get(route), now_s) for route in self.routes]})

    def _to_json(self, route: Route, shared: SharedTarget | None, now_s: float) -> dict[str, Any]:
        own = [] if shared is None else [*shared.own]
        return {"target": route.settings.id, "told": route.to_rows(now_s), "own": own}

    def restore(self, text: str | None, now_s: float, shared: Mapping[Route, SharedTarget] = _NONE_SHARED) -> None:
        """An invalid text, or one of an earlier version, is ignored: open problems are told once more."""
        if text is None:
            return
        try:
            document = json.loads(text)
            saved = [
                (one["target"], self.records(one["told"], now_s), {Key(*key) for key in one.get("own", ())})
                for one in document["targets"]
            ]
        except (KeyError, TypeError, ValueError) as exc:
            text = "invalid saved notification state: %s; open problems may be reported again"
            log.warning(text, exc, extra={"event": "notification_state_invalid"})
            return
        routes = {route.settings.id: route for route in self.routes}
        for target_id, records, own in saved:
            if route := routes.get(target_id):
                if (target := shared.get(route)) is not None:
                    target.restore(records, own, now_s)
                else:
                    for record in records:
                        route.restore(record, now_s)

    def records(self, rows: Iterable[dict[str, Any]], now_s: float) -> list[Record]:
        """Of what was saved, here or by another replica. Raises KeyError, TypeError or ValueError if it is invalid."""
        from_wall = self._from_wall(now_s)
        return [from_row(row, self.subjects.find, from_wall, now_s) for row in rows]


def empty_state() -> str:
    return json.dumps({"targets": []})
