"""Every metric after known reports."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_in_open_metrics
from prometheus_client.parser import text_string_to_metric_families as families_in

from svcnode import Verdict
from svcnode.api.spec import Request
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Maintenance
from svcnode.notify import Deliveries
from svcnode.operator import metrics
from svcnode.operator.context import PUSH_REFUSALS
from svcnode.operator.metrics import build_registry
from svcnode.operator.single_flight import SingleFlight
from svcnode.version import __version__
from tests.support.nodes import record
from tests.support.operator_context import OperatorHarness
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from svcnode.api.spec import Response

READY, SYNCING = Verdict.ready(), Verdict.not_ready("syncing", code=ReasonCode.SYNCING)
REFUSED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
UNKNOWN = Verdict.unknown("no file descriptors", code=ReasonCode.RESOURCE_EXHAUSTED)
TCP = "tcp://127.0.0.1:1"


class MetricsHarness(OperatorHarness):
    def value(self, name: str, /, **labels: str) -> float | None:
        return build_registry(self.context).get_sample_value(name, labels)

    def values(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """The series that have these labels, by one more label."""
        return {
            sample.labels[label]: sample.value
            for family in build_registry(self.context).collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def service_ids(self, name: str) -> list[str]:
        return list(self.values(name, "service_id"))

    async def get(self, accept: bytes = b"") -> Response:
        return await metrics.metrics(self.context, Request("GET", b"/metrics", headers={b"accept": accept}), "")


@pytest.fixture
def harness() -> MetricsHarness:
    return MetricsHarness()


# ---- the node


@pytest.mark.parametrize(
    ("verdict", "status", "health", "code"),
    [(READY, "Up", "healthy", 200), (SYNCING, "Initializing", "partial", 206), (REFUSED, "Down", "unhealthy", 503)],
)
def test_health_and_status_are_one_state_of_a_set_and_health_is_a_number(
    harness: MetricsHarness, verdict: Verdict, status: str, health: str, code: int
) -> None:
    harness.node.register("ledger", impact="critical").report(verdict)
    states = {"healthy": 0.0, "partial": 0.0, "unhealthy": 0.0, health: 1.0}
    assert harness.values("svcnode_node_health", "health") == states
    assert harness.value("svcnode_node_health_code") == code
    statuses = {"Up": 0.0, "Initializing": 0.0, "Down": 0.0, status: 1.0}
    assert harness.values("svcnode_service_status", "status", service_id="ledger") == statuses


def test_node_build_and_services_have_info_metrics(harness: MetricsHarness) -> None:
    assert harness.value("svcnode_node_info", name="validator-7", version="v1.4.2", spec_version="v0.0.1") == 1
    assert harness.values("svcnode_build_info", "version") == {__version__: 1}
    harness.node.register(
        "ledger", name="Ledger database", impact="critical", probe=TCP, group="storage", tags=["chain", "eu"]
    )
    harness.node.register("indexer", name="Indexer")
    about = {"service_id": "ledger", "name": "Ledger database", "impact": "critical", "kind": "tcp"}
    assert harness.value("svcnode_service_info", **about, group="storage", tags=",chain,eu,") == 1
    assert harness.values("svcnode_service_info", "tags", service_id="indexer") == {"": 1}
    assert harness.values("svcnode_service_info", "kind", service_id="indexer") == {"reported": 1}


def test_conditions_of_the_node_have_metrics(harness: MetricsHarness) -> None:
    harness.node.overrides.set_issue("out of keys")
    harness.node.overrides.set_issue("out of gas")
    harness.node.overrides.drain()
    assert harness.value("svcnode_node_issues") == 2
    assert harness.value("svcnode_node_draining") == 1
    assert harness.value("svcnode_node_starting") == 0


def test_maintenance_has_metrics(harness: MetricsHarness) -> None:
    ledger, cache = harness.node.register("ledger", impact="critical"), harness.node.register("cache")
    harness.node.register("logs", impact="none").down()
    ledger.down()
    cache.up()
    assert harness.value("svcnode_node_maintenance") == 0
    harness.node.maintenance.set(Maintenance("control", 60.0), "ledger")
    assert harness.values("svcnode_service_maintenance", "service_id") == {"ledger": 1, "cache": 0, "logs": 0}
    assert harness.value("svcnode_node_maintenance") == 1
    cache.down()
    assert harness.value("svcnode_node_maintenance") == 0
    cache.up()
    harness.node.overrides.set_issue("out of keys")
    assert harness.value("svcnode_node_maintenance") == 0
    harness.node.maintenance.set(Maintenance("control", 60.0))
    assert harness.value("svcnode_node_maintenance") == 1
    harness.clock.now_s += 60
    assert harness.values("svcnode_service_maintenance", "service_id") == {"ledger": 0, "cache": 0, "logs": 0}
    assert harness.value("svcnode_node_maintenance") == 0


def test_changes_of_health_and_of_status_are_counted(harness: MetricsHarness) -> None:
    ledger = harness.node.register("ledger")  # 200 to 206
    for verdict in (READY, READY, REFUSED):
        ledger.report(verdict)
    assert harness.value("svcnode_node_transitions_total") == 3
    harness.node.register("cache", impact="none").up()
    assert harness.values("svcnode_service_transitions_total", "service_id") == {"ledger": 2, "cache": 1}


# ---- services


def test_a_service_with_stale_evidence_is_not_up(harness: MetricsHarness) -> None:
    harness.node.register("ledger", probe=TCP, stale_after="30s")
    record(harness.node, "ledger", READY)
    harness.clock.advance(31)
    statuses = harness.values("svcnode_service_status", "status", service_id="ledger")
    assert statuses == {"Up": 0, "Initializing": 1, "Down": 0}


def test_services_are_counted_by_status_and_impact(harness: MetricsHarness) -> None:
    harness.node.register("a", impact="critical").up()
    harness.node.register("b").up()
    harness.node.register("c").up()
    harness.node.register("d", impact="none").down()
    counted = harness.values("svcnode_services", "impact", status="Up")
    assert counted == {"critical": 1, "partial": 2, "none": 0}
    assert harness.value("svcnode_services", impact="none", status="Down") == 1


def test_the_age_of_the_newest_success_grows_through_failures_and_that_of_evidence_through_unknown_verdicts(
    harness: MetricsHarness,
) -> None:
    harness.node.register("ledger", probe=TCP)
    assert harness.service_ids("svcnode_service_success_age_seconds") == []
    record(harness.node, "ledger", READY)
    harness.clock.advance(5)
    record(harness.node, "ledger", REFUSED)
    harness.clock.advance(2)
    record(harness.node, "ledger", UNKNOWN)
    harness.clock.advance(1)
    assert harness.value("svcnode_service_success_age_seconds", service_id="ledger") == 8
    assert harness.value("svcnode_service_evidence_age_seconds", service_id="ledger") == 3


def test_the_maximum_age_of_evidence_has_a_series_only_with_a_limit(harness: MetricsHarness) -> None:
    harness.node.register("probed", probe=TCP, stale_after="45s")
    harness.node.register("heartbeat", ttl="20s")
    harness.node.register("reported")
    limits = harness.values("svcnode_service_evidence_max_age_seconds", "service_id")
    assert limits == {"probed": 45, "heartbeat": 20}


def test_checks_are_counted_by_outcome_and_failures_by_reason_code(harness: MetricsHarness) -> None:
    harness.node.register("ledger", probe=TCP)
    harness.node.register("indexer", probe=TCP)
    harness.node.register("cache")
    for verdict in (READY, READY, READY, SYNCING, REFUSED, Verdict.failed("no", code="x_quota"), UNKNOWN):
        record(harness.node, "ledger", verdict)
    record(harness.node, "indexer", REFUSED)
    checks = harness.values("svcnode_checks_total", "outcome", service_id="ledger")
    assert checks == {"ready": 3, "not_ready": 1, "failed": 2, "unknown": 1}
    assert set(harness.values("svcnode_checks_total", "outcome", service_id="cache").values()) == {0}
    failures = harness.values("svcnode_check_failures_total", "code")
    assert failures == {"connection_refused": 2, "resource_exhausted": 1, "syncing": 1, "x_quota": 1}


def test_durations_are_a_histogram_by_kind_and_the_latest_of_each_probed_service_has_a_series(
    harness: MetricsHarness,
) -> None:
    for service_id in ("a", "b"):
        harness.node.register(service_id, probe=TCP)
        record(harness.node, service_id, READY, duration_s=0.003)
    record(harness.node, "a", REFUSED, duration_s=60.0)
    harness.node.register("c", probe="file:/run/done")
    harness.node.register("reported").up()
    buckets = harness.values("svcnode_check_duration_seconds_bucket", "le", kind="tcp")
    assert (buckets["0.0025"], buckets["0.005"], buckets["10.0"], buckets["+Inf"]) == (0, 2, 2, 3)
    assert harness.values("svcnode_check_duration_seconds_count", "kind") == {"tcp": 3, "file": 0}
    assert harness.value("svcnode_check_duration_seconds_sum", kind="tcp") == pytest.approx(60.006)
    assert harness.values("svcnode_service_check_duration_seconds", "service_id") == {"a": 60.0, "b": 0.003}


def test_services_beyond_the_limit_are_counted_but_have_no_series(
    harness: MetricsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_SERVICES", 2)
    for service_id, omitted in (("c", 0), ("a", 0), ("b", 1)):
        harness.node.register(service_id).up()
        assert harness.value("svcnode_services_omitted") == omitted
    assert harness.service_ids("svcnode_service_info") == ["c", "a"]
    assert "b" not in harness.service_ids("svcnode_checks_total")
    assert harness.value("svcnode_services", impact="partial", status="Up") == 3
    harness.node.deregister("c")
    assert harness.service_ids("svcnode_service_info") == ["a", "b"]


def test_a_failed_reload_shows_until_the_next_success(harness: MetricsHarness) -> None:
    process = harness.context.process_stats
    read_at_s = "svcnode_config_last_reload_success_timestamp_seconds"
    assert harness.value(read_at_s) == process.started_at_s
    process.record_reload("svcnode.toml:3: unknown key")
    assert harness.value("svcnode_config_last_reload_successful") == 0
    assert harness.value(read_at_s) == process.started_at_s
    process.record_reload()
    assert harness.value("svcnode_config_last_reload_successful") == 1
    assert harness.value(read_at_s) == process.reloaded_at_s
    assert harness.values("svcnode_config_reloads_total", "result") == {"success": 1, "failure": 1}
    harness.process_stats.refused_pushes["token"] += 2
    refused = harness.values("svcnode_pushes_refused_total", "cause")
    assert refused == {**dict.fromkeys(PUSH_REFUSALS, 0), "token": 2}


def test_lag_streams_and_history_have_metrics(harness: MetricsHarness) -> None:
    assert harness.value("svcnode_history_healthy") == 1
    harness.history.is_healthy = False
    cast("Any", harness.context.events).stream_count = 3
    harness.context.process_stats.loop_lag_s = 0.125
    assert harness.value("svcnode_history_healthy") == 0
    assert harness.value("svcnode_event_streams") == 3
    assert harness.value("svcnode_event_loop_lag_seconds") == 0.125
    harness.context.notify_status.heartbeats["withheld"] += 1
    assert harness.values("svcnode_heartbeats_total", "result") == {"sent": 0, "failed": 0, "withheld": 1}


def test_notifications_are_counted_by_target_and_targets_of_the_same_name_have_numbers(harness: MetricsHarness) -> None:
    targets = [Deliveries("https://a"), Deliveries("https://a"), Deliveries("json://***")]
    harness.context.notify_status.deliveries = targets
    targets[0].delivered, targets[1].failed = 5, 40
    targets[1].begin(0.0)
    zero = dict.fromkeys(["https://a", "https://a (2)", "json://***"], 0.0)
    assert harness.values("svcnode_notifications_total", "target") == {**zero, "https://a": 5}
    assert harness.values("svcnode_notification_requests_failed_total", "target") == {**zero, "https://a (2)": 40}
    assert harness.values("svcnode_notifications_queue_length", "target") == {**zero, "https://a (2)": 1}
    targets[2].turn = cast("Any", SimpleNamespace(may_send=False))
    assert harness.values("svcnode_notifications_sender", "target") == {**dict.fromkeys(zero, 1.0), "json://***": 0}


ODD = 'quote " backslash \\ brace } <script> ü 😀'


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4", True),
        ("text/html, Application/OpenMetrics-Text", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=abc", False),
        (";,;=,", False),
    ],
)
def test_openmetrics_is_sent_to_clients_that_accept_it_and_ids_and_names_may_hold_any_character(
    harness: MetricsHarness, accept: str, is_open: bool
) -> None:
    harness.node.register(ODD, name="\u2028 and \u202e")
    response = asyncio.run(harness.get(accept.encode()))
    form = "application/openmetrics-text; version=1.0.0" if is_open else "text/plain; version=0.0.4"
    assert dict(response.headers)["Content-Type"] == f"{form}; charset=utf-8"
    assert response.body.endswith(b"# EOF\n") == is_open
    families = (families_in_open_metrics if is_open else families_in)(response.body.decode())
    (info,) = [one for family in families for one in family.samples if one.name == "svcnode_service_info"]
    assert (info.labels["service_id"], info.labels["name"]) == (ODD, "\u2028 and \u202e")


@in_real_time
async def test_concurrent_scrapes_share_one_response(harness: MetricsHarness) -> None:
    first, second, another = await asyncio.gather(
        harness.get(), harness.get(), harness.get(metrics.OPENMETRICS_TYPE.encode())
    )
    assert first is second
    assert another.headers != first.headers


def test_the_response_is_made_in_a_thread_without_the_default_registry(
    harness: MetricsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = asyncio.run(harness.get()).body
    assert b"process_resident_memory_bytes" in body
    assert b"python_info" not in body
    threads: list[int] = []
    monkeypatch.setattr(metrics, "_make_response", lambda *_, **__: threads.append(threading.get_ident()))
    harness.context = harness.context._replace(single_flight=SingleFlight())
    asyncio.run(harness.get())
    assert len(threads) == 1
    assert threading.get_ident() not in threads
