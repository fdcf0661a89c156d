"""The values in the query of an operator endpoint, and the moments that some of them name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.core.maintenance import parse_time_s
from svcnode.core.text import excerpt
from svcnode.core.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parse_single(query: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = query.get(name, [])
    if len(values) > 1:
        raise InvalidValueError(f"{name} must be given once")
    return values[0] if values else None


def parse_moment_s(name: str, text: str, now_s: float) -> float:
    """From "2026-12-01T22:00:00Z", or from a duration such as "12h", which is that long ago."""
    try:
        return max(0.0, now_s - parse_duration_s(text))
    except InvalidValueError:
        pass
    try:
        if "T" in text:
            text = text.replace(" ", "+")  # a plus sign that was not percent-encoded
        return max(0.0, parse_time_s(text))
    except InvalidValueError:
        raise InvalidValueError(
            f'{name} must be a date and a time with its zone such as "2026-12-01T22:00:00Z", or how long ago it was '
            f'such as "12h", not "{excerpt(text)}"'
        ) from None
