"""Which rule sets the status of a service, and what changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from svcnode.cli.terminal.explain.observers import decision_outlook_texts, decision_texts
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Status
from svcnode.core.units import format_duration, format_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli.terminal.explain.details import ParsedDetails

DUE_NOW_S = 0.1


# ---- the rule


def rule_texts(details: ParsedDetails) -> Iterator[str]:
    if details.is_fixed:
        yield f'The configuration sets this status (status = "{details.status.value}"). The service is not checked.'
        return
    if details.is_decided_by_replicas:
        yield from decision_texts(details)
        return
    if not details.is_probed:
        yield _report_rule(details)
        return
    if details.last_outcome is Outcome.UNKNOWN:
        yield "A check that cannot run does not count for or against the service."
    match details.status:
        case Status.UP:
            yield from _up_rule(details)
        case Status.INITIALIZING:
            yield _initializing_rule(details)
            if details.is_unreliable:
                yield from _unreliable_counts(details)
        case Status.DOWN:
            yield from _down_rule(details)
        case _:
            assert_never(details.status)


def _report_rule(details: ParsedDetails) -> str:
    if details.code == ReasonCode.TTL_EXPIRED and details.grace_s is not None:
        return f"{_job_rule(details)} It did not."
    if details.code == ReasonCode.TTL_EXPIRED:
        missing = "no other report" if details.recent_checks else "no report"
        return f"A report is valid for {_setting_text('ttl', details.ttl_s)}, and {missing} arrived within that time."
    if details.code == ReasonCode.NO_EVIDENCE:
        missing = "no report has arrived since this replica started" if details.observed else "has not reported yet"
        return f"The service has no probe: a program reports its status, and {missing}."
    if details.grace_s is not None:
        return f"The service has no probe: a job reports its results. {_job_rule(details)}"
    until = "until the next report" if details.ttl_s is None else f"for {_setting_text('ttl', details.ttl_s)}"
    return (
        f"The service has no probe: a program reports its status. A report takes effect at once, and is valid {until}."
    )


def _job_rule(details: ParsedDetails) -> str:
    grace = format_limit(details.grace_s or 0)
    if details.run_schedule:
        return (
            f"The job runs by the schedule {details.run_schedule}. It must succeed within grace ({grace}) after each "
            "of these times, and end within grace after its start."
        )
    return (
        f"The job must succeed within period and grace ({format_limit(details.ttl_s or 0)}), and end within grace "
        f"({grace}) after its start."
    )


def _up_rule(details: ParsedDetails) -> Iterator[str]:
    has_failures = details.recent_failures or details.repeated_failures
    if details.failures_in_a_row and has_failures:
        yield f"The status changes to Down after {_fall_text(details)}; so far: {details.failures_in_a_row}."
    elif details.previous_status is Status.DOWN:
        yield f"A service that was Down is Up after {_rise_text(details)}."
    elif details.previous_status is Status.INITIALIZING and not has_failures:
        yield "A service that was Initializing is Up after one successful check."
    if has_failures:
        yield from _unreliable_counts(details)


def _no_evidence_rule(details: ParsedDetails) -> str:
    """Empty if there is evidence."""
    match details.code:
        case ReasonCode.NO_EVIDENCE | ReasonCode.NOT_STARTED:
            return "A service is Initializing until its first check has a result."
        case ReasonCode.STALE:
            return f"{_stale_rule(details)} Without a valid result, a service that was Up is Initializing."
        case ReasonCode.CANNOT_CHECK:
            valid = _setting_text("stale_after", details.stale_after_s)
            return (
                f"The node's machine could not check the service. Without a result of the last {valid}, it is not Up."
            )
        case _:
            return ""


def _initializing_rule(details: ParsedDetails) -> str:
    if rule := _no_evidence_rule(details):
        return rule
    if details.code == ReasonCode.UNRELIABLE:
        return (
            "The service works only some of the time: too many of its checks failed, although there were not always "
            f"{_fall_text(details)}, or it was Down again and again."
        )
    if not details.failures_in_a_row:
        return "A service that is not ready is Initializing at once."
    if details.start_period_left_s:
        return (
            f"The start period is {_setting_text('start_period', details.start_period_s)}, "
            f"{format_duration(details.start_period_left_s)} of it are left. Until it ends, failures do not change the "
            "status to Down."
        )
    return f"The status changes to Down after {_fall_text(details)}; so far: {details.failures_in_a_row}."


def _stale_rule(details: ParsedDetails) -> str:
    return f"A result is valid for {_setting_text('stale_after', details.stale_after_s)}, and there is no newer one."


def _down_rule(details: ParsedDetails) -> Iterator[str]:
    if details.code in (ReasonCode.STALE, ReasonCode.CANNOT_CHECK):
        yield f"The reason is now: {details.reason}."
        yield f"{_stale_rule(details)} A service that was Down stays Down until a check shows otherwise."
        return
    was = {Status.UP: " that was Up", Status.INITIALIZING: " that was Initializing"}
    rule = f"A service{was.get(details.previous_status or details.status, '')} is Down after {_fall_text(details)}"
    if details.ended_start_period and details.previous_status is not Status.UP:
        rule += f" and the end of the start period of {_setting_text('start_period', details.start_period_s)}"
    yield f"{rule}."
    if details.ready_in_a_row:
        status = "Initializing" if details.is_unreliable else "Up"
        yield f"The status changes to {status} after {_rise_text(details)}; so far: {details.ready_in_a_row}."
    if details.is_unreliable:
        yield "The service is unreliable: it had too many failures or outages. So it is not Up at once after this one."


def _unreliable_counts(details: ParsedDetails) -> Iterator[str]:
    """The rule, and the counts now. There are two: quick checks follow a failure, and many of them succeed."""
    limit = f"more than {details.tolerance.max_failures}"
    yield (
        f"Of the last {details.tolerance.window} checks, {details.recent_failures} failed; with {limit}, a service is "
        f'not Up (tolerance = "{details.tolerance}").'
    )
    if details.repeated_failures:
        outage = (
            f"an outage that ended in Down counts as {details.outage_failures}; " if details.outage_failures else ""
        )
        yield (
            f"In outages of 2 checks or more, {_repeated_count(details)} checks failed within "
            f"{format_duration(details.window_s)}, the time of {details.tolerance.window} intervals; {outage}"
            f"with {limit}, a service is not Up."
        )


def _repeated_count(details: ParsedDetails) -> str:
    """A node does not count further than it needs to."""
    is_limited = details.repeated_failures > details.tolerance.max_failures
    return f"{'at least ' if is_limited else ''}{details.repeated_failures}"


# ---- what changes the status


def outlook_texts(details: ParsedDetails) -> Iterator[str]:
    if details.is_fixed:
        yield "Another status in the configuration, or a probe instead of it, and a reload (SIGHUP)."
        return
    if details.is_decided_by_replicas:
        yield from decision_outlook_texts(details)
        return
    if not details.is_probed:
        yield from _report_outlook(details)
        return
    match details.status:
        case Status.UP:
            yield _down_condition(details)
        case Status.INITIALIZING:
            if details.is_unreliable:
                yield from _recovery_condition(details)
            else:
                yield "1 successful check changes the status to Up."
            yield _down_condition(details)
        case Status.DOWN:
            status = f"{'Initializing' if details.is_unreliable else 'Up'} (rise = {details.rise})"
            yield _checks_needed(details.rise, details.ready_in_a_row, "successful", status) + "."
            if details.is_unreliable:
                yield from _recovery_condition(details)
        case _:
            assert_never(details.status)
    yield from _stale_condition(details)
    yield _next_check(details)


def _report_outlook(details: ParsedDetails) -> Iterator[str]:
    yield "A report of another status." if details.status is Status.UP else "A report that the service is Up."
    if details.expires_in_s is not None and details.grace_s is not None:
        yield (
            f"Without a success, the status changes to Down in {format_duration(details.expires_in_s)}. "
            f"{_job_rule(details)}"
        )
    elif details.expires_in_s is not None:
        yield (
            f"Without a report, the status changes to Down in {format_duration(details.expires_in_s)}: a report is "
            f"valid for {_setting_text('ttl', details.ttl_s)}."
        )


def _recovery_condition(details: ParsedDetails) -> Iterator[str]:
    yield (
        f"The status changes to Up when at most {details.tolerance.recovery_failures} of the last "
        f'{details.tolerance.window} checks failed (tolerance = "{details.tolerance}"); now: {details.recent_failures}.'
    )
    if details.repeated_failures:
        yield (
            f"Failures in outages of 2 checks or more count for {format_duration(details.window_s)}; "
            f"now: {_repeated_count(details)}."
        )


def _down_condition(details: ParsedDetails) -> str:
    if details.was_down:
        return "1 failed check changes the status to Down: that confirms what was known before the restart."
    is_starting = details.status is Status.INITIALIZING and details.start_period_left_s
    if is_starting and details.failures_in_a_row:
        return (
            f"If the checks still fail in {format_duration(details.start_period_left_s)}, when the start period ends, "
            "the status changes to Down."
        )
    not_before = (
        f", but not before the end of the start period of {_setting_text('start_period', details.start_period_s)}"
        if is_starting
        else ""
    )
    down = f"Down (fall = {details.fall})"
    return f"{_checks_needed(details.fall, details.failures_in_a_row, 'failed', down)}{not_before}."


def _checks_needed(needed: int, count: int, result: str, status: str) -> str:
    """ "1 more failed check changes the status to Down", "3 failed checks in a row change the status to Down"."""
    left, more = max(1, needed - count), "more " if count else ""
    if left == 1:
        return f"1 {more}{result} check changes the status to {status}"
    return f"{left} {more}{result} checks in a row change the status to {status}"


def _stale_condition(details: ParsedDetails) -> Iterator[str]:
    """Only if the checks do not renew the evidence; otherwise the next check comes first. A Down service stays Down."""
    if details.expires_in_s is None or details.status is not Status.UP or details.last_outcome is Outcome.READY:
        return
    yield (
        f"Without a successful check, the status changes to Initializing in {format_duration(details.expires_in_s)}: "
        f"a result is valid for {_setting_text('stale_after', details.stale_after_s)}."
    )


def _next_check(details: ParsedDetails) -> str:
    if details.next_check_in_s is None:
        return "No check is scheduled here: the node is starting or stopping, or another worker runs the checks."
    if details.next_check_in_s < DUE_NOW_S:
        return "The next check is running, or starts now."
    return f"The next check is in {format_duration(details.next_check_in_s)}."


# ---- parts of sentences


def _fall_text(details: ParsedDetails) -> str:
    return f"{_in_a_row_text(details.fall, 'failed check')} (fall = {details.fall})"


def _rise_text(details: ParsedDetails) -> str:
    return f"{_in_a_row_text(details.rise, 'successful check')} (rise = {details.rise})"


def _in_a_row_text(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s in a row"


def _setting_text(key: str, value_s: float | None) -> str:
    """A duration, and its key in the configuration."""
    return f'{value_s or 0:g} s ({key} = "{value_s or 0:g}s")'
