"""The last attempts at a service, told: equal ones that followed each other are one sentence."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from svcnode.core.model import Outcome
from svcnode.terminal.explain.spoken import clock, took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from svcnode.terminal.explain.facts import Attempt, Facts

MAX_RUNS = 4
_NUMBER = re.compile(r"\d+(\.\d+)?")
_REPORTED = {
    Outcome.READY: "Up",
    Outcome.NOT_READY: "Initializing",
    Outcome.FAILED: "Down",
}


def attempts_told(facts: Facts, zone: tzinfo | None) -> Iterator[str]:
    """The newest first, and of those the last few; nothing of what was not attempted."""
    if facts.is_fixed:
        return
    runs = [list(run) for _, run in groupby(facts.attempts, _sort)]
    told = 0
    for run in runs[:MAX_RUNS]:
        yield _sentence(facts, run, zone, is_newest=not told)
        told += len(run)
    if left := len(facts.attempts) - told:
        yield f"Before that, {_count(left, facts)} of other kinds are kept: svcnode explain --json shows them all."


def _sort(attempt: Attempt) -> tuple[Outcome, str]:
    """What differs in nothing but numbers, such as how far something has come, is of one sort."""
    return attempt.outcome, _NUMBER.sub("0", attempt.reason)


def _sentence(facts: Facts, run: Sequence[Attempt], zone: tzinfo | None, *, is_newest: bool) -> str:
    newest, oldest = (clock(one.at, facts.now, zone) for one in (run[0], run[-1]))
    when = f"at {newest}" if newest == oldest else f"from {oldest} to {newest}"
    if is_newest:
        who = f"The last {_word(facts)}" if len(run) == 1 else f"The last {_count(len(run), facts)}"
    else:
        who = f"Before that, {_count(len(run), facts)}"
    reason = shown_reason(run[0].reason, facts.probe)
    is_the_same = len({one.reason for one in run}) == 1
    because = f"{': ' if is_the_same else '; most recently: '}{reason}" if reason else ""
    return f"{who}, {when}, {_became(facts, run)}{because}."


def _became(facts: Facts, run: Sequence[Attempt]) -> str:
    outcome = run[0].outcome
    if not facts.is_looked_at:
        return f"said {_REPORTED.get(outcome, 'nothing about it')}"
    duration = took(*(one.duration_ms for one in run))
    match outcome:
        case Outcome.READY:
            return f"passed in {duration}"
        case Outcome.FAILED:
            return f"failed after {duration}"
        case Outcome.NOT_READY:
            return f"found it not ready after {duration}"
        case Outcome.UNKNOWN:
            return "could not be made"


def shown_reason(reason: str, probe: str | None) -> str:
    """Without the URL of the probe, which stands above, and without a full stop, which follows."""
    return reason.removesuffix(f": {probe}").rstrip(".")


def _word(facts: Facts) -> str:
    return "look" if facts.is_looked_at else "report"


def _count(count: int, facts: Facts) -> str:
    return f"{count} {_word(facts)}{'' if count == 1 else 's'}"
