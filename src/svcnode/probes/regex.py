"""Regular expressions, held against what somebody else sent.

The standard library's engine cannot be stopped, nor does it let anybody else run meanwhile, and an innocent pattern may
take half a minute and more for a body that was made for it. The `regex` package knows the same patterns, a deadline,
and company.
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
        raise InvalidValueError(f"not a regular expression: {exc}") from None  # whose words may hold a secret
    return value


Pattern = Annotated[str, pattern]


async def pattern_matches(pattern: str, text: str) -> bool:
    """In a thread, beside the event loop; raises `TimeoutError` when it takes too long."""
    import regex

    matcher = cast("_Matcher", regex.compile(pattern))  # which remembers what it has compiled
    found = await DaemonCall("match").call(lambda: matcher.search(text, timeout=MATCH_TIMEOUT_S, concurrent=True))
    return found is not None
