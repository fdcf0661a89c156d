"""Text and times as HTML, and durations, latencies and shares as text, as static/format.js formats them."""

from __future__ import annotations

import math
import re
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

EMPTY_CELL = "\N{EN DASH}"


def escape_text(text: str) -> str:
    """Invisible and direction-changing characters are shown as escape sequences, as in the log."""
    return escape(text if text.isprintable() else one_line(text))


def shorten_words(text: str) -> str:
    """Truncate very long words, such as ids, in the headline; the punctuation after them stays."""
    return re.sub(r"(\S{48})\S{16,}(?:([,;:])|\S)", r"\1…\2", text)


def history_link(service_id: str) -> str:
    """A document of its own; a script shows the same on the page instead (static/sections.js)."""
    return f"page/timeline?id={escape(quote(service_id, safe=''))}"


def time_element(iso: str | None, text: str) -> str:
    return EMPTY_CELL if iso is None else f'<time datetime="{iso}">{text}</time>'


def time_ago(time_fields: Mapping[str, Any]) -> str:
    return time_element(time_fields["at"], format_age(time_fields["age_s"]))


def format_age(seconds: float | None) -> str:
    return EMPTY_CELL if seconds is None else f"{format_coarse_duration(seconds)} ago"


def format_availability(share: float | None, *, has_maintenance: bool) -> str:
    """Time in maintenance is left out of the share."""
    if share is None:
        return "only maintenance" if has_maintenance else EMPTY_CELL
    return format_percent(share) + (" without maintenance" if has_maintenance else "")


def format_percent(share: float) -> str:
    """Rounded down, so that one second of downtime does not show as 100 %."""
    if share <= 0:
        return "0 %"
    return "100 %" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f} %"
