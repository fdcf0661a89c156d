"""`/problems`: what is wrong with the services, in the order in which people look at it; and the same as HTML.

The rules are in core/problems.py. The answer is bounded, however many services are Down.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.api.spec import Response, make_response
from svcnode.core.model import Status
from svcnode.core.problems import (
    Trouble,
    count_groups,
    effect_texts,
    find_problems,
    groups_document,
    impact_text,
    left_out_text,
    problems_document,
    title_text,
)
from svcnode.core.strict_json import compact_json
from svcnode.core.units import utc_text
from svcnode.operator.details import node_details, services_details
from svcnode.operator.markup import escape_text, history_link, time_element

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.api.spec import Request
    from svcnode.core.dependencies import Dependencies
    from svcnode.core.model import Service, ServiceState
    from svcnode.operator.context import OperatorContext

Json = dict[str, Any]


async def problems(context: OperatorContext, request: Request, name: str) -> Response:
    await context.outages.ready()
    return await context.shared("problems", lambda: _make_response(context))


def _make_response(context: OperatorContext) -> Response:
    return make_response(200, compact_json({"node": node_details(context), **find(context)}).encode())


def find(context: OperatorContext) -> Json:
    """All that the page and the commands show of problems. Runs in a thread. Costs nothing for a service that is Up."""
    tally, not_up = context.node.summary()
    structure = context.structure.get()
    troubles = list(_troubles(context, not_up, structure.dependencies))
    now_s = context.node.wall_time_s(context.node.now_s())
    by_status = Counter(trouble.status.value for trouble in troubles)
    return {
        "counts": {Status.UP.value: tally.registered - len(troubles), **by_status},
        **problems_document(
            find_problems(troubles),
            lambda service_id: next(services_details(context, [service_id], with_causes=False)),
            lambda service_id: context.outages.find(service_id, now_s),
        ),
        **groups_document(count_groups(structure.group_totals, troubles)),
        "acknowledged": {
            service["id"]: service["acknowledged"]
            for service in services_details(context, [one.id for one in troubles if one.is_acknowledged])
        },
    }


def _troubles(
    context: OperatorContext, not_up: list[tuple[Service, ServiceState]], dependencies: Dependencies
) -> Iterator[Trouble]:
    node, now_s = context.node, context.node.now_s()
    ids = {service.id for service, _ in not_up}
    for service, state in not_up:
        began_s = state.since_s if state.first_failure_at_s is None else state.first_failure_at_s
        yield Trouble(
            id=service.id,
            name=service.name,
            group=service.group,
            status=state.status,
            impact=service.impact,
            code=str(state.code),
            reason=state.reason,
            began_s=node.wall_time_s(began_s),
            age_s=now_s - began_s,
            causes=dependencies.causes_of(service.id) & ids,
            runbook=service.runbook,
            is_acknowledged=node.acknowledgements.find(service.id) is not None,
            in_maintenance=node.maintenance.current(service.id) is not None,
            down_inside=0 if (config := node.probe_config(service.id)) is None else config.probe.down_inside,
        )


# ---- as HTML; everything works without JavaScript

MAX_OPEN = 5  # problems that are not behind a click


def render_problems(document: Mapping[str, Any]) -> str:
    """The problems, the first ones in full view; then the groups. Empty if there is nothing to say.

    It has the times of problems, not their ages, so that it is the same until something changes.
    """
    listed = document["problems"]
    if not listed:
        return ""
    count = f"{len(listed)}{'+' if document['more'] else ''}"
    items = [_item(problem) for problem in listed]
    rest = "".join(items[MAX_OPEN:])
    more = f"<p>{text}</p>" if (text := left_out_text(document)) else ""
    behind = _folded("more-problems", f"{len(items) - MAX_OPEN} more problems", f"<ul>{rest}</ul>{more}")
    return (
        f"<h2>Problems <b>{count}</b></h2><ul>{''.join(items[:MAX_OPEN])}</ul>"
        f"{behind if rest else more}{_groups(document)}"
    )


def _folded(element_id: str, summary: str, content: str) -> str:
    return f'<details id="{element_id}"><summary>{summary}</summary>{content}</details>'


def _item(problem: Mapping[str, Any]) -> str:
    often = (problem["outages"] or {}).get("text", "")
    parts = [
        f'<span class="status">{problem["status"]}</span>',
        f'<a class="title" href="{_row_link(problem)}" dir="auto">{escape_text(title_text(problem))}</a>',
        _span("impact", impact_text(problem)),
        time_element(problem["since"], utc_text(problem["since"])),
        _span("reason", problem["reason"], ' dir="auto"'),
        _span("often", often),
    ]
    return (
        f'<li data-status="{problem["status"]}" data-impact="{problem["impact"]}">'
        f"<p>{' '.join(filter(None, parts))}</p>{_members(problem)}{_effects(problem)}{_to_do(problem)}</li>"
    )


def _span(name: str, text: str, attributes: str = "") -> str:
    return f'<span class="{name}"{attributes}>{escape_text(text)}</span>' if text else ""


def _row_link(problem: Mapping[str, Any]) -> str:
    """Shows its row, or those of its group."""
    is_group = problem["count"] > 1 and problem["group"]
    return f"#q={escape(quote(problem['group'] if is_group else problem['id'], safe=''))}"


def _members(problem: Mapping[str, Any]) -> str:
    if problem["count"] == 1:
        return ""
    links = "".join(map(_member, problem["members"]))
    left = problem["count"] - len(problem["members"])
    more = f"<li>and {left} more</li>" if left else ""
    element_id = f"members-{escape(problem['id'])}-{escape(problem['code'])}"
    return _folded(element_id, f"{problem['count']} services", f'<ul class="members">{links}{more}</ul>')


def _member(member: Mapping[str, Any]) -> str:
    link, name = escape(quote(member["id"], safe="")), escape_text(member["name"] or member["id"])
    return f'<li><a href="#q={link}" dir="auto">{name}</a></li>'


def _effects(problem: Mapping[str, Any]) -> str:
    if not problem["effects"]:
        return ""
    texts = [escape_text(text) for text in effect_texts(problem)]
    left = problem["effect_count"] - len(texts)
    more = f" and {left} more" if left else ""
    return f'<p class="effects" dir="auto">affects {" · ".join(texts)}{more}</p>'


def _to_do(problem: Mapping[str, Any]) -> str:
    acknowledged, maintenance = problem["acknowledged"], problem["maintenance"]
    parts = [
        escape_text(problem["advice"]),
        _link(problem["runbook"], "runbook"),
        _link(problem["page"], "page of the node"),
        f'<a href="{history_link(problem["id"])}">history</a>' if problem["count"] == 1 else "",
        _span("acknowledged", f"acknowledged {acknowledged['text']}" if acknowledged else "", ' dir="auto"'),
        _span("maintenance", f"in maintenance {maintenance['text']}" if maintenance else "", ' dir="auto"'),
    ]
    return f'<p class="to-do">{" · ".join(filter(None, parts))}</p>'


def _link(url: str | None, text: str) -> str:
    return f'<a href="{escape(url)}" rel="noreferrer">{text}</a>' if url else ""


def _groups(document: Mapping[str, Any]) -> str:
    groups = document["groups"]
    if not groups:
        return ""
    bad = [group for group in groups if group["up"] < group["total"]]
    green = [group for group in groups if group["up"] == group["total"]]
    tiles = f'<ul class="tiles">{"".join(map(_tile, bad))}</ul>' if bad else ""
    if not green:
        return tiles
    count, services = len(green) + document["more_groups"], sum(group["total"] for group in green)
    more = f"<li>and {document['more_groups']} more groups</li>" if document["more_groups"] else ""
    summary = f"{count} group{'' if count == 1 else 's'} with {services} service{'' if services == 1 else 's'}: all Up"
    summary = summary if not more else f"{count} more groups"
    return tiles + _folded("green-groups", summary, f'<ul class="tiles">{"".join(map(_tile, green))}{more}</ul>')


def _tile(group: Mapping[str, Any]) -> str:
    status = Status.DOWN if group["down"] else Status.UP if group["up"] == group["total"] else Status.INITIALIZING
    name = escape_text(group["name"])
    link = escape(quote(group["name"], safe=""))
    counts = f"{group['up']}/{group['total']}"
    return f'<li data-status="{status.value}"><a href="#q={link}" dir="auto">{name} <b>{counts}</b></a></li>'
