"""Times as programs read them, and people, too."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(wall_s: float) -> str:
    """In UTC, to the millisecond: "2026-01-01T12:00:00.000Z"."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
