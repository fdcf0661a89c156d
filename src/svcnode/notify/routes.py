"""A route: what one target gets, and when the next message to it is due. The rule is in rule.py; there is no I/O.

A message contains every subject of the target that is due, or is worse than the target was told. A reminder contains
all open problems. Recoveries wait for each other, for one more resolve delay at most, so that services that failed
together recover in one message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.record import MAX_SAVED, Record, to_row
from svcnode.notify.rule import ENDED, PAST, Kind, Timing, Told
from svcnode.notify.subjects import NODE, Key, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import tzinfo

    from svcnode.core.model import Acknowledgement, Service
    from svcnode.notify.causes import Related, Relations
    from svcnode.notify.rule import Seen
    from svcnode.notify.targets import NotificationTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """The keys of [notify] that apply to all targets."""

    services: Literal["critical", "all", "none"] = "critical"  # the services that cause messages themselves
    group_wait_s: float = 5.0
    resolve_delay_s: float = 300.0
    repeat_interval_s: float = 0.0  # 0: no reminders
    start_limit_s: float = 300.0  # after the start period, a service that is not Up is a problem

    def causes_messages(self, service: Service) -> bool:
        """Whether a change causes a message, also if the health of the node does not change."""
        return self.services == "all" or (self.services == "critical" and service.impact is Impact.CRITICAL)


class QuietHours(NamedTuple):
    """Every day from one time to another, which may be on the next day."""

    begin: time
    end: time
    zone: tzinfo

    def end_s(self, wall_s: float) -> float:
        """When those end that it is in; otherwise the time itself."""
        now = datetime.fromtimestamp(wall_s, self.zone)
        at, ends_next_day = now.time(), self.end <= self.begin
        is_quiet = at >= self.begin or at < self.end if ends_next_day else self.begin <= at < self.end
        if not is_quiet:
            return wall_s
        day = now.date() + timedelta(days=1 if ends_next_day and at >= self.begin else 0)
        return max(wall_s, datetime.combine(day, self.end, self.zone).timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """A target, and what it gets. With services, groups or tags, it gets only these, and each causes messages."""

    target: NotificationTarget = field(repr=False)  # its URL may contain secrets
    name: str = field(default="", repr=False)  # that people see; empty: that of the target
    # By which it is recognized after a reload or a restart, and by other replicas; empty: by its URL.
    id: str = field(default="", repr=False)
    min_severity: Severity = Severity.WARNING
    services: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    quiet_hours: QuietHours | None = None  # for warnings
    repeat_interval_s: float | None = None  # None: that of the policy
    escalate_after_s: float = 0.0  # 0: it gets everything

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.target.name)
        object.__setattr__(self, "id", self.id or f"{self.target.name}#{self.target.fingerprint}")

    @property
    def is_selective(self) -> bool:
        return bool(self.services or self.groups or self.tags)

    def _selects(self, service: Service) -> bool:
        is_named = service.id in self.services or service.group in self.groups
        return is_named or not self.tags.isdisjoint(service.tags)

    def why_not(self, subject: Subject, severity: Severity) -> str:
        """Why the target does not get a problem of this severity; empty: it does."""
        service = subject.service
        if self.is_selective and subject.key.type != "target":
            if service is None:
                return "this target gets only some services, not the node"
            if not self._selects(service):
                return "the service is not among its services, groups and tags"
        if severity is Severity.WARNING and self.min_severity is Severity.CRITICAL:
            return "the severity is warning, and min_severity is critical"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a message says about one subject. Health and reason are those at the time when it is sent."""

    subject: Subject
    kind: Kind
    health: Health
    before: Health | None  # as last told; None for a service that was never Up, or a node that was never healthy
    worst: Health  # since the last message
    severity: Severity
    since_s: float
    reason: str
    code: str | None
    first_failure_at_s: float | None
    opened_at_s: float  # when the problem began
    duration_s: float  # of the problem
    changes: int
    duration_is_upper_bound: bool = False  # the problem may have ended earlier, while svcnode did not run
    acknowledgement: Acknowledgement | None = None  # if the problem is over, the last one of it
    host: str = ""  # that the probe of the service connects to
    causes: tuple[Related, ...] = ()  # that the service depends on, and that are not Up
    effects: tuple[Related, ...] = ()  # all services that depend on this one, whatever their status

    @property
    def service(self) -> Service:
        assert self.subject.service is not None, "the node and targets have no service"
        return self.subject.service


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is said in one message."""

    at_s: float
    node: Entry | None  # None: there is nothing to say about the node
    issues: tuple[Entry, ...]
    services: tuple[Entry, ...]  # the most severe first
    targets: tuple[Entry, ...]
    open: tuple[Entry, ...]  # all that is open for the target once it has received this
    told_health: Health  # of the node, as last told
    told: dict[Key, Record]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*([self.node] if self.node else []), *self.issues, *self.services, *self.targets)


class AlertView(NamedTuple):
    """What operators see of one subject."""

    state: str  # inactive, pending (worse than told), firing or resolving (better than told)
    told: Health
    due_at_s: float  # when the next message about it is due


class Situation(NamedTuple):
    """The state of the node when a message is sent, whatever the message is about."""

    health: Health
    issues: tuple[str, ...] = ()
    not_up: tuple[Service, ...] = ()  # that keep it from being healthy
    reason: str = ""  # of a health that is not healthy
    held_by: str = ""  # why its health is not a change: maintenance, or the start
    acknowledgement: Acknowledgement | None = None


class NodeView(NamedTuple):
    """What a route asks about the node."""

    to_wall: Callable[[float], float]
    look: Callable[[Subject], Seen]  # as it is at this moment
    relations: Relations


class Route:
    """What one target was told, and when its next message is due."""

    def __init__(self, settings: RouteSettings, policy: AlertPolicy, now_s: float, node: NodeView) -> None:
        self._to_wall, self._look, self._relations = node
        self._records: dict[Key, Record] = {}
        self._sending: dict[Key, Record] = {}  # what the target has been told, if the current attempt succeeds
        self._last_message_s = now_s
        self._changed_at_s = math.inf  # when something changed that is open, for a target that gets the present
        self.due_at_s = math.inf  # no message is due before this time
        self.apply(settings, policy, now_s)

    def apply(self, settings: RouteSettings, policy: AlertPolicy, now_s: float) -> None:
        repeat_s = policy.repeat_interval_s if settings.repeat_interval_s is None else settings.repeat_interval_s
        self.settings, self._policy = settings, policy
        self._gets_present = settings.target.resend_interval_s is not None
        self._timing = Timing(
            group_wait_s=policy.group_wait_s,
            resolve_delay_s=policy.resolve_delay_s,
            repeat_interval_s=settings.target.resend_interval_s or repeat_s,
            escalate_after_s=settings.escalate_after_s,
            tells_what_is_over=not self._gets_present,
        )
        for record in list(self._records.values()):
            self.see(record.subject, now_s)
        self.update_due(now_s)

    def view(self, key: Key) -> AlertView:
        record = self._records.get(key)
        if record is None:
            return AlertView("inactive", Health.HEALTHY, math.inf)
        return AlertView(record.state, record.health, max(self.due_at_s, self._due_at_s(record)))

    # ---- what happens

    def see(self, subject: Subject, at_s: float) -> None:
        seen, key = subject.seen, subject.key
        level = self._level(subject, self._records.get(key))
        if key not in self._records:
            if level is Health.HEALTHY or seen.is_starting or seen.is_held or seen.is_removed:
                return
            self._records[key] = Record(subject)
        for records in (self._records, self._sending):
            if (record := records.get(key)) is not None:
                record.subject = subject
                record.see(seen, level, at_s, self._timing)
        record = self._records[key]
        if self._gets_present and record.is_open:
            self._changed_at_s = min(self._changed_at_s, at_s)
        self.due_at_s = min(self.due_at_s, self._changed_at_s, self._due_at_s(record))
        if record.named:
            self.update_due(at_s)  # its effects may now cause messages themselves

    def _level(self, subject: Subject, record: Record | None) -> Health:
        """The health, as far as it concerns the target."""
        severity, service = subject.severity(subject.seen.health), subject.service
        if severity is None or self.settings.why_not(subject, severity) or self._is_this_target(subject):
            return Health.HEALTHY
        is_open = record is not None and record.is_open
        if service is None or service.affects_health or self._is_selected(service) or is_open:
            return subject.seen.health
        return Health.HEALTHY

    def _is_selected(self, service: Service) -> bool:
        return self.settings.is_selective or self._policy.causes_messages(service)

    def _is_this_target(self, subject: Subject) -> bool:
        return subject.key == Key("target", self.settings.name)

    # ---- when a message is due

    def update_due(self, now_s: float) -> None:
        self._records = {
            key: record for key, record in self._records.items() if not record.is_settled(self._timing, now_s)
        }
        held_s = self._recoveries_at_s()
        dues_s = [self._due_at_s(record, held_s) for record in self._records.values()]
        self.due_at_s = min((*dues_s, self._changed_at_s))

    def _recoveries_at_s(self) -> float:
        """When the recoveries that are under way are told."""
        recovering = [record for record in self._records.values() if record.is_recovering(self._timing)]
        first_s = min((self._own_due_at_s(record) for record in recovering), default=math.inf)
        limit_s = first_s + (0.0 if self._gets_present else self._timing.resolve_delay_s)
        dues_s = [self._after_quiet_hours(record, record.due_at_s(self._timing)) for record in recovering]
        return max((due_s for due_s in dues_s if due_s <= limit_s), default=first_s)

    def _own_due_at_s(self, record: Record, held_s: float = -math.inf) -> float:
        """When a change causes a message; recoveries are held until `held_s`."""
        if not self._causes_messages(record) or self._is_explained(record):
            return math.inf
        due_s = record.due_at_s(self._timing)
        if record.is_recovering(self._timing):
            due_s = max(due_s, held_s)
        return self._after_quiet_hours(record, due_s)

    def _is_explained(self, record: Record) -> bool:
        """Whether the target was told of a cause that names this service. Alertmanager groups alerts itself."""
        if self._gets_present or record.subject.service is None:
            return False
        causes = (self._records.get(Key("service", one)) for one in self._relations.causes_of(record.subject.key.name))
        return any(
            cause is not None and self._causes_messages(cause) and cause.explains(record, self._timing)
            for cause in causes
        )

    def _due_at_s(self, record: Record, held_s: float = -math.inf) -> float:
        due_s = self._own_due_at_s(record, held_s)
        if self._may_be_reminded(record):
            due_s = min(due_s, self._remind_at_s)
        return self._after_quiet_hours(record, due_s)

    @property
    def _remind_at_s(self) -> float:
        interval_s = self._timing.repeat_interval_s
        return self._last_message_s + interval_s if interval_s else math.inf

    def _may_be_reminded(self, record: Record) -> bool:
        if self._gets_present:
            return record.is_open
        is_wrong = record.is_visible and record.level is not Health.HEALTHY
        return record.is_open and is_wrong and not record.is_acknowledged

    def _after_quiet_hours(self, record: Record, due_s: float) -> float:
        quiet = self.settings.quiet_hours
        if quiet is None or due_s == math.inf or record.severity is Severity.CRITICAL:
            return due_s
        wall_s = self._to_wall(due_s)
        return due_s + (quiet.end_s(wall_s) - wall_s)

    def _causes_messages(self, record: Record) -> bool:
        service = record.subject.service
        if service is None or self._is_selected(service):
            return True
        # What was told ends with a message, also if the service no longer counts.
        return record.is_open and (record.subject.seen.is_removed or not service.affects_health)

    # ---- what a message says

    def report(self, now_s: float, *, is_final: bool = False) -> Report | None:
        """What to send now; None: nothing is due. At the end of the process, nothing waits for the group wait."""
        told = dict(self._due_records(now_s, is_final=is_final))
        if not told and now_s < self._changed_at_s:
            self.update_due(now_s)
            return None
        self._changed_at_s = math.inf
        after = {record.subject.key: self._after(record, kind, now_s) for record, kind in told.items()}
        self._sending = after
        entries: dict[str, list[Entry]] = {"node": [], "issue": [], "service": [], "target": []}
        for record, kind in sorted(told.items(), key=_by_severity):
            entries[record.subject.key.type].append(self._entry(record, kind, now_s))
        node = self._records.get(NODE)
        return Report(
            at_s=now_s,
            node=next(iter(entries["node"]), None),
            issues=tuple(entries["issue"]),
            services=tuple(entries["service"]),
            targets=tuple(entries["target"]),
            open=tuple(self._open_entries(after, now_s)),
            told_health=Health.HEALTHY if node is None else node.health,
            told=after,
        )

    def _after(self, record: Record, kind: Kind, now_s: float) -> Record:
        told = record.after(kind, now_s)
        told.named = self._relations.dependents_of(record.subject.key.name) if told.is_open else frozenset()
        return told

    def _due_records(self, now_s: float, *, is_final: bool) -> Iterable[tuple[Record, Kind]]:
        found: dict[Key, tuple[Record, Kind]] = {}
        is_due = False
        held_s = self._recoveries_at_s()
        is_reminder = now_s >= self._remind_at_s
        for record in self._records.values():
            kind = self._kind(record, now_s, is_reminder=is_reminder)
            if kind is None or self._after_quiet_hours(record, now_s) > now_s:
                continue
            found[record.subject.key] = record, kind
            due_s = self._own_due_at_s(record, held_s)
            is_own = due_s <= now_s or (is_final and due_s < math.inf)
            is_due = is_due or is_own or (is_reminder and self._may_be_reminded(record))
        return [*found.values(), *self._remaining(found)] if is_due else ()

    def _remaining(self, found: Mapping[Key, tuple[Record, Kind]]) -> Iterator[tuple[Record, Kind]]:
        """The effects that were told with their cause, and remain when it is over."""
        named = {name for record, kind in found.values() if kind in ENDED for name in record.named}
        for key in (Key("service", name) for name in sorted(named)):
            record = self._records.get(key)
            if record is not None and key not in found and self._may_be_reminded(record):
                yield record, Kind.REMINDER

    def _kind(self, record: Record, now_s: float, *, is_reminder: bool) -> Kind | None:
        kind = record.kind(self._timing, now_s)
        if kind is None:
            return Kind.REMINDER if is_reminder and self._may_be_reminded(record) else None
        if record.subject.seen.is_removed:
            return Kind.REMOVED
        is_over = kind in PAST
        if is_over and not self._causes_messages(record) and now_s > record.due_at_s(self._timing):
            return None  # it was short, and no message could have listed it
        is_early = now_s < record.due_at_s(self._timing) - self._timing.group_wait_s
        if kind is Kind.WORSE and self._timing.escalate_after_s and is_early:
            return None
        return kind

    def _open_entries(self, after: dict[Key, Record], now_s: float) -> Iterator[Entry]:
        if self._gets_present:
            for key, record in self._records.items():
                told = after.get(key, record)
                if told.is_open and not self._is_this_target(told.subject):
                    yield self._entry(told, Kind.REMINDER, now_s)

    def _entry(self, record: Record, kind: Kind, now_s: float) -> Entry:
        subject = record.subject
        now, relations, type_ = self._look(subject), self._relations, subject.key.type
        shown = record.worst if kind in PAST and record.worst else now
        opened_s = now_s if record.opened_at_s is None else record.opened_at_s
        is_over = record.level is Health.HEALTHY or kind in PAST
        ended_s = record.since_s if is_over and record.is_visible else now_s
        if kind is Kind.RECOVERED and opened_s <= now.since_s <= ended_s and now.health is Health.HEALTHY:
            ended_s = now.since_s  # during maintenance
        began_s = record.worst_at_s if kind in PAST else opened_s
        return Entry(
            subject=subject,
            kind=kind,
            health=now.health,
            before=None if type_ in ("node", "service") and not (subject.was_up or record.is_open) else record.health,
            worst=max(record.worst_level, record.health),
            severity=record.severity,
            since_s=now.since_s,
            reason=shown.reason,
            code=shown.code,
            first_failure_at_s=shown.first_failure_at_s,
            opened_at_s=opened_s,
            duration_s=max(0.0, ended_s - began_s),
            changes=record.changes,
            duration_is_upper_bound=record.is_restored and kind in (*ENDED, Kind.TRANSIENT),
            host=now.host,
            causes=tuple(
                one for one in relations.look(relations.causes_of(subject.key.name)) if one.health is not Health.HEALTHY
            ),
            effects=relations.look(relations.dependents_of(subject.key.name)),
            acknowledgement=subject.acknowledgement or self._last_acknowledgement(subject, kind, opened_s),
        )

    def _last_acknowledgement(self, subject: Subject, kind: Kind, opened_s: float) -> Acknowledgement | None:
        """Of a problem that is over."""
        last = subject.last_acknowledgement
        is_over = kind in ENDED
        return last if is_over and last is not None and self._to_wall(opened_s) <= last.made_s else None

    # ---- whether it was delivered

    def delivered(self, report: Report, now_s: float) -> None:
        self._records |= report.told
        self._last_message_s = report.at_s
        self._sending = {}
        self.update_due(now_s)

    def failed(self, now_s: float) -> None:
        self._sending = {}
        if self._gets_present:
            self._changed_at_s = now_s
        self.update_due(now_s)

    # ---- across a restart

    def to_rows(self, now_s: float) -> list[dict[str, Any]]:
        """What must not be forgotten. The node comes first."""
        records = sorted(self._records.values(), key=lambda record: record.subject.key != NODE)
        kept = (record for record in records if not record.is_settled(self._timing, now_s))
        return [to_row(record, self._to_wall) for record in islice(kept, MAX_SAVED)]

    def restore(self, record: Record, now_s: float) -> None:
        """Continue with what was told before a restart, unless this process has told something since."""
        current = self._records.get(record.subject.key)
        if current is not None and current.at_s > -math.inf:
            return
        self._records[record.subject.key] = record
        self.see(record.subject, now_s)
        if current is not None and current.worse_at_s is not None and record.worse_at_s is not None:
            record.worse_at_s = current.worse_at_s
        self.update_due(now_s)

    # ---- with other replicas

    def keys(self) -> frozenset[Key]:
        return frozenset(self._records)

    def follow(self, key: Key, told: Record | None, now_s: float) -> None:
        """Another replica has told the target this about a subject. None: nothing, or that is long over."""
        record = self._records.get(key) or told
        if record is None:
            return
        if record is told:
            self._records[key] = record
        else:
            record.follow(told or Told(), now_s)
            record.named = frozenset() if told is None else told.named
        self._last_message_s = max(self._last_message_s, record.at_s)
        self.see(record.subject, now_s)

    def add_told(self, key: Key, told: Record | None, now_s: float) -> None:
        """Another replica has told the target this, and this one has told it something at about the same time.

        Nobody knows which message came last. A problem stays open if one of them said so, until its end is told.
        """
        record = self._records.get(key)
        if record is None:
            self.follow(key, told, now_s)
        elif told is not None and told.health > record.health:
            record.health, record.named = told.health, record.named | told.named
            record.opened_at_s = told.opened_at_s if record.opened_at_s is None else record.opened_at_s


def _by_severity(pair: tuple[Record, Kind]) -> tuple[bool, int, str]:
    record = pair[0]
    return record.severity is not Severity.CRITICAL, -record.level, record.subject.key.name
