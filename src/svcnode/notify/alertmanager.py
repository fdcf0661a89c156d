"""Alertmanager as a target: it receives all open incidents as alerts, with every message and again every minute.

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
from svcnode.core.units import iso_time
from svcnode.notify.message import shown
from svcnode.notify.targets import http_client_from, post_json, url_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from svcnode.core.model import Identity
    from svcnode.net.http1 import Http1Client
    from svcnode.notify.incidents import Incident
    from svcnode.notify.message import Message
    from svcnode.notify.targets import DeliveryError

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

    def __repr__(self) -> str:
        return f"<Alertmanager {self.name}>"

    async def deliver(self, message: Message, _lost: int) -> DeliveryError | None:
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


def to_alerts(
    incidents: Iterable[Incident], identity: Identity, to_wall: Callable[[float], float]
) -> tuple[dict[str, Any], ...]:
    """As Alertmanager receives them, without their end."""
    return tuple(_alert(incident, shown(identity.node_name), to_wall(incident.since_s)) for incident in incidents)


def build_test_alert(identity: Identity, at_s: float) -> dict[str, Any]:
    """The alert of `svcnode notify-test`, which ends by itself."""
    summary = "Sent by svcnode notify-test. No status has changed."
    labels = _labels("SvcnodeTest", "none", shown(identity.node_name))
    times = {"startsAt": iso_time(at_s), "endsAt": iso_time(at_s + TEST_ENDS_AFTER_S)}
    return {"labels": labels, "annotations": {"summary": summary}, **times}


def _alert(incident: Incident, node_name: str, since_s: float) -> dict[str, Any]:
    alert_name, severity, summary = _node_rule(incident) if incident.service is None else _service_rule(incident)
    labels = _labels(alert_name, severity, node_name)
    subject = f"Node {node_name}"
    if (service := incident.service) is not None:
        labels |= {"service_id": service.id, "name": shown(service.name), "impact": service.impact.value}
        subject = f"{shown(service.name or service.id)} of {node_name}"
    annotations = {"summary": f"{subject} {summary}", "description": shown(incident.reason)}
    return {"labels": labels, "annotations": annotations, "startsAt": iso_time(since_s)}


def _labels(alert_name: str, severity: str, node_name: str) -> dict[str, str]:
    return {"alertname": alert_name, "severity": severity, "job": "svcnode", "instance": node_name}


def _node_rule(incident: Incident) -> tuple[str, str, str]:
    if incident.notified_health is Health.UNHEALTHY:
        return "SvcnodeNodeUnhealthy", "critical", "is unhealthy"
    return "SvcnodeNodePartial", "warning", "is partially healthy"


def _service_rule(incident: Incident) -> tuple[str, str, str]:
    assert incident.service is not None, "the node has its own rules"
    if incident.notified_health is not Health.UNHEALTHY:
        return "SvcnodeServiceNotReady", "warning", "is Initializing"
    if incident.service.impact is Impact.CRITICAL:
        return "SvcnodeCriticalServiceDown", "critical", "is Down"
    return "SvcnodeServiceDown", "warning", "is Down"
