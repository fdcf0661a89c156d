"""How what a stranger's server sent is shown: on one line, cut short, and harmless to a terminal."""

from __future__ import annotations

import json

from svcnode.core.redaction import redacted
from svcnode.core.text import one_line

MAX_SHOWN_CHARS = 200


def safe_text(text: str | bytes) -> str:
    """What would break the line, steer a terminal or be no XML is shown as an escape."""
    decoded = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    # What is shown is looked through with some that follows it: half a secret is one too.
    visible = one_line(redacted(decoded[: 8 * MAX_SHOWN_CHARS])[:MAX_SHOWN_CHARS])
    unit = "bytes" if isinstance(text, bytes) else "characters"
    return visible if len(decoded) <= MAX_SHOWN_CHARS else f"{visible}… ({len(text)} {unit} in all)"


def json_text(value: object) -> str:
    """As it stood on the wire, or nearly so."""
    return safe_text(json.dumps(value, ensure_ascii=False))


def join_words(words: list[str], limit: int | None = None) -> str:
    """As in a sentence; of more than `most`, the others are counted."""
    if limit is not None and len(words) > limit:
        words = [*words[:limit], f"{len(words) - limit} more"]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)
