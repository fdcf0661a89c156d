"""Notes by the control socket: what has happened, written down once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from svcnode.control.api import MAX_NAME_CHARS, MAX_NOTE_NAMES
from svcnode.core.model import Change, ChangeKind
from tests.support.control_agent import ControlAgent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ControlAgent]:
    agent = ControlAgent(tmp_path)
    agent.send("PUT", "/v1/services/db", {"ttl": "1h"})
    yield agent
    agent.close()


@pytest.fixture
def notes(agent: ControlAgent) -> list[Change]:
    changes: list[Change] = []
    agent.node.subscribe(lambda change: changes.append(change) if change.kind is ChangeKind.NOTE else None)
    return changes


def test_a_note_is_announced_with_its_author_and_changes_nothing(agent: ControlAgent, notes: list[Change]) -> None:
    health = agent.node.health
    response = agent.send("PUT", "/v1/notes/a", {"text": "deployed v1.4.3", "by": "ops"})
    assert (response.code, json.loads(response.body)["text"]) == (201, "deployed v1.4.3")
    assert agent.send("PUT", "/v1/notes/b", {"text": "rebuilt", "service": "db"}).code == 201
    assert [(one.reason, one.service_id, one.by.startswith("ops")) for one in notes] == [
        ("deployed v1.4.3", None, True),
        ("rebuilt", "db", False),
    ]
    assert (agent.node.health, {one.health for one in notes}) == (health, {health})


def test_a_note_that_is_sent_again_is_written_once(agent: ControlAgent, notes: list[Change]) -> None:
    first, second = (agent.send("PUT", "/v1/notes/deploy-1", {"text": "v1"}) for _ in range(2))
    assert (first.code, second.code, first.body == second.body, len(notes)) == (201, 200, True, 1)
    for number in range(MAX_NOTE_NAMES):
        agent.send("PUT", f"/v1/notes/{number}", {"text": "v1"})
    assert agent.send("PUT", "/v1/notes/deploy-1", {"text": "v1"}).code == 201, "only the last names are known"


@pytest.mark.parametrize(
    ("name", "fields", "refusal"),
    [
        ("a", {}, (400, "/text")),
        ("a", {"text": " "}, (400, "/text")),
        ("a", {"text": 1}, (400, "/text")),
        ("a", {"text": "v1", "reason": "x"}, (400, "/reason")),
        ("a", {"text": "v1", "by": "x" * 101}, (400, "/by")),
        ("a", {"text": "v1", "service": "gone"}, (404, None)),
        ("x" * (MAX_NAME_CHARS + 1), {"text": "v1"}, (400, None)),
    ],
)
def test_an_invalid_note_is_refused(
    agent: ControlAgent, notes: list[Change], name: str, fields: dict[str, object], refusal: tuple[int, str | None]
) -> None:
    response = agent.send("PUT", f"/v1/notes/{name}", fields)
    assert ((response.code, json.loads(response.body).get("pointer")), notes) == (refusal, [])
