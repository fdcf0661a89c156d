"""`svcnode status` asks for acknowledgements only where it may get them, and without them is as before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import _acknowledged
from svcnode.cli._acknowledged import with_acknowledgements
from svcnode.cli.operator_url import TOKEN_VARIABLE
from svcnode.cli.terminal.render import Symbols, render_node
from svcnode.cli.terminal.snapshot import NodeSnapshot
from svcnode.client import BackingService
from svcnode.core.errors import UnreachableError
from svcnode.core.model import Health, Status

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.cli.operator_url import OperatorUrl

MADE = {"at": "2026-01-01T00:00:00.000Z", "until": None, "by": "ops", "reason": "disk ordered"}
DETAILS = {"node": {"acknowledged": MADE | {"text": "…"}}, "services": [{"id": "db", "acknowledged": MADE}]}
LOCAL, REMOTE = "http://127.0.0.1:8420", "http://node-7.example.com:8420"


class Details:
    """The answer of a node, and the requests for it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.urls: list[OperatorUrl] = []

    async def fetch(self, url: OperatorUrl, _: None) -> Any:
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
    monkeypatch.setattr(_acknowledged, "fetch_details", details.fetch)
    adding = with_acknowledgements([one], ca=None, config=config, is_configured=config is not None)
    (added,) = asyncio.run(adding)
    return added


def test_what_is_acknowledged_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    added = add(monkeypatch, Details(DETAILS), snapshot())
    assert added.acknowledged == {None: MADE, "db": MADE}
    lines = [line.plain for line in render_node(added, Symbols(are_shown=False))]
    assert lines[0].startswith("unhealthy, acknowledged ")
    assert [line.split("  ")[1] for line in lines[3:]] == ["Down, acknowledged", "Down"]


@pytest.mark.parametrize("one", [snapshot(REMOTE), snapshot(status=Status.UP, health=Health.HEALTHY)])
def test_a_node_on_another_machine_and_a_healthy_one_are_not_asked(
    monkeypatch: pytest.MonkeyPatch, one: NodeSnapshot
) -> None:
    details = Details(DETAILS)
    assert add(monkeypatch, details, one).acknowledged == {}
    assert details.urls == []


@pytest.mark.parametrize(
    "answer",
    [UnreachableError("no"), TimeoutError(), [], {}, {"node": None}, {"node": {}, "services": [{"id": "db"}]}],
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
