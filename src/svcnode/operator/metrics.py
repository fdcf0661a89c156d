"""`/metrics`: the node in the text format of Prometheus or in OpenMetrics, as the Accept header asks.

Every value is read from the node and its statistics at each scrape; nothing is counted twice. Importing
prometheus-client takes a while; the handler is loaded in a thread on the first scrape.

A status is a state set: one series per status, of which one is 1. Its type is gauge, because OpenMetrics requires the
label of a state set to have the name of the metric, and `{status="Down"}` is the usual way to query it.
"""

from __future__ import annotations

import platform
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from svcnode.api.spec import make_response
from svcnode.core.model import Health, Impact, Outcome, Service, ServiceState, Status
from svcnode.node.stats import DURATION_BUCKETS_S, REPORTED_KIND, ServiceStats
from svcnode.operator.sharing import shared_probe
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from svcnode.api.spec import Request, Response
    from svcnode.node.node_state import NodeState
    from svcnode.node.stats import CheckStats
    from svcnode.notify import Deliveries
    from svcnode.operator.context import OperatorContext
    from svcnode.sharing.replica import Replica

OPENMETRICS_TYPE = "application/openmetrics-text"
MAX_SERVICES = 2_000  # with their own series, up to fourteen each
# Not "service": Prometheus in Kubernetes sets a label of that name on every target, which would replace ours.
SERVICE_ID_LABEL = "service_id"
BUCKET_LABELS = (*map(str, DURATION_BUCKETS_S), "+Inf")


# ---- the handler


async def metrics(context: OperatorContext, request: Request, name: str) -> Response:
    is_open = accepts_openmetrics(request.headers.get(b"accept", b"").decode("latin-1"))
    return await context.shared(("metrics", is_open), lambda: _make_response(context, is_open=is_open))


def accepts_openmetrics(accept: str) -> bool:
    """Whether the client accepts version 1.0.0, or any version."""
    for accepted in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if kind == OPENMETRICS_TYPE and versions in ([], ["version=1.0.0"]):
            return True
    return False


def _make_response(context: OperatorContext, *, is_open: bool) -> Response:
    encode, content_type = choose_encoder(OPENMETRICS_TYPE if is_open else "")
    return make_response(200, encode(build_registry(context)), content_type=content_type)


# ---- the node and the process


class ServiceSample(NamedTuple):
    """One service with its state and its statistics."""

    service: Service
    state: ServiceState
    stats: ServiceStats


def build_registry(context: OperatorContext) -> CollectorRegistry:
    """A registry of our own: the default registry belongs to the embedding program."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(context.node, context.check_stats, context.replica))
    registry.register(OperatorCollector(context))
    ProcessCollector(registry=registry)
    return registry


class EmbeddedCollector(Collector):
    """For the registry of an embedding program. It has the metrics of the operator surface while the checks run."""

    def __init__(self, node: NodeState, check_stats: CheckStats, context: Callable[[], OperatorContext | None]) -> None:
        self._node_collector = NodeCollector(node, check_stats)
        self._context = context

    def collect(self) -> Iterator[Metric]:
        yield from self._node_collector.collect()
        if (context := self._context()) is not None:
            yield from _surface_metrics(context)
            yield from _notification_metrics(context)


class NodeCollector(Collector):
    """The node and its services."""

    def __init__(self, node: NodeState, check_stats: CheckStats, replica: Replica | None = None) -> None:
        self._node = node
        self._check_stats = check_stats
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        services = [*self._node]
        yield from self._node_metrics(services)
        yield from _service_counts(services)
        yield from self._service_metrics(services[:MAX_SERVICES])
        yield self._failures_by_code()
        yield self._duration_histogram()
        yield InfoMetricFamily(
            "svcnode_build",
            "Versions of svcnode and Python; always 1.",
            value={"version": __version__, "python_version": platform.python_version()},
        )
        if self._replica is not None:
            yield from _sharing_metrics(self._replica)

    def _node_metrics(self, services: Sequence[tuple[Service, ServiceState]]) -> Iterator[Metric]:
        node = self._node
        identity, condition, health = node.identity, node.condition, node.health
        names = {"name": identity.node_name, "version": identity.node_version, "spec_version": identity.spec_version}
        yield InfoMetricFamily("svcnode_node", "Name and versions of the node; always 1.", value=names)
        states = GaugeMetricFamily("svcnode_node_health", "1 for the current health of the node.", labels=["health"])
        for member in Health:
            states.add_metric([member.name.lower()], member is health)
        yield states
        yield _gauge("svcnode_node_health_code", "Health of the node: 200, 206 or 503.", health)
        yield _gauge("svcnode_node_starting", "1 until the node has started.", condition.starting)
        yield _gauge("svcnode_node_draining", "1 while the node drains before it stops.", condition.draining)
        yield _gauge("svcnode_node_issues", "Issues that the program has reported.", len(condition.issues))
        yield _gauge(
            "svcnode_node_maintenance",
            "1 while the node is in maintenance, or only services in maintenance keep it from being healthy.",
            _is_held(node, services),
        )
        yield _counter(
            "svcnode_node_transitions", "Changes of the health of the node.", self._check_stats.node_transitions
        )

    def _service_metrics(self, services: Iterable[tuple[Service, ServiceState]]) -> Iterator[Metric]:
        stats_of = self._check_stats.get
        samples = [
            ServiceSample(service, state, stats)
            for service, state in services
            if (stats := stats_of(service.id)) is not None
        ]
        yield _service_infos(samples, self._replica)
        yield _service_statuses(samples)
        yield _service_maintenance(samples, self._node)
        yield from _evidence_ages(samples, self._node.now_s())
        yield from _check_metrics(samples)

    def _failures_by_code(self) -> Metric:
        """By code, not by service: the number of codes is bounded."""
        family = CounterMetricFamily(
            "svcnode_check_failures", "Checks and reports whose outcome was not ready, by reason code.", labels=["code"]
        )
        for code, count in sorted(self._check_stats.failures_by_code.copy().items()):
            family.add_metric([code], count)
        return family

    def _duration_histogram(self) -> Metric:
        family = HistogramMetricFamily(
            "svcnode_check_duration_seconds", "Duration of checks, by kind of probe.", labels=["kind"]
        )
        for kind, durations in dict(self._check_stats.durations).items():
            if kind != REPORTED_KIND:
                cumulative = accumulate(durations.counts)
                family.add_metric([kind], [*zip(BUCKET_LABELS, cumulative, strict=True)], durations.sum_s)
        return family


class OperatorCollector(Collector):
    """The operator surface of `svcnode serve`, and its configuration."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        process = self._context.process_stats
        yield _gauge(
            "svcnode_config_last_reload_successful",
            "0 if the last reload failed; the previous configuration stays active.",
            process.last_reload_ok,
        )
        yield _gauge(
            "svcnode_config_last_reload_success_timestamp_seconds",
            "When the active configuration was read.",
            process.reloaded_at_s or process.started_at_s,
        )
        reloads = CounterMetricFamily("svcnode_config_reloads", "Reloads since the start.", labels=["result"])
        reloads.add_metric(["success"], process.reloads_succeeded)
        reloads.add_metric(["failure"], process.reloads_failed)
        yield reloads
        refused = CounterMetricFamily("svcnode_pushes_refused", "Pushes that were refused.", labels=["cause"])
        for cause, count in sorted(process.refused_pushes.items()):
            refused.add_metric([cause], count)
        yield refused
        yield from _surface_metrics(self._context)
        yield from _notification_metrics(self._context)


def _surface_metrics(context: OperatorContext) -> Iterator[Metric]:
    yield _gauge(
        "svcnode_event_loop_lag_seconds",
        "Longest delay of the event loop in the last one to two minutes.",
        context.process_stats.loop_lag_s,
    )
    streams = context.events.stream_count + context.page_feed.stream_count
    yield _gauge("svcnode_event_streams", "Open event streams, of programs and of pages.", streams)
    yield _gauge(
        "svcnode_history_healthy",
        "0 while history cannot be written; 1 also if it is disabled.",
        context.history.is_healthy,
    )


def _notification_metrics(context: OperatorContext) -> Iterator[Metric]:
    delivered = CounterMetricFamily("svcnode_notifications", "Notifications that were delivered.", labels=["target"])
    failed = CounterMetricFamily(
        "svcnode_notification_requests_failed",
        "Failed attempts to deliver a notification; they are repeated.",
        labels=["target"],
    )
    waiting = GaugeMetricFamily(
        "svcnode_notifications_queue_length", "1 while a notification is not delivered yet.", labels=["target"]
    )
    sending = GaugeMetricFamily(
        "svcnode_notifications_sender",
        "1 while this process sends the notifications to the target; with [sharing], one replica does.",
        labels=["target"],
    )
    for name, one in _named(context.notify_status.deliveries):
        delivered.add_metric([name], one.delivered)
        failed.add_metric([name], one.failed)
        waiting.add_metric([name], one.waiting_since_s is not None)
        sending.add_metric([name], one.turn is None or one.turn.may_send)
    yield from (delivered, failed, waiting, sending)
    heartbeats = CounterMetricFamily(
        "svcnode_heartbeats", "Heartbeats to the dead man's switch, by result.", labels=["result"]
    )
    for result, count in context.notify_status.heartbeats.items():
        heartbeats.add_metric([result], count)
    yield heartbeats


def _named(deliveries: Sequence[Deliveries]) -> Iterator[tuple[str, Deliveries]]:
    """Targets with the same name are numbered: each needs its own series."""
    seen: Counter[str] = Counter()
    for one in deliveries:
        seen[one.target] += 1
        yield one.target if seen[one.target] == 1 else f"{one.target} ({seen[one.target]})", one


# ---- the services


def _service_counts(services: Sequence[tuple[Service, ServiceState]]) -> Iterator[Metric]:
    """Counts all services, also those beyond MAX_SERVICES."""
    counts = {(impact, status): 0 for impact in Impact for status in Status}
    for service, state in services:
        counts[service.impact, state.status] += 1
    family = GaugeMetricFamily("svcnode_services", "Registered services.", labels=["impact", "status"])
    for (impact, status), count in counts.items():
        family.add_metric([impact.value, status.value], count)
    yield family
    yield _gauge(
        "svcnode_services_omitted",
        f"Services without series of their own: those beyond the first {MAX_SERVICES:,}.",
        max(0, len(services) - MAX_SERVICES),
    )


def _service_infos(services: Iterable[ServiceSample], replica: Replica | None) -> Metric:
    family = InfoMetricFamily(
        "svcnode_service", "Name, impact, probe kind, group and tags of a service; always 1.", labels=[SERVICE_ID_LABEL]
    )
    for service, _, stats in services:
        shared = shared_probe(replica.services, service.id) if replica and stats.kind == REPORTED_KIND else None
        kind = stats.kind if shared is None else shared.kind
        # Between commas, so that a pattern such as .*,eu,.* finds one of several tags.
        tags = f",{','.join(service.tags)}," if service.tags else ""
        labels = {"name": service.name, "impact": service.impact.value, "kind": kind}
        family.add_metric([service.id], {**labels, "group": service.group, "tags": tags})
    return family


def _service_statuses(services: Iterable[ServiceSample]) -> Metric:
    family = GaugeMetricFamily(
        "svcnode_service_status",
        "1 for the published status of a service.",
        labels=[SERVICE_ID_LABEL, "status"],
    )
    for service, state, _ in services:
        for status in Status:
            family.add_metric([service.id, status.value], status is state.status)
    return family


def _is_held(node: NodeState, services: Iterable[tuple[Service, ServiceState]]) -> bool:
    """Whether alerts about the node are held, as those of `AlertEngine` are."""
    if node.maintenance.current() is not None:
        return True
    not_up = [service.id for service, state in services if service.affects_health and state.status is not Status.UP]
    has_other_cause = node.condition.draining or node.condition.issues or node.condition.caveats
    return bool(not_up) and not has_other_cause and all(node.maintenance.current(service_id) for service_id in not_up)


def _service_maintenance(services: Iterable[ServiceSample], node: NodeState) -> Metric:
    family = GaugeMetricFamily(
        "svcnode_service_maintenance",
        "1 while a service, or the node, is in maintenance: messages about it are held.",
        labels=[SERVICE_ID_LABEL],
    )
    for service, _, _ in services:
        family.add_metric([service.id], node.maintenance.current(service.id) is not None)
    return family


def _evidence_ages(services: Iterable[ServiceSample], now_s: float) -> Iterator[Metric]:
    success = GaugeMetricFamily(
        "svcnode_service_success_age_seconds",
        "Age of the latest success; no series before the first.",
        labels=[SERVICE_ID_LABEL],
    )
    evidence = GaugeMetricFamily(
        "svcnode_service_evidence_age_seconds",
        "Age of the latest evidence (unknown outcomes do not count); without any, the time since registration.",
        labels=[SERVICE_ID_LABEL],
    )
    limit = GaugeMetricFamily(
        "svcnode_service_evidence_max_age_seconds",
        "Maximum age of evidence (stale_after or ttl); no series if evidence does not expire.",
        labels=[SERVICE_ID_LABEL],
    )
    for service, state, _ in services:
        evidence_at_s = state.registered_at_s if state.last_evidence_at_s is None else state.last_evidence_at_s
        evidence.add_metric([service.id], max(0.0, now_s - evidence_at_s))
        if state.last_ready_at_s is not None:
            success.add_metric([service.id], max(0.0, now_s - state.last_ready_at_s))
        if max_age_s := service.policy.stale_after_s or service.policy.ttl_s:
            limit.add_metric([service.id], max_age_s)
    yield from (success, evidence, limit)


def _check_metrics(services: Iterable[ServiceSample]) -> Iterator[Metric]:
    latest = GaugeMetricFamily(
        "svcnode_service_check_duration_seconds",
        "Duration of the latest check of a service.",
        labels=[SERVICE_ID_LABEL],
    )
    checks = CounterMetricFamily(
        "svcnode_checks",
        "Checks of a service and reports about it, by outcome.",
        labels=[SERVICE_ID_LABEL, "outcome"],
    )
    transitions = CounterMetricFamily(
        "svcnode_service_transitions",
        "Changes of the published status of a service.",
        labels=[SERVICE_ID_LABEL],
    )
    for service, _, stats in services:
        if stats.recent_results and stats.kind != REPORTED_KIND:
            latest.add_metric([service.id], stats.recent_results[-1].evidence.duration_s)
        for outcome in Outcome:
            checks.add_metric([service.id, outcome.value], stats.checks_by_outcome[outcome])
        transitions.add_metric([service.id], stats.transitions)
    yield from (latest, checks, transitions)


# ---- a node on several machines


def _sharing_metrics(replica: Replica) -> Iterator[Metric]:
    traffic, checked = replica.traffic, replica.services.checked_counts()
    yield _gauge(
        "svcnode_sharing_connected", "1 while this replica reads and writes the registry.", replica.is_connected
    )
    yield _gauge("svcnode_sharing_replicas", "Live replicas of the node, as last known.", len(replica.members()))
    yield _gauge("svcnode_sharing_checked_services", "Services that this replica checks.", checked[replica.name])
    ignored = GaugeMetricFamily(
        "svcnode_sharing_ignored_keys", "Keys of the registry that this version does not understand.", labels=["kind"]
    )
    for kind, count in replica.view.ignored_counts().items():
        ignored.add_metric([kind.value], count)
    yield ignored
    lost = replica.lost
    yield _gauge(
        "svcnode_sharing_lost_services",
        "Services that the registry has lost, and nobody has registered again or accepted.",
        len(lost.services),
    )
    yield _gauge(
        "svcnode_sharing_lost_issues",
        "Issues that the registry has lost, and nobody has set again or accepted.",
        len(lost.issues),
    )
    yield _counter("svcnode_sharing_requests", "Requests to the registry.", traffic.requests)
    yield _counter("svcnode_sharing_writes", "Requests to the registry that write.", traffic.writes)
    yield _counter("svcnode_sharing_sent_bytes", "Bytes of the requests to the registry.", traffic.sent_bytes)
    yield _counter("svcnode_sharing_received_bytes", "Bytes of the responses of the registry.", traffic.received_bytes)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
