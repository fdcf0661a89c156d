"""Secrets: registered where they are read, replaced by `***` in every text that is shown, logged or returned.

The password of a URL is replaced even if it was not registered: it may come from another package or from a server.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MASK = "***"
# A shorter secret occurs in ordinary text by chance. In a URL it is hidden by its position.
MIN_SECRET_CHARS = 4

# A likely key, such as an API key in a URL path: at least this long, with letters and digits. It is all hex digits and
# dashes, such as a UUID, or has enough characters in parts that are unlike names, such as check, v2, 2024 or 24h.
MIN_KEY_CHARS = 20
MIN_RANDOM_CHARS = 8

_KEY_CANDIDATE = re.compile(f"[A-Za-z0-9_-]{{{MIN_KEY_CHARS},}}")
_HEX = re.compile("[0-9A-Fa-f-]+")
_WORD_LIKE = re.compile("[A-Za-z]*[0-9]*|[0-9]+[A-Za-z]+")

# The greedy password ends at the last @ of the authority, so that a password with an @ is hidden as a whole. Neither
# part crosses a slash, so the parts of two URLs never overlap, and the time is linear.
_URL_PASSWORD = re.compile(r"(://[^\s/?#:]*:)[^\s/?#]+@")

_secrets: set[str] = set()
# Lengths of the secrets with this prefix, longest first, so that the number of secrets does not affect the speed.
_lengths_by_prefix: dict[str, tuple[int, ...]] = {}


def register_secret(text: str) -> None:
    for form in _encoded_variants(text):
        if len(form) >= MIN_SECRET_CHARS and form not in _secrets:
            prefix = form[:MIN_SECRET_CHARS]
            _secrets.add(form)
            _lengths_by_prefix[prefix] = tuple(sorted({*_lengths_by_prefix.get(prefix, ()), len(form)}, reverse=True))


def register_likely_keys(text: str) -> None:
    """Register the parts of a text that look like keys. A hidden name is better than a shown key."""
    for word in _KEY_CANDIDATE.findall(text):
        if _looks_like_key(word):
            register_secret(word)


def _looks_like_key(word: str) -> bool:
    if not (re.search("[A-Za-z]", word) and re.search("[0-9]", word)):
        return False
    random_parts = [part for part in re.split("[-_]", word) if not _WORD_LIKE.fullmatch(part)]
    return _HEX.fullmatch(word) is not None or sum(map(len, random_parts)) >= MIN_RANDOM_CHARS


def _encoded_variants(text: str) -> Iterator[str]:
    """The text, each of its lines, and its form in a URL, in JSON and in a repr."""
    import json
    from urllib.parse import quote, quote_plus

    yield text
    yield from map(str.strip, text.splitlines())
    for encode in (partial(quote, safe=""), quote, quote_plus):
        yield encode(text, errors="replace")
    for quoted in (json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)):
        yield quoted[1:-1]


def redacted(text: str) -> str:
    """The text with every registered secret, and the password of every URL, replaced by `***`.

    Overlapping secrets are replaced as one.
    """
    text = _without_registered_secrets(text)
    return _URL_PASSWORD.sub(rf"\1{MASK}@", text) if "://" in text and "@" in text else text


def _without_registered_secrets(text: str) -> str:
    parts: list[str] = []
    hidden_to = 0
    for start in range(len(text) - MIN_SECRET_CHARS + 1 if _secrets else 0):
        for length in _lengths_by_prefix.get(text[start : start + MIN_SECRET_CHARS], ()):
            if text[start : start + length] in _secrets:
                if start >= hidden_to:
                    parts += text[hidden_to:start], MASK
                hidden_to = max(hidden_to, start + length)
                break
    return "".join(parts) + text[hidden_to:]
