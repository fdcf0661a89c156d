"""The explanation of a node and of a service, as lines of text.

A node: its health, the reason, and its problems. A service: its status, the reason, what changes it,
and how to fix it.
"""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.cli.terminal.explain.details import ParsedDetails, parse_details
from svcnode.cli.terminal.explain.hints import hint_texts
from svcnode.cli.terminal.explain.observers import observation_texts
from svcnode.cli.terminal.explain.rule_text import outlook_texts, rule_texts
from svcnode.cli.terminal.problems import group_lines, more_lines, sentence
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Impact, Outcome, Status
from svcnode.core.problems import left_out_text
from svcnode.core.remedies import meaning_text
from svcnode.core.state_machine import service_health
from svcnode.core.text import one_line
from svcnode.core.units import format_duration, format_latency, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from svcnode.cli.terminal.explain.details import RecentCheck
    from svcnode.cli.terminal.problems import Problems

INDENT = "  "
COMMAND = "svcnode explain"
PROBLEMS, GROUPS, NODE, REPLICAS = "Problems", "Groups", "The node itself", "Replicas"  # titles, for a node
WHY, WHAT_CHANGES_IT, HOW_TO_FIX_IT = "Why", "What changes it", "How to fix it"  # for a service
MAINTENANCE, ACKNOWLEDGED, ALERT = "Maintenance", "Acknowledged", "Alert"  # for both
MAX_GROUPS = 4
MAX_REPLICAS = 20
_NUMBER = re.compile(r"\d+(\.\d+)?")


class Section(NamedTuple):
    title: str
    sentences: tuple[str, ...]


class Explanation(NamedTuple):
    """Every text is one line without control characters."""

    status: Status | Health
    headline: str
    about: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def lines(self) -> list[str]:
        lines = [self.headline, *(INDENT + line for line in self.about)]
        for title, sentences in self.sections:
            lines += ["", title, *(INDENT + sentence for sentence in sentences)]
        return lines


# ---- a node


def explain_node(document: Problems, command: str = COMMAND) -> Explanation:
    """From `/problems`. `command` asks the same node again."""
    node = document["node"]
    health = Health(node["health"])
    about = f"{_up_count_text(document)}; svcnode {node['svcnode']}, running for {format_duration(node['uptime_s'])}"
    sections = {
        PROBLEMS: _problem_lines(document, command),
        GROUPS: group_lines(document),
        NODE: _node_lines(node),
        REPLICAS: _replica_lines(node, command),
        MAINTENANCE: _maintenance_lines(node),
        ACKNOWLEDGED: _acknowledged_lines(node),
        ALERT: _alert_lines(node, {health: f"{health.text} ({health})" for health in Health}),
    }
    return Explanation(
        status=health,
        headline=one_line(
            f"{node['name']} {node['version']} is {health.text} ({health.value}): {_health_summary(node)}"
        ),
        about=(one_line(about),),
        sections=_sections(sections),
    )


def _sections(sentences_by_title: Mapping[str, Iterator[str]]) -> tuple[Section, ...]:
    sections = (Section(title, tuple(map(one_line, sentences))) for title, sentences in sentences_by_title.items())
    return tuple(section for section in sections if section.sentences)


def _health_summary(node: Mapping[str, Any]) -> str:
    return str(node.get("health_summary", node["health_reason"]))  # an older node does not have it


def _up_count_text(document: Problems) -> str:
    up, count = document["counts"].get(Status.UP.value, 0), sum(document["counts"].values())
    return f"{up} of {count} service{'' if count == 1 else 's'} Up"


def _problem_lines(document: Problems, command: str) -> Iterator[str]:
    for problem in document["problems"]:
        yield sentence(problem)
        yield from (f"{INDENT}{line}" for line in more_lines(problem))
    if more := left_out_text(document):
        yield more
    if document["problems"]:
        service_id = document["problems"][0]["id"]
        yield f"For more about one service: {command} --service {shlex.quote(service_id)}"


def _node_lines(node: Mapping[str, Any]) -> Iterator[str]:
    if node["reload_problem"]:
        yield f"The last reload failed, the previous configuration is active: {node['reload_problem']}"
    if node["history_problem"]:
        yield f"History: {node['history_problem']}"
    sharing = node.get("sharing")  # an older node does not have it
    if sharing:
        yield from _registry_problem_lines(sharing)


def _registry_problem_lines(sharing: Mapping[str, Any]) -> Iterator[str]:
    if sharing["problem"]:
        age_s = sharing["last_response_age_s"]
        last = "it has not responded yet" if age_s is None else f"the last response was {format_duration(age_s)} ago"
        yield f"Registry {sharing['registry']}: {sharing['problem']}; {last}."
        yield "What other replicas check becomes Initializing (registry_lost) when their evidence expires."
    ignored = {kind: count for kind, count in sharing["ignored_keys"].items() if count}
    if ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in ignored.items())
        yield f"Keys of the registry that are ignored: {kinds}. To list them: svcnode registry show"


def _replica_lines(node: Mapping[str, Any], command: str) -> Iterator[str]:
    sharing = node.get("sharing")
    replicas = sharing["replicas"] if sharing else []
    for replica in replicas[:MAX_REPLICAS]:
        name = f"{replica['name']}{' (this one)' if replica['is_self'] else ''}"
        count = replica["checks"]
        services = f"{count} service{'' if count == 1 else 's'}"
        yield f"{name} checks {services}, seen for {format_duration(replica['since_s'])}."
    if left := len(replicas[MAX_REPLICAS:]):
        yield f"{left} more; {command} --json prints all."
    work = sharing.get("work", []) if sharing else []  # an older node does not have it
    for one in work[:MAX_REPLICAS]:
        yield f"{'All replicas' if one['replica'] is None else one['replica']}: {one['text']}."
    if left := len(work[MAX_REPLICAS:]):
        yield f"{left} more drains and maintenances; {command} --json prints all."


def _maintenance_lines(document: Mapping[str, Any]) -> Iterator[str]:
    maintenance = document.get("maintenance")  # an older node does not have it
    if maintenance:
        yield f"{maintenance['text'][:1].upper()}{maintenance['text'][1:]}."
        yield "Checks go on. Messages are held, and what is still wrong at the end is sent then."
        yield "Availability leaves this time out."
    planned = document.get("planned_maintenance")
    if planned:
        yield f"Planned {planned['text']}. Until then, messages are sent as always."


def _acknowledged_lines(document: Mapping[str, Any]) -> Iterator[str]:
    acknowledged = document.get("acknowledged")  # an older node does not have it
    if acknowledged:
        yield f"{acknowledged['text'][:1].upper()}{acknowledged['text'][1:]}."
        end = "until then" if acknowledged["until"] else "until the problem has cleared"
        yield f"There are no reminders, and it is not escalated, {end}. If it gets worse, messages are sent as always."


def _alert_lines(document: Mapping[str, Any], names: Mapping[Health, str]) -> Iterator[str]:
    """Only while an improvement waits for resolve_delay: the last message is no longer true then."""
    alert = document.get("alert")  # an older node does not have it
    if alert is None or alert["state"] != "resolving":
        return
    in_s = alert["message_in_s"]
    when = "with the next message" if in_s is None else f"in {format_duration(in_s)}, if it lasts (resolve_delay)"
    yield f"The last message said {names[Health(alert['notified_health'])]}. The improvement is sent {when}."


# ---- a service

_IMPACT_TEXT = {
    Impact.CRITICAL: "if this service is Down, the node is unhealthy (503)",
    Impact.PARTIAL: "if this service is not Up, the node is at best partially healthy (206), "
    "and unhealthy (503) if every service that counts is Down",
    Impact.NONE: "this service does not affect the health of the node",
}


_LOWERED_IMPACT_TEXT = (
    "this service is not counted; if that is only for the maintenance and it is not Up, "
    "the node is at best partially healthy (206)"
)


def explain_service(
    document: Mapping[str, Any], node: Mapping[str, Any] | None = None, command: str = COMMAND
) -> Explanation:
    """From `/details/{id}`, and the node in `/problems`, if that is known. `command` asks the same node again."""
    details = parse_details(document)
    since = utc_text(details.since_at_s, details.now_s)
    depends_on = document.get("depends_on", ())  # an older node does not have it
    needs = [f"needs   {', '.join(depends_on)}"] if depends_on else []
    restart = ", before the restart" if document.get("since_before_restart") else ""  # nor this
    return Explanation(
        status=details.status,
        headline=one_line(
            f"{details.id} has been {details.status.value} since {since} ({format_duration(details.since_s)}{restart})"
        ),
        about=tuple(map(one_line, [*_about_lines(details, document, node), *needs])),
        sections=_sections(
            {
                WHY: iter(
                    [
                        *_memory_texts(document, details),
                        *_cause_texts(document, details),
                        *_attempt_texts(details, command),
                        *_decision_texts(details),
                        *observation_texts(details),
                        *rule_texts(details),
                    ]
                ),
                WHAT_CHANGES_IT: outlook_texts(details),
                HOW_TO_FIX_IT: hint_texts(details),
                MAINTENANCE: _maintenance_lines(document),
                ACKNOWLEDGED: _acknowledged_lines(document),
                ALERT: _alert_lines(document, {service_health(status): status.value for status in Status}),
            }
        ),
    )


def _memory_texts(document: Mapping[str, Any], details: ParsedDetails) -> Iterator[str]:
    known = document.get("before_restart")  # an older node does not have it
    if known:
        since = utc_text(known["since"], details.now_s)
        reason = f": {known['reason']}" if known["reason"] else ""
        yield f"Before the restart of svcnode it was {known['status']}, since {since}{reason}."
    elif document.get("since_before_restart") and details.is_probed and not details.is_decided_by_replicas:
        yield "It was Down before the restart of svcnode already, so one failed check was enough to confirm it."


def _cause_texts(document: Mapping[str, Any], details: ParsedDetails) -> Iterator[str]:
    for cause in document.get("causes", ()):  # an older node does not have it
        since = utc_text(cause["since"], details.now_s)
        yield (
            f"It depends on {cause['id']}, which has been {cause['status']} since {since} "
            f"({format_duration(cause['since_s'])})."
        )


def _about_lines(details: ParsedDetails, document: Mapping[str, Any], node: Mapping[str, Any] | None) -> Iterator[str]:
    if texts := [text for text in (details.name, details.description) if text and text != details.id]:
        yield ": ".join(texts)
    if details.interval_s is not None and details.timeout_s is not None:
        probe = details.probe or "a function of the program"
        yield f"probe   {probe}, every {details.interval_s:g} s, timeout {details.timeout_s:g} s"
    elif details.is_from_registry and details.probe is not None:
        yield f"probe   {details.probe}"
    is_lowered = bool(document.get("maintenance")) and details.impact is Impact.NONE  # or it is none always
    yield f"impact  {details.impact.value}: {_LOWERED_IMPACT_TEXT if is_lowered else _IMPACT_TEXT[details.impact]}"
    if node is not None and (health := Health(node["health"])) is not Health.HEALTHY:
        yield f"node    {health.text} ({health.value}): {_health_summary(node)}"
    if details.runbook:
        yield f"runbook {details.runbook}"
    if details.code != ReasonCode.OK:
        yield f"code    {details.code}: {meaning_text(details.code)}"
    if details.last_outcome is Outcome.UNKNOWN and (code := details.recent_checks[0].code) != details.code:
        yield f"code    {code}: {meaning_text(code)} (last check)"


def _decision_texts(details: ParsedDetails) -> Iterator[str]:
    """When the failures began, and when the status was decided; only if checks were counted in between."""
    first_s, since_s = details.first_failure_at_s, details.since_at_s
    if details.status is Status.DOWN and first_s is not None and first_s < since_s:
        first, since = (utc_text(at_s, details.now_s, with_ms=True) for at_s in (first_s, since_s))
        yield f"First failure at {first}, Down at {since}."


# ---- its last checks or reports: equal results in a row are one sentence

_REPORTED_STATUS = {Outcome.READY: "Up", Outcome.NOT_READY: "Initializing", Outcome.FAILED: "Down"}


def _attempt_texts(details: ParsedDetails, command: str) -> Iterator[str]:
    if details.is_fixed:
        return
    groups = [list(group) for _, group in groupby(details.recent_checks, _group_key)]
    shown_count = 0
    for group in groups[:MAX_GROUPS]:
        yield _group_text(details, group, is_newest=not shown_count)
        shown_count += len(group)
    if left := len(details.recent_checks) - shown_count:
        yield f"Not shown: {_count_text(left, details)} before that; {command} --json prints all."


def _group_key(check: RecentCheck) -> tuple[Outcome, str, str]:
    """Reasons that differ only in numbers, such as progress, are equal."""
    return check.outcome, check.code, _NUMBER.sub("0", check.reason)


def _group_text(details: ParsedDetails, group: Sequence[RecentCheck], *, is_newest: bool) -> str:
    newest, oldest = (utc_text(check.at_s, details.now_s) for check in (group[0], group[-1]))
    period = f"at {newest}" if newest == oldest else f"from {oldest} to {newest}"
    if is_newest:
        subject = f"The last {_noun(details) if len(group) == 1 else _count_text(len(group), details)}"
    else:
        subject = f"Before that, {_count_text(len(group), details)}"
    reason = _short_reason(group[0].reason, details.probe)
    is_same_reason = len({check.reason for check in group}) == 1
    suffix = f"{': ' if is_same_reason else '; latest reason: '}{reason}" if reason else ""
    return f"{subject}, {period}, {_result_text(details, group)}{suffix}."


def _result_text(details: ParsedDetails, group: Sequence[RecentCheck]) -> str:
    outcome = group[0].outcome
    if not details.is_probed:
        return f"said {_REPORTED_STATUS.get(outcome, 'unknown')}"
    duration = format_latency(*(check.duration_ms for check in group))
    match outcome:
        case Outcome.READY:
            return f"succeeded in {duration}"
        case Outcome.FAILED:
            return f"failed after {duration}"
        case Outcome.NOT_READY:
            return f"found the service not ready after {duration}"
        case Outcome.UNKNOWN:
            return "could not run"


def _short_reason(reason: str, probe: str | None) -> str:
    """Without the URL of the probe, which the explanation has above, and without a full stop, which follows."""
    return reason.removesuffix(f": {probe}").rstrip(".")


def _noun(details: ParsedDetails) -> str:
    return "check" if details.is_probed else "report"


def _count_text(count: int, details: ParsedDetails) -> str:
    return f"{count} {_noun(details)}{'' if count == 1 else 's'}"
