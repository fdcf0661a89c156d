"""Data of an untrusted server as text: one line, truncated, without control characters."""

from __future__ import annotations

import json

from svcnode.core.redaction import redacted
from svcnode.core.text import one_line

MAX_SHOWN_CHARS = 200


def safe_text(text: str | bytes) -> str:
    """Line breaks, terminal control characters and characters that XML cannot hold are escaped."""
    decoded = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    # Redact more than is shown: the end may cut a secret in half.
    visible = one_line(redacted(decoded[: 8 * MAX_SHOWN_CHARS])[:MAX_SHOWN_CHARS])
    unit = "bytes" if isinstance(text, bytes) else "characters"
    return visible if len(decoded) <= MAX_SHOWN_CHARS else f"{visible}… ({len(text)} {unit} total)"


def json_text(value: object) -> str:
    """Compact JSON, as the server may have sent it."""
    return safe_text(json.dumps(value, ensure_ascii=False))


def join_items(items: list[str], limit: int | None = None) -> str:
    """Joined with commas and "and"; beyond `limit`, the rest is counted."""
    if limit is not None and len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit} more"]
    return ", ".join(items[:-1]) + f" and {items[-1]}" if len(items) > 1 else "".join(items)
