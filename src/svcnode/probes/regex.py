"""Regular expressions that are matched against responses of a server.

A simple pattern can take 30 s and more on a malicious body. The standard library's `re` cannot be stopped, and blocks
all threads. The `regex` package has the same syntax and a timeout, and releases the GIL.
"""

from __future__ import annotations

from typing import Annotated, Protocol, cast

from svcnode.core.errors import InvalidValueError
from svcnode.core.text import type_name
from svcnode.net.threads import DaemonCall

MATCH_TIMEOUT_S = 0.5


class _Matcher(Protocol):
    def search(self, text: str, *, timeout: float, concurrent: bool) -> object: ...


def pattern(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"must be a string, not {type_name(value)}")
    import regex

    try:
        regex.compile(value)
    except (regex.error, OverflowError, RecursionError, ValueError) as exc:
        raise InvalidValueError(f"not a regular expression: {exc}") from None  # the original error may contain a secret
    return value


Pattern = Annotated[str, pattern]


async def pattern_matches(pattern: str, text: str) -> bool:
    """Match in a thread. Raises `TimeoutError` after `MATCH_TIMEOUT_S`."""
    import regex

    matcher = cast("_Matcher", regex.compile(pattern))  # cached by the package
    found = await DaemonCall("match").call(lambda: matcher.search(text, timeout=MATCH_TIMEOUT_S, concurrent=True))
    return found is not None
