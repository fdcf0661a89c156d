"""Every number at /metrics after reports that are known."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_in_open_metrics
from prometheus_client.parser import text_string_to_metric_families as families_in

from svcnode import Node, Verdict
from svcnode.api.app import OperatorRequest
from svcnode.notify.model import DeliveryStats
from svcnode.operator import collector, metrics
from svcnode.operator.collector import NodeCollector, build_registry
from svcnode.operator.context import OperatorContext, ProcessStats
from svcnode.stats import CheckStats
from svcnode.version import __version__
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.api.spec import Response

READY, SYNCING = Verdict.ready(), Verdict.not_ready("syncing")
REFUSED, BLIND = Verdict.failed("refused"), Verdict.unknown("no file descriptors")
TCP = "tcp://127.0.0.1:1"
BEGAN_S = 1_000.0


class Bench:
    """A node, all that stands around it, and a clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.clock = VirtualClock(BEGAN_S)
        self.node = Node("validator-7", version="v1.4.2", clock=self.clock)
        self.around: Any = SimpleNamespace(
            history=SimpleNamespace(is_healthy=True),
            events=SimpleNamespace(reader_count=0),
            vitals=ProcessStats(),
            notices=DeliveryStats(),
        )
        self.context = OperatorContext(node=self.node, check_stats=CheckStats(self.node), **vars(self.around))

    def value(self, name: str, /, **labels: str) -> float | None:
        return build_registry(self.context).get_sample_value(name, labels)

    def values(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """By one of its labels, those series that have all of the others."""
        return {
            sample.labels[label]: sample.value
            for family in NodeCollector(self.context).collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def service_ids(self, name: str) -> list[str]:
        return list(self.values(name, "service_id"))

    async def ask(self, accept: bytes = b"") -> Response:
        return await metrics.metrics(self.context, OperatorRequest("GET", b"/metrics", headers={b"accept": accept}), "")


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- the node


@pytest.mark.parametrize(
    ("verdict", "health", "code"), [(READY, "healthy", 200), (SYNCING, "partial", 206), (REFUSED, "unhealthy", 503)]
)
def test_the_health_of_the_node_is_one_state_of_a_set_and_one_number(
    bench: Bench, verdict: Verdict, health: str, code: int
) -> None:
    bench.node.register("ledger", impact="critical").report(verdict)
    states = {"healthy": 0.0, "partial": 0.0, "unhealthy": 0.0, health: 1.0}
    assert bench.values("svcnode_node_health", "health") == states
    assert bench.value("svcnode_node_health_code") == code


def test_the_node_says_who_it_is_and_what_it_runs_on(bench: Bench) -> None:
    assert bench.value("svcnode_node_info", name="validator-7", version="v1.4.2", spec_version="v0.0.1") == 1
    assert bench.values("svcnode_build_info", "version") == {__version__: 1}


def test_what_the_program_says_of_the_node_is_shown(bench: Bench) -> None:
    bench.node.set_issue("out of keys")
    bench.node.set_issue("out of gas")
    bench.node.drain()
    assert bench.value("svcnode_node_issues") == 2
    assert bench.value("svcnode_node_draining") == 1
    assert bench.value("svcnode_node_starting") == 0


def test_changes_of_health_are_counted(bench: Bench) -> None:
    ledger = bench.node.register("ledger")  # 200 to 206
    ledger.up()
    ledger.down()
    assert bench.value("svcnode_node_transitions_total") == 3


# ---- services


@pytest.mark.parametrize(("verdict", "status"), [(READY, "Up"), (SYNCING, "Initializing"), (REFUSED, "Down")])
def test_the_status_of_a_service_is_one_state_of_a_set(bench: Bench, verdict: Verdict, status: str) -> None:
    bench.node.register("ledger").report(verdict)
    states = {"Up": 0.0, "Initializing": 0.0, "Down": 0.0, status: 1.0}
    assert bench.values("svcnode_service_status", "status", service_id="ledger") == states


def test_a_service_that_nobody_looks_at_any_more_does_not_stay_up(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP, stale_after="30s")
    bench.node.record("ledger", READY)
    bench.clock.advance(31)
    assert bench.value("svcnode_service_status", service_id="ledger", status="Up") == 0
    assert bench.value("svcnode_service_status", service_id="ledger", status="Initializing") == 1


def test_what_a_service_is_stands_in_one_place(bench: Bench) -> None:
    bench.node.register("ledger", name="Ledger database", impact="critical", probe=TCP)
    bench.node.register("indexer", name="Indexer")
    about = {"service_id": "ledger", "name": "Ledger database", "impact": "critical", "kind": "tcp"}
    assert bench.value("svcnode_service_info", **about) == 1
    assert bench.values("svcnode_service_info", "kind", service_id="indexer") == {"reported": 1}


def test_services_are_counted_by_status_and_weight(bench: Bench) -> None:
    bench.node.register("a", impact="critical").up()
    bench.node.register("b").up()
    bench.node.register("c").up()
    bench.node.register("d", impact="none").down()
    counted = bench.values("svcnode_services", "impact", status="Up")
    assert counted == {"critical": 1, "partial": 2, "none": 0}
    assert bench.value("svcnode_services", impact="none", status="Down") == 1


def test_the_age_of_the_newest_success_grows_through_failures(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP)
    assert bench.service_ids("svcnode_service_success_age_seconds") == []
    bench.node.record("ledger", READY)
    bench.clock.advance(5)
    bench.node.record("ledger", REFUSED)
    bench.clock.advance(2)
    assert bench.value("svcnode_service_success_age_seconds", service_id="ledger") == 7
    assert bench.value("svcnode_service_evidence_age_seconds", service_id="ledger") == 2


def test_a_look_that_learned_nothing_leaves_evidence_as_old_as_it_is(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP)
    bench.clock.advance(5)
    bench.node.record("ledger", BLIND)
    bench.clock.advance(2)
    assert bench.value("svcnode_service_evidence_age_seconds", service_id="ledger") == 7


def test_how_old_evidence_may_become_is_shown_where_there_is_a_limit(bench: Bench) -> None:
    bench.node.register("looked-at", probe=TCP, stale_after="45s")
    bench.node.register("beating", ttl="20s")
    bench.node.register("reported")
    limits = bench.values("svcnode_service_evidence_max_age_seconds", "service_id")
    assert limits == {"looked-at": 45, "beating": 20}


def test_looks_are_counted_by_verdict(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP)
    for verdict in (READY, READY, READY, SYNCING, REFUSED, REFUSED, BLIND):
        bench.node.record("ledger", verdict)
    bench.node.register("cache")
    looks = bench.values("svcnode_checks_total", "verdict", service_id="ledger")
    assert looks == {"ready": 3, "not_ready": 1, "failed": 2, "unknown": 1}
    assert set(bench.values("svcnode_checks_total", "verdict", service_id="cache").values()) == {0}


def test_changes_of_status_are_counted_by_service(bench: Bench) -> None:
    ledger = bench.node.register("ledger")
    bench.node.register("cache").up()
    for verdict in (READY, READY, REFUSED, READY):
        ledger.report(verdict)
    assert bench.values("svcnode_service_transitions_total", "service_id") == {"ledger": 3, "cache": 1}


def test_the_duration_of_the_latest_look_is_shown_for_what_is_looked_at(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP)
    bench.node.register("cache", probe=TCP)
    bench.node.register("indexer").up()
    bench.node.record("ledger", READY, duration_s=0.2)
    bench.node.record("ledger", REFUSED, duration_s=0.03)
    assert bench.values("svcnode_service_check_duration_seconds", "service_id") == {"ledger": 0.03}


def test_durations_are_a_histogram_by_kind_and_not_by_service(bench: Bench) -> None:
    for service_id in ("a", "b"):
        bench.node.register(service_id, probe=TCP)
        bench.node.record(service_id, READY, duration_s=0.003)
    bench.node.record("a", REFUSED, duration_s=60.0)
    bench.node.register("c", probe="file:/run/done")
    bench.node.register("reported").up()
    buckets = bench.values("svcnode_check_duration_seconds_bucket", "le", kind="tcp")
    assert (buckets["0.0025"], buckets["0.005"], buckets["10.0"], buckets["+Inf"]) == (0, 2, 2, 3)
    assert bench.values("svcnode_check_duration_seconds_count", "kind") == {"tcp": 3, "file": 0}
    assert bench.value("svcnode_check_duration_seconds_sum", kind="tcp") == pytest.approx(60.006)


def test_a_service_that_has_gone_has_no_series(bench: Bench) -> None:
    bench.node.register("ledger", probe=TCP)
    bench.node.record("ledger", READY)
    bench.node.deregister("ledger")
    assert b"ledger" not in asyncio.run(bench.ask()).body


def test_services_beyond_the_limit_are_counted_but_have_no_series(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MAX_SERVICES", 2)
    for service_id in ("c", "a", "b"):
        bench.node.register(service_id).up()
    assert bench.service_ids("svcnode_service_info") == ["c", "a"]
    assert "b" not in bench.service_ids("svcnode_checks_total")
    assert bench.value("svcnode_services_omitted") == 1
    assert bench.value("svcnode_services", impact="partial", status="Up") == 3


def test_with_fewer_services_nothing_is_left_out(bench: Bench) -> None:
    bench.node.register("ledger")
    assert bench.value("svcnode_services_omitted") == 0


# ---- the process


def test_a_failed_reload_shows_until_the_next_good_one(bench: Bench) -> None:
    vitals = bench.context.process_stats
    read_at_s = "svcnode_config_last_reload_success_timestamp_seconds"
    assert bench.value(read_at_s) == vitals.started_at_s
    vitals.record_reload("svcnode.toml:3: unknown key")
    assert bench.value("svcnode_config_last_reload_successful") == 0
    assert bench.value(read_at_s) == vitals.started_at_s
    vitals.record_reload()
    assert bench.value("svcnode_config_last_reload_successful") == 1
    assert bench.value(read_at_s) == vitals.reloaded_at_s
    assert bench.values("svcnode_config_reloads_total", "result") == {"success": 1, "failure": 1}


def test_lag_readers_and_history_are_shown(bench: Bench) -> None:
    assert bench.value("svcnode_history_healthy") == 1
    bench.around.history.is_healthy = False
    bench.around.events.stream_count = 3
    bench.context.process_stats.loop_lag_s = 0.125
    assert bench.value("svcnode_history_healthy") == 0
    assert bench.value("svcnode_event_streams") == 3
    assert bench.value("svcnode_event_loop_lag_seconds") == 0.125


def test_it_is_shown_what_became_of_messages_and_how_many_wait(bench: Bench) -> None:
    notices = bench.context.delivery_stats
    notices.sent, notices.failed, notices.dropped, notices.queued = 5, 40, 2, 3
    assert bench.values("svcnode_notifications_total", "result") == {"delivered": 5, "dropped": 2}
    assert bench.value("svcnode_notification_requests_failed_total") == 40
    assert bench.value("svcnode_notifications_queue_length") == 3


def test_where_nobody_is_told_no_message_is_lost_and_none_waits(bench: Bench) -> None:
    assert bench.values("svcnode_notifications_total", "result") == {"delivered": 0, "dropped": 0}
    assert (
        bench.value("svcnode_notification_requests_failed_total")
        == bench.value("svcnode_notifications_queue_length")
        == 0
    )


def test_the_process_is_measured_without_the_registry_that_others_may_use(bench: Bench) -> None:
    body = asyncio.run(bench.ask()).body
    assert b"process_resident_memory_bytes" in body
    assert b"python_info" not in body


# ---- as text

ODD = 'quote " backslash \\ brace } <script> ü 😀'


@pytest.mark.parametrize(("accept", "read"), [("", families_in), (metrics.OPENMETRICS_TYPE, families_in_open_metrics)])
def test_ids_and_names_may_hold_any_character(bench: Bench, accept: str, read: Any) -> None:
    bench.node.register(ODD, name="\u2028 and \u202e")
    text = asyncio.run(bench.ask(accept.encode())).body.decode()
    (info,) = [sample for family in read(text) for sample in family.samples if sample.name == "svcnode_service_info"]
    assert (info.labels["service_id"], info.labels["name"]) == (ODD, "\u2028 and \u202e")


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4", True),
        ("text/html, Application/OpenMetrics-Text", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=abc", False),
        (";,;=,", False),
    ],
)
def test_open_metrics_are_for_those_who_take_them(bench: Bench, accept: str, is_open: bool) -> None:
    answer = asyncio.run(bench.ask(accept.encode()))
    content_type = dict(answer.headers)["Content-Type"]
    if is_open:
        assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    else:
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.endswith(b"# EOF\n") == is_open


def test_it_is_made_once_for_all_who_ask_at_once(bench: Bench) -> None:
    async def three() -> tuple[Response, Response, Response]:
        return await asyncio.gather(bench.ask(), bench.ask(), bench.ask(metrics.OPENMETRICS_TYPE.encode()))

    first, second, another = asyncio.run(three())
    assert first is second
    assert another.headers != first.headers


def test_it_is_made_on_a_thread_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[int] = []
    monkeypatch.setattr(metrics, "_made", lambda *_, **__: makers.append(threading.get_ident()))
    asyncio.run(bench.ask())
    assert len(makers) == 1
    assert threading.get_ident() not in makers


def test_the_library_is_not_loaded_before_somebody_asks() -> None:
    script = "import sys, svcnode.operator.metrics; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
