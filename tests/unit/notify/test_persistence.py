"""Saving and loading the notification state."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.model import Incident
from svcnode.notify.persistence import LostMessages, NotifyState, from_json, to_json

DB = Service(id="db", name="Ledger \N{BLACK STAR}", description="", impact=Impact.CRITICAL)


def incident(
    service: Service | None,
    notified: Health = Health.UNHEALTHY,
    *,
    since_s: float = 100.0,
    is_confirmed: bool = True,
    is_recurrence: bool = False,
) -> Incident:
    return Incident(
        service=service,
        notified_health=notified,
        since_s=since_s,
        is_confirmed=is_confirmed,
        is_recurrence=is_recurrence,
    )


def test_the_saved_state_is_loaded_unchanged() -> None:
    known = NotifyState(
        incidents=[incident(None), incident(DB, is_confirmed=False, is_recurrence=True)],
        lost=[LostMessages("https://hooks.example.com", 2), LostMessages("https://hooks.example.com", 0)],
    )
    text = to_json(known, lambda at_s: at_s + 1_767_225_600.0)
    assert from_json(text, lambda at_s: at_s - 1_767_225_600.0) == known


def test_without_a_saved_state_the_state_is_empty() -> None:
    assert from_json(None, lambda at_s: at_s) == NotifyState()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "1",
        "[1]",
        "{}",
        '{"incidents": [["db"]], "lost": []}',
        '{"incidents": [["db", "", "dire", 503, 1.0, true, false]], "lost": []}',
        '{"incidents": [["", "", "none", 9, 1, 1, 1]], "lost": []}',
        '{"incidents": [], "lost": [["https://hooks.example.com", "many"]]}',
    ],
)
def test_an_invalid_saved_state_is_logged_and_ignored(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_json(text, lambda at_s: at_s) == NotifyState()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
