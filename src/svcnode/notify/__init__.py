"""Notifications: one message for each change of the node's health or of a critical service.

alert.py         the alert of the node or of one service: a state machine
engine.py        the alerts of a node, grouped into notifications
message.py       a notification as text for people and as fields for programs
targets.py       webhooks and Apprise URLs
alertmanager.py  Alertmanager, which receives all alerts instead of changes
dispatcher.py    a bounded queue with retries for each target
heartbeat.py     heartbeats to a dead man's switch, while all of this works
incidents.py     problems that were notified and are not resolved, saved across restarts
notifier.py      follows a node and connects the other modules

alert, engine and message do no I/O; the caller passes the time in. Every node loads this module, also without
notifications; so it imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.notify.engine import AlertEngine
    from svcnode.notify.heartbeat import HeartbeatSender


class NotifyStatus:
    """What the operator endpoints show of notifications. Each message is counted once per target."""

    sent = 0
    failed = 0  # attempts
    dropped = 0
    queued = 0
    engine: AlertEngine | None = None  # None: no targets are configured
    heartbeat: HeartbeatSender | None = None  # None: no heartbeat is configured

    def __init__(self) -> None:
        self.heartbeats = {"sent": 0, "failed": 0, "withheld": 0}
