"""Secrets: registered where they are read, replaced by `***` in every text that is shown, logged or returned.

The password of a URL is replaced even if it was not registered: it may come from another package or from a server.

A secret that was registered in a `SecretScope` is forgotten when the last such scope is released. One that was
registered outside of any scope is never forgotten.
"""

from __future__ import annotations

import re
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

MASK = "***"
# A shorter secret occurs in ordinary text by chance. In a URL it is hidden by its position.
MIN_SECRET_CHARS = 4

# A likely key, such as an API key in a URL path: at least this long, with letters and digits. It is all hex digits and
# dashes, such as a UUID, or has enough characters in parts that are unlike names, such as check, v2, 2024 or 24h.
MIN_KEY_CHARS = 20
MIN_RANDOM_CHARS = 8

_KEY_CANDIDATE = re.compile(f"[A-Za-z0-9_-]{{{MIN_KEY_CHARS},}}")
_PERCENT_CODE = re.compile("%[0-9A-F]{2}")
_HTML_CHAR = re.compile("[<>&]")
_HEX = re.compile("[0-9A-Fa-f-]+")
_WORD_LIKE = re.compile("[A-Za-z]*[0-9]*|[0-9]+[A-Za-z]+")

# The greedy password ends at the last @ of the authority, so that a password with an @ is hidden as a whole. Neither
# part crosses a slash, so the parts of two URLs never overlap, and the time is linear.
_URL_PASSWORD = re.compile(r"(://[^\s/?#:]*:)[^\s/?#]+@")

# The number of holders of each form of a secret.
_secrets: dict[str, int] = {}
# How many secrets with this prefix have each length, longest first, so that the number of secrets does not affect the
# speed. The inner values are replaced, not changed: another thread may be reading them.
_lengths_by_prefix: dict[str, dict[int, int]] = {}
_change_lock = threading.RLock()  # reentrant: the garbage collector may release a RotatingSecret at any time


class SecretScope:
    """Holds the secrets that are registered inside its `with` block until it is released."""

    def __init__(self) -> None:
        self._forms: dict[str, frozenset[str]] = {}  # by the secret

    def __enter__(self) -> Self:
        self._token = _current_scope.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current_scope.reset(self._token)

    def add(self, text: str) -> None:
        with _change_lock:
            if text not in self._forms:
                self._forms[text] = _hold(text)

    def find_in(self, text: str, *, besides: Container[str] = ()) -> int | None:
        """The first place in the text with one of these secrets as a word, in any of its forms. Those in `besides` do
        not count."""
        forms = [form for secret, found in self._forms.items() if secret not in besides for form in found]
        places = [place for form in forms if form in text and (place := _find_word(form, text)) is not None]
        return min(places, default=None)

    def release(self) -> None:
        """Forget the secrets that no other scope holds."""
        with _change_lock:
            for forms in self._forms.values():
                _release(forms)
            self._forms.clear()


def _find_word(word: str, text: str) -> int | None:
    found = re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text)
    return None if found is None else found.start()


class RotatingSecret:
    """The newest values of a secret that changes, such as the token of each login. They are forgotten with the object.

    Older values are forgotten: no check that could show them is running any more.
    """

    def __init__(self, kept: int = 4) -> None:
        self._kept = kept
        self._values: dict[str, SecretScope] = {}

    def set(self, text: str) -> None:
        scope = self._values.pop(text, None) or SecretScope()
        scope.add(text)
        self._values[text] = scope
        while len(self._values) > self._kept:
            self._values.pop(next(iter(self._values))).release()

    def __del__(self) -> None:
        for scope in self._values.values():
            scope.release()


_current_scope: ContextVar[SecretScope | None] = ContextVar("svcnode_secret_scope", default=None)


def register_secret(text: str) -> None:
    """Hide the text from now on. Outside of a scope, a text that is hidden already gets no further holder."""
    if not text:
        return
    if (scope := _current_scope.get()) is not None:
        scope.add(text)
        return
    with _change_lock:
        if text not in _secrets:
            _hold(text)


def _hold(text: str) -> frozenset[str]:
    forms = frozenset(form for form in _encoded_variants(text) if len(form) >= MIN_SECRET_CHARS)
    for form in forms:
        _secrets[form] = _secrets.get(form, 0) + 1
        if _secrets[form] == 1:
            _count_length(form, 1)
    return forms


def _release(forms: frozenset[str]) -> None:
    for form in forms:
        if _secrets[form] > 1:
            _secrets[form] -= 1
        else:
            del _secrets[form]
            _count_length(form, -1)


def _count_length(form: str, change: int) -> None:
    prefix = form[:MIN_SECRET_CHARS]
    counts = dict(_lengths_by_prefix.get(prefix, {}))
    counts[len(form)] = counts.get(len(form), 0) + change
    remaining = {length: counts[length] for length in sorted(counts, reverse=True) if counts[length]}
    if remaining:
        _lengths_by_prefix[prefix] = remaining
    else:
        del _lengths_by_prefix[prefix]


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
    """The text, each of its lines, and its forms in a URL, in HTML, in JSON, in JSON inside JSON, and in a repr."""
    from urllib.parse import quote, quote_plus

    yield text
    yield from map(str.strip, text.splitlines())
    for encode in (partial(quote, safe=""), quote, quote_plus):
        encoded = encode(text, errors="replace")
        yield encoded
        yield _PERCENT_CODE.sub(lambda code: code[0].lower(), encoded)
    html = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    yield html
    for double_quote, quote_mark in (("&quot;", "&#x27;"), ("&quot;", "&#39;"), ("&#34;", "&#39;")):
        yield html.replace('"', double_quote).replace("'", quote_mark)
    yield from _repr_variants(text)
    for form in set(_json_variants(text)):
        yield form
        yield from _json_variants(form)


def _json_variants(text: str) -> Iterator[str]:
    import json

    for encoded in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        yield encoded
        yield encoded.replace("/", "\\/")  # as PHP writes it
        yield _HTML_CHAR.sub(lambda char: f"\\u{ord(char[0]):04x}", encoded)  # as Go writes it


def _repr_variants(text: str) -> Iterator[str]:
    """In the repr of a text or of bytes that contain it: whether a quote is escaped depends on the whole."""
    for quoted in (repr(text), ascii(text), repr(text.encode("utf-8", "replace"))[1:]):
        plain = quoted[1:-1].replace("\\'", "'")
        yield plain
        yield plain.replace("'", "\\'")


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
