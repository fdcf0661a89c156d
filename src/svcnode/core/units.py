"""Durations ("500ms", "5s", "2m", "1h", "7d"), sizes ("512KiB", "5GiB") and ISO times."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from svcnode.core.errors import InvalidValueError

_DURATION_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", re.ASCII)
_BYTES = {
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


def parse_duration_s(value: str | float) -> float:
    """Seconds from "1.5s" or from a number of seconds."""
    seconds = _parse_seconds(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not math.isfinite(seconds) or seconds < 0:
        raise InvalidValueError(f"a duration must be a finite number of seconds and not negative, not {value!r}")
    return float(seconds)


def _parse_seconds(text: str) -> float:
    match = _DURATION_PATTERN.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(f'invalid duration "{text}"; write a number and a unit, such as {_hint(text)}')
    number, unit = match.groups()
    return float(number) * _SECONDS[unit]


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
    size = float(number) * _BYTES[unit]
    if not math.isfinite(size):
        raise InvalidValueError(f'invalid size "{text[:20]}…": the number is too large')
    return int(size)


def iso_time(wall_s: float) -> str:
    """UTC with milliseconds: "2026-01-01T12:00:00.000Z"."""
    return datetime.fromtimestamp(round(wall_s, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
