"""What is wrong with the services of a node, in the order in which people look at it. There is no I/O.

1. A service that depends on another one that is not Up is an effect, and is listed beneath its cause. If it has several
   causes, it is beneath the one that failed first.
2. Critical problems come first, and a cause is critical if one of its effects is. Then Down comes before Initializing,
   and what failed first comes first. Of nodes of a fleet, the one with more services Down comes first.
3. Three or more services of one group that have the same code, and failed within the same minute, are one problem. If
   that leaves more than MAX_PROBLEMS, the minute no longer matters, and then the group.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Impact, Outcome, Status
from svcnode.core.remedies import advice_text, advised_code, meaning_text
from svcnode.core.units import format_duration, iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

Json = dict[str, Any]

MIN_ALIKE = 3  # services that are one problem; of two, all that is known of each is shown
MAX_PROBLEMS = 100  # that are shown
MAX_MEMBERS = 20  # of one problem that are named
MAX_EFFECTS = 10  # of one problem that are named
MAX_GROUPS = 200  # that are shown

_IMPACT_ORDER = {Impact.CRITICAL: 0, Impact.PARTIAL: 1, Impact.NONE: 2}
_STATUS_ORDER = {Status.DOWN: 0, Status.INITIALIZING: 1, Status.UP: 2}


class Trouble(NamedTuple):
    """A service that is not Up."""

    id: str
    name: str
    group: str
    status: Status
    impact: Impact
    code: str
    reason: str
    began_s: float  # the first failure, by the wall clock
    age_s: float  # of the first failure, by a clock that nobody can set
    causes: frozenset[str] = frozenset()  # services that it depends on, directly or not, and that are not Up either
    runbook: str = ""
    is_acknowledged: bool = False
    in_maintenance: bool = False
    down_inside: int = 0  # of a node of a fleet: how many of its services are Down


class Problem(NamedTuple):
    """One service that is not Up, or several that are alike; and the services that depend on it."""

    members: tuple[Trouble, ...]  # by first failure
    effects: tuple[Trouble, ...] = ()  # the critical ones first, then by first failure

    @property
    def first(self) -> Trouble:
        return self.members[0]

    @property
    def impact(self) -> Impact:
        """The highest of all that is affected. Members are equal in this."""
        if not self.effects:
            return self.members[0].impact
        return min((self.members[0].impact, self.effects[0].impact), key=_IMPACT_ORDER.__getitem__)


class GroupCount(NamedTuple):
    name: str
    total: int
    up: int
    down: int


# ---- which problems there are


def find_problems(troubles: Iterable[Trouble]) -> list[Problem]:
    """All of them. If they cannot be folded any further, there may be more than are shown."""
    found = _with_effects(sorted(troubles, key=_by_time))
    for key_of in (_same_minute(), _same_group, _same_code):
        found = _fold(found, key_of)
        if len(found) <= MAX_PROBLEMS:
            break
    return sorted(found, key=_order)


def _by_time(trouble: Trouble) -> tuple[float, str]:
    return -trouble.age_s, trouble.id


def _order(problem: Problem) -> tuple[int, int, int, float, str]:
    first = problem.first
    rank = _IMPACT_ORDER[problem.impact], _STATUS_ORDER[first.status], -first.down_inside
    return *rank, -first.age_s, first.id


def _with_effects(troubles: Sequence[Trouble]) -> list[Problem]:
    place = {one.id: number for number, one in enumerate(troubles)}
    causes = {one.id: [place[cause] for cause in one.causes if cause in place] for one in troubles}
    effects: defaultdict[str, list[Trouble]] = defaultdict(list)
    for one in troubles:
        roots = [number for number in causes[one.id] if not causes[troubles[number].id]]
        if roots:
            effects[troubles[min(roots)].id].append(one)
    return [Problem((one,), _by_impact(effects[one.id])) for one in troubles if not causes[one.id]]


def _by_impact(effects: Iterable[Trouble]) -> tuple[Trouble, ...]:
    return tuple(sorted(effects, key=lambda effect: _IMPACT_ORDER[effect.impact]))


def _fold(problems: Sequence[Problem], key_of: Callable[[Problem], Hashable | None]) -> list[Problem]:
    alike: defaultdict[Hashable, list[Problem]] = defaultdict(list)
    for problem in problems:
        key = key_of(problem)
        alike[problem.first.id if key is None else key].append(problem)
    folded: list[Problem] = []
    for found in alike.values():
        if len(found) == 1 or sum(len(problem.members) for problem in found) < MIN_ALIKE:
            folded += found
        else:
            members = sorted((one for problem in found for one in problem.members), key=_by_time)
            folded.append(Problem(tuple(members), _by_impact(one for problem in found for one in problem.effects)))
    return folded


def _same_minute() -> Callable[[Problem], Hashable | None]:
    """For problems by time: within a minute of the first one of its kind. What somebody has acknowledged, what has
    effects, and another node are shown alone while there is room.
    """
    first_ages_s: dict[Hashable, float] = {}

    def key_of(problem: Problem) -> Hashable | None:
        if problem.effects or problem.first.is_acknowledged or problem.first.down_inside:
            return None
        alike, age_s = _same_group(problem), problem.first.age_s
        if first_ages_s.get(alike, math.inf) - age_s >= 60:
            first_ages_s[alike] = age_s
        return alike, first_ages_s[alike]

    return key_of


def _same_group(problem: Problem) -> Hashable:
    return _same_code(problem), problem.first.group


def _same_code(problem: Problem) -> Hashable:
    first = problem.first
    return problem.impact, first.status, first.code, first.is_acknowledged, first.in_maintenance


def count_groups(totals: Mapping[str, int], troubles: Iterable[Trouble]) -> list[GroupCount]:
    """`totals`: the services in each group. Groups with trouble first; services in no group ("") are left out."""
    not_up: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for one in troubles:
        not_up[one.group][one.status] += 1
    found = [
        GroupCount(name, total, total - not_up[name].total(), not_up[name][Status.DOWN])
        for name, total in totals.items()
        if name
    ]
    return sorted(found, key=lambda group: (not group.down, group.up == group.total))


# ---- as documents, which `/problems` answers with, and the page and the commands show


def problems_document(
    problems: Sequence[Problem],
    details_of: Callable[[str], Mapping[str, Any]],
    outages_of: Callable[[str], Json | None],
) -> Json:
    """`details_of` gives the details of a service (`/details`), `outages_of` how often it was Down lately."""
    shown = problems[:MAX_PROBLEMS]
    return {
        "problems": [_document(one, details_of(one.first.id), outages_of(one.first.id)) for one in shown],
        "more": sum(len(problem.members) for problem in problems[MAX_PROBLEMS:]),  # services that are not in the list
    }


def groups_document(groups: Sequence[GroupCount]) -> Json:
    shown = [group._asdict() for group in groups[:MAX_GROUPS]]
    return {"groups": shown, "more_groups": len(groups[MAX_GROUPS:])}


def _document(problem: Problem, details: Mapping[str, Any], outages: Json | None) -> Json:
    first, is_one = problem.first, len(problem.members) == 1
    named = problem.members[:MAX_MEMBERS]
    groups = {member.group for member in problem.members}
    return {
        "id": first.id,
        "name": first.name,
        "count": len(problem.members),
        "members": [{"id": one.id, "name": one.name, "since": iso_time(one.began_s)} for one in named],
        "group": first.group if len(groups) == 1 else None,
        "group_count": len(groups - {""}),
        "status": first.status.value,
        "impact": first.impact.value,
        "code": shown_reason(details)[1] if is_one else first.code,
        "reason": single_reason(details) if is_one else _common_reason(problem),
        "since": iso_time(first.began_s),
        "since_s": round(max(0.0, first.age_s), 3),
        "effects": [_effect(one, first) for one in problem.effects[:MAX_EFFECTS]],
        "effect_count": len(problem.effects),
        "outages": outages if is_one else None,
        "advice": _advice(problem, details),
        "runbook": details.get("runbook") if len({one.runbook for one in problem.members}) == 1 else None,
        "acknowledged": details.get("acknowledged"),
        "maintenance": details.get("maintenance"),
        "page": details.get("page") if is_one else None,
    }


def _effect(effect: Trouble, cause: Trouble) -> Json:
    return {
        "id": effect.id,
        "name": effect.name,
        "status": effect.status.value,
        "impact": effect.impact.value,
        "offset_s": round(cause.age_s - effect.age_s, 3),
    }


def shown_reason(details: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and code of the state. Before the first usable evidence: those of the last check, if it could not run."""
    evidence = details["evidence"]
    is_unknown = evidence and evidence["reason"] and evidence["outcome"] == Outcome.UNKNOWN.value
    if is_unknown and details["code"] == ReasonCode.NO_EVIDENCE:
        return evidence["reason"], evidence["code"]
    return details["reason"], details["code"]


def single_reason(details: Mapping[str, Any]) -> str:
    """Without the URL of the probe, which ends most reasons. Of a check that could not run, its own reason is first."""
    reason, evidence = details["reason"].removesuffix(f": {details['probe']}"), details["evidence"]
    if evidence and evidence["reason"] and evidence["outcome"] == Outcome.UNKNOWN.value:
        return f"{evidence['reason']} ({reason})" if reason else str(evidence["reason"])
    return str(reason)


def _common_reason(problem: Problem) -> str:
    reasons = {member.reason.partition(": ")[0] for member in problem.members}
    return reasons.pop() if len(reasons) == 1 else meaning_text(problem.first.code)


def _advice(problem: Problem, details: Mapping[str, Any]) -> str:
    """Of several services, without the address of the first."""
    first, schedule = problem.first, details["schedule"]
    is_probed = schedule is not None or details["policy"]["stale_after_s"] is not None  # by another replica
    code = advised_code(shown_reason(details)[1], is_probed=is_probed, is_failure=first.status is Status.DOWN)
    probe = details["probe"] if len(problem.members) == 1 else None
    return advice_text(code, first.id, details["kind"], probe, None if schedule is None else schedule["timeout_s"])


def document_from_details(details: Mapping[str, Any]) -> Json:
    """What `/problems` answers, from `/details`: for a node of an older version, which does not have `/problems`."""
    services = {service["id"]: service for service in details["services"]}
    troubles = [trouble_from(service) for service in services.values() if service["status"] != Status.UP.value]
    groups = count_groups(Counter(service.get("group", "") for service in services.values()), troubles)
    return {
        "node": details["node"],
        "counts": dict(Counter(service["status"] for service in services.values())),
        **problems_document(find_problems(troubles), services.__getitem__, lambda _: None),
        **groups_document(groups),
        "acknowledged": {key: one["acknowledged"] for key, one in services.items() if one.get("acknowledged")},
    }


def trouble_from(details: Mapping[str, Any]) -> Trouble:
    """The fields with a default are missing in older nodes."""
    first_failure = details.get("first_failure")
    reason, code = shown_reason(details)
    since_s = datetime.fromisoformat(details["since"]).timestamp()
    began_s = datetime.fromisoformat(first_failure["at"]).timestamp() if first_failure else since_s
    return Trouble(
        id=details["id"],
        name=details["name"],
        group=details.get("group", ""),
        status=Status(details["status"]),
        impact=Impact(details["impact"]),
        code=code,
        reason=reason,
        began_s=began_s,
        age_s=details["since_s"] + since_s - began_s,
        causes=frozenset(cause["id"] for cause in details.get("causes", ())),
        runbook=details.get("runbook") or "",
        is_acknowledged=bool(details.get("acknowledged")),
        in_maintenance=bool(details.get("maintenance")),
    )


# ---- as text


def title_text(problem: Mapping[str, Any]) -> str:
    """ "Ledger database", or "20 in search". Of a node of a fleet, the id, which has the name of the node."""
    count, group, groups = problem["count"], problem["group"], problem["group_count"]
    if count == 1:
        return str(problem["id"] if problem["page"] else problem["name"] or problem["id"])
    if group:
        return f"{count} in {group}"
    return f"{count} services in {groups} group{'' if groups == 1 else 's'}" if groups else f"{count} services"


def impact_text(problem: Mapping[str, Any]) -> str:
    """A word; the usual impact needs none."""
    return {"critical": "critical", "none": "not counted"}.get(problem["impact"], "")


def effect_texts(problem: Mapping[str, Any]) -> list[str]:
    """ "Block API (critical) +2 s"."""
    return [
        f"{effect['name'] or effect['id']}{' (critical)' if effect['impact'] == 'critical' else ''} "
        f"{offset_text(effect['offset_s'])}"
        for effect in problem["effects"]
    ]


def offset_text(offset_s: float) -> str:
    """ "+2 s"; "-10 s" if it failed before its cause."""
    return f"{'-' if offset_s <= -0.5 else '+'}{format_duration(abs(offset_s)) if abs(offset_s) >= 0.5 else '0 s'}"


def left_out_text(document: Mapping[str, Any]) -> str:
    """How many services the list of problems leaves out; empty if none."""
    more = document["more"]
    return f"{more} more service{' is' if more == 1 else 's are'} not Up." if more else ""
