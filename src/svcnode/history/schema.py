"""The tables, and the statements that fill them.

A thread that reads or writes row by row lets go of Python's lock for every row, and gets it back when the event loop
is done with what it does, which on a busy node takes milliseconds each time. So rows go in and out as JSON, hundreds
with each statement.

In the tables of bars, the rows of one minute lie side by side, not those of one service: a minute is written and
forgotten as a whole, so it costs a few pages instead of one or two for every service.
"""

# ruff: noqa: S608  what stands in the statements are names of ours; values are given beside them

from __future__ import annotations

from svcnode.history.files import APPLICATION_ID
from svcnode.history.records import SLACK_S, SPANS, Bar, Span, Transition

VERSION = 1

TABLES = {"services", "transitions", "marks", *(span.name for span in SPANS)}
FORGOTTEN_TO, MINUTES_TO = "forgotten_to", "minutes_to"  # marks

_BAR_COLUMNS = """
    begin_s INTEGER NOT NULL,
    service INTEGER NOT NULL,
    up_s REAL NOT NULL,
    initializing_s REAL NOT NULL,
    down_s REAL NOT NULL,
    looks INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    latency_sum_s REAL NOT NULL,
    latency_max_s REAL NOT NULL,
    PRIMARY KEY (begin_s, service)
"""
SCHEMA = (
    "CREATE TABLE services (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, seen_s INTEGER NOT NULL)",
    """CREATE TABLE transitions (
        id INTEGER PRIMARY KEY,
        at_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        service INTEGER,
        before TEXT,
        after TEXT,
        reason TEXT NOT NULL,
        health_before INTEGER NOT NULL,
        health INTEGER NOT NULL
    )""",
    "CREATE INDEX transitions_of_service ON transitions (service)",
    *(f"CREATE TABLE {span.name} ({_BAR_COLUMNS}) WITHOUT ROWID" for span in SPANS),
    "CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {VERSION}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
# Beside the others, which a file has from the first moment on: what has no such table yet is not damaged.
NOTES = "CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
# The bars of a minute, on their way into the tables.
CLOSING = """
    CREATE TEMP TABLE closing
    (service INTEGER, up_s, initializing_s, down_s, looks, failures, latency_sum_s, latency_max_s)
"""


def _cells(first: int, last: int) -> str:
    return ", ".join(f"json_extract(value, '$[{place}]')" for place in range(first, last + 1))


# With the day on which a service was last seen, which is written once a day.
SEE_SERVICES = """
    INSERT INTO services (id, seen_s) SELECT value, ? FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET seen_s = excluded.seen_s WHERE excluded.seen_s > seen_s
"""
# Those that are there already were written by a transaction that was said to have failed, and had not.
ADD_TRANSITIONS = f"""
    INSERT OR IGNORE INTO transitions
    SELECT {_cells(0, 2)}, (SELECT number FROM services WHERE services.id = {_cells(3, 3)}), {_cells(4, 8)}
    FROM json_each(?)
"""
ADD_BARS = f"""
    INSERT INTO closing SELECT services.number, {_cells(1, 7)}
    FROM json_each(?) CROSS JOIN services ON services.id = {_cells(0, 0)}
"""
SET_MARK = "INSERT INTO marks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
GET_NOTE = "SELECT text FROM notes WHERE name = 'told'"
SET_NOTE = "INSERT INTO notes VALUES ('told', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"

_TIMES = ("up_s", "initializing_s", "down_s")
_SUMS = (*_TIMES, "looks", "failures", "latency_sum_s")


def fold_into(span: Span) -> str:
    """Add the bars of a minute to those that are there; as `records.added` does."""
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in _SUMS)
    known = " + ".join(f"{span.name}.{column} + excluded.{column}" for column in _TIMES)
    return f"""
        INSERT INTO {span.name} SELECT ?, * FROM closing WHERE true ORDER BY service
        ON CONFLICT (begin_s, service)
        DO UPDATE SET {sums}, latency_max_s = max(latency_max_s, excluded.latency_max_s)
        WHERE {known} <= {span.length_s + SLACK_S}
    """


def transition_row(transition: Transition) -> list[object]:
    number, at_s, *rest = transition
    return [number, round(at_s * 1e6), *rest]


def bar_row(service_id: str, bar: Bar) -> list[object]:
    return [service_id, *bar[1:]]
