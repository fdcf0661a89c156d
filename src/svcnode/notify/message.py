"""From news to a message: words for people, and fields for programs. The fields are stable: docs/notify.md has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, assert_never

from svcnode.core.model import Health, Status
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line
from svcnode.core.units import iso_time
from svcnode.notify.flapping import SETTLED_AFTER_S
from svcnode.notify.model import MAX_LISTED_SERVICES, ChangeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Identity, Service
    from svcnode.notify.model import AlertChange, Notification

MAX_NAMES = 10  # as many are named that are not Up, beside those
MAX_REASON_CHARS = 300

NotifyType = Literal["failure", "warning", "success", "info"]

_HEALTH_TEXT = {Health.HEALTHY: "healthy", Health.PARTIAL: "partially healthy", Health.UNHEALTHY: "unhealthy"}
_STATUS_BY_HEALTH = {Health.HEALTHY: Status.UP, Health.PARTIAL: Status.INITIALIZING, Health.UNHEALTHY: Status.DOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Ready for any target. What was lost on the way to one of them is added for that one."""

    title: str
    lines: tuple[str, ...]
    notify_type: NotifyType
    fields: dict[str, Any] = field(default_factory=dict)

    def body(self, lost: int = 0) -> str:
        return "\n".join([*self.lines, *_lost_lines(lost)])

    def document(self, lost: int = 0) -> dict[str, Any]:
        """What a webhook gets; `text` is all that a chat needs."""
        text = "\n".join([self.title, *(f"- {line}" for line in (*self.lines, *_lost_lines(lost)))])
        return {"text": text, **self.fields, "lost": lost}


def _lost_lines(lost: int) -> Iterator[str]:
    if lost:
        yield f"{lost} earlier {'messages were' if lost > 1 else 'message was'} lost on the way to you"


def build_message(
    news: Notification, identity: Identity, message_id: str, to_wall: Callable[[float], float]
) -> Message:
    """`to_wall` makes seconds of the wall clock from a reading of the node's clock."""
    name = sanitize(identity.node_name)
    is_whole_news = news.node is None and len(news.services) == 1
    title = f"{name}: {_service_line(news.services[0])}" if is_whole_news else _title(name, news)
    return Message(
        title=title,
        lines=tuple(_lines(news, () if is_whole_news else news.services)),
        notify_type=_notify_type(news),
        fields={
            "id": message_id,
            "kind": "change",
            "at": iso_time(to_wall(news.at_s)),
            "node": _node_fields(news, identity),
            "services": [_service_fields(item, to_wall) for item in news.services],
            "truncated_services": news.truncated_services,
            "not_up": [service.id for service in news.not_up[:MAX_LISTED_SERVICES]],
        },
    )


def build_test_message(identity: Identity, message_id: str, at_s: float) -> Message:
    """What `svcnode notify-test` sends; it says the same to people and programs: nothing has happened."""
    name = sanitize(identity.node_name)
    return Message(
        title=f"{name}: this is a test",
        lines=("svcnode notify-test was called to see whether messages arrive. Nothing has happened.",),
        notify_type="info",
        fields={
            "id": message_id,
            "kind": "test",
            "at": iso_time(at_s),
            "node": {
                "name": identity.node_name,
                "version": identity.node_version,
                "health": None,
                "health_before": None,
            }
            | {"change": None, "duration_s": None, "duration_is_upper_bound": False, "issues": []},
            "services": [],
            "truncated_services": 0,
            "not_up": [],
        },
    )


# ---- for people


def _title(name: str, news: Notification) -> str:
    if news.node is None:
        return f"{name}: {len(news.services) + news.truncated_services} services have changed"
    node, is_, was = news.node, _health_text(news.health), _health_text(news.node.before)
    match node.change_type:
        case ChangeType.WORSE | ChangeType.BETTER | ChangeType.REMOVED:
            return f"{name} is {is_}" + (f", was {was}" if was else "")
        case ChangeType.RECOVERED:
            return f"{name} has recovered: {is_} after {_duration_text(node)}{_change_count_text(node)}"
        case ChangeType.TRANSIENT:
            return f"{name} was {_health_text(node.worst)} for {format_duration(node.duration_s)}, and is {is_}"
        case ChangeType.FLAPPING:
            return (
                f"{name} is flapping: it changed {node.changes} times in {format_duration(node.duration_s)}, now {is_}"
            )
        case ChangeType.SETTLED | ChangeType.ONGOING | ChangeType.RECURRED:
            return f"{name} {_unchanged_text(node, is_)}"
        case _:
            assert_never(node.change_type)


def _lines(news: Notification, told: Sequence[AlertChange]) -> Iterator[str]:
    yield from (f"issue: {sanitize(issue)}" for issue in news.issues)
    yield from map(_service_line, told)
    if news.truncated_services:
        yield f"and {news.truncated_services} more services have changed"
    if news.not_up:
        yield f"{'also' if news.services else 'services'} not Up: {_service_list(news.not_up)}"
    if news.node is None:
        yield f"the node is {_health_text(news.health)}, as before"
    items = [item for item in (news.node, *news.services) if item is not None]
    if any(item.change_type is ChangeType.FLAPPING for item in items):
        yield f"what flaps is told again once it has not changed for {format_duration(SETTLED_AFTER_S)}"
    if any(item.duration_is_upper_bound and item.change_type is ChangeType.RECOVERED for item in items):
        yield "svcnode was restarted meanwhile, so it may have recovered sooner"
    if any(item.change_type in (ChangeType.ONGOING, ChangeType.RECURRED) for item in items):
        yield "svcnode was restarted meanwhile, and you may have been told before"


def _service_line(item: AlertChange) -> str:
    assert item.service is not None, "the node is in the title"
    what, is_ = _service_label(item.service), _STATUS_BY_HEALTH[item.health].value
    why = f": {sanitize(item.reason)}" if item.reason and item.health is not Health.HEALTHY else ""
    match item.change_type:
        case ChangeType.WORSE | ChangeType.BETTER:
            was = (
                ", and has not been Up yet" if item.before is None else f", was {_STATUS_BY_HEALTH[item.before].value}"
            )
            return f"{what} is {is_}{was}{why}"
        case ChangeType.RECOVERED:
            return f"{what} has recovered: {is_} after {_duration_text(item)}{_change_count_text(item)}"
        case ChangeType.TRANSIENT:
            why = f": {sanitize(item.reason)}" if item.reason else ""
            return f"{what} was {_STATUS_BY_HEALTH[item.worst].value} for {format_duration(item.duration_s)}, and is {is_} again{why}"
        case ChangeType.FLAPPING:
            return f"{what} is flapping: it changed {item.changes} times in {format_duration(item.duration_s)}, now {is_}{why}"
        case ChangeType.SETTLED | ChangeType.ONGOING | ChangeType.RECURRED:
            return f"{what} {_unchanged_text(item, is_)}{why}"
        case ChangeType.REMOVED:
            return (
                f"{what} is no longer watched; it was told as {_STATUS_BY_HEALTH[item.before or Health.HEALTHY].value}"
            )
        case _:
            assert_never(item.change_type)


def _unchanged_text(item: AlertChange, is_: str) -> str:
    lasted = format_duration(item.duration_s)
    if item.change_type is ChangeType.RECURRED:
        return f"is {is_} again, for {lasted}"
    return (
        f"is still {is_}, after {lasted}"
        if item.change_type is ChangeType.ONGOING
        else f"has settled: {is_} for {lasted}"
    )


def _duration_text(item: AlertChange) -> str:
    return (
        f"at most {format_duration(item.duration_s)}"
        if item.duration_is_upper_bound
        else format_duration(item.duration_s)
    )


def _change_count_text(item: AlertChange) -> str:
    """Two changes are a way there and back."""
    return f", with {item.changes} changes" if item.changes > 2 else ""


def _service_label(service: Service) -> str:
    own_name = f" ({sanitize(service.name)})" if service.name not in ("", service.id) else ""
    return sanitize(service.id) + own_name


def _service_list(services: Sequence[Service]) -> str:
    names = [sanitize(service.id) for service in services[:MAX_NAMES]]
    if len(services) > MAX_NAMES:
        names.append(f"{len(services) - MAX_NAMES} more")
    return ", ".join(names)


def _health_text(health: Health | None) -> str:
    return "" if health is None else f"{_HEALTH_TEXT[health]} ({health.value})"


def format_duration(seconds: float) -> str:
    """The two largest units, as people say it."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    total = round(seconds)
    for unit_s, unit, smaller_s, smaller in _UNITS:
        if total >= unit_s:
            rest = total % unit_s // smaller_s
            return f"{total // unit_s}{unit}" + (f" {rest}{smaller}" if rest else "")
    return f"{total}s"


_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def sanitize(text: str) -> str:
    """Fit to be sent: one line, not endless, and without secrets."""
    text = one_line(redacted(text))
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


# ---- for programs


def _node_fields(news: Notification, identity: Identity) -> dict[str, Any]:
    node = news.node
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "health": int(news.health),
        "health_before": None if node is None or node.before is None else int(node.before),
        "change": None if node is None else node.change_type.value,
        "duration_s": None if node is None else _duration_field(node),
        "duration_is_upper_bound": node is not None and node.duration_is_upper_bound,
        "issues": [sanitize(issue) for issue in news.issues],
    }


def _service_fields(item: AlertChange, to_wall: Callable[[float], float]) -> dict[str, Any]:
    assert item.service is not None, "the node has fields of its own"
    return {
        "id": item.service.id,
        "name": sanitize(item.service.name),
        "impact": item.service.impact.value,
        "change": item.change_type.value,
        "status": None if item.change_type is ChangeType.REMOVED else _STATUS_BY_HEALTH[item.health].value,
        "status_before": None if item.before is None else _STATUS_BY_HEALTH[item.before].value,
        "reason": sanitize(item.reason),
        "since": iso_time(to_wall(item.since_s)),
        "duration_s": _duration_field(item),
        "duration_is_upper_bound": item.duration_is_upper_bound,
        "changes": item.changes,
    }


def _duration_field(item: AlertChange) -> float | None:
    return None if item.change_type in (ChangeType.WORSE, ChangeType.BETTER) else round(item.duration_s, 3)


def _notify_type(news: Notification) -> NotifyType:
    items = [item for item in (news.node, *news.services) if item is not None]
    if any(item.change_type in _PROBLEM_CHANGES for item in items):
        return "failure" if news.health is Health.UNHEALTHY else "warning"
    if news.health is Health.HEALTHY and all(item.change_type in _RESOLVED_CHANGES for item in items):
        return "success"
    return "info" if news.health is Health.HEALTHY else "warning"


_PROBLEM_CHANGES = (ChangeType.WORSE, ChangeType.FLAPPING, ChangeType.ONGOING, ChangeType.RECURRED)
_RESOLVED_CHANGES = (ChangeType.RECOVERED, ChangeType.SETTLED, ChangeType.REMOVED)
