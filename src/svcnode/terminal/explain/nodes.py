"""The node as a whole: its health and why, and whatever is not Up."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Health, Impact, Outcome, Status
from svcnode.core.wording import one_line
from svcnode.terminal.explain.explanation import Explanation, Section
from svcnode.terminal.explain.spoken import for_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEALTH_WORDS = {Health.HEALTHY: "healthy", Health.PARTIAL: "partially healthy", Health.UNHEALTHY: "unhealthy"}
_WORST_FIRST = [Status.DOWN, Status.INITIALIZING]


def node_explained(told: Mapping[str, Any]) -> Explanation:
    """From `/details`, with or without attempts."""
    node, services = told["node"], told["services"]
    health = Health(node["health"])
    sections = [
        Section(title, tuple(map(one_line, lines)))
        for title, lines in (("Not Up", _not_up(services)), ("Besides", _problems(node)))
    ]
    about = f"{_up(services)}; svcnode {node['svcnode']}, running for {for_s(node['uptime_s'])}"
    return Explanation(
        finding=health,
        head=one_line(
            f"{node['name']} {node['version']} is {_HEALTH_WORDS[health]} ({health.value}): {node['health_reason']}"
        ),
        about=(one_line(about),),
        sections=tuple(section for section in sections if section.sentences),
    )


def _up(services: list[Mapping[str, Any]]) -> str:
    up = sum(service["status"] == Status.UP.value for service in services)
    what = "service" if len(services) == 1 else "services"
    return f"{up} of {len(services)} {what} {'is' if 1 in (up, len(services)) else 'are'} Up"


def _not_up(services: list[Mapping[str, Any]]) -> Iterator[str]:
    listed = [service for status in _WORST_FIRST for service in services if service["status"] == status.value]
    for service in listed:
        told = _reason(service)
        reason = f": {told}" if told else ""
        weight = {Impact.NONE: " (does not count)", Impact.CRITICAL: " (critical)"}.get(Impact(service["impact"]), "")
        yield f"{service['id']} is {service['status']}{weight}, for {for_s(service['since_s'])}{reason}"
    if listed:
        yield f"More about one of them: svcnode explain {shlex.quote(listed[0]['id'])}"


def _reason(service: Mapping[str, Any]) -> str:
    """Where looks cannot be made, why: that nothing is known follows from it."""
    evidence, reason = service["evidence"], service["reason"]
    if evidence and evidence["reason"] and Outcome(evidence["verdict"]) is Outcome.UNKNOWN:
        return f"{evidence['reason']} ({reason})" if reason else str(evidence["reason"])
    return str(reason)


def _problems(node: Mapping[str, Any]) -> Iterator[str]:
    if node["reload_problem"]:
        yield f"Its configuration was not reloaded, the old one is in force: {node['reload_problem']}"
    if node["history_problem"]:
        yield f"Its history: {node['history_problem']}"
