"""What is kept of what was told, and how it is read again."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.model import Incident
from svcnode.notify.persistence import LostMessages, NotifyState, from_json, to_json

DB = Service(id="db", name="Ledger \N{BLACK STAR}", description="", impact=Impact.CRITICAL)


def incident(
    service: Service | None,
    told: Health = Health.UNHEALTHY,
    *,
    since_s: float = 100.0,
    is_sure: bool = True,
    is_again: bool = False,
) -> Incident:
    return Incident(
        service=service, notified_health=told, since_s=since_s, is_confirmed=is_sure, is_recurrence=is_again
    )


def test_what_is_kept_is_read_as_it_was() -> None:
    known = NotifyState(
        incidents=[incident(None), incident(DB, is_confirmed=False, is_recurrence=True)],
        lost=[LostMessages("https://hooks.example.com", 2), LostMessages("https://hooks.example.com", 0)],
    )
    text = to_json(known, lambda at_s: at_s + 1_767_225_600.0)
    assert from_json(text, lambda at_s: at_s - 1_767_225_600.0) == known


def test_where_nothing_was_kept_nothing_is_known() -> None:
    assert from_json(None, lambda at_s: at_s) == NotifyState()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "1",
        "[1]",
        "{}",
        '{"incidents": [["db"]], "lost": []}',
        '{"incidents": [["db", "", "dire", 503, 1.0, true, false]], "lost": []}',
        '{"incidents": [["", "", "none", 9, 1, 1, 1]], "lost": []}',
        '{"incidents": [], "lost": [["https://hooks.example.com", "many"]]}',
    ],
)
def test_what_cannot_be_understood_is_as_good_as_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_json(text, lambda at_s: at_s) == NotifyState()
    assert "cannot be read, and may be told again" in caplog.text
