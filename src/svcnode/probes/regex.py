"""Regular expressions that are matched against responses of a server.

A simple pattern can take 30 s and more on a malicious body. The standard library's `re` cannot be stopped, and blocks
all threads. The `regex` package has the same syntax and a timeout, and releases the GIL.
"""

from __future__ import annotations

import re
from typing import Annotated, Protocol, cast

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import option_type, show_as_is
from svcnode.core.text import type_name
from svcnode.net.threads import DaemonCall

MATCH_TIMEOUT_S = 0.5
MAX_PATTERN_CHARS = 10_000
# The package copies an item as often as it must occur: for ((a{1000}){1000}){1000} until no memory is left.
MAX_REPEATED_ITEMS = 10_000

_PATTERN_TOKEN = re.compile(
    r"""\\[pPNxuU]\{[^}]*+\} | \\.  # escapes
    | \[\^?\]?(?:\\.|[^\]\\])*+\]?  # a set
    | \{(?P<minimum>[0-9]++)(?:,[0-9]*+)?\} | .""",
    re.DOTALL | re.VERBOSE,
)


class _Matcher(Protocol):
    def search(self, text: str, *, timeout: float, concurrent: bool) -> object: ...
    def fullmatch(self, text: str, *, timeout: float, concurrent: bool) -> object: ...


@option_type({"type": "string", "maxLength": MAX_PATTERN_CHARS}, show=show_as_is)
def pattern(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"must be a string, not {type_name(value)}")
    if len(value) > MAX_PATTERN_CHARS:
        raise InvalidValueError(f"must have at most {MAX_PATTERN_CHARS} characters, not {len(value)}")
    if _repeated_item_count(value) > MAX_REPEATED_ITEMS:
        raise InvalidValueError(f"repeats too much: more than {MAX_REPEATED_ITEMS} items when repetitions are expanded")
    import regex

    try:
        regex.compile(value)
    except (regex.error, OverflowError, RecursionError, ValueError) as exc:
        raise InvalidValueError(f"not a regular expression: {exc}") from None  # the original error may contain a secret
    return value


Pattern = Annotated[str, pattern]


async def pattern_matches(pattern: str, text: str) -> bool:
    """Match in a thread. Raises `TimeoutError` after `MATCH_TIMEOUT_S`."""
    return await DaemonCall("match").call(lambda: _search(pattern, text) is not None)


def matches_fully(pattern: str, text: str) -> bool:
    """As `pattern_matches`, but all of the text; for a caller that is in a thread."""
    return _matcher(pattern).fullmatch(text, timeout=MATCH_TIMEOUT_S, concurrent=True) is not None


def _search(pattern: str, text: str) -> object:
    return _matcher(pattern).search(text, timeout=MATCH_TIMEOUT_S, concurrent=True)


def _matcher(pattern: str) -> _Matcher:
    import regex

    return cast("_Matcher", regex.compile(pattern))  # cached by the package


def _repeated_item_count(pattern: str) -> int:
    """An estimate, by the least numbers of repetitions."""
    totals, last = [0], 0  # of the open groups; of the last item
    for token in _PATTERN_TOKEN.finditer(pattern):
        if token["minimum"]:
            times = int(token["minimum"][:9])
            totals[-1] += last * max(0, times - 1)
            last *= max(1, times)
        elif token[0] == "(":
            totals.append(1)
        elif token[0] == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        else:
            last = 1
            totals[-1] += 1
        if max(last, totals[-1]) > MAX_REPEATED_ITEMS:
            return max(last, totals[-1])
    return sum(totals)
