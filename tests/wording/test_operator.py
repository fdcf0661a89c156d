"""Texts of the operator endpoints: error responses, log notes, page, scripts and metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.asgi import NEEDS_ASYNCIO
from svcnode.agent.embed.operator_app import NOT_RUNNING
from svcnode.api.spec import Request
from svcnode.core.address import Address
from svcnode.history.timeline import TimelineItem
from svcnode.operator import NO_THREAD, OVERLOADED
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_NOT_GIVEN, TOKEN_REQUIRED, OperatorAuth
from svcnode.operator.events import INVALID_EVENT_ID
from svcnode.operator.history_api import history
from svcnode.operator.metrics import build_registry
from svcnode.operator.page import render
from svcnode.operator.page_sections import render_sections
from svcnode.operator.page_timeline import Moments, render_timeline
from svcnode.operator.problems import render_problems
from svcnode.operator.public import feed, statuspage
from svcnode.operator.public import page as public_page
from svcnode.operator.public.view import Overall, PublicStatus
from svcnode.operator.static_files import STATIC_FILES, read_static
from svcnode.operator.streams import TOO_MANY_STREAMS
from tests.support.nodes import make_node
from tests.support.operator_context import OperatorHarness, operator_context
from tests.unit.operator.public.test_rendering import BUSY
from tests.wording.test_terminal import DOCUMENT

if TYPE_CHECKING:
    from svcnode.api.spec import Response
    from tests.wording.conftest import Snapshot


RESPONSES = {
    "no token": TOKEN_REQUIRED,
    "no token configured": TOKEN_NOT_CONFIGURED,
    "no token, embedded": TOKEN_NOT_GIVEN,
    "not running, embedded": NOT_RUNNING,
    "not on asyncio, embedded": NEEDS_ASYNCIO,
    "too many requests": OVERLOADED,
    "no free thread": NO_THREAD,
    "too many streams": TOO_MANY_STREAMS,
    "bad event id": INVALID_EVENT_ID,
}
BAD_HISTORY_QUERIES = [
    *("id=%ff", "id=db&resolution=weeks", "id=db&transitions=101", "form=12h", "resolution=hours", "from=yesterday"),
    *("from=1h&to=2h", "after=x", "from=1h&from=2h", "&".join(f"id={number}" for number in range(101))),
]


def table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


def error_text(response: Response) -> str:
    return f"{response.code} {json.loads(response.body)['message']}"


def test_error_responses(snapshot: Snapshot) -> None:
    rows = [(name, error_text(response)) for name, response in RESPONSES.items()]
    context: Any = None  # an invalid query is rejected before the context is used
    for query in BAD_HISTORY_QUERIES:
        request = Request("GET", b"/history", query.encode())
        rows.append((f"/history?{query[:40]}", error_text(asyncio.run(_get_history(context, request)))))
    snapshot("errors", table(rows))


async def _get_history(context: Any, request: Request) -> Response:
    return await history(context, request, "")


def test_log_notes(snapshot: Snapshot) -> None:
    loopback, public = (Address(scheme="http", host=host, port=8420) for host in ("127.0.0.1", "0.0.0.0"))
    cases = {
        "loopback": OperatorAuth(loopback, None, trusts_loopback=True),
        "loopback, not trusted": OperatorAuth(loopback, "token", trusts_loopback=False),
        "public": OperatorAuth(public, "token", trusts_loopback=False),
        "public, no token": OperatorAuth(public, None, trusts_loopback=True),
    }
    snapshot("log", table([(name, f"operator page: URL{auth.log_suffix}") for name, auth in cases.items()]))


class _Texts(HTMLParser):
    """The texts of a page in order, and the attributes that are read out or displayed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [f"({name}) {value}" for name, value in attrs if name in ("aria-label", "placeholder")]

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.texts.append(text)


def test_page(snapshot: Snapshot) -> None:
    since = {"since": "2027-01-15T08:00:00.000Z", "since_s": 90.0}
    replica = {"name": "host-1", "url": "", "software": "0.0.0", **since, "checks": 1, "is_self": True}
    work = [{"replica": replica, "kind": "drain", "text": "WORK"} for replica in (None, "host-1")]
    at = {"at": "2027-01-15T08:00:00.000Z", "age_s": 90.0}
    unused = {"target": "https://c", "error": "", **dict.fromkeys(("last_attempt", "last_delivery", "waiting_since"))}
    failing = {**dict.fromkeys(unused, at), "error": "ERROR", "failures_in_a_row": 4, "retry_in_s": 8.0}
    node = {
        "name": "validator-7",
        "version": "v1.4.2",
        "spec_version": "v0.0.1",
        "svcnode": "0.0.0",
        "health": 503,
        "health_summary": "SUMMARY",
        "started": "2027-01-15T08:00:00.000Z",
        "uptime_s": 90.0,
        "last_event_id": 0,
        "cursor": "",
        "signalled": "",
        "maintenance": {"text": "MAINTENANCE"},
        "planned_maintenance": {"text": "PLANNED"},
        "acknowledged": {"text": "ACKNOWLEDGED"},
        "history_problem": "PROBLEM",
        "reload_problem": "PROBLEM",
        "notifications": [{**failing, "target": "https://a"}, {**failing, "target": "https://b", "error": ""}, unused],
        "sharing": {"problem": "PROBLEM", "registry": "etcd://host", "replicas": [replica], "work": work},
    }
    context = operator_context(make_node())
    sections = {**render_sections(context, node), "timeline": _timeline()}
    page = render(node, Counter(), [], sections, 0.0)
    snapshot("page", "\n".join(_Texts(page.decode()).texts))


def _timeline() -> str:
    """With most texts that it may have."""
    outage = TimelineItem("o1", "outage", "status", "SERVICE", "Down", None, 60.0, 120.0, False, "REASON", "CODE")
    health = outage._replace(
        id="h1", type="health", service_id=None, status=None, health=503, until_s=None, is_open=True
    )
    event = outage._replace(id="e1", type="event", kind="note", status=None, until_s=None)
    items = [outage, health, event, event._replace(id="e2")]
    others = [outage._replace(id=f"o{n}", service_id=f"s{n}") for n in range(6)]
    moments = Moments(0.0, 3600.0, [*items, *others], 0.0, is_complete=False, selected="e9")
    texts = [moments, Moments(0.0, 3600.0, [outage], 0.0, True, ("SERVICE",)), Moments(0.0, 3600.0, [], 0.0, True)]
    return "".join(render_timeline(one, lambda _: None) for one in texts)


def test_problems_on_the_page(snapshot: Snapshot) -> None:
    snapshot("page_problems", "\n".join(_Texts(render_problems(DOCUMENT)).texts))


# String and template literals with at least two words.
_LITERAL = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`")


def test_scripts(snapshot: Snapshot) -> None:
    lines = []
    for name in STATIC_FILES:
        if not name.endswith(".js"):
            continue
        code = re.sub(r"(^| )// .*$", "", read_static(name).decode(), flags=re.MULTILINE)
        code = re.sub(r"^import [^;]*;$", "", code, flags=re.MULTILINE)
        texts = [
            text[1:-1].strip() for text in _LITERAL.findall(code) if re.search(r"[A-Za-z]{2,}[.:,;]? [A-Za-z$]", text)
        ]
        lines += [f"{name}: {text}" for text in dict.fromkeys(texts)]
    snapshot("scripts", "\n".join(lines))


def test_metrics(snapshot: Snapshot) -> None:
    harness = OperatorHarness()
    harness.node.register("db", ttl="5s").up()
    fakes: Any = SimpleNamespace(is_healthy=True, stream_count=0)
    context = harness.context._replace(history=fakes, events=fakes)
    families = [family for family in build_registry(context).collect() if family.name.startswith("svcnode_")]
    snapshot("metrics", table([(family.name, family.documentation) for family in families]))


def test_public_texts(snapshot: Snapshot) -> None:
    """Of the page, of an incident, and of the feed."""
    (incident, *_) = statuspage.incidents(BUSY._replace(outages=BUSY.outages[1:]))["incidents"]
    texts = [
        *(f"{one.name}: {one.value}" for kind in (PublicStatus, Overall) for one in kind),
        _visible_text(public_page.render(BUSY).decode()),
        _visible_text(public_page.render(BUSY._replace(services=(), outages=(), maintenance=())).decode()),
        incident["name"],
        *(update["body"] for update in incident["incident_updates"]),
        feed.render(BUSY).decode(),
    ]
    snapshot("public", "\n".join(texts))


def _visible_text(html: str) -> str:
    lines = (re.sub(r"<[^>]*>", " ", line).split() for line in html.splitlines())
    return "\n".join(" ".join(words) for words in lines if words)
