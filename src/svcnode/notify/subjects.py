"""What there is to tell about: the node, its issues and services, and targets that fail. Changes come in; there is no
I/O.

Until its start limit, a service that has not been Up is starting, which is neither worse nor better. The node is
starting while only starting services keep it from being healthy. It is then not worse, and it is better only if no
critical service is unknown. During maintenance and a drain, a subject is held: what it is like at the end is what
counts. The node is also held while maintenance alone explains its health.

The node is acknowledged if somebody has acknowledged it, or if every service that keeps it from being healthy is
acknowledged. An acknowledgement of the node covers the issues that it had at that time.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import ACKNOWLEDGEMENT_CHANGES, ChangeKind, Health, Impact, Status
from svcnode.core.state_machine import service_health
from svcnode.notify.rule import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from svcnode.core.model import Acknowledgement, Change, Service, ServiceState
    from svcnode.node.node_state import NodeState


class Key(NamedTuple):
    """Identifies a subject. The name is the id of a service, or the name of an issue or a target."""

    type: Literal["node", "issue", "service", "target"]
    name: str = ""


NODE = Key("node")
_SERVICE_CHANGES = (ChangeKind.STATUS, *ACKNOWLEDGEMENT_CHANGES)  # after which the definition is the same


class Severity(Enum):
    WARNING = "warning"
    CRITICAL = "critical"  # the node is 503, it has an issue, or a critical service is Down


class NotUp(Enum):
    """Why a service that counts is not Up."""

    FAILING = "failing"  # also without evidence at the start limit
    LOST = "lost"  # there is no evidence from other replicas
    ACKNOWLEDGED = "acknowledged"  # the same, and somebody takes care of it
    STARTING = "starting"
    IN_MAINTENANCE = "in maintenance"  # or it was not Up when its maintenance began


class Subject:
    def __init__(self, key: Key, now_s: float, service: Service | None = None) -> None:
        self.key = key
        self.service = service  # None: the node, an issue or a target
        self.created_at_s = now_s
        self.was_up = False
        self.seen = Seen(Health.HEALTHY, now_s, is_starting=True)
        self.not_up: NotUp | None = None  # None also if the service does not count
        self.is_unknown = False  # a critical service without evidence: it may be Down
        self.start_ends_at_s = math.inf  # while it is starting: when its start limit ends
        self.acknowledgement: Acknowledgement | None = None
        self.last_acknowledgement: Acknowledgement | None = None  # the same, or the one that has ended

    def acknowledge(self, made: Acknowledgement | None, *, is_over: bool) -> None:
        """None: nobody has, or that has ended, maybe because the problem is over."""
        self.acknowledgement = made
        self.last_acknowledgement = made or (self.last_acknowledgement if is_over else None)

    def severity(self, health: Health) -> Severity | None:
        """Of this health, which need not be the present one. None: there is no problem."""
        if health is Health.HEALTHY:
            return None
        is_of_node = self.key.type in ("node", "issue")
        is_critical = is_of_node or (self.service is not None and self.service.impact is Impact.CRITICAL)
        return Severity.CRITICAL if is_critical and health is Health.UNHEALTHY else Severity.WARNING


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
        self._issues: dict[Key, Subject] = {}  # few, and looked at with each change
        self._not_up: Counter[NotUp | None] = Counter()  # how many services there are of each
        self._unknown = 0  # how many services may be Down
        self.due_at_s = math.inf  # when the next start limit ends, at the earliest
        self._see_all(now_s)

    def find(self, key: Key) -> Subject | None:
        return self._subjects.get(key) or self._issues.get(key)

    def all(self) -> tuple[Subject, ...]:
        return (*self._subjects.values(), *self._issues.values())

    @property
    def not_up(self) -> list[str]:
        """The services that keep the node from being healthy, except those in maintenance."""
        return [
            subject.key.name
            for subject in self._subjects.values()
            if subject.not_up in (NotUp.FAILING, NotUp.LOST, NotUp.ACKNOWLEDGED, NotUp.STARTING)
        ]

    # ---- what happens

    def record_change(self, change: Change, service: Service | None) -> None:
        """`service` is its current definition, if the change is a registration, a replacement or maintenance."""
        was_draining, self._condition = self._condition.draining, self._registry.condition
        subject = None if change.service_id is None else self._subjects.get(Key("service", change.service_id))
        if subject is not None:
            self._see_before(subject, change)
        if was_draining is not self._condition.draining or (
            change.service_id is None and change.kind in (ChangeKind.MAINTENANCE, ChangeKind.MAINTENANCE_ENDED)
        ):
            self._see_all(change.at_s)
        elif change.kind is ChangeKind.DEREGISTERED and subject is not None:
            self._remove(subject, change.at_s)
        elif service is not None and change.after is not None:
            self._see_service(service, change.after, change.at_s)
        elif change.kind in _SERVICE_CHANGES and subject is not None and subject.service is not None and change.after:
            self._see_service(subject.service, change.after, change.at_s)
        self._see_node(change.health, change.at_s)

    def _see_before(self, subject: Subject, change: Change) -> None:
        """What was lost has got evidence in between, which did not change its status."""
        if subject.service is not None and subject.seen.is_lost and change.before and not _is_lost(change.before):
            self._see_service(subject.service, change.before, change.at_s)
            self._see_node(change.health_before, change.at_s)

    def end_starts(self, now_s: float) -> None:
        """Services that are not Up at their start limit are problems, although nothing has changed."""
        if now_s < self.due_at_s:
            return
        overdue = [subject for subject in self._subjects.values() if subject.start_ends_at_s <= now_s]
        for subject in overdue:
            if (found := self._registry.find(subject.key.name)) is not None:
                self._see_service(*found, now_s)
        self.due_at_s = min(subject.start_ends_at_s for subject in self._subjects.values())
        if overdue:
            self._see_node(self._registry.health, now_s)

    def set_start_limit(self, start_limit_s: float, now_s: float) -> None:
        if start_limit_s != self._start_limit_s:
            self._start_limit_s = start_limit_s
            self._see_all(now_s)

    def see_target(self, name: str, reason: str, code: str | None, now_s: float, since_s: float | None = None) -> None:
        """Of a target that has failed for long, since then; without a reason, it works again."""
        key = Key("target", name)
        if not reason and key not in self._subjects:
            return
        subject = self._subjects.setdefault(key, Subject(key, now_s))
        subject.seen = Seen(Health.PARTIAL if reason else Health.HEALTHY, since_s or now_s, reason, code)
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
        subject.acknowledge(self._registry.acknowledgements.find(service.id), is_over=state.status is Status.UP)
        is_acknowledged = subject.acknowledgement is not None
        if is_held:
            is_well = state.status is Status.UP and subject.seen.health is Health.HEALTHY
            subject.seen = subject.seen._replace(is_held=True, is_removed=False)
            not_up = None if is_well else NotUp.IN_MAINTENANCE
        else:
            subject.seen = Seen(
                service_health(state.status),
                state.since_s,
                state.reason,
                str(state.code),
                state.first_failure_at_s,
                is_starting=is_starting,
                is_known=is_known,
                is_lost=_is_lost(state),
                is_acknowledged=is_acknowledged,
            )
            failing = NotUp.LOST if _is_lost(state) else NotUp.FAILING
            failing = NotUp.ACKNOWLEDGED if is_acknowledged else failing
            not_up = None if state.status is Status.UP else NotUp.STARTING if is_starting else failing
        self._count(
            subject,
            not_up if service.affects_health else None,
            is_unknown=service.impact is Impact.CRITICAL and not is_known,
        )
        subject.start_ends_at_s = limit_s if is_starting and not is_held else math.inf
        self.due_at_s = min(self.due_at_s, subject.start_ends_at_s)
        self._on_seen(subject, now_s)

    def _remove(self, subject: Subject, now_s: float) -> None:
        self._count(subject, None, is_unknown=False)
        subject.acknowledge(None, is_over=True)
        subject.seen = Seen(Health.HEALTHY, now_s, is_removed=True)
        del self._subjects[subject.key]
        self._on_seen(subject, now_s)

    def _count(self, subject: Subject, not_up: NotUp | None, *, is_unknown: bool) -> None:
        self._not_up[subject.not_up] -= 1
        self._not_up[not_up] += 1
        self._unknown += is_unknown - subject.is_unknown
        subject.not_up, subject.is_unknown = not_up, is_unknown

    def _see_node(self, health: Health, now_s: float) -> None:
        is_seen_failing = bool(self._not_up[NotUp.FAILING] or self._condition.issues or self._condition.caveats)
        has_new_cause = is_seen_failing or bool(self._not_up[NotUp.LOST])
        is_failing = has_new_cause or bool(self._not_up[NotUp.ACKNOWLEDGED])
        self.node.acknowledge(self._registry.acknowledgements.find(), is_over=health is Health.HEALTHY)
        is_in_maintenance = self._registry.maintenance.at(None, now_s) is not None
        is_held = self._condition.draining or is_in_maintenance
        if is_held or (self._not_up[NotUp.IN_MAINTENANCE] and not is_failing):
            self.node.seen = self.node.seen._replace(is_held=True)
        else:
            is_same = health is self.node.seen.health
            self.node.seen = Seen(
                health,
                self.node.seen.since_s if is_same else now_s,
                is_starting=health is not Health.HEALTHY and not is_failing,
                is_known=not self._unknown,
                is_lost=is_failing and not (is_seen_failing or self._not_up[NotUp.ACKNOWLEDGED]),
                is_acknowledged=self.node.acknowledgement is not None or (is_failing and not has_new_cause),
            )
        self.node.was_up = self.node.was_up or health is Health.HEALTHY
        self._on_seen(self.node, now_s)
        self._see_issues(is_held=is_held, now_s=now_s)

    def _see_issues(self, *, is_held: bool, now_s: float) -> None:
        """Each issue is a problem of its own, so that a new one is told while the node is unhealthy."""
        texts = self._condition.issues
        keys = {subject.seen.reason: key for key, subject in self._issues.items() if subject.seen.reason in texts}
        for text in texts:
            if text not in keys:
                keys[text] = self._new_issue(text, now_s, taken=keys.values())
        present = {key: text for text, key in keys.items()}
        for key, subject in list(self._issues.items()):
            is_over = key not in present
            made = self.node.acknowledgement
            is_covered = made is not None and self._registry.wall_time_s(subject.created_at_s) <= made.made_s
            subject.acknowledge(made if is_covered else None, is_over=is_over)
            subject.seen = Seen(
                Health.HEALTHY if is_over else Health.UNHEALTHY,
                now_s if is_over else subject.created_at_s,
                present.get(key, subject.seen.reason),
                is_held=is_held,
                is_acknowledged=is_covered,
            )
            if is_over and not is_held:
                del self._issues[key]
            self._on_seen(subject, now_s)

    def _new_issue(self, text: str, now_s: float, taken: Collection[Key]) -> Key:
        """An issue is named by its text before the colon. With another text, it is the same one."""
        name = text.partition(": ")[0]
        names = (name if number == 1 else f"{name} ({number})" for number in count(1))
        key = next(key for key in (Key("issue", one) for one in names) if key not in taken)
        subject = self._issues.get(key)
        if subject is None or subject.seen.health is Health.HEALTHY:
            self._issues[key] = Subject(key, now_s)
        return key


def _is_lost(state: ServiceState) -> bool:
    return state.status is Status.INITIALIZING and state.code == ReasonCode.REGISTRY_LOST
