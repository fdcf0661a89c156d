"""Queries of a file that a database has written, and of the records in memory."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.history import query
from svcnode.history.aggregator import MinuteAggregator
from svcnode.history.backlog import Backlog, Batch
from svcnode.history.database import Database
from svcnode.history.query import HistoryQuery
from svcnode.history.records import MINUTES, Bucket, ClosedMinute, Transition
from svcnode.history.timeline import Period
from tests.unit.history.test_database import LIMITS, NOON, transition, transitions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEWEST = 2**62


class Harness:
    """A query of a file, without a writer thread."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path, LIMITS)
        self.backlog = Backlog()
        writer: Any = SimpleNamespace(path=path, is_readable=True, generation=0)
        self.query = HistoryQuery(self.backlog, MinuteAggregator(NOON, self.backlog), writer)

    def after(self, after_id: int, up_to: int = NEWEST, limit: int = 10) -> list[Transition]:
        return asyncio.run(self.query.after(after_id, up_to, limit))

    def latest(self, service_id: str | None = None, up_to: int = NEWEST, limit: int = 10) -> list[Transition]:
        return asyncio.run(self.query.latest(service_id, up_to, limit))

    def of_services(self, *ids: str, from_s: float = 0.0, up_to: int = NEWEST, limit: int = 10) -> list[Transition]:
        return asyncio.run(self.query.of_services(ids, from_s, up_to, limit))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path / "history.db")
    with closing(made.database):
        yield made


def test_transitions_are_read_as_they_were_written(harness: Harness) -> None:
    written = [
        transition(NOON * 10**6 + 1, "<script>alert('ü')</script>", 'it said "no"\n\t\u2028'),
        transition(NOON * 10**6 + 2, None, ""),
        Transition(
            NOON * 10**6 + 3, NOON - 0.5, "registered", "a b", None, "Initializing", "?", "no_evidence", 200, 206
        ),
    ]
    harness.database.write(Batch(written, [], 0))
    assert harness.after(0) == written
    assert harness.latest(limit=2) == [written[2], written[1]]
    assert harness.latest("a b") == [written[2]]
    assert harness.latest("unknown") == []


def test_transitions_after_an_id_come_oldest_first(harness: Harness) -> None:
    harness.database.write(transitions(*range(1, 1501)))
    assert [one.id for one in harness.after(700, limit=3)] == [701, 702, 703]
    assert [one.id for one in harness.after(1498, 1499)] == [1499]
    assert harness.after(1500) == []


def test_transitions_of_the_file_and_of_the_backlog_are_returned_together(harness: Harness) -> None:
    harness.database.write(transitions(1, 2, 3))
    for number in (3, 4, 5):  # the third one was written a moment ago
        harness.backlog.add(transition(number))
    assert [one.id for one in harness.after(1, limit=3)] == [2, 3, 4]
    assert [one.id for one in harness.latest(limit=3)] == [5, 4, 3]
    assert [one.id for one in harness.latest("db", up_to=4, limit=2)] == [4, 3]


def test_buckets_of_many_services_are_returned_by_service_id(harness: Harness) -> None:
    many = {f"s{number}": Bucket(NOON, up_s=float(number % 60)) for number in range(1200)}
    harness.database.write(Batch([], [ClosedMinute(1, NOON, many)], 0))
    found = asyncio.run(harness.query.buckets([*many, "unknown"], MINUTES, NOON))
    assert {service_id: buckets[-1] for service_id, buckets in found.items()} == {**many, "unknown": Bucket(NOON)}
    assert {len(buckets) for buckets in found.values()} == {MINUTES.bucket_count}


def test_transitions_of_services_are_theirs_and_those_of_the_node_from_file_and_memory(harness: Harness) -> None:
    first = NOON * 10**6
    written = [transition(first + n, service_id) for n, service_id in enumerate(("db", None, "x", "api", "db"))]
    harness.database.write(Batch(written, [], 0))
    db, node, _, api, db_again = written
    assert harness.of_services("db", "api") == [db, node, api, db_again]
    assert harness.of_services("db", limit=2) == [node, db_again]
    assert harness.of_services("api", up_to=api.id - 1) == [node]
    assert harness.of_services("db", from_s=(first + 2) / 1e6) == [db_again]
    assert harness.of_services() == [node]
    harness.backlog.continue_after(first + 10)
    unwritten = [harness.backlog.add(transition(first + 20, service_id)) for service_id in ("x", "api")]
    assert harness.of_services("api") == [node, api, unwritten[1]]


def test_what_was_before_a_page_is_of_its_services_and_on_the_last_page_of_all(harness: Harness) -> None:
    begin_us = NOON * 10**6
    first = [
        Transition(begin_us + n, NOON + n / 1e6, "status", f"s{n}", "Up", "Down", "", None, 503, 503) for n in range(9)
    ]
    again = [
        Transition(begin_us + 10**6 + n, NOON + 1, "status", f"s{n}", "Down", "Up", "", None, 503, 503)
        for n in range(3)
    ]
    harness.database.write(Batch([*first, *again], [], 0))
    period = Period(NOON + 1.0, NOON + 2.0)
    page = asyncio.run(harness.query.page(period, NEWEST, 2))
    assert {one.service_id for one in page.transitions} == {"s0", "s1"}
    assert {"s0", "s1"} <= {one.service_id for one in page.opening.statuses} <= {"s0", "s1", "s2"}
    last = asyncio.run(harness.query.page(period._replace(after_id=page.transitions[-1].id), NEWEST, 2))
    assert last.is_last
    assert {one.service_id for one in last.opening.statuses} == {f"s{n}" for n in range(2, 9)}


def test_a_page_is_found_by_its_times_and_what_was_before_it_by_services(harness: Harness, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db")) as reader:

        def plan(statement: str) -> str:
            rows = reader.execute(f"EXPLAIN QUERY PLAN {statement}", (0,) * statement.count("?"))
            return "\n".join(row[-1] for row in rows)

        assert "USING COVERING INDEX transitions_by_time" in plan(query._SELECT_FIRST_ID)
        assert "SCAN transitions" not in plan(query._SELECT_FIRST_ID)
        for statement in (query._SELECT_ALL_STATUSES_BEFORE, query._SELECT_SOME_STATUSES_BEFORE):
            assert "transitions USING INDEX transitions_of_service (service=? AND rowid<?)" in plan(statement)
