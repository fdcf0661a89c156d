"""Secrets that must not be shown: whoever learns one says so here, whoever shows text asks here first."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MASK = "***"
# A shorter one would blot out half of every text. It is still hidden wherever its place is known, as in a URL.
MIN_SECRET_CHARS = 4

# What may be a key where nobody says so, as in a URL: no shorter, of these characters, with letters and digits. Hex
# digits and dashes alone are one, also as a UUID. Else, enough of it must not read as words do: check, v2, 2024, 24h.
MIN_KEY_CHARS = 20
MIN_RANDOM_CHARS = 8

_KEY_CANDIDATE = re.compile(f"[A-Za-z0-9_-]{{{MIN_KEY_CHARS},}}")
_HEX = re.compile("[0-9A-Fa-f-]+")
_WORD_LIKE = re.compile("[A-Za-z]*[0-9]*|[0-9]+[A-Za-z]+")

_secrets: set[str] = set()
# How long those are that begin so, longest first: with it, ten thousand secrets slow a text down no more than ten do.
_lengths_by_prefix: dict[str, tuple[int, ...]] = {}


def register_secret(text: str) -> None:
    for form in _encoded_variants(text):
        if len(form) >= MIN_SECRET_CHARS and form not in _secrets:
            beginning = form[:MIN_SECRET_CHARS]
            _secrets.add(form)
            _lengths_by_prefix[beginning] = tuple(
                sorted({*_lengths_by_prefix.get(beginning, ()), len(form)}, reverse=True)
            )


def register_likely_keys(text: str) -> None:
    """Whatever in it looks like a key; better a name too many than a key that is shown."""
    for word in _KEY_CANDIDATE.findall(text):
        if _looks_like_key(word):
            register_secret(word)


def _looks_like_key(word: str) -> bool:
    if not (re.search("[A-Za-z]", word) and re.search("[0-9]", word)):
        return False
    jumbled = [part for part in re.split("[-_]", word) if not _WORD_LIKE.fullmatch(part)]
    return _HEX.fullmatch(word) is not None or sum(map(len, jumbled)) >= MIN_RANDOM_CHARS


def _encoded_variants(text: str) -> Iterator[str]:
    """As it is, each of its lines, and as it looks in a URL, in JSON, or quoted in the words of an error."""
    import json
    from urllib.parse import quote, quote_plus

    yield text
    yield from map(str.strip, text.splitlines())
    for encode in (partial(quote, safe=""), quote, quote_plus):
        yield encode(text, errors="replace")
    for quoted in (json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)):
        yield quoted[1:-1]


def redacted(text: str) -> str:
    """Where secrets overlap, nothing is left of either."""
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
