"""How often a service was Down: counted since the start, and in the history before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.notify.outages import MAX_OUTAGES, MAX_SERVICES, PERIOD_S, OutageLog
from tests.unit.notify.harness import Harness

if TYPE_CHECKING:
    from svcnode.notify.outages import Outages

DAY_S = 86_400.0


def past(*rows: tuple[str, str | None, str | None], begin_s: float = 0.0) -> list[Any]:
    """Transitions of the history, a second apart: kind, service and status."""
    return [
        SimpleNamespace(at_s=begin_s + number, kind=kind, service_id=service_id, after=after)
        for number, (kind, service_id, after) in enumerate(rows)
    ]


DOWN, UP, STARTING = ("status", "db", "Down"), ("status", "db", "Up"), ("status", "db", "Initializing")
STARTED, BEGIN, END = ("started", None, None), ("maintenance", "db", "Up"), ("maintenance_ended", "db", "Up")


def started(harness: Harness, *rows: tuple[str, str | None, str | None]) -> Harness:
    """The history has been read."""
    harness.alerts.outages.start(harness.clock.now_s, past(*rows), lambda at_s: at_s)
    return harness


def found(harness: Harness, service_id: str = "db") -> Outages | None:
    return harness.alerts.outages.find(service_id, harness.clock.now_s)


def number(harness: Harness) -> int:
    outages = found(harness)
    return 0 if outages is None else outages.number


def test_an_outage_is_counted_once_until_the_service_is_up() -> None:
    harness = started(Harness().add("db", "cache"))
    assert found(harness) is None
    harness.wait(50).down("db")
    assert found(harness) == (1, 50.0)
    harness.down("db", reason="another").starting("db").down("db")
    assert number(harness) == 1
    harness.up("db").down("db")
    assert number(harness) == 2
    assert found(harness, "cache") is None


def test_outages_of_the_last_30_days_count() -> None:
    harness = started(Harness().add("db"))
    harness.down("db").up("db").wait(29 * DAY_S).down("db").up("db")
    assert found(harness) == (2, 29 * DAY_S)
    harness.wait(2 * DAY_S)
    assert found(harness) == (1, PERIOD_S)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([STARTED, UP, DOWN], 1),
        ([STARTED, DOWN, UP, DOWN, UP], 2),
        ([STARTED, DOWN, STARTING, DOWN, STARTED, STARTING, DOWN, UP], 1),
        ([STARTED, BEGIN, DOWN, UP, END, DOWN, UP], 1),
        ([STARTED, ("maintenance", None, None), DOWN, UP, ("maintenance_ended", None, None)], 0),
        ([STARTED, BEGIN, STARTED, DOWN, UP], 1),
        ([STARTED, BEGIN, DOWN, ("maintenance_ended", "db", "Down"), UP], 1),
        ([STARTED, ("deregistered", "db", None), ("status", "cache", "Down")], 0),
    ],
)
def test_what_the_history_has_counts_without_maintenance(
    rows: list[tuple[str, str | None, str | None]], expected: int
) -> None:
    harness = started(Harness().add("db"), *rows)
    assert number(harness) == expected
    if expected:
        assert found(harness) == (expected, harness.clock.now_s)


def test_a_service_that_is_down_since_before_the_restart_has_one_outage() -> None:
    harness = Harness().add("db", up=False).down("db")
    assert found(harness) is None, "the history has not been read"
    assert number(started(harness, STARTED, UP, DOWN)) == 1
    assert number(started(Harness().add("db", up=False).down("db"), STARTED, UP)) == 1
    assert number(started(Harness().add("db").down("db"), STARTED, UP, DOWN)) == 2


def test_maintenance_is_no_outage_but_what_remains_at_its_end_is() -> None:
    harness = started(Harness().add("db").maintain("db", 60.0).down("db").up("db"))
    assert found(harness) is None
    harness.down("db").wait(30)
    assert found(harness) is None
    harness.node.maintenance.end("db", source="control")
    assert number(harness) == 1


def test_without_a_length_of_time_nothing_is_said_after_the_clock_was_set_back() -> None:
    log = OutageLog()
    log.start(DAY_S, past(STARTED, DOWN, UP, begin_s=2 * DAY_S), lambda at_s: at_s)
    assert log.find("db", DAY_S + 60.0) == (1, 60.0), "the history began while the clock was ahead"
    assert log.find("db", DAY_S - 60.0) is None


def test_memory_is_bounded() -> None:
    log = OutageLog()
    rows = [(kind, "db", status) for _ in range(MAX_OUTAGES + 9) for kind, _, status in (DOWN, UP)]
    log.start(0.0, past(*rows), lambda at_s: at_s)
    assert (outages := log.find("db", 1.0)) is not None
    assert outages.number == MAX_OUTAGES
    many = [("status", f"s{number}", "Down") for number in range(MAX_SERVICES)]
    log.start(0.0, past(*many), lambda at_s: at_s)
    assert log.find("db", 1.0) is None
    assert log.find(f"s{MAX_SERVICES - 1}", 1.0) is not None
