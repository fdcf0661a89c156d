from __future__ import annotations

from tests.truth import matrix
from tests.truth.evaluate import DOWN, UP, Row
from tests.truth.faults import FAULT_NAMES

KILLED = Row(
    kind="redis", fault="killed", expected=(DOWN,), observed=(DOWN,), detected_s=1.234, bound_s=1.82, sample_count=100
)
READY = Row(kind="redis", fault="ready", expected=(UP,), observed=(UP,), detected_s=0.5, bound_s=2.9, sample_count=100)
LYING = Row(
    kind="nats",
    fault="killed",
    expected=(DOWN,),
    observed=(UP,),
    detected_s=None,
    bound_s=1.82,
    false_200s=80,
    disagreements=2,
)
ABSENT = Row(kind="nats", fault="ready", expected=(UP,), observed=(DOWN,), detected_s=None, bound_s=2.9, false_downs=7)


def test_the_totals_are_the_sums_of_false_200s_and_false_downs() -> None:
    assert matrix.totals([KILLED, READY]) == (0, 0)
    assert matrix.totals([KILLED, LYING, ABSENT, LYING]) == (160, 7)


def test_the_plain_matrix_has_a_line_for_each_fault() -> None:
    lines = [line.split() for line in matrix.plain([KILLED, READY, LYING]).splitlines()]
    assert lines[1] == ["redis", "killed", "Down", "Down", "1.23", "1.82", "0", "—"]
    assert lines[2] == ["redis", "ready", "Up", "Up", "0.50", "2.90", "—", "0"]
    assert lines[3][:8] == ["nats", "killed", "Down", "Up", "—", "1.82", "80", "—"]
    assert lines[3][8].startswith("WRONG")


def test_the_plain_matrix_names_the_faults_that_a_kind_does_not_have() -> None:
    last = matrix.plain([KILLED, READY]).splitlines()[-1]
    assert last.startswith("redis: — ")
    assert set(last.removeprefix("redis: — ").split(", ")) == {"port open", "no response"} | (
        set(FAULT_NAMES) - {"killed", "ready", "port open, no response"}
    )


READ_ONLY = Row(
    kind="redis", fault="read-only", expected=(DOWN,), observed=(DOWN,), detected_s=0.75, bound_s=2.0, sample_count=100
)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_markdown_matrix_has_a_line_for_each_kind_and_a_column_for_each_fault() -> None:
    heading, rule, redis, nats = cells(matrix.markdown([KILLED, READY, LYING, ABSENT]))
    assert {len(heading), len(rule), len(redis), len(nats)} == {5}
    found = dict(zip(heading, redis, strict=True))
    assert (found["kind"], found["killed"], found["ready"]) == ("redis", "Down 1.23 s", "Up 0.50 s")
    found = dict(zip(heading, nats, strict=True))
    assert found["killed"].startswith("**Up**")
    assert nats[-2:] == ["80", "7"]


def test_faults_of_a_server_that_answers_are_in_a_table_of_their_own() -> None:
    availability, work = map(cells, matrix.markdown([KILLED, READ_ONLY, LYING]).split("\n\n"))
    assert availability[0] == ["kind", "killed", "200 after the bound", "false Downs"]
    assert [line[0] for line in availability[2:]] == ["redis", "nats"]
    assert (work[0][:2], work[2][:2]) == (["kind", "read-only"], ["redis", "Down 0.75 s"])
    assert len(work) == 3
