"""The problems of a node as text, and the order of its services. The rules are in core/problems.py."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Status
from svcnode.core.problems import effect_texts, impact_text, title_text
from svcnode.core.text import join_first
from svcnode.core.units import format_duration, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcnode.client import BackingService

MAX_NAMED = 5  # services in one line
MAX_GREEN_GROUPS = 20
_STATUS_ORDER = {Status.DOWN: 0, Status.INITIALIZING: 1, None: 2, Status.UP: 3}

Problems = dict[str, Any]  # as `/problems` answers


# ---- the order


def in_order(services: Iterable[BackingService], problems: Problems | None) -> list[BackingService]:
    """As in the list of problems, effects after their cause; then what is not in it, Down first; then those Up.

    The interface alone does not say what is critical, and since when.
    """
    places = {service_id: place for place, service_id in enumerate(_ids(problems))}
    last = len(places)
    return sorted(services, key=lambda one: (_STATUS_ORDER[one.status] == 3, places.get(one.id, last), _rank(one)))


def _rank(service: BackingService) -> int:
    return _STATUS_ORDER[service.status]


def _ids(problems: Problems | None) -> Iterator[str]:
    for problem in problems["problems"] if problems else ():
        yield from (member["id"] for member in problem["members"])
        yield from (effect["id"] for effect in problem["effects"])


def reasons(problems: Problems | None) -> dict[str, str]:
    """By service, as far as they are known."""
    listed = problems["problems"] if problems else ()
    return {member["id"]: problem["reason"] for problem in listed for member in problem["members"]}


def down_text(services: Iterable[BackingService], problems: Problems | None) -> str:
    """ "2 Down: ledger, api"; empty if none is."""
    down = [service.id for service in in_order(services, problems) if service.status is Status.DOWN]
    return f"{len(down)} Down: {join_first(down, MAX_NAMED)}" if down else ""


# ---- texts


def since_text(problem: Mapping[str, Any]) -> str:
    now_s = datetime.fromisoformat(problem["since"]).timestamp() + problem["since_s"]
    return utc_text(problem["since"], now_s)


def often_text(problem: Mapping[str, Any]) -> str:
    return str((problem["outages"] or {}).get("text", ""))


def sentence(problem: Mapping[str, Any]) -> str:
    """One line of `explain`."""
    is_one = problem["count"] == 1
    name = f" ({problem['name']})" if problem["name"] not in ("", problem["id"]) else ""
    subject = f"{problem['id']}{name} is" if is_one else f"{title_text(problem)} are"
    impact = f", {text}" if (text := impact_text(problem)) else ""
    since = f"since {since_text(problem)} ({format_duration(problem['since_s'])})"
    parts = [part for part in (problem["reason"], since, often_text(problem)) if part]
    return f"{subject} {problem['status']}{impact}: {'; '.join(parts)}"


def more_lines(problem: Mapping[str, Any]) -> Iterator[str]:
    """Beneath a problem: who is affected, what to do, and who does it."""
    if problem["count"] > 1:
        named = [member["id"] for member in problem["members"]]
        yield _listed(named[:MAX_NAMED], problem["count"])
    if problem["effects"]:
        yield f"affects: {_listed(effect_texts(problem), problem['effect_count'])}"
    if problem["advice"]:
        yield problem["advice"]
    if problem["runbook"]:
        yield f"runbook: {problem['runbook']}"
    if problem["page"]:
        yield f"page: {problem['page']}"
    if problem["acknowledged"]:
        yield f"acknowledged {problem['acknowledged']['text']}"
    if problem["maintenance"]:
        yield f"in maintenance {problem['maintenance']['text']}"


def _listed(texts: list[str], count: int) -> str:
    more = f" and {count - len(texts)} more" if count > len(texts) else ""
    return ", ".join(texts) + more


def group_lines(problems: Problems) -> Iterator[str]:
    """Groups with trouble: how many of their services are Up. The others in one line."""
    groups = problems["groups"]
    bad = [f"{group['name']} {group['up']} of {group['total']}" for group in groups if group["up"] < group["total"]]
    green = [f"{group['name']} ({group['total']})" for group in groups if group["up"] == group["total"]]
    more = problems["more_groups"]
    if bad:
        yield f"services that are Up: {', '.join(bad)}"
    if green:
        yield f"all Up: {_listed(green[:MAX_GREEN_GROUPS], len(green) + more)}"
