"""How the node is told to look, and how long after a change each of its answers may still be the old one."""

from __future__ import annotations

INTERVAL_S = 1.0
TIMEOUT_S = 0.8
FALL = 3
RISE = 2
START_PERIOD_S = 2.0
# Not set, but what docs/probes.md promises under "Timing".
TRANSITION_INTERVAL_S = INTERVAL_S / 5
JITTER = 0.05

POLL_INTERVAL_S = 1 / 20
LATE_S = 0.1  # a look that begins so late is not worth a word in the node's own log

FAULT_HOLD_S = 2.0  # how long a fault lasts after the node must have seen it
HEALTHY_HOLD_S = 4.0  # the same, for a server that is well

DEFAULTS = f"""
[defaults]
interval = "{INTERVAL_S * 1000:g}ms"
timeout = "{TIMEOUT_S * 1000:g}ms"
fall = {FALL}
rise = {RISE}
start_period = "{START_PERIOD_S * 1000:g}ms"
"""


def detection_bound_s(looks: int, look_s: float) -> float:
    """How long it takes at most until so many looks in a row, of that length each, have all seen a change.

    A look may have ended an instant before the change, so the first that can see it begins up to one interval later,
    and jitter makes that longer. While looks in a row are counted, each begins a transition interval after the one
    before, or when that one is over, if that is later. Each may begin a little late, and who asks every so often hears
    of it so much later.
    """
    first_begins_s = INTERVAL_S * (1 + JITTER)
    between_s = max(TRANSITION_INTERVAL_S * (1 + JITTER), look_s)
    return first_begins_s + (looks - 1) * between_s + look_s + looks * LATE_S + POLL_INTERVAL_S


# A server that refuses or resets fails a look at once; one that hangs fails it at the timeout.
REFUSED_S = detection_bound_s(FALL, 0.0)
HUNG_S = detection_bound_s(FALL, TIMEOUT_S)
# One that says it is not ready is believed at once.
NOT_READY_S = detection_bound_s(1, TIMEOUT_S)
# A look that succeeds may take as long as the timeout allows.
READY_S = detection_bound_s(RISE, TIMEOUT_S)
# One that was never let in: before the start period is over, nothing counts.
NEVER_STARTED_S = START_PERIOD_S + REFUSED_S
NEVER_AUTHENTICATED_S = START_PERIOD_S + HUNG_S
