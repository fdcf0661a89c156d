"""Texts of the operator endpoints: error responses, log notes, page, scripts and metrics."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.asgi import NEEDS_ASYNCIO
from svcnode.agent.embed.operator_app import NOT_RUNNING
from svcnode.api.spec import Request
from svcnode.core.address import Address
from svcnode.operator import NO_THREAD, OVERLOADED
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_NOT_GIVEN, TOKEN_REQUIRED, OperatorAuth
from svcnode.operator.events import INVALID_EVENT_ID, TOO_MANY_STREAMS
from svcnode.operator.history_api import history
from svcnode.operator.metrics import build_registry
from svcnode.operator.page import STATIC_FILES, read_static, render
from tests.support.operator_context import OperatorHarness

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
        "health_reason": "REASON",
        "started": "2027-01-15T08:00:00.000Z",
        "uptime_s": 90.0,
        "last_event_id": 0,
        "maintenance": {"text": "MAINTENANCE"},
        "planned_maintenance": {"text": "PLANNED"},
        "acknowledged": {"text": "ACKNOWLEDGED"},
        "history_problem": "PROBLEM",
        "reload_problem": "PROBLEM",
        "notifications": [{**failing, "target": "https://a"}, {**failing, "target": "https://b", "error": ""}, unused],
        "sharing": {"problem": "PROBLEM", "registry": "etcd://host", "replicas": [replica], "work": work},
    }
    snapshot("page", "\n".join(_Texts(render(node, [], {}, 0.0).decode()).texts))


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
