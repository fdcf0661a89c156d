"""The texts of `svcnode explain`, and of each reason code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcnode.cli.terminal.explain.explanation import explain_node, explain_service
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Acknowledgement, Health, KnownBefore, Status, Verdict
from svcnode.core.remedies import REMEDIES
from svcnode.operator.problems import problems as problems_of
from svcnode.version import __version__
from tests.support.operator_context import OperatorHarness
from tests.support.service_scenario import LOADING, NO_FILES, READY, REFUSED, ServiceScenario, resolving, up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.wording.conftest import Snapshot


JOB = {"url": "heartbeat:", "period": "1h", "grace": "1m"}


def acknowledged(scenario: ServiceScenario) -> ServiceScenario:
    """The service, and the node until a time."""
    node = scenario.harness.node
    made_s = node.wall_time_s(node.now_s())
    made = Acknowledgement(Health.UNHEALTHY, made_s, by="ops (user root)", reason="a new disk is on its way")
    node.acknowledgements.make(made, "db")
    node.acknowledgements.make(made._replace(until_s=made_s + 7200.0, reason=""))
    return scenario


def remembering(status: Status) -> ServiceScenario:
    """What was known of the service before the restart."""
    scenario = ServiceScenario()
    node = scenario.harness.node
    known = KnownBefore(status, node.now_s() - 720.0, REFUSED.reason if status is Status.DOWN else "", REFUSED.code)
    node.remember({"db": known})
    return scenario


def services() -> Iterator[tuple[str, ServiceScenario]]:
    slow = Verdict.not_ready("slow: the check took 0.41 s, but max_latency is 0.3 s", code=ReasonCode.SLOW)
    syncing = [Verdict.not_ready(f"syncing: block {n} of 100", code=ReasonCode.SYNCING) for n in range(5)]
    out_of_disk = Verdict.failed("out of disk", code=ReasonCode.REPORTED)
    fixed = Verdict.failed("set in the configuration", code=ReasonCode.FIXED)
    yield "no check yet", ServiceScenario().wait(0.2)
    yield "down before the restart", remembering(Status.DOWN)
    yield "down before the restart, confirmed", remembering(Status.DOWN).record(REFUSED)
    yield "up before the restart, failing", remembering(Status.UP).record(REFUSED)
    yield "failures within the start period", ServiceScenario().record(*[REFUSED] * 4)
    yield "down after the start period", ServiceScenario().record(*[REFUSED] * 20)
    yield "up", up(name="Ledger", description="PostgreSQL", impact="critical")
    yield "one failure", up().record(REFUSED)
    yield "down", up().record(*[REFUSED] * 7)
    yield "down for long", up().record(*[REFUSED] * 40)
    yield "one success after down", up().record(*[REFUSED] * 3).record(READY)
    yield "up again", up().record(*[REFUSED] * 3).record(READY, READY)
    yield "up after not ready", ServiceScenario().record(LOADING, READY)
    yield "failures that are not in a row", up().record(REFUSED, READY, REFUSED, READY)
    yield "unreliable", up().record(*[REFUSED, READY] * 4, REFUSED)
    yield "unreliable, last check succeeded", up().record(*[REFUSED, REFUSED, READY] * 3)
    yield "short outages", up().record(*[REFUSED, REFUSED, *[READY] * 10] * 2, REFUSED, REFUSED)
    yield "unreliable before it was down", up().record(*[REFUSED, READY] * 5, *[REFUSED] * 3, READY)
    yield "not ready", up(impact="none").record(*syncing, interval_s=10)
    yield "failure after not ready", up().record(LOADING, REFUSED)
    yield "slow", up(max_latency="300ms").record(slow, duration_s=0.41)
    yield "check cannot run", up().record(NO_FILES)
    yield "no check could run", ServiceScenario().record(NO_FILES)
    yield "code of another package", up(fall=1).record(Verdict.failed("ledger full", code="x_ledger_full"))
    yield "stale, checks cannot run", up().record(*[NO_FILES] * 3, interval_s=10)
    yield "stale, no checks", up().wait(60)
    yield "down, checks cannot run", ServiceScenario().record(*[REFUSED] * 18).record(NO_FILES)
    yield "thresholds of one", up(rise=1, fall=1).record(REFUSED)
    yield "many reasons", up().record(*[Verdict.failed(f"{letter} is wrong") for letter in "abcdef"])
    yield "reported down", ServiceScenario(probe=None).record(out_of_disk, duration_s=0)
    yield "reported up", ServiceScenario(probe=None).record(Verdict.not_ready(""), READY)
    yield "no report yet", ServiceScenario(probe=None).wait(6)
    yield "report with a ttl", ServiceScenario(probe=None, ttl="30s").record(READY, interval_s=6)
    yield "report expired", ServiceScenario(probe=None, ttl="30s").record(READY, READY).wait(60)
    yield "no heartbeat", ServiceScenario(probe="heartbeat:3s").wait(4)
    yield "job", ServiceScenario(probe=JOB).record(READY, interval_s=6)
    yield "job without a success", ServiceScenario(probe=JOB).record(READY).wait(4000)
    scheduled = {"url": "heartbeat:", "schedule": "0 3 * * *", "timezone": "Europe/Berlin", "grace": "10m"}
    yield "scheduled job without a success", ServiceScenario(probe=scheduled).record(READY).wait(90_000)
    yield "fixed", ServiceScenario(probe=None).record(fixed)
    yield "acknowledged", acknowledged(up().record(*[REFUSED] * 7))
    yield "message waits", resolving(impact="critical")
    yield "message waits for another one", resolving()


def test_services(snapshot: Snapshot) -> None:
    snapshot("services", "\n\n".join(f"=== {name}\n" + "\n".join(one.explain().lines) for name, one in services()))


def test_the_next_check(snapshot: Snapshot) -> None:
    explanations = [up().explain(next_check_in_s=in_s) for in_s in (0.0, 0.4, 7.4, None)]
    snapshot("next_check", "\n".join(explanation.lines[-1].strip() for explanation in explanations))


def nodes() -> Iterator[tuple[str, OperatorHarness]]:
    healthy = OperatorHarness()
    healthy.node.register("db", impact="critical").up()
    yield "healthy", healthy
    unhealthy = OperatorHarness()
    unhealthy.node.register("db", impact="critical").down("connection refused: db:5432")
    unhealthy.node.register("cache").up()
    unhealthy.node.register("old disk", impact="none").down("full")
    unhealthy.node.register("chain", probe="tcp://db:1", start_period=0)
    unhealthy.record("chain", Verdict.unknown("too many open files", code=ReasonCode.RESOURCE_EXHAUSTED))
    unhealthy.clock.advance(252)
    yield "unhealthy", unhealthy
    problems = OperatorHarness()
    problems.node.register("db").initializing("syncing")
    problems.process_stats.record_reload("services.db: invalid (svcnode.toml:3)")
    problems.history.problem = "disk full"
    yield "problems", problems
    yield "acknowledged", acknowledged(up(impact="critical").record(*[REFUSED] * 7)).harness
    yield "message waits", resolving(impact="critical").harness


def test_nodes(snapshot: Snapshot) -> None:
    texts = []
    for name, harness in nodes():
        harness.process_stats.started_monotonic_s = harness.clock.now_s - 7380.0
        lines = explain_node(json.loads(harness.request(problems_of).body)).lines
        texts.append(f"=== {name}\n" + "\n".join(lines).replace(__version__, "VERSION"))
    snapshot("nodes", "\n\n".join(texts))


def replica_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Services of a node on several machines."""
    document = up().harness.details("db")
    elsewhere = {**document, "schedule": None, "next_check_in_s": None, "recent_checks": [], "evidence": None}

    def observed(observer: str, status: str, code: str = "ok", reason: str = "", age_s: float | None = 1.2) -> Any:
        return {"observer": observer, "status": status, "code": code, "reason": reason, "age_s": age_s}

    up_here, refused = observed("host-1", "Up"), observed("host-2", "Down", "connection_refused", "connection refused")
    yield "checked here", {**document, "checked_by": ["host-1"], "observed": [up_here]}
    yield "checked by another", {**elsewhere, "checked_by": ["host-1"], "observed": [up_here]}
    yield "checked by none", {**elsewhere, "checked_by": [], "observed": [observed("host-3", "Up", age_s=None)]}
    lost = {"status": "Initializing", "code": "registry_lost", "expires_in_s": None}
    yield "lost", {**elsewhere, **lost, "checked_by": ["host-1"], "observed": [observed("host-1", "Up", age_s=70)]}
    three = ["host-1", "host-2", "host-3"]
    yield "majority", {**document, "checked_by": three, "observed": [up_here, refused, observed("host-3", "Up")]}
    disagree = {"status": "Initializing", "code": "observers_disagree", "expires_in_s": None}
    yield "disagree", {**document, **disagree, "checked_by": three[:2], "observed": [up_here, refused]}
    policy = {**document["policy"], "stale_after_s": None, "ttl_s": 600.0}
    unknown = {"status": "Initializing", "code": "no_evidence", "expires_in_s": None, "policy": policy}
    by_client = {
        "kind": "reported",
        "probe": None,
        "checked_by": [],
        "observed": [observed("shop-1", "Up", age_s=None)],
    }
    yield "reported before the start", {**elsewhere, **unknown, **by_client}
    reported = {"kind": "reported", "probe": None, "checked_by": ["host-2"], "observed": [observed("host-2", "Up")]}
    yield "reported", {**elsewhere, **reported}


def test_replicas(snapshot: Snapshot) -> None:
    texts = [f"=== {name}\n" + "\n".join(explain_service(document).lines) for name, document in replica_documents()]
    snapshot("replicas", "\n\n".join(texts))


def test_remedies(snapshot: Snapshot) -> None:
    lines = []
    for code, remedy in REMEDIES.items():
        lines += [f"{code}: {remedy.meaning}", f"  {remedy.advice}"]
        lines += [f"  {kind}: {advice}" for kind, advice in remedy.by_kind.items()]
    snapshot("remedies", "\n".join(lines))
