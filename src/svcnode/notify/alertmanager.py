"""Alertmanager as a target: it receives all that is open, with every change and again every minute.

Alertmanager keeps alerts in memory only, and resolves an alert at the end that was sent with it. So the alerts are sent
again, as Prometheus does. Names and labels are those of the rules for Prometheus (deploy/prometheus), so that the same
routes, silences and inhibitions apply.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Health, Impact
from svcnode.core.units import iso_time, utc_text
from svcnode.notify.content import page_link
from svcnode.notify.message import node_health_text, shown, status_text
from svcnode.notify.targets import fingerprint, http_client_from, post_json, url_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.core.model import Identity
    from svcnode.net.http1 import Http1Client
    from svcnode.notify.message import MessageContext
    from svcnode.notify.routes import Entry
    from svcnode.notify.targets import DeliveryError, Message

RESEND_INTERVAL_S = 60.0
EXPIRES_AFTER_S = 600.0  # longer than a restart of the node
TEST_ENDS_AFTER_S = 120.0  # longer than the usual group_wait of Alertmanager

_PATH = "/api/v2/alerts"


@dataclass(frozen=True, slots=True, repr=False)
class Alertmanager:
    """Posts the alerts of a message, and the end of those that it posted before."""

    options: Http1Client
    _posted: dict[str, dict[str, Any]] = field(init=False, compare=False, default_factory=dict)  # by their labels
    resend_interval_s: ClassVar[float | None] = RESEND_INTERVAL_S

    @property
    def name(self) -> str:
        return url_name(self.options.url)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.options.url.target)

    def __repr__(self) -> str:
        return f"<Alertmanager {self.name}>"

    async def deliver(self, message: Message) -> DeliveryError | None:
        now_s = time.time()
        firing = {json.dumps(alert["labels"], sort_keys=True): alert for alert in message.alerts}
        resolved = [alert for labels, alert in self._posted.items() if labels not in firing]
        alerts = [
            *({"endsAt": iso_time(now_s + EXPIRES_AFTER_S), **alert} for alert in firing.values()),
            *({**alert, "endsAt": iso_time(now_s)} for alert in resolved),
        ]
        error = await post_json(self.options, self.options.url.path.rstrip("/") + _PATH, alerts)
        if error is None:
            self._posted.clear()
            self._posted.update(firing)
        return error


def alertmanager_from(entry: object, environ: Mapping[str, str]) -> Alertmanager:
    """From the URL of its page, or from a table with this URL and the HTTP and TLS options of probes."""
    options = http_client_from(entry, environ, "Alertmanager")
    if options.url.query or options.url.path.endswith(_PATH):
        raise InvalidValueError('must be the URL of the page of Alertmanager, such as "http://localhost:9093"')
    return Alertmanager(options)


# ---- alerts


def to_alerts(entries: Iterable[Entry], context: MessageContext) -> tuple[dict[str, Any], ...]:
    """All that is open, as Alertmanager receives it, without its end."""
    node_name = shown(context.identity.node_name)
    return tuple(_alert(entry, node_name, context) for entry in entries)


def build_test_alert(identity: Identity, at_s: float, page_url: str = "") -> dict[str, Any]:
    """The alert of `svcnode notify-test`, which ends by itself."""
    summary = "Sent by svcnode notify-test. No status has changed."
    labels = _labels("SvcnodeTest", "none", shown(identity.node_name))
    times = {"startsAt": iso_time(at_s), "endsAt": iso_time(at_s + TEST_ENDS_AFTER_S)}
    link = {"generatorURL": page_link(page_url)} if page_url else {}
    return {"labels": labels, "annotations": {"summary": summary}, **times, **link}


def _alert(entry: Entry, node_name: str, context: MessageContext) -> dict[str, Any]:
    """Name and severity are those of the worst health since it was last told to be better: a change for the better
    would otherwise resolve the alert at once. All else is as it is now."""
    service = entry.subject.service
    alert_name, severity = _rule(entry)
    labels = _labels(alert_name, severity, node_name)
    if service is not None:
        labels |= {"service_id": service.id, "name": shown(service.name), "impact": service.impact.value}
    elif entry.subject.key.type != "node":
        labels |= {entry.subject.key.type: shown(entry.subject.key.name)}
    annotations = {
        "summary": _summary(entry, node_name),
        "description": _description(entry, context),
        "node_health": node_health_text(context.situation),
        **({} if entry.first_failure_at_s is None else {"since": iso_time(context.to_wall(entry.first_failure_at_s))}),
        **context.find_help(entry).annotations(),
    }
    related = {"causes": entry.causes, "affects": [one for one in entry.effects if one.health is not Health.HEALTHY]}
    annotations |= {name: ", ".join(shown(one.service.id) for one in found) for name, found in related.items() if found}
    if entry.acknowledgement is not None:
        annotations["acknowledged"] = shown(entry.acknowledgement.text)
    link = page_link(context.page_url, service)
    starts_at = iso_time(context.to_wall(entry.opened_at_s))
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": starts_at,
        **({"generatorURL": link} if link else {}),
    }


def _summary(entry: Entry, node_name: str) -> str:
    if entry.subject.key.type == "issue":
        return f"Issue of {node_name}: {shown(entry.reason)}"
    if entry.subject.key.type == "target":
        return f"Notifications of {node_name} to {entry.subject.key.name} are not delivered"
    if (service := entry.subject.service) is not None:
        return f"{shown(service.name or service.id)} of {node_name} is {status_text(entry.health)}"
    return f"Node {node_name} is {entry.health.text}"


def _description(entry: Entry, context: MessageContext) -> str:
    """The reason; for the node, the services that cause it."""
    reason = shown(entry.reason)
    if entry.health < entry.worst:
        now = f"it has been better since {utc_text(context.to_wall(entry.since_s))}, and resolves once that has lasted"
        return f"{now}: {reason}" if reason else now
    return reason


def _labels(alert_name: str, severity: str, node_name: str) -> dict[str, str]:
    return {"alertname": alert_name, "severity": severity, "job": "svcnode", "instance": node_name}


def _rule(entry: Entry) -> tuple[str, str]:
    """Name and severity, as those of the rules for Prometheus."""
    is_down = entry.worst is Health.UNHEALTHY
    if entry.subject.key.type == "target":
        return "SvcnodeNotificationsNotDelivered", "warning"
    if entry.subject.key.type == "issue":
        return "SvcnodeIssue", "critical"
    service = entry.subject.service
    if service is None:
        return ("SvcnodeNodeUnhealthy", "critical") if is_down else ("SvcnodeNodePartial", "warning")
    if not is_down:
        return "SvcnodeServiceNotReady", "warning"
    if service.impact is Impact.CRITICAL:
        return "SvcnodeCriticalServiceDown", "critical"
    return "SvcnodeServiceDown", "warning"
