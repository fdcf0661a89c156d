"""The last attempts at a service, told: equal ones that followed each other are one sentence."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from svcnode.core.model import Outcome
from svcnode.terminal.explain.durations import format_latency, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from svcnode.terminal.explain.details import Attempt, ParsedDetails

MAX_GROUPS = 4
_NUMBER = re.compile(r"\d+(\.\d+)?")
_REPORTED_STATUS = {
    Outcome.READY: "Up",
    Outcome.NOT_READY: "Initializing",
    Outcome.FAILED: "Down",
}


def attempt_texts(facts: ParsedDetails, zone: tzinfo | None) -> Iterator[str]:
    """The newest first, and of those the last few; nothing of what was not attempted."""
    if facts.is_fixed:
        return
    runs = [list(run) for _, run in groupby(facts.attempts, _group_key)]
    told = 0
    for run in runs[:MAX_GROUPS]:
        yield _group_text(facts, run, zone, is_newest=not told)
        told += len(run)
    if left := len(facts.attempts) - told:
        yield f"Before that, {_count_text(left, facts)} of other kinds are kept: svcnode explain --json shows them all."


def _group_key(attempt: Attempt) -> tuple[Outcome, str]:
    """What differs in nothing but numbers, such as how far something has come, is of one sort."""
    return attempt.outcome, _NUMBER.sub("0", attempt.reason)


def _group_text(facts: ParsedDetails, run: Sequence[Attempt], zone: tzinfo | None, *, is_newest: bool) -> str:
    newest, oldest = (format_time(one.at, facts.now, zone) for one in (run[0], run[-1]))
    when = f"at {newest}" if newest == oldest else f"from {oldest} to {newest}"
    if is_newest:
        who = f"The last {_noun(facts)}" if len(run) == 1 else f"The last {_count_text(len(run), facts)}"
    else:
        who = f"Before that, {_count_text(len(run), facts)}"
    reason = short_reason(run[0].reason, facts.probe)
    is_the_same = len({one.reason for one in run}) == 1
    because = f"{': ' if is_the_same else '; most recently: '}{reason}" if reason else ""
    return f"{who}, {when}, {_result_text(facts, run)}{because}."


def _result_text(facts: ParsedDetails, run: Sequence[Attempt]) -> str:
    outcome = run[0].outcome
    if not facts.is_probed:
        return f"said {_REPORTED_STATUS.get(outcome, 'nothing about it')}"
    duration = format_latency(*(one.duration_ms for one in run))
    match outcome:
        case Outcome.READY:
            return f"passed in {duration}"
        case Outcome.FAILED:
            return f"failed after {duration}"
        case Outcome.NOT_READY:
            return f"found it not ready after {duration}"
        case Outcome.UNKNOWN:
            return "could not be made"


def short_reason(reason: str, probe: str | None) -> str:
    """Without the URL of the probe, which stands above, and without a full stop, which follows."""
    return reason.removesuffix(f": {probe}").rstrip(".")


def _noun(facts: ParsedDetails) -> str:
    return "look" if facts.is_probed else "report"


def _count_text(count: int, facts: ParsedDetails) -> str:
    return f"{count} {_noun(facts)}{'' if count == 1 else 's'}"
