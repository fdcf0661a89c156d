"""Times and durations as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

_UNITS_S = (("day", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def format_duration(seconds: float) -> str:
    """ "less than 1 s", "42 s", "4 min 12 s", "3 h 5 min", "2 days 7 h"."""
    left = round(seconds)
    if left < 1:
        return "less than 1 s"
    parts: list[tuple[int, str]] = []
    for unit, length_s in _UNITS_S:
        count, left = divmod(left, length_s)
        if count or parts:
            parts.append((count, unit))
        if len(parts) == 2:
            break
    return " ".join(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}" for count, unit in parts if count)


def format_seconds(count_s: float) -> str:
    """As in a configuration, with a space: "30 s", "0.5 s"."""
    return f"{count_s:g} s"


def format_latency(*durations_ms: float) -> str:
    """ "0.4 ms", "3.0 s", "0.4 to 12 ms"."""
    least, most = _format_ms(min(durations_ms)), _format_ms(max(durations_ms))
    if least == most:
        return least
    number, unit = least.split(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def _format_ms(duration_ms: float) -> str:
    if duration_ms >= 999.5:
        return f"{duration_ms / 1000:.1f} s"
    return f"{duration_ms:.1f} ms" if duration_ms < 9.95 else f"{duration_ms:.0f} ms"


def format_time(at: datetime, now: datetime, zone: tzinfo | None, *, with_ms: bool = False) -> str:
    """The time of day in a zone (None: the local one); with the date if it was not today."""
    at, now = at.astimezone(zone), now.astimezone(zone)
    text = f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{text}.{at.microsecond // 1000:03}" if with_ms else text
