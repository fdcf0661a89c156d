"""One check: a probe's verdict within a deadline, whatever the probe does."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import error_text
from svcnode.net.trace import interrupted_step, progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.probes import Probe

# A check that was cut off ends at once, as a rule. But asyncio and drivers lose a cancellation now and then, and such a
# check would never end: it is told again for as long as that takes. Not too soon, for a check may have to clean up.
RECANCEL_AFTER_S = 0.5

log = logging.getLogger("svcnode.probes.run")


async def run_check(
    probe: Probe, timeout_s: float, max_latency_s: float | None = None
) -> tuple[Verdict, BaseException | None]:
    """The verdict, and the probe's own fault where that is why there is none."""
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            with _recancel_after(timeout_s):
                verdict = validate_verdict(await probe.check())
    except asyncio.CancelledError:
        raise
    except Exception as exc:  # noqa: BLE001  whatever a probe does
        if deadline.expired():
            return timeout_verdict(timeout_s, exc.__cause__), None
        return probe_error_verdict(exc), exc
    if deadline.expired():  # and yet it was not cancelled: what such a probe says then comes too late
        return timeout_verdict(timeout_s, None), None
    return finalize_verdict(verdict, time.monotonic() - began_s, max_latency_s), None


@contextmanager
def _recancel_after(timeout_s: float) -> Iterator[None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    timers: list[asyncio.TimerHandle] = []

    def insist_in(wait_s: float) -> None:
        timers.append(loop.call_later(wait_s, insist))

    def insist() -> None:
        task.cancel()
        insist_in(RECANCEL_AFTER_S)

    insist_in(timeout_s + RECANCEL_AFTER_S)
    try:
        yield
    finally:
        timers.pop().cancel()
        for _ in timers:
            task.uncancel()


def validate_verdict(verdict: object) -> Verdict:
    """Somebody else wrote the probe."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"check() returned {verdict!r}, which is no Verdict")
    if not isinstance(verdict.outcome, Outcome):
        raise TypeError(f"check() returned {verdict!r}, whose outcome is no Outcome")
    is_text = type(verdict.reason) is str
    return verdict if is_text else Verdict(verdict.outcome, str(verdict.reason))  # an error, at times


def finalize_verdict(verdict: Verdict, duration_s: float, max_latency_s: float | None) -> Verdict:
    """What a probe said, held against the time it took, and without secrets."""
    if max_latency_s is not None and duration_s > max_latency_s and verdict.outcome is Outcome.READY:
        return Verdict.not_ready(f"slow: it took {duration_s:.3g} s, max_latency is {max_latency_s:g} s")
    return Verdict(verdict.outcome, redacted(verdict.reason)) if verdict.reason else verdict


def timeout_verdict(timeout_s: float, cancelled: BaseException | None) -> Verdict:
    if so_far := progress_of(cancelled):
        return Verdict.failed(redacted(f"{so_far}, within {timeout_s:g} s"))
    step = interrupted_step(cancelled)
    if step == "resolve":  # the resolver is ours, and says nothing about the service
        return Verdict.unknown(f"the resolver did not answer within {timeout_s:g} s")
    return Verdict.failed(f"no answer within {timeout_s:g} s" + (f", in its step {step}" if step else ""))


def probe_error_verdict(exc: BaseException) -> Verdict:
    if isinstance(exc, asyncio.CancelledError):
        return Verdict.unknown("the probe itself failed: what it waited for was cancelled")
    return Verdict.unknown(redacted(f"the probe itself failed: {error_text(exc)}"))


def log_probe_error(logger: logging.Logger, message: str, error: BaseException) -> None:
    """With its traceback; as text where it holds a secret, since in an embedding program others write the log."""
    trace = "".join(traceback.format_exception(error))
    shown = redacted(trace)
    if shown == trace:
        logger.error(message, exc_info=error)
    else:
        logger.error("%s\n%s", message, shown)


def close_probe(probe: Probe) -> None:
    """Nobody will check for a while: a probe may have kept a connection from check to check."""
    end: Callable[[], None] | None = getattr(probe, "close", None)
    if end is None:
        return
    try:
        end()
    except Exception:  # somebody else wrote the probe
        log.exception("a probe could not let go of what it had kept")
