"""Secrets that must not be shown: whoever learns one says so here, whoever shows text asks here first."""

from __future__ import annotations

from urllib.parse import quote

HIDDEN = "***"
# A shorter one would blot out half of every text. It is still hidden wherever its place is known, as in a URL.
MIN_CHARS = 4

_secrets: list[str] = []  # longest first, so that none leaves the end of a longer one standing


def keep_secret(text: str) -> None:
    for form in (text, quote(text, safe="")):
        if len(form) >= MIN_CHARS and form not in _secrets:
            _secrets.append(form)
            _secrets.sort(key=len, reverse=True)


def redacted(text: str) -> str:
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return text
