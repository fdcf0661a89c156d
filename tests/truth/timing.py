"""The schedule of the node's checks, and for how long after a change the node may report the old status."""

from __future__ import annotations

INTERVAL_S = 1.0
TIMEOUT_S = 0.8
FALL = 3
RISE = 2
START_PERIOD_S = 2.0
# Defaults that docs/operate.md documents under "Timing".
TRANSITION_INTERVAL_S = INTERVAL_S / 5
JITTER = 0.05

WINDOW, MAX_FAILURES = 10, 4  # the rule about failures that are not in a row

POLL_INTERVAL_S = 1 / 20
LATE_S = 0.1  # a check may start late by this much

FAULT_HOLD_S = 2.0  # how long a fault lasts after the bound
HEALTHY_HOLD_S = 4.0  # how long a server is polled after the bound while it is healthy

DEFAULTS = f"""
[defaults]
interval = "{INTERVAL_S * 1000:g}ms"
timeout = "{TIMEOUT_S * 1000:g}ms"
fall = {FALL}
rise = {RISE}
start_period = "{START_PERIOD_S * 1000:g}ms"
"""


def detection_bound_s(checks: int, duration_s: float) -> float:
    """The longest time until that many checks in a row, each of that duration, have found a change.

    A check may have ended just before the change, so the first check after it starts up to one interval later, plus
    jitter. Each further check starts a transition interval after the previous one, or when that one has ended if that
    is later. Each check may start late by LATE_S, and the sampler sees the result up to one poll interval later.
    """
    first_start_s = INTERVAL_S * (1 + JITTER)
    between_s = max(TRANSITION_INTERVAL_S * (1 + JITTER), duration_s)
    return first_start_s + (checks - 1) * between_s + duration_s + checks * LATE_S + POLL_INTERVAL_S


# A server that refuses or resets connections fails a check at once; one that hangs fails it at the timeout.
REFUSED_S = detection_bound_s(FALL, 0.0)
HUNG_S = detection_bound_s(FALL, TIMEOUT_S)
# One not_ready is enough for Initializing.
NOT_READY_S = detection_bound_s(1, TIMEOUT_S)
# A check whose outcome is unknown says nothing: the last evidence, from before the fault, becomes stale.
STALE_S = 3 * INTERVAL_S + TIMEOUT_S + LATE_S + POLL_INTERVAL_S
# A check that succeeds may take up to its timeout.
READY_S = detection_bound_s(RISE, TIMEOUT_S)
# Every second check fails: the first one may succeed, and then nine are needed for five failures.
EVERY_SECOND_S = INTERVAL_S * (1 + JITTER) + LATE_S + detection_bound_s(2 * MAX_FAILURES + 1, 0.0)
# A crash loop. A check falls into every outage. The second outage has enough failures, if the first one has too few.
CRASHED_S, RUNNING_S, RESTART_S = 1.2, 0.5, 0.5
CRASH_LOOP_S = CRASHED_S + RUNNING_S + RESTART_S + detection_bound_s(MAX_FAILURES + 1, 0.0)
CRASH_LOOP_FALL = 14  # more failures in a row than one outage has
# Repeated failures count for this many intervals.
RELIABLE_S = WINDOW * INTERVAL_S + detection_bound_s(1, TIMEOUT_S)
# Before the first success, failures count only after the start period.
NEVER_STARTED_S = START_PERIOD_S + REFUSED_S
NEVER_AUTHENTICATED_S = START_PERIOD_S + HUNG_S
