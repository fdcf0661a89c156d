"""`svcnode status` asks for problems only where it may get them; without them it shows what the interface says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import _problems
from svcnode.cli._problems import with_problems
from svcnode.cli.operator_url import TOKEN_VARIABLE
from svcnode.cli.status import format_json
from svcnode.cli.terminal.render import Symbols, render_node
from svcnode.cli.terminal.snapshot import NodeSnapshot
from svcnode.client import BackingService
from svcnode.core.errors import UnreachableError
from svcnode.core.model import Health, Status
from svcnode.core.problems import document_from_details

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.cli.operator_url import OperatorUrl

MADE = {"at": "2026-01-01T00:00:00.000Z", "until": None, "by": "ops", "reason": "disk ordered"}
PROBLEM = {
    "id": "cache",
    "name": "Cache",
    "count": 1,
    "members": [{"id": "cache", "name": "Cache", "since": "2026-01-01T00:00:00.000Z"}],
    "group": "",
    "group_count": 0,
    "status": "Down",
    "impact": "critical",
    "code": "connection_refused",
    "reason": "connection refused",
    "since": "2026-01-01T00:00:00.000Z",
    "since_s": 60.0,
    "effects": [{"id": "db", "name": "Ledger", "status": "Down", "impact": "partial", "offset_s": 2.0}],
    "effect_count": 1,
    "outages": {"count": 4, "period_s": 2592000, "text": "4th time in 30 days"},
    "advice": "Start it.",
    "runbook": None,
    "acknowledged": None,
    "maintenance": None,
    "page": None,
}
DETAILS = {
    "node": {"acknowledged": MADE | {"text": "…"}},
    "problems": [PROBLEM],
    "more": 0,
    "groups": [{"name": "storage", "total": 2, "up": 1, "down": 1}],
    "more_groups": 0,
    "acknowledged": {"db": MADE},
}
LOCAL, REMOTE = "http://127.0.0.1:8420", "http://node-7.example.com:8420"


class Details:
    """The answer of a node, and the requests for it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.urls: list[OperatorUrl] = []

    async def fetch(self, url: OperatorUrl) -> Any:
        self.urls.append(url)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def snapshot(url: str = LOCAL, status: Status = Status.DOWN, health: Health = Health.UNHEALTHY) -> NodeSnapshot:
    services = tuple(BackingService(id=name, name=name, description="", status=status) for name in ("db", "cache"))
    return NodeSnapshot(url=url, health=health, services=services)


def add(
    monkeypatch: pytest.MonkeyPatch, details: Details, one: NodeSnapshot, config: Path | None = None
) -> NodeSnapshot:
    monkeypatch.setattr(_problems, "fetch_problems", details.fetch)
    adding = with_problems([one], ca=None, config=config, is_configured=config is not None)
    (added,) = asyncio.run(adding)
    return added


def test_what_is_acknowledged_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    added = add(monkeypatch, Details(DETAILS), snapshot())
    assert added.acknowledged == {None: MADE, "db": MADE}
    lines = [line.plain for line in render_node(added, Symbols(are_shown=False))]
    assert lines[0].startswith("unhealthy, acknowledged ")
    assert [line.split()[:2] for line in lines[-2:]] == [["Down", "cache"], ["Down,", "acknowledged"]]


def test_problems_come_before_the_services_which_have_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    added = add(monkeypatch, Details(DETAILS), snapshot())
    lines = [line.plain for line in render_node(added, Symbols(are_shown=False))]
    (row,) = [number for number, line in enumerate(lines) if "connection refused" in line]
    assert {"Down", "Cache", "critical", "4th"} <= set(lines[row].split())
    assert lines[row + 1].split() == ["affects:", "Ledger", "+2", "s"]
    assert "storage 1 of 2" in "".join(lines)
    assert [line.split()[-1] for line in lines[-2:]] == ["cache", "db"]
    assert json.loads(format_json(added))["problems"] == [PROBLEM]


def test_an_answer_that_does_not_come_in_time_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    added = add(monkeypatch, Details(TimeoutError()), snapshot())
    assert added.problems is None
    assert added.remarks == (added.problems_remark,)
    assert added.problems_remark in "".join(line.plain for line in render_node(added, Symbols(are_shown=False)))


@pytest.mark.parametrize("condition", [{"issues": ["x1: disk array broken"]}, {"draining": True}])
def test_a_cause_that_is_no_service_is_a_remark(monkeypatch: pytest.MonkeyPatch, condition: dict[str, Any]) -> None:
    node = {"acknowledged": None, "health_summary": "disk array broken", **condition}
    added = add(monkeypatch, Details(DETAILS | {"node": node, "problems": []}), snapshot(status=Status.UP))
    assert added.remarks == ("disk array broken",)
    assert json.loads(format_json(added))["remarks"] == ["disk array broken"]


def test_an_older_node_has_only_its_details(monkeypatch: pytest.MonkeyPatch) -> None:
    details = {"node": {"acknowledged": MADE}, "services": []}
    added = add(monkeypatch, Details(details), snapshot())
    assert (added.acknowledged, added.problems) == ({None: MADE}, document_from_details(details))


@pytest.mark.parametrize("one", [snapshot(REMOTE), snapshot(status=Status.UP, health=Health.HEALTHY)])
def test_a_node_on_another_machine_and_a_healthy_one_are_not_asked(
    monkeypatch: pytest.MonkeyPatch, one: NodeSnapshot
) -> None:
    details = Details(DETAILS)
    assert add(monkeypatch, details, one).acknowledged == {}
    assert details.urls == []


@pytest.mark.parametrize(
    "answer",
    [UnreachableError("no"), OSError("no"), [], {}, {"node": None}, {"node": {}, "services": [{"id": "db"}]}],
)
def test_without_an_answer_the_result_is_that_of_the_interface(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    assert add(monkeypatch, Details(answer), snapshot()) == snapshot()


def test_a_token_is_sent_to_the_node_of_the_configuration_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "token-0123456789abcdef")
    file = tmp_path / "svcnode.toml"
    file.write_text('[server]\nlisten = "192.0.2.1:8420"\n')
    details = Details(DETAILS)
    add(monkeypatch, details, snapshot())
    add(monkeypatch, details, snapshot(REMOTE), file)
    given, configured = details.urls
    assert (given.authorization, configured.authorization) == ("", "Bearer token-0123456789abcdef")
    assert configured.origin == "http://192.0.2.1:8420"
