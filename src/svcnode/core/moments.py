"""What an item of the timeline says, from its fields in `/history`: the same on the page and in `svcnode history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.core.model import Health

if TYPE_CHECKING:
    from collections.abc import Mapping


def what_text(item: Mapping[str, Any]) -> str:
    """Without its service and times."""
    reason = f": {item['reason']}" if item["reason"] else ""
    if item["type"] == "outage":
        return f"{item['status']}{reason}"
    if item["type"] == "event":
        # A change of the node says itself what it is, such as a drain.
        return str(item["reason"]) if item["kind"] == "node" else f"{item['kind'].replace('_', ' ')}{reason}"
    if item["health"] is None:
        if item["kind"] == "started":  # without a stop before
            reason = ": svcnode was killed, or its machine was switched off"
        return "svcnode did not run" if item["kind"] == "stopped" else f"unknown{reason}"
    if item["kind"] == "started":
        reason = ": svcnode starts"
    elif item["kind"] == "stood_still":
        reason = ": svcnode stood still"
    elif item["status"] is not None:
        reason = f": {item['service']} is {item['status']}"
    return f"{Health(item['health']).text} ({item['health']}){reason}"


def service_of(item: Mapping[str, Any]) -> str | None:
    """Whose item it is; None: the node's, also if a service has changed its health."""
    return None if item["type"] == "health" else item["service"]
