"""Durations ("500ms", "5s", "2m", "1h", "7d"), sizes ("512KiB", "5GiB") and times; durations and times as text."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from svcnode.core.errors import InvalidValueError

_DURATION_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", re.ASCII)
BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_SHOWN_UNITS_S = (("day", 86_400), ("h", 3600), ("min", 60), ("s", 1))


Duration = str | float  # "500ms", or a number of seconds


def parse_duration_s(value: str | float) -> float:
    """Seconds from "1.5s" or from a number of seconds."""
    seconds: object = _parse_seconds(value) if isinstance(value, str) else value  # whatever a program may pass
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf:
        return float(seconds)
    raise InvalidValueError(f"a duration must be a finite number of seconds and not negative, not {value!r}")


def _parse_seconds(text: str) -> float:
    match = _DURATION_PATTERN.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f'invalid duration "{text}"; write a number and a unit, such as {_hint(text)}')
    number, unit = match.groups()
    return float(number) * SECONDS[unit]


def _hint(text: str) -> str:
    bare = text.strip()
    is_bare_number = re.fullmatch(r"[0-9]+(\.[0-9]+)?", bare, re.ASCII)
    return f'"{bare}s"' if is_bare_number else '"500ms", "5s" or "2m"'


def parse_size_bytes(text: str) -> int:
    """Bytes from "5GiB"."""
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f'invalid size "{text}"; write a number and a unit, such as "512KiB" or "5GiB"')
    number, unit = match.groups()
    size = float(number) * BYTES[unit]
    if not math.isfinite(size):
        raise InvalidValueError(f'invalid size "{text[:20]}…": the number is too large')
    return int(size)


def iso_time(wall_s: float) -> str:
    """UTC with milliseconds: "2026-01-01T12:00:00.000Z"."""
    return datetime.fromtimestamp(round(wall_s, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_text(at: float | str, now: float | str | None = None, *, with_ms: bool = False) -> str:
    """Every time that people read: "2026-01-01 12:00:00 UTC", and without the date if `now` is on the same day.

    Both are seconds of the wall clock, or in the form of `iso_time`. static/format.js has the same function.
    """
    day, clock = _as_iso(at).removesuffix("Z").split("T")
    date = "" if now is not None and _as_iso(now).startswith(day) else f"{day} "
    return f"{date}{clock if with_ms else clock.partition('.')[0]} UTC"


def _as_iso(at: float | str) -> str:
    return iso_time(datetime.fromisoformat(at).timestamp()) if isinstance(at, str) else iso_time(at)


# ---- durations as text; each style rounds and shortens as its place needs it


def format_duration(seconds: float) -> str:
    """In a sentence: "less than 1 s", "42 s", "4 min 12 s", "3 h 5 min", "2 days 7 h"."""
    parts = _largest_units(round(seconds))
    texts = (f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}" for count, unit in parts)
    return " ".join(texts) or "less than 1 s"


def format_limit(seconds: float) -> str:
    """A setting in a sentence, never rounded: "0.5 s", "90 s", "1 h 1 min", "1 day 1 h"."""
    is_exact = seconds == sum(count * dict(_SHOWN_UNITS_S)[unit] for count, unit in _largest_units(int(seconds)))
    return format_duration(seconds) if seconds >= 120 and is_exact else f"{seconds:g} s"


def format_short_duration(seconds: float) -> str:
    """In an alert: "0.4s", "42s", "4m 12s", "3h 5m", "2d 7h"."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    return " ".join(f"{count}{unit[0]}" for count, unit in _largest_units(round(seconds)))


def format_coarse_duration(seconds: float) -> str:
    """On the page, where it grows, so rounded down: "0 s", "42 s", "4 min", "3 h 5 min", "2 d 7 h"."""
    whole = int(seconds) if seconds < 60 else int(seconds) // 60 * 60
    return " ".join(f"{count} {'d' if unit == 'day' else unit}" for count, unit in _largest_units(whole)) or "0 s"


def format_narrow_duration(seconds: float) -> str:
    """In a column of five characters, rounded down: "42s", "4m12s", "12m", "3h05m", "30h", "2d"."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{int(seconds)}s"
    if hours < 1:
        return f"{minutes}m" + (f"{int(seconds) % 60:02}s" if minutes < 10 else "")
    if hours < 48:
        return f"{hours}h" + (f"{minutes % 60:02}m" if hours < 10 else "")
    return f"{hours // 24}d"


def _largest_units(seconds: int) -> list[tuple[int, str]]:
    """The largest unit and the next smaller one, without zeros: 252 s are [(4, "min"), (12, "s")]."""
    counts: list[tuple[int, str]] = []
    for unit, length_s in _SHOWN_UNITS_S:
        count, seconds = divmod(seconds, length_s)
        if count or counts:
            counts.append((count, unit))
    return [(count, unit) for count, unit in counts[:2] if count]


def format_latency(*durations_ms: float) -> str:
    """One value or a range: "0.4 ms", "3.0 s", "0.4 to 12 ms"."""
    least, most = _format_ms(min(durations_ms)), _format_ms(max(durations_ms))
    if least == most:
        return least
    number, unit = least.split(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def _format_ms(duration_ms: float) -> str:
    if duration_ms >= 999.5:
        return f"{duration_ms / 1000:.1f} s"
    return f"{duration_ms:.1f} ms" if duration_ms < 9.95 else f"{duration_ms:.0f} ms"
