"""What an explanation is made of.

The node as a whole: its health and why, and whatever is not Up.

One service: what it is, why, what would change it, and what to mend.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.model import Health, Impact, Outcome, Status
from svcnode.core.text import one_line
from svcnode.terminal.explain.attempts import attempt_texts
from svcnode.terminal.explain.details import ParsedDetails, parse_details
from svcnode.terminal.explain.durations import format_duration, format_seconds, format_time
from svcnode.terminal.explain.hints import hint_texts
from svcnode.terminal.explain.rule_text import outlook_texts, rule_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import tzinfo

INDENT = "  "


class Section(NamedTuple):
    title: str
    sentences: tuple[str, ...]


class Explanation(NamedTuple):
    """Every text is one line, with nothing in it that steers a terminal."""

    status: Status | Health
    headline: str
    about: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def lines(self) -> list[str]:
        lines = [self.headline, *(INDENT + one for one in self.about)]
        for title, sentences in self.sections:
            lines += ["", title, *(INDENT + one for one in sentences)]
        return lines


_HEALTH_TEXT = {Health.HEALTHY: "healthy", Health.PARTIAL: "partially healthy", Health.UNHEALTHY: "unhealthy"}
_WORST_FIRST = [Status.DOWN, Status.INITIALIZING]


def explain_node(told: Mapping[str, Any]) -> Explanation:
    """From `/details`, with or without attempts."""
    node, services = told["node"], told["services"]
    health = Health(node["health"])
    sections = [
        Section(title, tuple(map(one_line, lines)))
        for title, lines in (("Not Up", _not_up_lines(services)), ("Besides", _problem_lines(node)))
    ]
    about = f"{_up_count_text(services)}; svcnode {node['svcnode']}, running for {format_duration(node['uptime_s'])}"
    return Explanation(
        status=health,
        headline=one_line(
            f"{node['name']} {node['version']} is {_HEALTH_TEXT[health]} ({health.value}): {node['health_reason']}"
        ),
        about=(one_line(about),),
        sections=tuple(section for section in sections if section.sentences),
    )


def _up_count_text(services: list[Mapping[str, Any]]) -> str:
    up = sum(service["status"] == Status.UP.value for service in services)
    what = "service" if len(services) == 1 else "services"
    return f"{up} of {len(services)} {what} {'is' if 1 in (up, len(services)) else 'are'} Up"


def _not_up_lines(services: list[Mapping[str, Any]]) -> Iterator[str]:
    listed = [service for status in _WORST_FIRST for service in services if service["status"] == status.value]
    for service in listed:
        told = _reason_text(service)
        reason = f": {told}" if told else ""
        weight = {Impact.NONE: " (does not count)", Impact.CRITICAL: " (critical)"}.get(Impact(service["impact"]), "")
        yield f"{service['id']} is {service['status']}{weight}, for {format_duration(service['since_s'])}{reason}"
    if listed:
        yield f"More about one of them: svcnode explain {shlex.quote(listed[0]['id'])}"


def _reason_text(service: Mapping[str, Any]) -> str:
    """Where looks cannot be made, why: that nothing is known follows from it."""
    evidence, reason = service["evidence"], service["reason"]
    if evidence and evidence["reason"] and Outcome(evidence["verdict"]) is Outcome.UNKNOWN:
        return f"{evidence['reason']} ({reason})" if reason else str(evidence["reason"])
    return str(reason)


def _problem_lines(node: Mapping[str, Any]) -> Iterator[str]:
    if node["reload_problem"]:
        yield f"Its configuration was not reloaded, the old one is in force: {node['reload_problem']}"
    if node["history_problem"]:
        yield f"Its history: {node['history_problem']}"


_IMPACT_TEXT = {
    Impact.CRITICAL: "while it is Down, the node is unhealthy (503)",
    Impact.PARTIAL: "while it is not Up, the node is at best partially healthy (206)",
    Impact.NONE: "the health of the node does not depend on it",
}


def explain_service(details: Mapping[str, Any], zone: tzinfo | None = None) -> Explanation:
    """From `/details/{id}`; times are told in this zone, or in that of this machine."""
    facts = parse_details(details)
    sections = [
        Section(title, tuple(map(one_line, sentences)))
        for title, sentences in (
            ("Why", [*attempt_texts(facts, zone), *rule_texts(facts)]),
            ("What would change it", outlook_texts(facts)),
            ("How to fix it", hint_texts(facts)),
        )
    ]
    since = format_time(facts.since, facts.now, zone)
    return Explanation(
        status=facts.status,
        headline=one_line(f"{facts.id} is {facts.status.value}, since {since} ({format_duration(facts.since_s)})"),
        about=tuple(map(one_line, _about_lines(facts))),
        sections=tuple(section for section in sections if section.sentences),
    )


def _about_lines(facts: ParsedDetails) -> Iterator[str]:
    if named := [text for text in (facts.name, facts.description) if text and text != facts.id]:
        yield ": ".join(named)
    if facts.interval_s is not None and facts.timeout_s is not None:
        how = facts.probe or "a function of the program"
        yield f"probe   {how}, every {format_seconds(facts.interval_s)}, for at most {format_seconds(facts.timeout_s)}"
    yield f"impact  {facts.impact.value}: {_IMPACT_TEXT[facts.impact]}"
