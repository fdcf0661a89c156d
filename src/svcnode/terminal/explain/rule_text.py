"""Which rule makes a service what it is, and what would make it something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from svcnode.core.model import Outcome, Status
from svcnode.terminal.explain.durations import consecutive_text, format_duration, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.details import ParsedDetails

DUE_NOW_S = 0.1


# ---- the rule


def rule_texts(facts: ParsedDetails) -> Iterator[str]:
    if facts.is_fixed:
        yield f'The configuration says so (status = "{facts.status.value}"); nobody looks at it.'
        return
    if not facts.is_probed:
        yield _report_rule(facts)
        return
    if facts.last_outcome is Outcome.UNKNOWN:
        yield "A look that cannot be made is no fault of the service, and does not count."
    match facts.status:
        case Status.UP:
            yield from _up_rule(facts)
        case Status.INITIALIZING:
            yield _initializing_rule(facts)
        case Status.DOWN:
            yield from _down_rule(facts)
        case _:
            assert_never(facts.status)


def _report_rule(facts: ParsedDetails) -> str:
    if facts.is_expired:
        came = "no other has come" if facts.attempts else "none has come"
        return f"A report counts for {_ttl_text(facts)}, and {came} in that time."
    if facts.has_no_evidence:
        return "Nobody looks at it: a program reports for it, and has not reported anything yet."
    until = "until it says something else" if facts.ttl_s is None else f"for {_ttl_text(facts)}"
    return f"Nobody looks at it: a program reports for it. What that says holds at once, {until}."


def _up_rule(facts: ParsedDetails) -> Iterator[str]:
    if facts.failures_in_a_row:
        yield f"It is still Up, since it takes {_fall_text(facts)} to be Down, and it has {facts.failures_in_a_row}."
    elif facts.previous_status is Status.DOWN:
        yield f"A service that was Down is Up after {_rise_text(facts)}."
    elif facts.previous_status is Status.INITIALIZING:
        yield "A service that was Initializing is Up after one look that passes."


def _initializing_rule(facts: ParsedDetails) -> str:
    if facts.has_no_evidence:
        return "It is Initializing until a look has found something out."
    if facts.is_stale:
        return f"Evidence counts for {_stale_after_text(facts)}, and none is newer. What nobody knows is Initializing."
    if not facts.failures_in_a_row:
        return "A service that is there, but not ready, is Initializing at once."
    if facts.start_period_left_s:
        return (
            f"It has {_start_period_text(facts)}, and {format_duration(facts.start_period_left_s)} of that left: until then, failures do "
            "not take it Down."
        )
    return f"It is not Down yet, since that takes {_fall_text(facts)}, and it has {facts.failures_in_a_row}."


def _down_rule(facts: ParsedDetails) -> Iterator[str]:
    was = {Status.UP: " that was Up", Status.INITIALIZING: " that was Initializing"}
    rule = f"A service{was.get(facts.previous_status or facts.status, '')} is Down after {_fall_text(facts)}"
    if facts.ended_start_period and facts.previous_status is not Status.UP:
        rule += f", once it has had {_start_period_text(facts)}"
    yield f"{rule}."
    if facts.ready_in_a_row:
        yield f"It is still Down, since it takes {_rise_text(facts)} to be Up again, and it has {facts.ready_in_a_row}."


# ---- the outlook


def outlook_texts(facts: ParsedDetails) -> Iterator[str]:
    if facts.is_fixed:
        yield "Another status in the configuration, or a probe in its place; then a reload (SIGHUP)."
        return
    if not facts.is_probed:
        yield from _report_outlook(facts)
        return
    match facts.status:
        case Status.UP:
            yield _down_condition(facts)
        case Status.INITIALIZING:
            yield "The first look that passes makes it Up."
            yield _down_condition(facts)
        case Status.DOWN:
            yield f"{_checks_needed(facts.rise, facts.ready_in_a_row, 'passes')} it Up (rise = {facts.rise})."
        case _:
            assert_never(facts.status)
    yield from _stale_condition(facts)
    yield _next_check(facts)


def _report_outlook(facts: ParsedDetails) -> Iterator[str]:
    yield "A report that says otherwise." if facts.status is Status.UP else "A report that says that it is Up."
    if facts.expires_in_s is not None:
        yield f"Without any report, it is Down in {format_duration(facts.expires_in_s)}: one counts for {_ttl_text(facts)}."


def _down_condition(facts: ParsedDetails) -> str:
    is_starting = facts.status is Status.INITIALIZING and facts.start_period_left_s
    if is_starting and facts.failures_in_a_row:
        return f"If it still fails in {format_duration(facts.start_period_left_s)}, when its time to start is over, it is Down."
    waits = f", but not before it has had {_start_period_text(facts)}" if is_starting else ""
    return f"{_checks_needed(facts.fall, facts.failures_in_a_row, 'fails')} it Down (fall = {facts.fall}){waits}."


def _checks_needed(needed: int, had: int, passes: str) -> str:
    """ "One more look that passes makes", "3 looks in a row that fail make"."""
    left, more = max(1, needed - had), "more " if had else ""
    if left == 1:
        return f"One {more}look that {passes} makes"
    return f"{left} {more}looks in a row that {passes.removesuffix('s').removesuffix('e')} make"


def _stale_condition(facts: ParsedDetails) -> Iterator[str]:
    """Worth a word only when looks do not bring what is needed; otherwise the next one comes first."""
    if facts.expires_in_s is None:
        return
    if facts.status is Status.UP and facts.last_outcome is not Outcome.READY:
        yield (
            f"Without a look that passes, it is Initializing in {format_duration(facts.expires_in_s)}: evidence counts for "
            f"{_stale_after_text(facts)}."
        )
    elif facts.status is Status.DOWN and facts.last_outcome is Outcome.UNKNOWN:
        yield (
            f"If no look can be made, it is Initializing in {format_duration(facts.expires_in_s)}: evidence counts for "
            f"{_stale_after_text(facts)}."
        )


def _next_check(facts: ParsedDetails) -> str:
    if facts.next_check_in_s is None:
        return "Nobody looks at it just now: the node is starting, or stopping."
    if facts.next_check_in_s < DUE_NOW_S:
        return "The next look is under way, or about to begin."
    return f"The next look is in {format_duration(facts.next_check_in_s)}."


# ---- their parts


def _fall_text(facts: ParsedDetails) -> str:
    return f"{consecutive_text(facts.fall, 'failure', 'failures')} (fall = {facts.fall})"


def _rise_text(facts: ParsedDetails) -> str:
    return f"{consecutive_text(facts.rise, 'success', 'successes')} (rise = {facts.rise})"


def _ttl_text(facts: ParsedDetails) -> str:
    return _setting_text("ttl", facts.ttl_s)


def _stale_after_text(facts: ParsedDetails) -> str:
    return _setting_text("stale_after", facts.stale_after_s)


def _start_period_text(facts: ParsedDetails) -> str:
    return _setting_text("start_period", facts.start_period_s, " to start")


def _setting_text(key: str, value_s: float | None, what_for: str = "") -> str:
    """A duration, and the key of the configuration that it comes from."""
    said = format_seconds(value_s or 0.0)
    return f'{said}{what_for} ({key} = "{said.replace(" ", "")}")'
