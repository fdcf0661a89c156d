"""Notifications: who is told what about the node and its services, and when.

rule.py          what one target is told about one subject: the rule
record.py        what one target was told about one subject, and how that is saved
subjects.py      what there is to tell about: the node, its services, targets that fail
routes.py        what one target gets, and when a message to it is due
causes.py        which services depend on which
alerts.py        all of it for one node, and its saved state
outages.py       how often each service was Down lately
content.py       what helps with a problem: advice, how often, links
folding.py       what has the same cause is one line of a message
message.py       a message as text for people and as fields for programs
targets.py       webhooks and Apprise URLs
alertmanager.py  Alertmanager, which receives all that is open
delivery.py      delivers what is due to one target, with retries
turns.py         a target that several replicas can send to: one does, and all know what it was told
heartbeat.py     heartbeats to a dead man's switch, while all of this works
notifier.py      follows a node and connects the other modules

The modules down to message.py do no I/O; the caller passes the time in. Every node loads this module, also without
notifications; so it imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.notify.alerts import Alerts
    from svcnode.notify.heartbeat import HeartbeatSender
    from svcnode.notify.turns import Turn


class Deliveries:
    """What was tried for one target, and the result."""

    def __init__(self, target: str) -> None:
        self.target = target  # its name
        self.delivered = 0
        self.failed = 0  # attempts
        self.failures_in_a_row = 0
        self.failing_since_s: float | None = None
        self.last_attempt_at_s: float | None = None
        self.last_delivery_at_s: float | None = None
        self.error = ""  # of the last attempt; empty: it was delivered
        self.code: str | None = None
        self.waiting_since_s: float | None = None  # since when there is a message that has not been delivered
        self.retry_at_s = float("-inf")
        self.turn: Turn | None = None  # None: only this process sends to it

    def begin(self, now_s: float) -> None:
        self.last_attempt_at_s = now_s
        self.waiting_since_s = now_s if self.waiting_since_s is None else self.waiting_since_s

    def succeed(self, now_s: float, *, is_message: bool = True) -> None:
        """Alertmanager gets what is open again and again; that is no message."""
        self.delivered += is_message
        self.last_delivery_at_s = now_s
        self.forget_failures()

    def forget_failures(self) -> None:
        """Another replica has delivered what this one could not."""
        self.failures_in_a_row, self.failing_since_s, self.error, self.code = 0, None, "", None
        self.waiting_since_s, self.retry_at_s = None, float("-inf")

    def fail(self, error: str, code: str, now_s: float, *, retry_at_s: float) -> None:
        self.failed += 1
        self.failures_in_a_row += 1
        self.failing_since_s = now_s if self.failing_since_s is None else self.failing_since_s
        self.error, self.code, self.retry_at_s = error, code, retry_at_s


class NotifyStatus:
    """What the operator endpoints show of notifications."""

    def __init__(self) -> None:
        self.deliveries: list[Deliveries] = []  # of each target
        self.alerts: Alerts | None = None  # None: no targets are configured
        self.heartbeat: HeartbeatSender | None = None  # None: no heartbeat is configured
        self.heartbeats = {"sent": 0, "failed": 0, "withheld": 0}
