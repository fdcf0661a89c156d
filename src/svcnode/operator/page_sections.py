"""The sections of the page, which are replaced as a whole: each is the HTML inside the element with its id.

SECTIONS maps that id, which static/page.html has, to the function that renders it from the context and `node_details`.
`/page/changes` sends those that have changed, and static/sections.js puts them in place.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Health
from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration
from svcnode.operator import problems
from svcnode.operator.markup import escape_text, format_age, shorten_words, time_ago, time_element

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcnode.operator.context import OperatorContext

    NodeDetails = Mapping[str, Any]

# For each health: its name in CSS and file names, its label, and the symbol in the title.
HEALTH_DISPLAY = {
    health: (health.label, health.text.capitalize(), symbol)
    for health, symbol in ((Health.HEALTHY, "●"), (Health.PARTIAL, "◐"), (Health.UNHEALTHY, "✖"))
}
NOTICES = {
    "maintenance": "The node is in maintenance",
    "planned_maintenance": "Maintenance of the node is planned",
    "acknowledged": "The problem of the node is acknowledged",
    "history_problem": "History",
    "reload_problem": "The last reload failed, and the previous configuration stays active",
    "sharing": "There is a problem with the registry, and evidence of other replicas may be missing",
}


def render_sections(context: OperatorContext, node: NodeDetails) -> dict[str, str]:
    node = {**node, "problems": problems.find(context)}
    return {name: render(context, node) for name, render in SECTIONS.items()}


def _headline(context: OperatorContext, node: NodeDetails) -> str:
    health, label, _ = HEALTH_DISPLAY[Health(node["health"])]
    return (
        f'<h1><span class="name" dir="auto">{escape_text(node["name"])}</span> '
        f'<span id="health-label" data-health="{health}" data-code="{node["health"]}">{label}</span></h1>'
        f'<p id="health-reason" dir="auto">{escape_text(shorten_words(one_line(node["health_summary"])))}'
        f"{_first_failure(node)}</p>"
    )


def _first_failure(node: NodeDetails) -> str:
    """Of the most critical problems. Their services are named once, in the list of problems."""
    listed = node["problems"]["problems"]
    if node["health"] == Health.HEALTHY or not listed:
        return ""
    first = max((one for one in listed if one["impact"] == listed[0]["impact"]), key=lambda one: one["since_s"])
    return f", first failure {time_element(first['since'], format_age(first['since_s']))}"


def _notices(context: OperatorContext, node: NodeDetails) -> str:
    return "".join(
        f'<p class="notice" dir="auto">{label}: {escape_text(text)}</p>' for label, text in _notice_texts(node)
    )


def _notice_texts(node: NodeDetails) -> Iterable[tuple[str, str]]:
    for key, label in NOTICES.items():
        notice = node[key]["problem"] if key == "sharing" and node[key] else node[key]
        if notice:
            yield label, notice["text"] if isinstance(notice, dict) else notice


def _replicas(context: OperatorContext, node: NodeDetails) -> str:
    """Who is there, who checks how many services, who drains and is in maintenance."""
    sharing = node["sharing"]
    if sharing is None:
        return ""
    items = "".join(map(_replica_item, sharing["replicas"]))
    registry = f'<code dir="auto">{escape_text(sharing["registry"])}</code>'
    work = "".join(map(_work_item, sharing["work"]))
    return (
        f'<h2>Replicas <span>in the registry {registry}</span></h2><ul id="replica-list">{items}</ul>'
        f'<ul id="work-list">{work}</ul>'
    )


def _work_item(work: Mapping[str, Any]) -> str:
    """Who drains, and who is in maintenance."""
    scope = "All replicas" if work["replica"] is None else escape_text(work["replica"])
    mark = ' class="failing"' if work["kind"] == "drain" else ""
    return f'<li><b dir="auto">{scope}</b><span{mark} dir="auto">{escape_text(work["text"])}</span></li>'


def _replica_item(replica: Mapping[str, Any]) -> str:
    name, url, count = escape_text(replica["name"]), replica["url"], replica["checks"]
    link = f'<a href="{escape(url)}">{name}</a>' if url else name
    seen = time_element(replica["since"], format_coarse_duration(replica["since_s"]))
    return (
        f'<li><b dir="auto">{link}</b>'
        f"<span>checks {count} service{'' if count == 1 else 's'}</span><span>seen for {seen}</span>"
        f"<span>svcnode {escape_text(replica['software'])}</span>"
        f"{'<span>this one</span>' if replica['is_self'] else ''}</li>"
    )


def _notifications(context: OperatorContext, node: NodeDetails) -> str:
    """What was tried for each target, and the result."""
    items = "".join(
        f'<li><b dir="auto">{escape_text(target["target"])}</b>{"".join(_target_facts(target))}</li>'
        for target in node["notifications"]
    )
    return f"<h2>Notifications</h2><ul>{items}</ul>" if items else ""


def _target_facts(target: Mapping[str, Any]) -> Iterator[str]:
    attempt, delivery, waiting = target["last_attempt"], target["last_delivery"], target["waiting_since"]
    if attempt is None:
        yield "<span>no message so far</span>"
    elif not target["error"]:
        yield f"<span>delivered {time_ago(delivery)}</span>" if delivery else "<span>first attempt under way</span>"
    else:
        failures, retry_s = target["failures_in_a_row"], target["retry_in_s"]
        yield f'<span class="failing" dir="auto">failed {time_ago(attempt)}: {escape_text(target["error"])}</span>'
        yield f"<span>{failures} failure{'' if failures == 1 else 's'} in a row</span>"
        if retry_s is not None:
            when = f"in {format_coarse_duration(retry_s)}" if retry_s >= 1 else "now"
            yield f"<span>next attempt {when}</span>"
        if waiting:
            yield f"<span>a message has waited for {format_coarse_duration(waiting['age_s'])}</span>"
        yield f"<span>last delivery {time_ago(delivery)}</span>" if delivery else "<span>none delivered so far</span>"


def _problems(context: OperatorContext, node: NodeDetails) -> str:
    return problems.render_problems(node["problems"])


SECTIONS = {
    "headline": _headline,
    "notices": _notices,
    "problems": _problems,
    "replicas": _replicas,
    "notifications": _notifications,
}
