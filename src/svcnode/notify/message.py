"""A report as a message: text for people, and fields for programs. docs/alerts.md documents the fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from svcnode.core.model import Health, Status
from svcnode.core.text import sanitize, truncate
from svcnode.core.units import format_short_duration, iso_time
from svcnode.notify.routes import MAX_LISTED_SERVICES
from svcnode.notify.rule import Kind
from svcnode.notify.subjects import Severity
from svcnode.notify.targets import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Identity, Service
    from svcnode.notify.routes import Entry, Report, Situation
    from svcnode.notify.targets import NotifyType

MAX_NAMES = 10  # of services that are not Up
MAX_REASON_CHARS = 300

_STATUS_BY_HEALTH = {Health.HEALTHY: Status.UP, Health.PARTIAL: Status.INITIALIZING, Health.UNHEALTHY: Status.DOWN}
_NEW_HEALTH = (Kind.WORSE, Kind.BETTER)
_FIRING = (Kind.WORSE, Kind.RECURRED, Kind.REMINDER)
_RESOLVED = (Kind.RECOVERED, Kind.REMOVED)
_OVER = (Kind.TRANSIENT, Kind.RECURRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """What a message needs to know beside its report."""

    identity: Identity
    situation: Situation
    to_wall: Callable[[float], float]  # converts a time of the node's monotonic clock to wall-clock time
    delayed_s: float = 0.0  # how long the target could not be reached


def build_message(report: Report, context: MessageContext, message_id: str) -> Message:
    name, situation = shown(context.identity.node_name), context.situation
    is_single = report.node is None and len(report.entries) == 1
    entry_lines = [_entry_line(entry, context) for entry in (*report.services, *report.targets)]
    title = f"{name}: {entry_lines[0]}" if is_single else _title(name, report, context)
    severity = Severity.CRITICAL if any(_is_critical(entry) for entry in report.entries) else Severity.WARNING
    return Message(
        title=title,
        lines=tuple(_lines(report, context, [] if is_single else entry_lines)),
        notify_type=_notify_type(report, situation.health),
        fields={
            "id": message_id,
            "kind": "change",
            "at": iso_time(context.to_wall(report.at_s)),
            "severity": severity.value,
            "node": _node_fields(context.identity, situation, report),
            "services": [_service_fields(entry, context.to_wall) for entry in report.services],
            "truncated_services": report.truncated_services,
            "not_up": [service.id for service in _other_not_up(report, situation)[:MAX_LISTED_SERVICES]],
            "targets": [_target_fields(entry, context.to_wall) for entry in report.targets],
            "delayed_s": round(context.delayed_s, 3),
        },
    )


def build_test_message(identity: Identity, message_id: str, at_s: float) -> Message:
    """The message of `svcnode notify-test`, with the same fields as a real one."""
    return Message(
        title=f"{shown(identity.node_name)}: test message",
        lines=("Sent by svcnode notify-test. No status has changed.",),
        notify_type="info",
        fields={
            "id": message_id,
            "kind": "test",
            "at": iso_time(at_s),
            "severity": None,
            "node": _node_fields(identity, None, None),
            "services": [],
            "truncated_services": 0,
            "not_up": [],
            "targets": [],
            "delayed_s": 0.0,
        },
    )


# ---- text for people


def _title(name: str, report: Report, context: MessageContext) -> str:
    if report.node is None:
        return f"{name}: {len(report.entries) + report.truncated_services} changes"
    before = report.node.before
    was = "" if before is None else f", was {_health_text(before)}"
    return _entry_text(report.node, name, _health_text, was=was)


def _lines(report: Report, context: MessageContext, entry_lines: Sequence[str]) -> Iterator[str]:
    situation = context.situation
    if report.node is not None and report.node.acknowledgement is not None:
        yield f"node acknowledged {shown(report.node.acknowledgement.text)}"
    yield from (f"issue: {shown(issue)}" for issue in situation.issues)
    yield from entry_lines
    if report.truncated_services:
        yield f"{report.truncated_services} more services changed"
    if not_up := _other_not_up(report, situation):
        yield f"{'also' if report.services else 'services'} not Up: {_service_list(not_up)}"
    if report.node is None:
        yield _node_line(report, situation)
    if any(entry.duration_is_upper_bound and entry.kind is Kind.RECOVERED for entry in report.entries):
        yield "svcnode was restarted in between; the recovery may have been earlier"
    if context.delayed_s >= 1.0:
        yield f"this message is late: it could not be delivered for {format_short_duration(context.delayed_s)}"


def _node_line(report: Report, situation: Situation) -> str:
    now = _health_text(situation.health)
    if situation.health is report.told_health:
        return f"node health unchanged: {now}"
    why = f"; held back by {situation.held_by}" if situation.held_by else ""
    return f"node health: {now}, last reported as {_health_text(report.told_health)}{why}"


def _other_not_up(report: Report, situation: Situation) -> list[Service]:
    listed = {entry.service.id for entry in report.services}
    return [service for service in situation.not_up if service.id not in listed]


def _entry_line(entry: Entry, context: MessageContext) -> str:
    if entry.subject.service is None:
        return _target_line(entry)
    was = " and was never Up" if entry.before is None else f", was {status_text(entry.before)}"
    text = _entry_text(entry, _service_label(entry.service), status_text, was=was)
    text += _first_failure_text(entry, context.to_wall) if entry.kind in _NEW_HEALTH else ""
    return text if entry.acknowledgement is None else f"{text}; acknowledged {shown(entry.acknowledgement.text)}"


def _target_line(entry: Entry) -> str:
    label = f"notifications to {entry.subject.key.name}"
    if entry.kind in _RESOLVED:
        return f"{label} are delivered again, after {format_short_duration(entry.duration_s)}"
    return f"{label} fail: {shown(entry.reason)}"


def _entry_text(entry: Entry, label: str, health_text: Callable[[Health], str], *, was: str) -> str:
    now_text, duration = health_text(entry.health), format_short_duration(entry.duration_s)
    has_reason = entry.reason and (entry.health is not Health.HEALTHY or entry.kind in _OVER)
    reason = f": {shown(entry.reason)}" if has_reason else ""
    # Two changes, down and up, are the normal case.
    count = f", with {entry.changes} changes" if entry.changes > 2 else ""
    match entry.kind:
        case Kind.WORSE | Kind.BETTER:
            return f"{label} is {now_text}{was}{count}{reason}"
        case Kind.RECOVERED:
            at_most = "at most " if entry.duration_is_upper_bound else ""
            return f"{label} has recovered: {now_text} after {at_most}{duration}{count}"
        case Kind.TRANSIENT:
            return f"{label} was {health_text(entry.worst)} for {duration}{count}, now {now_text}{reason}"
        case Kind.RECURRED:
            return (
                f"{label} was {health_text(entry.worst)} again for {duration}{count}, now {now_text}; "
                f"the problem stays open until this has lasted{reason}"
            )
        case Kind.REMINDER:
            return f"{label} is still {now_text} after {duration}{count}{reason}"
        case Kind.REMOVED:
            return f"{label} is no longer monitored; last reported as {health_text(entry.before or Health.HEALTHY)}"
        case _:
            assert_never(entry.kind)


def _first_failure_text(entry: Entry, to_wall: Callable[[float], float]) -> str:
    """Only if checks were counted between the first failure and Down."""
    if entry.first_failure_at_s is None or entry.first_failure_at_s >= entry.since_s:
        return ""
    times = iso_time(to_wall(entry.first_failure_at_s)), iso_time(to_wall(entry.since_s))
    return f" (first failure at {times[0]}, Down at {times[1]})"


def _service_label(service: Service) -> str:
    name = f" ({shown(service.name)})" if service.name not in ("", service.id) else ""
    return shown(service.id) + name


def _service_list(services: Sequence[Service]) -> str:
    names = [shown(service.id) for service in services[:MAX_NAMES]]
    if len(services) > MAX_NAMES:
        names.append(f"{len(services) - MAX_NAMES} more")
    return ", ".join(names)


def _health_text(health: Health) -> str:
    return f"{health.text} ({health.value})"


def status_text(health: Health) -> str:
    """The health of a service as its status."""
    return _STATUS_BY_HEALTH[health].value


def shown(text: str) -> str:
    """One line without secrets, of limited length."""
    return truncate(sanitize(text), MAX_REASON_CHARS)


# ---- fields for programs


def _node_fields(identity: Identity, situation: Situation | None, report: Report | None) -> dict[str, Any]:
    health = None if situation is None else situation.health
    entry = None if report is None else report.node
    before = None
    if report is not None and (entry is not None or health is not report.told_health):
        before = report.told_health if entry is None else entry.before
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "health": health and int(health),
        "health_before": before and int(before),
        "change": entry and entry.kind.value,
        "reason": shown(entry.reason) if entry else "",
        "duration_s": entry and _duration_field(entry),
        "duration_is_upper_bound": entry is not None and entry.duration_is_upper_bound,
        "changes": entry and entry.changes,
        "acknowledged": entry and _acknowledged_field(entry),
        "issues": [] if situation is None else [shown(issue) for issue in situation.issues],
    }


def _service_fields(entry: Entry, to_wall: Callable[[float], float]) -> dict[str, Any]:
    return {
        "id": entry.service.id,
        "name": shown(entry.service.name),
        "impact": entry.service.impact.value,
        "severity": entry.severity.value,
        "change": entry.kind.value,
        "status": None if entry.kind is Kind.REMOVED else status_text(entry.health),
        "status_before": None if entry.before is None else status_text(entry.before),
        "status_worst": status_text(entry.worst),
        "reason": shown(entry.reason),
        "code": entry.code,
        "since": iso_time(to_wall(entry.since_s)),
        "first_failure": None if entry.first_failure_at_s is None else iso_time(to_wall(entry.first_failure_at_s)),
        "duration_s": _duration_field(entry),
        "duration_is_upper_bound": entry.duration_is_upper_bound,
        "changes": entry.changes,
        "acknowledged": _acknowledged_field(entry),
    }


def _target_fields(entry: Entry, to_wall: Callable[[float], float]) -> dict[str, Any]:
    return {
        "name": entry.subject.key.name,
        "change": entry.kind.value,
        "reason": shown(entry.reason),
        "code": entry.code,
        "since": iso_time(to_wall(entry.opened_at_s)),
    }


def _duration_field(entry: Entry) -> float | None:
    return None if entry.kind in _NEW_HEALTH else round(entry.duration_s, 3)


def _acknowledged_field(entry: Entry) -> dict[str, str | None] | None:
    made = entry.acknowledgement
    if made is None:
        return None
    until = None if made.until_s is None else iso_time(made.until_s)
    return {"by": shown(made.by), "at": iso_time(made.made_s), "reason": shown(made.reason), "until": until}


def _is_critical(entry: Entry) -> bool:
    return entry.severity is Severity.CRITICAL


def _notify_type(report: Report, health: Health) -> NotifyType:
    if any(entry.kind in _FIRING for entry in report.entries):
        return "failure" if health is Health.UNHEALTHY else "warning"
    if health is Health.HEALTHY and all(entry.kind in _RESOLVED for entry in report.entries):
        return "success"
    return "info" if health is Health.HEALTHY else "warning"
