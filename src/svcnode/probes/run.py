"""Runs one check: always a verdict by the deadline, whatever the probe does."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import error_text, safe_reason
from svcnode.net.timers import LATE_AFTER_S, Deadline, TimerQueue
from svcnode.net.trace import READ_FILES_STEP, TIME_SERVER_STEP, details_of, interrupted_step, progress_of
from svcnode.probes.base import check_deadline_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.probes.base import Probe

log = logging.getLogger("svcnode.probes.run")


async def run_check(
    probe: Probe, timeout_s: float, max_latency_s: float | None = None
) -> tuple[Verdict, BaseException | None]:
    """One check in the current task. The verdict, and the exception if the probe raised one."""
    timers, began_s = TimerQueue(asyncio.get_running_loop()), time.monotonic()
    try:
        result = await await_verdict(probe, timeout_s, Deadline(timers))
    finally:
        timers.close()
    if isinstance(result, BaseException):
        return probe_error_verdict(result), result
    return finalize_verdict(result, time.monotonic() - began_s, max_latency_s), None


async def await_verdict(probe: Probe, timeout_s: float, deadline: Deadline) -> Verdict | BaseException:
    """One check, in the current task, which the deadline cancels. An exception if the probe raised one."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancels_before, started_s = task.cancelling(), loop.time()
    deadline_token = check_deadline_s.set(started_s + timeout_s)
    deadline.set(started_s + timeout_s, task.cancel)
    result: Verdict | BaseException
    try:
        result = validate_verdict(await probe.check())
    except (asyncio.CancelledError, Exception, SystemExit) as exc:  # noqa: BLE001  a probe may raise anything
        result = exc
    finally:
        deadline.clear()
        check_deadline_s.reset(deadline_token)
        for _ in range(deadline.expirations):
            task.uncancel()
    if task.cancelling() > cancels_before:  # by the caller; the probe may have swallowed it
        raise asyncio.CancelledError from (result if isinstance(result, BaseException) else None)
    # A check function may block the loop, and with it the timer of its deadline.
    blocked_s = probe.loop_blocked_s
    if is_late_from_blocking(loop.time() - started_s, blocked_s, timeout_s):
        reason = f"the check blocked the event loop for {blocked_s:.3g} s, its timeout is {timeout_s:g} s"
        return Verdict.failed(reason, code=ReasonCode.BLOCKED_LOOP)
    if deadline.expirations:
        return timeout_verdict(timeout_s, result if isinstance(result, BaseException) else None)
    return result


def is_late_from_blocking(duration_s: float, blocked_s: float, timeout_s: float) -> bool:
    """Whether a check is late because it blocked the loop itself. Other code that blocks it is not counted."""
    return blocked_s > timeout_s or (blocked_s > LATE_AFTER_S and duration_s - blocked_s <= timeout_s < duration_s)


def validate_verdict(verdict: object) -> Verdict:
    """Raise on a value that is not a verdict; replace an invalid code."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"check() returned {verdict!r}, which is not a Verdict")
    if not isinstance(verdict.outcome, Outcome):
        raise TypeError(f"check() returned {verdict!r}, whose outcome is not an Outcome")
    code = known_code(verdict.code)
    return verdict if code is verdict.code else verdict._replace(code=code)


def finalize_verdict(verdict: Verdict, duration_s: float, max_latency_s: float | None) -> Verdict:
    """Apply max_latency, and make the reason one that can be shown, whatever the probe gave."""
    if max_latency_s is not None and duration_s > max_latency_s and verdict.outcome is Outcome.READY:
        return Verdict.not_ready(
            f"slow: the check took {duration_s:.3g} s, but max_latency is {max_latency_s:g} s", code=ReasonCode.SLOW
        )
    if verdict.reason == "":  # of nearly every check
        return verdict
    reason = safe_reason(verdict.reason)
    return verdict if reason is verdict.reason else verdict._replace(reason=reason)


_TIMEOUT_CODES = {
    "connect": ReasonCode.CONNECT_TIMEOUT,
    "tunnel": ReasonCode.CONNECT_TIMEOUT,
    "handshake": ReasonCode.TLS_TIMEOUT,
    "write": ReasonCode.WRITE_TIMEOUT,
}


# The fault is not one of the service.
_UNKNOWN_STEPS = {
    "resolve": ("the DNS resolver did not answer within {:g} s", ReasonCode.RESOLVER_FAILED),
    READ_FILES_STEP: (
        "reading a file that the options of the probe name took more than {:g} s",
        ReasonCode.FILE_NOT_READABLE,
    ),
    TIME_SERVER_STEP: ("the time server did not answer within {:g} s", ReasonCode.TIMEOUT),
}


def timeout_verdict(timeout_s: float, cancelled: BaseException | None) -> Verdict:
    if progress := progress_of(cancelled):
        return Verdict.failed(safe_reason(f"{progress}, within {timeout_s:g} s"), code=ReasonCode.TIMEOUT)
    return step_timeout_verdict(timeout_s, interrupted_step(cancelled), details_of(cancelled))


def step_timeout_verdict(timeout_s: float, step: str | None, details: Sequence[str] = ()) -> Verdict:
    """The verdict of a check whose deadline passed in this step."""
    if step in _UNKNOWN_STEPS:
        text, code = _UNKNOWN_STEPS[step]
        return Verdict.unknown(text.format(timeout_s), code=code)
    if step == "wait for lock":  # the service answers, and another client holds the lock
        return Verdict.not_ready(f"locked for {timeout_s:g} s", code=ReasonCode.LOCKED)
    where = "; ".join([*([f"step: {step}"] if step else ()), *details])
    return Verdict.failed(
        safe_reason(f"timeout: no response within {timeout_s:g} s{f' ({where})' if where else ''}"),
        code=_TIMEOUT_CODES.get(step or "", ReasonCode.TIMEOUT),
    )


def probe_error_verdict(exc: BaseException) -> Verdict:
    cause = "a call it awaited was cancelled" if isinstance(exc, asyncio.CancelledError) else error_text(exc)
    return Verdict.unknown(safe_reason(f"the probe failed: {cause}"), code=ReasonCode.PROBE_ERROR)


def log_probe_error(logger: logging.Logger, service_id: str, error: BaseException) -> None:
    """Log the traceback; as redacted text if it contains a secret, since an embedding program has its own handlers."""
    message = "the probe of service %r raised an exception"
    extra = {"event": "probe_error", "service": service_id}
    trace = "".join(traceback.format_exception(error))
    if redacted(trace) == trace:
        logger.error(message, service_id, exc_info=error, extra=extra)
    else:
        logger.error(f"{message}\n%s", service_id, redacted(trace), extra=extra)


def close_probe(probe: Probe) -> None:
    try:
        probe.close()
    except Exception:  # the probe may be from another package
        log.exception("a probe could not be closed", extra={"event": "probe_close_failed"})
