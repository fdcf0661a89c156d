"""Notifications: one message for each change of the node's health or of a critical service.

engine.py       decides which changes are notified, and when
alert_state.py  the node or one service: its health, the last notified health, and when the next notification is due
flapping.py     detects too many changes
model.py        the values: changes, notifications, incidents
message.py      a notification as text for people and as fields for programs
targets.py      webhooks and Apprise URLs
dispatcher.py   a bounded queue with retries for each target
persistence.py  open incidents and lost messages, saved across restarts
notifier.py     follows a node and connects the other modules
settings.py     the [notify] section of the configuration

engine, alert_state, flapping, model and message do no I/O; the caller passes the time in. Every node loads
this module for DeliveryStats, also without notifications; so it imports nothing else of svcnode.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DeliveryStats:
    """Counts each message once per target."""

    sent: int = 0
    failed: int = 0  # attempts
    dropped: int = 0
    queued: int = 0
