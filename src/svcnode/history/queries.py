"""What is asked of the file. Answers come as JSON, hundreds of rows with each step: see database.py."""

# ruff: noqa: S608  what stands in the statements are names of ours; values are given beside them

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.history.records import Bar, Transition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from svcnode.history.records import Span

CELLS_AT_ONCE = 3000  # bars that are made from one text, while every other thread waits: about a millisecond

_TRANSITION = "id, at_us, kind, service_id, before, after, reason, health_before, health"
_TRANSITIONS = f"""
    SELECT json_group_array(json_array({_TRANSITION})) FROM (
        SELECT transitions.*, services.id AS service_id
        FROM transitions LEFT JOIN services ON services.number = transitions.service
        WHERE {{condition}} ORDER BY transitions.id {{order}} LIMIT ?
    )
"""
_AFTER = _TRANSITIONS.format(condition="transitions.id > ? AND transitions.id <= ?", order="")
_LATEST = _TRANSITIONS.format(condition="transitions.id <= ?", order="DESC")
_LATEST_OF_SERVICE = _TRANSITIONS.format(
    condition="transitions.id <= ? AND transitions.service = (SELECT number FROM services WHERE id = ?)", order="DESC"
)
_KNOWN = "SELECT json_group_array(id) FROM services WHERE id IN (SELECT value FROM json_each(?))"
# In this order, and in no other: each step finds its rows by their key.
_BARS = f"""
    SELECT json_group_array(json_array(wanted.key, {", ".join(Bar._fields)}))
    FROM json_each(?) AS wanted
    CROSS JOIN services ON services.id = wanted.value
    CROSS JOIN json_each(?) AS begins
    CROSS JOIN {{table}} AS bars ON bars.begin_s = begins.value AND bars.service = services.number
"""


def open_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1.0, isolation_level=None)


def begin(connection: sqlite3.Connection) -> None:
    """From here on, the file is seen as it is now."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM marks").fetchone()


def transitions_after(connection: sqlite3.Connection, after: int, up_to: int, limit: int) -> list[Transition]:
    return _transitions(connection, _AFTER, after, up_to, limit)


def latest_transitions(
    connection: sqlite3.Connection, service_id: str | None, up_to: int, limit: int
) -> list[Transition]:
    if service_id is None:
        return _transitions(connection, _LATEST, up_to, limit)
    return _transitions(connection, _LATEST_OF_SERVICE, up_to, service_id, limit)


def _transitions(connection: sqlite3.Connection, query: str, *values: int | str) -> list[Transition]:
    rows = _rows(connection, query, *values)
    return [Transition(number, at_us / 1e6, *rest) for number, at_us, *rest in rows]


def read_bars(
    connection: sqlite3.Connection, service_ids: Sequence[str], span: Span, begins_s: Sequence[int]
) -> dict[str, list[Bar]]:
    """Those that there are, in no order."""
    found: dict[str, list[Bar]] = {service_id: [] for service_id in service_ids}
    query, begins = _BARS.format(table=span.name), json.dumps(list(begins_s))
    at_once = max(1, CELLS_AT_ONCE // len(begins_s))
    for first in range(0, len(service_ids), at_once):
        some = service_ids[first : first + at_once]
        for place, *cells in _rows(connection, query, json.dumps(some), begins):
            found[some[place]].append(Bar._make(cells))
    return found


def known_ids(connection: sqlite3.Connection, service_ids: Sequence[str]) -> set[str]:
    return set(_rows(connection, _KNOWN, json.dumps(list(service_ids))))


def _rows(connection: sqlite3.Connection, query: str, *values: int | str) -> list[Any]:
    (text,) = connection.execute(query, values).fetchone()
    rows: list[Any] = json.loads(text)
    return rows
