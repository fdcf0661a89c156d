"""The tables, and the statements that fill them.

A thread that reads or writes row by row lets go of Python's lock for every row, and gets it back when the event loop
is done with what it does, which on a busy node takes milliseconds each time. So rows go in and out as JSON, hundreds
with each statement.

In the tables of bars, the rows of one minute lie side by side, not those of one service: a minute is written and
forgotten as a whole, so it costs a few pages instead of one or two for every service.

All or nothing.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from svcnode.history.files import APPLICATION_ID
from svcnode.history.records import RESOLUTIONS, ROUNDING_TOLERANCE_S, Bucket, Resolution, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

# ruff: noqa: S608  what stands in the statements are names of ours; values are given beside them


VERSION = 1

TABLES = {"services", "transitions", "watermarks", *(span.name for span in RESOLUTIONS)}
PRUNED_TO, AGGREGATED_TO = "pruned_to", "aggregated_to"  # watermarks

_BUCKET_COLUMNS = """
    begin_s INTEGER NOT NULL,
    service INTEGER NOT NULL,
    up_s REAL NOT NULL,
    initializing_s REAL NOT NULL,
    down_s REAL NOT NULL,
    checks INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    latency_sum_s REAL NOT NULL,
    latency_max_s REAL NOT NULL,
    PRIMARY KEY (begin_s, service)
"""
SCHEMA = (
    "CREATE TABLE services (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, last_seen_s INTEGER NOT NULL)",
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
    *(f"CREATE TABLE {span.name} ({_BUCKET_COLUMNS}) WITHOUT ROWID" for span in RESOLUTIONS),
    "CREATE TABLE watermarks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {VERSION}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
# Beside the others, which a file has from the first moment on: what has no such table yet is not damaged.
CREATE_SAVED_STATE = "CREATE TABLE IF NOT EXISTS saved_state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
# The bars of a minute, on their way into the tables.
CREATE_STAGING = """
    CREATE TEMP TABLE staging
    (service INTEGER, up_s, initializing_s, down_s, checks, failures, latency_sum_s, latency_max_s)
"""


def _json_columns(first: int, last: int) -> str:
    return ", ".join(f"json_extract(value, '$[{place}]')" for place in range(first, last + 1))


# With the day on which a service was last seen, which is written once a day.
UPSERT_SERVICES = """
    INSERT INTO services (id, last_seen_s) SELECT value, ? FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET last_seen_s = excluded.last_seen_s WHERE excluded.last_seen_s > last_seen_s
"""
# Those that are there already were written by a transaction that was said to have failed, and had not.
INSERT_TRANSITIONS = f"""
    INSERT OR IGNORE INTO transitions
    SELECT {_json_columns(0, 2)}, (SELECT number FROM services WHERE services.id = {_json_columns(3, 3)}), {_json_columns(4, 8)}
    FROM json_each(?)
"""
INSERT_STAGING = f"""
    INSERT INTO staging SELECT services.number, {_json_columns(1, 7)}
    FROM json_each(?) CROSS JOIN services ON services.id = {_json_columns(0, 0)}
"""
SET_WATERMARK = "INSERT INTO watermarks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
GET_SAVED_STATE = "SELECT text FROM saved_state WHERE name = 'notify'"
SET_SAVED_STATE = "INSERT INTO saved_state VALUES ('notify', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"

_STATUS_COLUMNS = ("up_s", "initializing_s", "down_s")
_SUM_COLUMNS = (*_STATUS_COLUMNS, "checks", "failures", "latency_sum_s")


def upsert_buckets(span: Resolution) -> str:
    """Add the bars of a minute to those that are there; as `records.added` does."""
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in _SUM_COLUMNS)
    known = " + ".join(f"{span.name}.{column} + excluded.{column}" for column in _STATUS_COLUMNS)
    return f"""
        INSERT INTO {span.name} SELECT ?, * FROM staging WHERE true ORDER BY service
        ON CONFLICT (begin_s, service)
        DO UPDATE SET {sums}, latency_max_s = max(latency_max_s, excluded.latency_max_s)
        WHERE {known} <= {span.length_s + ROUNDING_TOLERANCE_S}
    """


def transition_row(transition: Transition) -> list[object]:
    number, at_s, *rest = transition
    return [number, round(at_s * 1e6), *rest]


def bucket_row(service_id: str, bar: Bucket) -> list[object]:
    return [service_id, *bar[1:]]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors, SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise
