"""Durations of the command line."""

from __future__ import annotations

import re

from svcnode.core.errors import InvalidValueError
from svcnode.core.units import duration_s


def positive_s(flag: str, text: str) -> float:
    is_nothing = re.fullmatch(r"[0.]*", text.strip())  # with a unit, it would be refused too
    try:
        seconds = 0.0 if is_nothing else duration_s(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"{flag}: {exc}") from exc
    if not seconds:
        raise InvalidValueError(f'{flag}: must be more than 0, such as "5s", not "{text}"')
    return seconds
