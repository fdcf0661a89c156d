"""The node in the words of Prometheus.

Everything is read at the moment it is asked for, from what the node and the journal hold anyway: nothing is counted
twice, and a look costs nothing more for being measured. This brings prometheus-client along, which takes a while to
load: let a thread import it.

A status is a state set: one series for each that there is, of which one is 1. It is typed as a gauge, since OpenMetrics
would have the label of a state set named like the metric, and `{status="Down"}` is what people look for.
"""

from __future__ import annotations

import platform
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from svcnode.core.model import Health, Impact, Outcome, Service, ServiceState, Status
from svcnode.stats import DURATION_BUCKETS_S, REPORTED_KIND, ServiceStats
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from svcnode.operator.context import OperatorContext

# Each service has up to thirteen series. Who has more services than this is told how many were left out.
MAX_SERVICES = 2_000
# Not "service": so Kubernetes calls what is scraped, and Prometheus lets that name push ours aside.
SERVICE_ID_LABEL = "service_id"
BUCKET_LABELS = (*map(str, DURATION_BUCKETS_S), "+Inf")


class ServiceSample(NamedTuple):
    """A service, what is believed of it, and what was seen of it."""

    service: Service
    state: ServiceState
    stats: ServiceStats


def build_registry(context: OperatorContext) -> CollectorRegistry:
    """One of its own: whatever else this process counts is in the library's."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(context))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        services = [*self._context.node]
        yield from self._node_metrics()
        yield from _service_counts(services)
        yield from self._service_metrics(services[:MAX_SERVICES])
        yield self._duration_histogram()
        yield from self._agent_metrics()
        yield from self._notification_metrics()

    def _node_metrics(self) -> Iterator[Metric]:
        node = self._context.node
        identity, condition, health = node.identity, node.condition, node.health
        names = {"name": identity.node_name, "version": identity.node_version, "spec_version": identity.spec_version}
        yield InfoMetricFamily("svcnode_node", "Who the node is.", value=names)
        states = GaugeMetricFamily("svcnode_node_health", "1 for the health that the node has.", labels=["health"])
        for each in Health:
            states.add_metric([each.name.lower()], each is health)
        yield states
        yield _gauge("svcnode_node_health_code", "The health of the node as it answers it: 200, 206 or 503.", health)
        yield _gauge("svcnode_node_starting", "1 until the node has started; 206 at best.", condition.starting)
        yield _gauge("svcnode_node_draining", "1 while the node is about to stop; 503.", condition.draining)
        yield _gauge("svcnode_node_issues", "Issues that the program reports; 503 if any.", len(condition.issues))
        yield _counter(
            "svcnode_node_transitions", "Changes of the node's health.", self._context.check_stats.node_transitions
        )

    def _service_metrics(self, services: Iterable[tuple[Service, ServiceState]]) -> Iterator[Metric]:
        record_of = self._context.check_stats.get
        shown = [ServiceSample(*one, record) for one in services if (record := record_of(one[0].id)) is not None]
        yield _service_infos(shown)
        yield _service_statuses(shown)
        yield from _evidence_ages(shown, self._context.node.now_s())
        yield from _check_metrics(shown)

    def _duration_histogram(self) -> Metric:
        family = HistogramMetricFamily(
            "svcnode_check_duration_seconds", "How long checks took, by kind of probe.", labels=["kind"]
        )
        for kind, durations in dict(self._context.check_stats.durations).items():
            if kind != REPORTED_KIND:
                up_to = accumulate(durations.counts)
                family.add_metric([kind], [*zip(BUCKET_LABELS, up_to, strict=True)], durations.sum_s)
        return family

    def _agent_metrics(self) -> Iterator[Metric]:
        vitals = self._context.process_stats
        yield InfoMetricFamily(
            "svcnode_build",
            "What answers here.",
            value={"version": __version__, "python_version": platform.python_version()},
        )
        yield _gauge(
            "svcnode_config_last_reload_successful",
            "0 after a reload that failed: what was configured before is still in force.",
            vitals.last_reload_ok,
        )
        yield _gauge(
            "svcnode_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read.",
            vitals.reloaded_at_s or vitals.started_at_s,
        )
        reloads = CounterMetricFamily("svcnode_config_reloads", "Reloads since the start.", labels=["result"])
        reloads.add_metric(["success"], vitals.reloads_succeeded)
        reloads.add_metric(["failure"], vitals.reloads_failed)
        yield reloads
        yield _gauge(
            "svcnode_event_loop_lag_seconds",
            "By how much the event loop was late, at worst, in the last minute or two.",
            vitals.loop_lag_s,
        )
        yield _gauge("svcnode_event_streams", "Who follows /events.", self._context.events.stream_count)
        yield _gauge(
            "svcnode_history_healthy",
            "0 while history cannot be kept; 1 also where it is switched off.",
            self._context.history.is_healthy,
        )

    def _notification_metrics(self) -> Iterator[Metric]:
        notices = self._context.delivery_stats
        messages = CounterMetricFamily(
            "svcnode_notifications",
            "Messages about changes, each counted once for each target, by what became of them.",
            labels=["result"],
        )
        messages.add_metric(["delivered"], notices.sent)
        messages.add_metric(["dropped"], notices.dropped)
        yield messages
        yield _counter(
            "svcnode_notification_requests_failed",
            "Attempts to deliver a message that failed; most are repeated.",
            notices.failed,
        )
        yield _gauge("svcnode_notifications_queue_length", "Messages that no target has taken yet.", notices.queued)


# ---- the services


def _service_counts(services: Sequence[tuple[Service, ServiceState]]) -> Iterator[Metric]:
    """Of all of them, however many there are."""
    counts = {(impact, status): 0 for impact in Impact for status in Status}
    for service, state in services:
        counts[service.impact, state.status] += 1
    family = GaugeMetricFamily("svcnode_services", "Registered services.", labels=["impact", "status"])
    for (impact, status), count in counts.items():
        family.add_metric([impact.value, status.value], count)
    yield family
    yield _gauge(
        "svcnode_services_omitted",
        f"Services beyond the first {MAX_SERVICES:,}, which have no series of their own.",
        max(0, len(services) - MAX_SERVICES),
    )


def _service_infos(services: Iterable[ServiceSample]) -> Metric:
    family = InfoMetricFamily(
        "svcnode_service", "What a service is, and how much it weighs.", labels=[SERVICE_ID_LABEL]
    )
    for service, _, record in services:
        family.add_metric([service.id], {"name": service.name, "impact": service.impact.value, "kind": record.kind})
    return family


def _service_statuses(services: Iterable[ServiceSample]) -> Metric:
    family = GaugeMetricFamily(
        "svcnode_service_status",
        "1 for the status that is published of a service.",
        labels=[SERVICE_ID_LABEL, "status"],
    )
    for service, state, _ in services:
        for status in Status:
            family.add_metric([service.id, status.value], status is state.status)
    return family


def _evidence_ages(services: Iterable[ServiceSample], now_s: float) -> Iterator[Metric]:
    success = GaugeMetricFamily(
        "svcnode_service_success_age_seconds",
        "Since the newest success; none until there is one.",
        labels=[SERVICE_ID_LABEL],
    )
    evidence = GaugeMetricFamily(
        "svcnode_service_evidence_age_seconds",
        "Since anything was learned about a service, good or bad; since its registration if nothing ever was.",
        labels=[SERVICE_ID_LABEL],
    )
    limit = GaugeMetricFamily(
        "svcnode_service_evidence_max_age_seconds",
        "How old evidence may become (stale_after, or ttl); none where it counts until the next.",
        labels=[SERVICE_ID_LABEL],
    )
    for service, state, _ in services:
        learned_at_s = state.registered_at_s if state.last_evidence_at_s is None else state.last_evidence_at_s
        evidence.add_metric([service.id], max(0.0, now_s - learned_at_s))
        if state.last_ready_at_s is not None:
            success.add_metric([service.id], max(0.0, now_s - state.last_ready_at_s))
        if max_age_s := service.policy.stale_after_s or service.policy.ttl_s:
            limit.add_metric([service.id], max_age_s)
    yield from (success, evidence, limit)


def _check_metrics(services: Iterable[ServiceSample]) -> Iterator[Metric]:
    latest = GaugeMetricFamily(
        "svcnode_service_check_duration_seconds",
        "How long the latest look at a service took.",
        labels=[SERVICE_ID_LABEL],
    )
    checks = CounterMetricFamily(
        "svcnode_checks",
        "Looks at a service, and reports for it, by what was seen.",
        labels=[SERVICE_ID_LABEL, "verdict"],
    )
    transitions = CounterMetricFamily(
        "svcnode_service_transitions",
        "Changes of the status that is published of a service.",
        labels=[SERVICE_ID_LABEL],
    )
    for service, _, record in services:
        if record.recent_results and record.kind != REPORTED_KIND:
            latest.add_metric([service.id], record.recent_results[-1].evidence.duration_s)
        for outcome in Outcome:
            checks.add_metric([service.id, outcome.value], record.checks_by_outcome[outcome])
        transitions.add_metric([service.id], record.transitions)
    yield from (latest, checks, transitions)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
