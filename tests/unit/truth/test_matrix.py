from __future__ import annotations

from tests.truth import matrix
from tests.truth.evaluate import DOWN, UP, Row

KILLED = Row(
    kind="redis", error="killed", expected=(DOWN,), observed=(DOWN,), detected_s=1.234, bound_s=1.82, sample_count=100
)
READY = Row(kind="redis", error="ready", expected=(UP,), observed=(UP,), detected_s=0.5, bound_s=2.9, sample_count=100)
LYING = Row(
    kind="nats",
    error="killed",
    expected=(DOWN,),
    observed=(UP,),
    detected_s=None,
    bound_s=1.82,
    false_200s=80,
    disagreements=2,
)
ABSENT = Row(kind="nats", error="ready", expected=(UP,), observed=(DOWN,), detected_s=None, bound_s=2.9, false_downs=7)


def test_the_totals_add_up_both_kinds_of_untruth() -> None:
    assert matrix.totals([KILLED, READY]) == (0, 0)
    assert matrix.totals([KILLED, LYING, ABSENT, LYING]) == (160, 7)


def test_on_a_terminal_each_fault_has_a_line_with_all_that_was_found() -> None:
    lines = [line.split() for line in matrix.plain([KILLED, READY, LYING]).splitlines()]
    assert lines[1] == ["redis", "killed", "Down", "Down", "1.23", "1.82", "0", "—"]
    assert lines[2] == ["redis", "ready", "Up", "Up", "0.50", "2.90", "—", "0"]
    assert " ".join(lines[3]) == "nats killed Down Up — 1.82 80 — WRONG; 2 times, list and health disagree"


def test_on_a_terminal_what_does_not_apply_to_a_kind_is_named() -> None:
    last = matrix.plain([KILLED, READY]).splitlines()[-1]
    assert last.startswith("redis: — not started yet, starting, frozen, ")
    assert "killed" not in last


def test_in_markdown_each_kind_is_a_line_and_each_fault_a_column() -> None:
    heading, rule, redis, nats = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in matrix.markdown([KILLED, READY, LYING, ABSENT]).splitlines()
    )
    assert {len(heading), len(rule), len(redis), len(nats)} == {14}
    found = dict(zip(heading, redis, strict=True))
    assert (found["kind"], found["killed"], found["ready"]) == ("redis", "Down 1.23 s", "Up 0.50 s")
    assert found["frozen"] == "—"
    found = dict(zip(heading, nats, strict=True))
    assert found["killed"] == "**Up**, expected Down"
    assert (found["200 past the bound"], found["false Downs"]) == ("80", "7")
