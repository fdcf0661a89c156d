"""Each item of the timeline says what happened."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.core.moments import service_of, what_text

ITEM: dict[str, Any] = {"type": "event", "kind": "status", "service": "db", "status": None, "health": 503, "reason": ""}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"type": "outage", "status": "Down", "reason": "refused"}, ("Down", "refused")),
        ({"type": "outage", "status": "Initializing"}, ("Initializing",)),
        ({"kind": "message_sent", "reason": "webhook"}, ("message sent", "webhook")),
        ({"kind": "node", "reason": "drains"}, ("drains",)),
        ({"type": "health", "health": None, "kind": "stopped"}, ("did not run",)),
        ({"type": "health", "health": None, "kind": "started"}, ("unknown", "killed")),
        ({"type": "health", "health": None, "kind": "paused", "reason": "clock set"}, ("unknown", "clock set")),
        ({"kind": "clock_set", "reason": "back by 2 h"}, ("clock set", "back by 2 h")),
        ({"type": "health", "kind": "stood_still"}, ("503", "stood still")),
        ({"type": "health", "kind": "started"}, ("503", "starts")),
        ({"type": "health", "status": "Down", "reason": "refused"}, ("503", "db is Down")),
        ({"type": "health", "kind": "node", "reason": "drains"}, ("503", "drains")),
    ],
)
def test_an_item_says_what_happened(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    text = what_text(ITEM | fields)
    assert all(part in text for part in parts)
    assert "None" not in text
    assert "_" not in text


def test_the_health_of_the_node_is_not_about_the_service_that_has_changed_it() -> None:
    assert service_of(ITEM) == "db"
    assert service_of(ITEM | {"type": "health"}) is None
