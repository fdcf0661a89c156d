"""Words that texts share: what a value is, which known name was probably meant, and how a stranger's text is shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcnode.core.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EXCERPT_CHARS = 80
_SCANNED_CHARS = 4096

TYPE_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def type_name(value: object) -> str:
    return TYPE_NAMES.get(type(value), "a date or time")


def closest_match(word: str, known: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that says a name is not known."""
    known = sorted(known)
    near = closest_match(word, known)
    return f'; did you mean "{near}"?' if near else f"; known ones: {', '.join(known)}"


def os_error_text(exc: OSError) -> str:
    """What the system says of its error; in small letters, since it starts no sentence of ours."""
    if exc.errno is not None and exc.errno > 0:  # the loops put words of their own before those of the system
        return os.strerror(exc.errno).lower()
    return exc.strerror.lower() if exc.strerror else str(exc)


def error_text(exc: BaseException) -> str:
    """An error by its kind and its words, where it has any and can say them."""
    try:
        text = str(exc).strip()
    except Exception:  # noqa: BLE001  somebody else wrote it
        text = ""
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def one_line(text: str) -> str:
    """What would break the line or steer a terminal is shown instead of done."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def join_first(names: Sequence[str], limit: int) -> str:
    """All of them, or the first and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def excerpt(text: str | bytes) -> str:
    """In one line of fair length, with no secret and nothing in it that steers a terminal."""
    beginning = text[:_SCANNED_CHARS]
    if isinstance(beginning, bytes):
        beginning = beginning.decode(errors="backslashreplace")
    # What is shown is looked through with some that follows it: half a secret is one too.
    line = one_line(" ".join(redacted(beginning)[: 8 * _EXCERPT_CHARS].split()))
    return line if len(line) <= _EXCERPT_CHARS else f"{line[: _EXCERPT_CHARS - 1]}…"
