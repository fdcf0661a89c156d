"""A report as a message: text for people, and fields for programs. docs/alerts.md documents the fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from svcnode.core.model import Health, Impact, Status
from svcnode.core.text import sanitize, truncate
from svcnode.core.units import format_short_duration, iso_time, utc_text
from svcnode.notify.content import Help, page_link
from svcnode.notify.folding import OVER, fold, short_reason
from svcnode.notify.rule import ENDED, OPEN, PAST, Kind
from svcnode.notify.subjects import Severity
from svcnode.notify.targets import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Identity, Service
    from svcnode.notify.causes import Related
    from svcnode.notify.folding import Line
    from svcnode.notify.routes import Entry, Report, Situation
    from svcnode.notify.targets import NotifyType

MAX_LISTED_SERVICES = 20  # per message
MAX_NAMES = 10  # of services in a line
MAX_REASON_CHARS = 300
MAX_EXPLAINED = 3  # services of a message that have advice; a longer message is not read

_STATUS_BY_HEALTH = {Health.HEALTHY: Status.UP, Health.PARTIAL: Status.INITIALIZING, Health.UNHEALTHY: Status.DOWN}
_NEW_HEALTH = (Kind.WORSE, Kind.BETTER)
_FIRING = (Kind.WORSE, Kind.RECURRED, Kind.REMINDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """What a message needs to know besides its report."""

    identity: Identity
    situation: Situation
    to_wall: Callable[[float], float]  # converts a time of the node's monotonic clock to wall-clock time
    delayed_s: float = 0.0  # how long the target could not be reached
    find_help: Callable[[Entry], Help] = lambda _: Help()
    page_url: str = ""  # of the operator surface; empty: not known


def build_message(report: Report, context: MessageContext, message_id: str) -> Message:
    name, situation = shown(context.identity.node_name), context.situation
    folded = fold(report.services)
    services = [
        *(entry for line in folded for entry in line.entries),
        *(one for line in folded for one in line.effects),
    ]
    texts = [_service_line(line, context) for line in folded[:MAX_LISTED_SERVICES]]
    texts += map(_target_line, report.targets)
    issues = [*map(_issue_line, report.issues)]
    explained = [line.entries[0] for line in folded[:MAX_EXPLAINED]] or report.targets[:MAX_EXPLAINED]
    help_lines = [[*context.find_help(entry).lines()] for entry in explained]
    if more := sum(len(line.entries) + len(line.effects) for line in folded[MAX_LISTED_SERVICES:]):
        texts.append(f"{more} more services changed")
    if report.node is None and len(issues) + len(texts) == 1:
        title, lines = (
            f"{name}: {(*issues, *texts)[0]}",
            _lines(report, context, (), [*chain.from_iterable(help_lines)]),
        )
    else:
        texts[: len(explained)] = ["\n  ".join((text, *more)) for text, more in zip(texts, help_lines, strict=False)]
        title, lines = _title(name, report, context), _lines(report, context, (*issues, *texts), ())
    severity = Severity.CRITICAL if any(_is_critical(entry) for entry in report.entries) else Severity.WARNING
    return Message(
        title=title,
        lines=tuple(lines),
        notify_type=_notify_type(report, situation.health),
        fields={
            "id": message_id,
            "kind": "change",
            "at": iso_time(context.to_wall(report.at_s)),
            "severity": severity.value,
            "url": page_link(context.page_url) or None,
            "node": _node_fields(context.identity, situation, report),
            "issues": [_issue_fields(entry, context.to_wall) for entry in report.issues],
            "services": [_service_fields(entry, context) for entry in services[:MAX_LISTED_SERVICES]],
            "truncated_services": len(services[MAX_LISTED_SERVICES:]),
            "groups": [_group_fields(line) for line in folded[:MAX_LISTED_SERVICES] if len(line.entries) > 1],
            "not_up": [service.id for service in _other_not_up(report, situation)[:MAX_LISTED_SERVICES]],
            "targets": [_target_fields(entry, context.to_wall) for entry in report.targets],
            "delayed_s": round(context.delayed_s, 3),
        },
    )


def build_test_message(identity: Identity, message_id: str, at_s: float, page_url: str = "") -> Message:
    """The message of `svcnode notify-test`, with the same fields as a real one."""
    return Message(
        title=f"{shown(identity.node_name)}: test message",
        lines=("Sent by svcnode notify-test. No status has changed.", *_page_lines(page_link(page_url))),
        notify_type="info",
        fields={
            "id": message_id,
            "kind": "test",
            "at": iso_time(at_s),
            "severity": None,
            "url": page_link(page_url) or None,
            "node": _node_fields(identity, None, None),
            "issues": [],
            "services": [],
            "truncated_services": 0,
            "groups": [],
            "not_up": [],
            "targets": [],
            "delayed_s": 0.0,
        },
    )


# ---- text for people


def _title(name: str, report: Report, context: MessageContext) -> str:
    if report.node is None:
        is_reminder = all(entry.kind is Kind.REMINDER for entry in report.entries)
        return f"{name}: {len(report.entries)} {'problems are still open' if is_reminder else 'changes'}"
    before = report.node.before
    was = "" if before is None else f", was {_health_text(before)}"
    return _entry_text(report.node, name, _health_text, was=was)


def _lines(
    report: Report, context: MessageContext, entry_lines: Sequence[str], help_lines: Sequence[str]
) -> Iterator[str]:
    situation = context.situation
    made = situation.acknowledgement if report.node is None else report.node.acknowledgement
    if made is not None:
        yield f"node acknowledged {shown(made.text)}"
    listed = {entry.reason for entry in report.issues}
    yield from (f"issue: {shown(issue)}" for issue in situation.issues if issue not in listed)
    yield from entry_lines
    named = (entry for entry in report.services if entry.kind in OPEN)
    mentioned = {one.service.id for entry in named for one in (*entry.causes, *entry.effects)}
    if not_up := [service for service in _other_not_up(report, situation) if service.id not in mentioned]:
        yield f"{'also' if report.services else 'services'} not Up: {_service_list(not_up)}"
    if report.node is None:
        yield _node_line(report, situation)
    yield from help_lines
    if any(entry.duration_is_upper_bound and entry.kind is Kind.RECOVERED for entry in report.entries):
        yield "svcnode was restarted in between; the recovery may have been earlier"
    if context.delayed_s >= 1.0:
        yield f"this message is late: it could not be delivered for {format_short_duration(context.delayed_s)}"
    only = report.services[0].service if report.node is None and len(report.services) == 1 else None
    yield from _page_lines(page_link(context.page_url, only))


def _page_lines(link: str) -> Iterator[str]:
    if link:
        yield f"page: {link}"


def _node_line(report: Report, situation: Situation) -> str:
    now = node_health_text(situation)
    if situation.health is report.told_health:
        return f"node health unchanged: {now}"
    why = f"; held back by {situation.held_by}" if situation.held_by else ""
    return f"node health: {now}, last reported as {_health_text(report.told_health)}{why}"


def node_health_text(situation: Situation) -> str:
    return _health_text(situation.health) + (f", {shown(situation.reason)}" if situation.reason else "")


def _other_not_up(report: Report, situation: Situation) -> list[Service]:
    listed = {entry.service.id for entry in report.services}
    return [service for service in situation.not_up if service.id not in listed]


class _Words(NamedTuple):
    """The words that differ between one service and several."""

    be: str = "is"
    was: str = "was"
    have: str = "has"
    up_to: str = ""
    problem_stays: str = "the problem stays"
    problem_began: str = "the problem began"


_ONE = _Words()
_SEVERAL = _Words("are", "were", "have", "up to ", "the problems stay", "the problems began")


def _service_line(line: Line, context: MessageContext) -> str:
    entry = line.entries[0]
    if len(line.entries) > 1:
        return _group_line(line)
    text = _entry_text(entry, _service_label(entry.service), status_text, was=_was_text(entry, _ONE))
    if entry.kind in (*_NEW_HEALTH, Kind.REMINDER):
        text += _since_text(entry, context.to_wall)
    text += "".join(f"; {one}" for one in _relation_texts(entry, line.effects))
    return text if entry.acknowledgement is None else f"{text}; acknowledged {shown(entry.acknowledgement.text)}"


def _group_line(line: Line) -> str:
    first, on_host = line.entries[0], f" on {line.host}" if line.host else ""
    slowest_s = max(entry.duration_s for entry in line.entries)
    shown_entry = replace(first, reason=_common_reason(line), duration_s=slowest_s, changes=0)
    label, was = f"{len(line.entries)} services{on_host}", _was_text(first, _SEVERAL)
    text = _entry_text(shown_entry, label, status_text, was=was, words=_SEVERAL)
    names = _service_list([entry.service for entry in line.entries])
    return "; ".join((f"{text}: {names}", *_relation_texts(first, ())))


def _common_reason(line: Line) -> str:
    short = {short_reason(entry) for entry in line.entries}
    full = short if line.host else {entry.reason for entry in line.entries}
    for reasons in (full, short):
        if len(reasons) == 1:
            return reasons.pop()
    return (line.entries[0].code or "").replace("_", " ")


def _was_text(entry: Entry, words: _Words) -> str:
    if entry.before is None:
        return f" and {words.have} not been Up since svcnode started"
    return f", {words.was} {status_text(entry.before)}"


def _relation_texts(entry: Entry, folded: Sequence[Entry]) -> Iterator[str]:
    """What the service affects, and what it depends on."""
    if entry.kind in OVER and folded:
        yield f"with it: {_service_list([effect.service for effect in folded])}"
    if entry.kind not in OPEN:
        return
    if affected := _affected(entry):
        yield f"affects {_listed([_impact_label(effect.service) for effect in affected])}"
    if unaffected := [effect for effect in entry.effects if effect not in affected]:
        yield f"not affected so far: {_listed([_impact_label(effect.service) for effect in unaffected])}"
    if entry.causes:
        yield f"depends on {_listed([_cause_label(cause) for cause in entry.causes])}"


def _cause_label(cause: Related) -> str:
    made = ", acknowledged" if cause.is_acknowledged else ""
    return f"{shown(cause.service.id)} ({status_text(cause.health)}{made})"


def _affected(entry: Entry) -> list[Related]:
    return [effect for effect in entry.effects if effect.health is not Health.HEALTHY]


def _issue_line(entry: Entry) -> str:
    text, duration = shown(entry.reason), format_short_duration(entry.duration_s)
    if entry.kind in (*ENDED, Kind.TRANSIENT):
        return f"issue cleared after {duration}: {text}"
    if entry.kind is Kind.RECURRED:
        return f"issue again for {duration}, now cleared; the problem stays open until it has stayed cleared: {text}"
    still = f" (for {duration})" if entry.kind is Kind.REMINDER else ""
    return f"issue{still}: {text}"


def _target_line(entry: Entry) -> str:
    label = f"notifications to {entry.subject.key.name}"
    if entry.kind in ENDED:
        return f"{label} are delivered again, after {format_short_duration(entry.duration_s)}"
    return f"{label} fail: {shown(entry.reason)}"


def _entry_text(
    entry: Entry, label: str, health_text: Callable[[Health], str], *, was: str, words: _Words = _ONE
) -> str:
    now_text, duration = health_text(entry.health), format_short_duration(entry.duration_s)
    has_reason = entry.reason and (entry.health is not Health.HEALTHY or entry.kind in PAST)
    reason = f": {shown(entry.reason)}" if has_reason else ""
    # Two changes, down and up, are the normal case.
    count = f", with {entry.changes} changes" if entry.changes > 2 else ""
    at_most = "at most " if entry.duration_is_upper_bound else words.up_to
    match entry.kind:
        case Kind.WORSE | Kind.BETTER:
            return f"{label} {words.be} {now_text}{was}{count}{reason}"
        case Kind.RECOVERED:
            is_well = entry.health is Health.HEALTHY  # or the target gets only what is critical
            what = f"{words.have} recovered" if is_well else f"{words.be} no longer critical"
            return f"{label} {what}: {now_text} after {at_most}{duration}{count}{reason}"
        case Kind.TRANSIENT:
            was_text = f"{label} {words.was} {health_text(entry.worst)}"
            return f"{was_text} for {at_most}{duration}{count}, now {now_text}{reason}"
        case Kind.RECURRED:
            return (
                f"{label} {words.was} {health_text(entry.worst)} again for {words.up_to}{duration}{count}, "
                f"now {now_text}; {words.problem_stays} open until the recovery has lasted{reason}"
            )
        case Kind.REMINDER:
            began = f"{words.problem_began} {words.up_to}{duration} ago"
            return f"{label} {words.be} still {now_text}{count}{reason}; {began}"
        case Kind.REMOVED:
            before = health_text(entry.before or Health.HEALTHY)
            return f"{label} {words.be} no longer monitored; last reported as {before}"
        case _:
            assert_never(entry.kind)


def _since_text(entry: Entry, to_wall: Callable[[float], float]) -> str:
    """With the first failure, if checks were counted between it and Down. Of a reminder, the start of the problem."""
    if entry.kind is Kind.REMINDER:
        return f" ({utc_text(to_wall(entry.opened_at_s))})"
    first_s, since_s = entry.first_failure_at_s, entry.since_s
    if entry.health is not Health.UNHEALTHY or first_s is None or first_s >= since_s:
        return f" (since {utc_text(to_wall(since_s))})"
    return f" (first failure at {utc_text(to_wall(first_s))}, Down {format_short_duration(since_s - first_s)} later)"


def _service_label(service: Service) -> str:
    name = f" ({shown(service.name)})" if service.name not in ("", service.id) else ""
    return shown(service.id) + name


def _impact_label(service: Service) -> str:
    return shown(service.id) + (" (critical)" if service.impact is Impact.CRITICAL else "")


def _service_list(services: Sequence[Service]) -> str:
    return _listed([shown(service.id) for service in services])


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join((*names[:MAX_NAMES], *more))


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
        "reason": shown(entry.reason if entry else situation.reason if situation else ""),
        "duration_s": entry and _duration_field(entry),
        "duration_is_upper_bound": entry is not None and entry.duration_is_upper_bound,
        "changes": entry and entry.changes,
        "acknowledged": entry and _acknowledged_field(entry),
        "issues": [] if situation is None else [shown(issue) for issue in situation.issues],
    }


def _issue_fields(entry: Entry, to_wall: Callable[[float], float]) -> dict[str, Any]:
    return {
        "name": shown(entry.subject.key.name),
        "text": shown(entry.reason),
        "change": entry.kind.value,
        "since": iso_time(to_wall(entry.opened_at_s)),
        "duration_s": _duration_field(entry),
        "acknowledged": _acknowledged_field(entry),
    }


def _service_fields(entry: Entry, context: MessageContext) -> dict[str, Any]:
    to_wall = context.to_wall
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
        **context.find_help(entry).fields(),
        "url": page_link(context.page_url, entry.service) or None,
        "host": shown(entry.host),
        "causes": _ids(entry.causes),
        "affects": _ids(_affected(entry)),
        "depended_on_by": _ids(entry.effects),
    }


def _group_fields(line: Line) -> dict[str, Any]:
    first = line.entries[0]
    return {
        "host": shown(line.host),
        "code": first.code,
        "reason": shown(_common_reason(line)),
        "change": first.kind.value,
        "status": None if first.kind is Kind.REMOVED else status_text(first.health),
        "count": len(line.entries),
        "services": [entry.service.id for entry in line.entries[:MAX_LISTED_SERVICES]],
    }


def _ids(related: Sequence[Related]) -> list[str]:
    return [one.service.id for one in related[:MAX_LISTED_SERVICES]]


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
    if health is Health.HEALTHY and all(entry.kind in ENDED for entry in report.entries):
        return "success"
    return "info" if health is Health.HEALTHY else "warning"
