"""The SQL tables and the statements that fill them.

A thread that reads or writes row by row releases the GIL for every row and waits for the event loop to get it back, on
a busy node milliseconds each time. So rows are passed as JSON, hundreds per statement.

The tables of buckets are ordered by time, not by service: a minute is written and deleted as a whole, so it touches a
few pages instead of one or two per service.
"""

# ruff: noqa: S608  only constants are formatted into statements; values are parameters

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from svcnode.history.files import APPLICATION_ID
from svcnode.history.records import RESOLUTIONS, ROUNDING_TOLERANCE_S, Bucket, Resolution, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 2  # increase it with every change of the tables; a file of an older version is quarantined

TABLES = {"services", "transitions", "watermarks", "saved_state", *(resolution.name for resolution in RESOLUTIONS)}
PRUNED_TO, AGGREGATED_TO = "pruned_to", "aggregated_to"  # names of watermarks

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
        code TEXT,
        health_before INTEGER NOT NULL,
        health INTEGER NOT NULL
    )""",
    "CREATE INDEX transitions_of_service ON transitions (service)",
    *(f"CREATE TABLE {resolution.name} ({_BUCKET_COLUMNS}) WITHOUT ROWID" for resolution in RESOLUTIONS),
    "CREATE TABLE watermarks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE saved_state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {VERSION}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
# The buckets of one minute, before they are added to the three tables.
CREATE_STAGING = """
    CREATE TEMP TABLE staging
    (service INTEGER, up_s, initializing_s, down_s, checks, failures, latency_sum_s, latency_max_s)
"""


def _json_columns(first: int, last: int) -> str:
    return ", ".join(f"json_extract(value, '$[{index}]')" for index in range(first, last + 1))


# last_seen_s is the start of a day, so it changes once per day.
UPSERT_SERVICES = """
    INSERT INTO services (id, last_seen_s) SELECT value, ? FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET last_seen_s = excluded.last_seen_s WHERE excluded.last_seen_s > last_seen_s
"""
# A row that exists already comes from a transaction that was reported as failed but was committed.
INSERT_TRANSITIONS = f"""
    INSERT OR IGNORE INTO transitions
    SELECT {_json_columns(0, 2)}, (SELECT number FROM services WHERE services.id = {_json_columns(3, 3)}),
        {_json_columns(4, 9)}
    FROM json_each(?)
"""
INSERT_STAGING = f"""
    INSERT INTO staging SELECT services.number, {_json_columns(1, 7)}
    FROM json_each(?) CROSS JOIN services ON services.id = {_json_columns(0, 0)}
"""
SET_WATERMARK = "INSERT INTO watermarks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
# The name of the node that the file belongs to. Files of earlier versions have none.
GET_NODE_NAME = "SELECT text FROM saved_state WHERE name = 'node'"
SET_NODE_NAME = "INSERT INTO saved_state VALUES ('node', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"
GET_SAVED_STATE = "SELECT text FROM saved_state WHERE name = 'notify'"
SET_SAVED_STATE = "INSERT INTO saved_state VALUES ('notify', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"

_STATUS_COLUMNS = ("up_s", "initializing_s", "down_s")
_SUM_COLUMNS = (*_STATUS_COLUMNS, "checks", "failures", "latency_sum_s")


def upsert_buckets(resolution: Resolution) -> str:
    """The statement that adds the staged buckets to a table, as `records.merge_buckets` does."""
    table = resolution.name
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in _SUM_COLUMNS)
    known = " + ".join(f"{table}.{column} + excluded.{column}" for column in _STATUS_COLUMNS)
    return f"""
        INSERT INTO {table} SELECT ?, * FROM staging WHERE true ORDER BY service
        ON CONFLICT (begin_s, service)
        DO UPDATE SET {sums}, latency_max_s = max(latency_max_s, excluded.latency_max_s)
        WHERE {known} <= {resolution.length_s + ROUNDING_TOLERANCE_S}
    """


def transition_row(transition: Transition) -> list[object]:
    transition_id, at_s, *rest = transition
    return [transition_id, round(at_s * 1e6), *rest]


def bucket_row(service_id: str, bucket: Bucket) -> list[object]:
    return [service_id, *bucket[1:]]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back already
            connection.execute("ROLLBACK")
        raise
