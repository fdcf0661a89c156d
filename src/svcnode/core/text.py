"""Helpers for messages: type names, suggestions for misspelt names, safe excerpts of foreign text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcnode.core.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_REASON_CHARS = 1000
_SCANNED_CHARS = 4096
MAX_COMPARED_NAMES, MAX_LISTED_NAMES = 1000, 50
MIN_BEGINNING_CHARS = 4  # of a name that is known by its beginning

TYPE_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
    type(None): "null",  # of JSON; TOML has none
}


def type_name(value: object) -> str:
    return TYPE_NAMES.get(type(value), "a date or time")


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Of many known names, None: a configuration may have as many errors as names, and each search takes time."""
    import difflib

    known = list(known)
    if len(known) > MAX_COMPARED_NAMES:
        return None
    beginnings = [name for name in known if len(word) >= MIN_BEGINNING_CHARS and name.startswith(word)]
    return next(iter((*difflib.get_close_matches(word, known, n=1), *beginnings)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the closest known name, or the first ones."""
    known = sorted(known)
    near = closest_match(word, known)
    return f'; did you mean "{near}"?' if near else f"; known: {join_first(known, MAX_LISTED_NAMES)}"


def os_error_text(exc: OSError) -> str:
    """The message of the operating system, in lower case."""
    if exc.errno is not None and exc.errno > 0:  # event loops prepend their own text
        return os.strerror(exc.errno).lower()
    return exc.strerror.lower() if exc.strerror else str(exc)


def error_text(exc: BaseException) -> str:
    """The type and the message of an exception."""
    try:
        text = str(exc).strip()
    except Exception:  # noqa: BLE001  a foreign __str__ may raise anything
        text = ""
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def one_line(text: str) -> str:
    """Escape control characters, so that the text stays on one line and does not control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def truncate(text: str, max_chars: int) -> str:
    """The text, or its beginning and an ellipsis: at most `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def sanitize(text: str) -> str:
    """A text from outside on one line: without secrets, and with escaped control characters."""
    return one_line(redacted(text))


def excerpt(text: str | bytes, max_chars: int = 80) -> str:
    """The beginning of a text of any length on one line, without secrets and control characters."""
    # More text is redacted than is shown, so that a secret that is cut in half is hidden too.
    shown = _redacted_text(text[:_SCANNED_CHARS])
    if len(text) > _SCANNED_CHARS and len(shown) < 8 * max_chars:  # many secrets: the last one is shown otherwise
        shown = _redacted_text(text)
    return truncate(one_line(" ".join(shown[: 8 * max_chars].split())), max_chars)


def _redacted_text(text: str | bytes) -> str:
    return redacted(text if isinstance(text, str) else text.decode(errors="backslashreplace"))


def visible_text(value: object) -> str:
    """Whatever a program gives as a text, on one line and without secrets: an exception, bytes, None, any object."""
    return sanitize(_text_of(value))


def safe_reason(value: object) -> str:
    """As `visible_text`, and not longer than people read: what is given as a reason, or quotes a server at any length.

    Every state, log line, answer and document gets its reasons from here, so that no report is refused for its form.
    """
    text = _text_of(value)
    shown = sanitize(text[:_SCANNED_CHARS])
    if len(text) > _SCANNED_CHARS and len(shown) < MAX_REASON_CHARS:  # many secrets: the last one may be cut in half
        shown = sanitize(text)
    return truncate(shown, MAX_REASON_CHARS)


def _text_of(value: object) -> str:
    match value:
        case None:
            return ""
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "backslashreplace")
        case BaseException():
            return error_text(value)
        case _:
            try:
                return str(value)
            except Exception:  # noqa: BLE001  a foreign __str__ may raise anything
                return type(value).__name__


def with_author(text: str, author: str) -> str:
    if not author:
        return text
    if text.endswith(")"):  # it may name another author already, such as that of an issue which is cleared
        return f"{text}; by {author}"
    return f"{text} (by {author})" if text else f"by {author}"


def encodable(text: str) -> str:
    """Without secrets, and without lone surrogates, which UTF-8 and so JSON and databases cannot hold."""
    return redacted(text).encode("utf-8", "replace").decode()


def has_control_chars(text: str) -> bool:
    """Whether the text has characters that control a terminal or break a line, or lone surrogates."""
    return any(char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char < "\ue000" for char in text)


def join_first(names: Sequence[str], limit: int) -> str:
    """All names, or the first `limit` and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def toml_value(value: object) -> str:
    """A value of JSON in TOML, on one line."""
    import json

    match value:
        case dict():
            pairs = ", ".join(f"{_toml_key(key)} = {toml_value(inner)}" for key, inner in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case _:
            # JSON's quoting is valid TOML, except for one character that TOML requires to be escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else toml_value(key)
