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
from svcnode.journal import BUCKETS_S, NOT_LOOKED_AT, Record
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from svcnode.web.operator.desk import Desk

# Each service has up to thirteen series. Who has more services than this is told how many were left out.
MAX_SERVICES = 2_000
# Not "service": so Kubernetes calls what is scraped, and Prometheus lets that name push ours aside.
ID = "service_id"
BUCKETS = (*map(str, BUCKETS_S), "+Inf")


class Shown(NamedTuple):
    """A service, what is believed of it, and what was seen of it."""

    service: Service
    state: ServiceState
    record: Record


def registry_of(desk: Desk) -> CollectorRegistry:
    """One of its own: whatever else this process counts is in the library's."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(desk))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        services = [*self._desk.node]
        yield from self._of_the_node()
        yield from _counts(services)
        yield from self._of_each(services[:MAX_SERVICES])
        yield self._durations()
        yield from self._of_the_agent()
        yield from self._of_the_messages()

    def _of_the_node(self) -> Iterator[Metric]:
        node = self._desk.node
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
        yield _counter("svcnode_node_transitions", "Changes of the node's health.", self._desk.journal.node_transitions)

    def _of_each(self, services: Iterable[tuple[Service, ServiceState]]) -> Iterator[Metric]:
        record_of = self._desk.journal.of
        shown = [Shown(*one, record) for one in services if (record := record_of(one[0].id)) is not None]
        yield _infos(shown)
        yield _statuses(shown)
        yield from _ages(shown, self._desk.node.now_s())
        yield from _looks(shown)

    def _durations(self) -> Metric:
        family = HistogramMetricFamily(
            "svcnode_look_duration_seconds", "How long looks took, by kind of probe.", labels=["kind"]
        )
        for kind, durations in dict(self._desk.journal.durations).items():
            if kind != NOT_LOOKED_AT:
                up_to = accumulate(durations.counts)
                family.add_metric([kind], [*zip(BUCKETS, up_to, strict=True)], durations.sum_s)
        return family

    def _of_the_agent(self) -> Iterator[Metric]:
        vitals = self._desk.vitals
        yield InfoMetricFamily(
            "svcnode_build",
            "What answers here.",
            value={"version": __version__, "python_version": platform.python_version()},
        )
        yield _gauge(
            "svcnode_config_last_reload_successful",
            "0 after a reload that failed: what was configured before is still in force.",
            vitals.is_reload_good,
        )
        yield _gauge(
            "svcnode_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read.",
            vitals.reloaded_at_s or vitals.started_at_s,
        )
        reloads = CounterMetricFamily("svcnode_config_reloads", "Reloads since the start.", labels=["result"])
        reloads.add_metric(["success"], vitals.reloads_good)
        reloads.add_metric(["failure"], vitals.reloads_bad)
        yield reloads
        yield _gauge(
            "svcnode_event_loop_lag_seconds",
            "By how much the event loop was late, at worst, in the last minute or two.",
            vitals.loop_lag_s,
        )
        yield _gauge("svcnode_events_readers", "Who follows /events.", self._desk.events.reader_count)
        yield _gauge(
            "svcnode_history_healthy",
            "0 while history cannot be kept; 1 also where it is switched off.",
            self._desk.history.is_kept,
        )

    def _of_the_messages(self) -> Iterator[Metric]:
        notices = self._desk.notices
        messages = CounterMetricFamily(
            "svcnode_messages",
            "Messages about changes, each counted once for each target, by what became of them.",
            labels=["result"],
        )
        messages.add_metric(["delivered"], notices.sent)
        messages.add_metric(["lost"], notices.dropped)
        yield messages
        yield _counter(
            "svcnode_message_failures", "Attempts to deliver a message that failed; most are repeated.", notices.failed
        )
        yield _gauge("svcnode_messages_waiting", "Messages that no target has taken yet.", notices.waiting)


# ---- the services


def _counts(services: Sequence[tuple[Service, ServiceState]]) -> Iterator[Metric]:
    """Of all of them, however many there are."""
    counts = {(impact, status): 0 for impact in Impact for status in Status}
    for service, state in services:
        counts[service.impact, state.status] += 1
    family = GaugeMetricFamily("svcnode_services", "Registered services.", labels=["impact", "status"])
    for (impact, status), count in counts.items():
        family.add_metric([impact.value, status.value], count)
    yield family
    yield _gauge(
        "svcnode_services_left_out",
        f"Services beyond the first {MAX_SERVICES:,}, which have no series of their own.",
        max(0, len(services) - MAX_SERVICES),
    )


def _infos(services: Iterable[Shown]) -> Metric:
    family = InfoMetricFamily("svcnode_service", "What a service is, and how much it weighs.", labels=[ID])
    for service, _, record in services:
        family.add_metric([service.id], {"name": service.name, "impact": service.impact.value, "kind": record.kind})
    return family


def _statuses(services: Iterable[Shown]) -> Metric:
    family = GaugeMetricFamily(
        "svcnode_service_status", "1 for the status that is published of a service.", labels=[ID, "status"]
    )
    for service, state, _ in services:
        for status in Status:
            family.add_metric([service.id, status.value], status is state.status)
    return family


def _ages(services: Iterable[Shown], now_s: float) -> Iterator[Metric]:
    success = GaugeMetricFamily(
        "svcnode_service_success_age_seconds", "Since the newest success; none until there is one.", labels=[ID]
    )
    evidence = GaugeMetricFamily(
        "svcnode_service_evidence_age_seconds",
        "Since anything was learned about a service, good or bad; since its registration if nothing ever was.",
        labels=[ID],
    )
    limit = GaugeMetricFamily(
        "svcnode_service_evidence_max_age_seconds",
        "How old evidence may become (stale_after, or ttl); none where it counts until the next.",
        labels=[ID],
    )
    for service, state, _ in services:
        learned_at_s = state.registered_at_s if state.counted_at_s is None else state.counted_at_s
        evidence.add_metric([service.id], max(0.0, now_s - learned_at_s))
        if state.ready_at_s is not None:
            success.add_metric([service.id], max(0.0, now_s - state.ready_at_s))
        if max_age_s := service.policy.stale_after_s or service.policy.ttl_s:
            limit.add_metric([service.id], max_age_s)
    yield from (success, evidence, limit)


def _looks(services: Iterable[Shown]) -> Iterator[Metric]:
    latest = GaugeMetricFamily(
        "svcnode_service_look_duration_seconds", "How long the latest look at a service took.", labels=[ID]
    )
    looks = CounterMetricFamily(
        "svcnode_looks", "Looks at a service, and reports for it, by what was seen.", labels=[ID, "verdict"]
    )
    transitions = CounterMetricFamily(
        "svcnode_service_transitions", "Changes of the status that is published of a service.", labels=[ID]
    )
    for service, _, record in services:
        if record.attempts and record.kind != NOT_LOOKED_AT:
            latest.add_metric([service.id], record.attempts[-1].evidence.duration_s)
        for outcome in Outcome:
            looks.add_metric([service.id, outcome.value], record.looks[outcome])
        transitions.add_metric([service.id], record.transitions)
    yield from (latest, looks, transitions)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
