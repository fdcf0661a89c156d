"""A notification as a message: text for people, and fields for programs. docs/alerts.md documents the fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, assert_never

from svcnode.core.model import Health, Status
from svcnode.core.text import sanitize, truncate
from svcnode.core.units import format_short_duration, iso_time
from svcnode.notify.alert import ChangeType
from svcnode.notify.engine import MAX_LISTED_SERVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Identity, Service
    from svcnode.notify.alert import AlertChange
    from svcnode.notify.engine import Notification

MAX_NAMES = 10  # of unchanged services that are not Up
MAX_REASON_CHARS = 300

NotifyType = Literal["failure", "warning", "success", "info"]  # the types of Apprise

_STATUS_BY_HEALTH = {Health.HEALTHY: Status.UP, Health.PARTIAL: Status.INITIALIZING, Health.UNHEALTHY: Status.DOWN}
_NEW_HEALTH = (ChangeType.WORSE, ChangeType.BETTER)
_FIRING = (ChangeType.WORSE, ChangeType.ONGOING, ChangeType.RECURRED, ChangeType.REMINDER)
_RESOLVED = (ChangeType.RECOVERED, ChangeType.REMOVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message for all targets. The number of lost messages differs per target and is added at delivery."""

    title: str
    lines: tuple[str, ...]
    notify_type: NotifyType
    fields: dict[str, Any] = field(default_factory=dict)
    alerts: tuple[dict[str, Any], ...] = ()  # all open incidents, for Alertmanager

    def body(self, lost: int = 0) -> str:
        return "\n".join([*self.lines, *_lost_lines(lost)])

    def document(self, lost: int = 0) -> dict[str, Any]:
        """The JSON of a webhook. `text` contains the whole message for a chat."""
        text = "\n".join([self.title, *(f"- {line}" for line in (*self.lines, *_lost_lines(lost)))])
        return {"text": text, **self.fields, "lost": lost}


def _lost_lines(lost: int) -> Iterator[str]:
    if lost:
        yield f"{lost} earlier {'messages were' if lost > 1 else 'message was'} not delivered"


def build_message(
    notification: Notification, identity: Identity, message_id: str, to_wall: Callable[[float], float]
) -> Message:
    """`to_wall` converts a time of the node's monotonic clock to wall-clock time."""
    name = shown(identity.node_name)
    is_single_service = notification.node is None and len(notification.services) == 1
    service_lines = [_service_line(change, to_wall) for change in notification.services]
    title = f"{name}: {service_lines[0]}" if is_single_service else _title(name, notification)
    return Message(
        title=title,
        lines=tuple(_lines(notification, [] if is_single_service else service_lines)),
        notify_type=_notify_type(notification),
        fields={
            "id": message_id,
            "kind": "change",
            "at": iso_time(to_wall(notification.at_s)),
            "node": _node_fields(
                identity, notification.health, notification.node, notification.issues, notification.held_before
            ),
            "services": [_service_fields(change, to_wall) for change in notification.services],
            "truncated_services": notification.truncated_services,
            "not_up": [service.id for service in notification.not_up[:MAX_LISTED_SERVICES]],
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
            "node": _node_fields(identity, None, None, ()),
            "services": [],
            "truncated_services": 0,
            "not_up": [],
        },
    )


# ---- text for people


def _title(name: str, notification: Notification) -> str:
    if notification.node is None:
        return f"{name}: {len(notification.services) + notification.truncated_services} services changed"
    before = notification.node.before
    was = "" if before is None else f", was {_health_text(before)}"
    return _change_text(notification.node, name, _health_text, now=notification.health, was=was)


def _lines(notification: Notification, service_lines: Sequence[str]) -> Iterator[str]:
    yield from (f"issue: {shown(issue)}" for issue in notification.issues)
    yield from service_lines
    if notification.truncated_services:
        yield f"{notification.truncated_services} more services changed"
    if notification.not_up:
        yield f"{'also' if notification.services else 'services'} not Up: {_service_list(notification.not_up)}"
    if notification.node is None:
        yield _node_line(notification)
    changes = _all_changes(notification)
    if any(change.duration_is_upper_bound and change.change_type is ChangeType.RECOVERED for change in changes):
        yield "svcnode was restarted in between; the recovery may have been earlier"
    if any(change.change_type in (ChangeType.ONGOING, ChangeType.RECURRED) for change in changes):
        yield "svcnode was restarted; you may have received this before"


def _node_line(notification: Notification) -> str:
    now, before = _health_text(notification.health), notification.held_before
    if before is None:
        return f"node health unchanged: {now}"
    return f"node health: {now}, last reported {_health_text(before)}; a message about this change is held back"


def _all_changes(notification: Notification) -> list[AlertChange]:
    return [change for change in (notification.node, *notification.services) if change is not None]


def _service_line(change: AlertChange, to_wall: Callable[[float], float]) -> str:
    assert change.service is not None, "the node is in the title"
    was = " and was never Up" if change.before is None else f", was {_status_text(change.before)}"
    text = _change_text(change, _service_label(change.service), _status_text, now=change.health, was=was)
    return text + (_first_failure_text(change, to_wall) if change.change_type in _NEW_HEALTH else "")


def _change_text(
    change: AlertChange, label: str, health_text: Callable[[Health], str], *, now: Health, was: str
) -> str:
    now_text, duration = health_text(now), format_short_duration(change.duration_s)
    has_reason = change.reason and (now is not Health.HEALTHY or change.change_type is ChangeType.TRANSIENT)
    reason = f": {shown(change.reason)}" if has_reason else ""
    match change.change_type:
        case ChangeType.WORSE | ChangeType.BETTER:
            return f"{label} is {now_text}{was}{reason}"
        case ChangeType.RECOVERED:
            at_most = "at most " if change.duration_is_upper_bound else ""
            # Two changes, down and up, are the normal case.
            count = f", with {change.changes} changes" if change.changes > 2 else ""
            return f"{label} has recovered: {now_text} after {at_most}{duration}{count}"
        case ChangeType.TRANSIENT:
            return f"{label} was {health_text(change.worst)} for {duration}, now {now_text}{reason}"
        case ChangeType.ONGOING | ChangeType.REMINDER:
            return f"{label} is still {now_text} after {duration}{reason}"
        case ChangeType.RECURRED:
            return f"{label} is {now_text} again for {duration}{reason}"
        case ChangeType.REMOVED:
            return f"{label} is no longer monitored; last notified as {health_text(change.before or Health.HEALTHY)}"
        case _:
            assert_never(change.change_type)


def _first_failure_text(change: AlertChange, to_wall: Callable[[float], float]) -> str:
    """Only if checks were counted between the first failure and Down."""
    if change.first_failure_at_s is None or change.first_failure_at_s >= change.since_s:
        return ""
    times = iso_time(to_wall(change.first_failure_at_s)), iso_time(to_wall(change.since_s))
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


def _status_text(health: Health) -> str:
    """The health of a service as its status."""
    return _STATUS_BY_HEALTH[health].value


def shown(text: str) -> str:
    """One line without secrets, of limited length."""
    return truncate(sanitize(text), MAX_REASON_CHARS)


# ---- fields for programs


def _node_fields(
    identity: Identity,
    health: Health | None,
    change: AlertChange | None,
    issues: Sequence[str],
    held_before: Health | None = None,
) -> dict[str, Any]:
    before = held_before if change is None else change.before
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "health": health and int(health),
        "health_before": before and int(before),
        "change": change and change.change_type.value,
        "duration_s": change and _duration_field(change),
        "duration_is_upper_bound": change is not None and change.duration_is_upper_bound,
        "issues": [shown(issue) for issue in issues],
    }


def _service_fields(change: AlertChange, to_wall: Callable[[float], float]) -> dict[str, Any]:
    assert change.service is not None, "the node has its own fields"
    return {
        "id": change.service.id,
        "name": shown(change.service.name),
        "impact": change.service.impact.value,
        "change": change.change_type.value,
        "status": None if change.change_type is ChangeType.REMOVED else _status_text(change.health),
        "status_before": None if change.before is None else _status_text(change.before),
        "reason": shown(change.reason),
        "code": change.code,
        "since": iso_time(to_wall(change.since_s)),
        "first_failure": None if change.first_failure_at_s is None else iso_time(to_wall(change.first_failure_at_s)),
        "duration_s": _duration_field(change),
        "duration_is_upper_bound": change.duration_is_upper_bound,
        "changes": change.changes,
    }


def _duration_field(change: AlertChange) -> float | None:
    return None if change.change_type in _NEW_HEALTH else round(change.duration_s, 3)


def _notify_type(notification: Notification) -> NotifyType:
    changes = _all_changes(notification)
    if any(change.change_type in _FIRING for change in changes):
        return "failure" if notification.health is Health.UNHEALTHY else "warning"
    if notification.health is Health.HEALTHY and all(change.change_type in _RESOLVED for change in changes):
        return "success"
    return "info" if notification.health is Health.HEALTHY else "warning"
