"""What there is to tell about: the node, its services, and targets that fail. Changes come in; there is no I/O.

Until its start limit, a service that has not been Up is starting: neither worse nor better. The node is starting while
only starting services keep it from being healthy: it is not worse, and it is better only if no critical service is
unknown. During maintenance and a drain, a subject is held: at the end, it is seen as it is then. The node is also held
while maintenance alone explains its health.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from svcnode.core.model import ChangeKind, Health, Impact, Status
from svcnode.core.state_machine import service_health
from svcnode.notify.rule import Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Change, Service, ServiceState
    from svcnode.node.node_state import NodeState


class Key(NamedTuple):
    """Of a subject. The name is the id of a service or the name of a target."""

    type: Literal["node", "service", "target"]
    name: str = ""


NODE = Key("node")


class Severity(Enum):
    WARNING = "warning"
    CRITICAL = "critical"  # the node is 503, or a critical service is Down


class Subject:
    def __init__(self, key: Key, now_s: float, service: Service | None = None) -> None:
        self.key = key
        self.service = service  # None: the node or a target
        self.created_at_s = now_s
        self.was_up = False
        self.seen = Seen(Health.HEALTHY, now_s, is_starting=True)

    def severity(self, health: Health) -> Severity | None:
        """Of this health, which need not be the present one. None: there is no problem."""
        if health is Health.HEALTHY:
            return None
        is_critical = self.key == NODE or (self.service is not None and self.service.impact is Impact.CRITICAL)
        return Severity.CRITICAL if is_critical and health is Health.UNHEALTHY else Severity.WARNING


class _NotUp(Enum):
    """Why a service that counts is not Up."""

    FAILING = "failing"  # also without evidence at the start limit
    STARTING = "starting"
    IN_MAINTENANCE = "in maintenance"  # or it was not Up when its maintenance began


class Subjects:
    """The subjects of one node. A service that is Down at the start is a new problem."""

    def __init__(
        self, node: NodeState, start_limit_s: float, now_s: float, on_seen: Callable[[Subject, float], None]
    ) -> None:
        """`on_seen` is called with each subject that may have changed, and the time."""
        self._registry = node
        self._start_limit_s = start_limit_s
        self._on_seen = on_seen
        self._condition = node.condition
        self.node = Subject(NODE, now_s)
        self._subjects: dict[Key, Subject] = {NODE: self.node}
        self._not_up: dict[str, _NotUp] = {}  # the services that count
        self._causes: Counter[_NotUp] = Counter()  # how many there are of each
        self._starting: dict[str, float] = {}  # when their start limit ends
        self._unknown: set[str] = set()  # critical services without evidence: they may be Down
        self.due_at_s = math.inf  # when the next start limit ends, at the earliest
        self._see_all(now_s)

    def find(self, key: Key) -> Subject | None:
        return self._subjects.get(key)

    def all(self) -> tuple[Subject, ...]:
        return tuple(self._subjects.values())

    @property
    def not_up(self) -> list[str]:
        """The services that keep the node from being healthy, except those in maintenance."""
        return [service_id for service_id, cause in self._not_up.items() if cause is not _NotUp.IN_MAINTENANCE]

    # ---- what happens

    def record_change(self, change: Change, service: Service | None) -> None:
        """`service` is its current definition, if the change is a registration, a replacement or maintenance."""
        was_draining, self._condition = self._condition.draining, self._registry.condition
        subject = None if change.service_id is None else self._subjects.get(Key("service", change.service_id))
        if was_draining is not self._condition.draining or (
            change.service_id is None and change.kind in (ChangeKind.MAINTENANCE, ChangeKind.MAINTENANCE_ENDED)
        ):
            self._see_all(change.at_s)
        elif change.kind is ChangeKind.DEREGISTERED and subject is not None:
            self._remove(subject, change.at_s)
        elif service is not None and change.after is not None:
            self._see_service(service, change.after, change.at_s)
        elif change.kind is ChangeKind.STATUS and subject is not None and subject.service is not None and change.after:
            self._see_service(subject.service, change.after, change.at_s)
        self._see_node(change.health, change.at_s)

    def end_starts(self, now_s: float) -> None:
        """Services that are not Up at their start limit are problems, although nothing has changed."""
        if now_s < self.due_at_s:
            return
        overdue = [service_id for service_id, end_s in self._starting.items() if end_s <= now_s]
        for service_id in overdue:
            if (found := self._registry.find(service_id)) is not None:
                self._see_service(*found, now_s)
        self.due_at_s = min(self._starting.values(), default=math.inf)
        if overdue:
            self._see_node(self._registry.health, now_s)

    def set_start_limit(self, start_limit_s: float, now_s: float) -> None:
        if start_limit_s != self._start_limit_s:
            self._start_limit_s = start_limit_s
            self._see_all(now_s)

    def see_target(self, name: str, reason: str, code: str | None, now_s: float) -> None:
        """Of a target that has failed for long; without a reason, it works again."""
        key = Key("target", name)
        if not reason and key not in self._subjects:
            return
        subject = self._subjects.setdefault(key, Subject(key, now_s))
        subject.seen = Seen(Health.PARTIAL if reason else Health.HEALTHY, now_s, reason, code)
        self._on_seen(subject, now_s)

    # ---- how it is seen

    def _see_all(self, now_s: float) -> None:
        for service, state in self._registry:
            self._see_service(service, state, now_s)
        self._see_node(self._registry.health, now_s)

    def _see_service(self, service: Service, state: ServiceState, now_s: float) -> None:
        key = Key("service", service.id)
        subject = self._subjects.get(key)
        if subject is None:
            subject = self._subjects[key] = Subject(key, now_s, service)
        subject.service = service
        subject.was_up = subject.was_up or state.status is Status.UP
        # After a restart, a service may have been registered long ago.
        started_s = max(state.registered_at_s, subject.created_at_s) + service.policy.start_period_s
        limit_s = started_s + self._start_limit_s
        is_new = state.status is Status.INITIALIZING and state.last_ready_at_s is None
        is_starting = is_new and now_s < limit_s
        is_known = not is_new or (state.last_evidence_at_s is not None and not is_starting)
        is_held = self._condition.draining or self._registry.maintenance.at(service.id, now_s) is not None
        if is_held:
            is_well = state.status is Status.UP and subject.seen.health is Health.HEALTHY
            subject.seen = subject.seen._replace(is_held=True, is_removed=False)
            cause = None if is_well else _NotUp.IN_MAINTENANCE
        else:
            subject.seen = Seen(
                service_health(state.status),
                state.since_s,
                state.reason,
                str(state.code),
                state.first_failure_at_s,
                is_starting=is_starting,
                is_known=is_known,
            )
            cause = None if state.status is Status.UP else _NotUp.STARTING if is_starting else _NotUp.FAILING
        self._set_cause(service.id, cause if service.affects_health else None)
        self._unknown.discard(service.id)
        if service.impact is Impact.CRITICAL and not is_known:
            self._unknown.add(service.id)
        self._starting.pop(service.id, None)
        if is_starting and not is_held:
            self._starting[service.id] = limit_s
            self.due_at_s = min(self.due_at_s, limit_s)
        self._on_seen(subject, now_s)

    def _remove(self, subject: Subject, now_s: float) -> None:
        self._set_cause(subject.key.name, None)
        self._starting.pop(subject.key.name, None)
        self._unknown.discard(subject.key.name)
        subject.seen = Seen(Health.HEALTHY, now_s, is_removed=True)
        del self._subjects[subject.key]
        self._on_seen(subject, now_s)

    def _set_cause(self, service_id: str, cause: _NotUp | None) -> None:
        if (before := self._not_up.pop(service_id, None)) is not None:
            self._causes[before] -= 1
        if cause is not None:
            self._not_up[service_id] = cause
            self._causes[cause] += 1

    def _see_node(self, health: Health, now_s: float) -> None:
        causes = self._causes
        is_failing = bool(causes[_NotUp.FAILING] or self._condition.issues)
        is_in_maintenance = self._registry.maintenance.at(None, now_s) is not None
        is_held = self._condition.draining or is_in_maintenance
        if is_held or (causes[_NotUp.IN_MAINTENANCE] and not is_failing):
            self.node.seen = self.node.seen._replace(is_held=True)
        else:
            is_same = health is self.node.seen.health
            self.node.seen = Seen(
                health,
                self.node.seen.since_s if is_same else now_s,
                is_starting=health is not Health.HEALTHY and not is_failing,
                is_known=not self._unknown,
            )
        self._on_seen(self.node, now_s)
