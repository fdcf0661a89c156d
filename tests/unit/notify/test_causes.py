"""One message per cause: services that depend on others, and services that fail alike. In virtual time."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Verdict
from svcnode.notify.routes import AlertPolicy
from svcnode.notify.rule import Kind
from svcnode.notify.subjects import Severity
from tests.support.nodes import record
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    RESOLVE_DELAY_S,
    FakeAlertmanager,
    FakeTarget,
    Harness,
    definition_with_a_new_probe,
    entry_of,
)

WORSE, BETTER, RECOVERED, TRANSIENT, RECURRED, REMOVED, REMINDER = Kind
SETTLED_S = RESOLVE_DELAY_S + GROUP_WAIT_S
ALL = AlertPolicy(services="all")


def with_ledger(policy: AlertPolicy | None = ALL, *targets: FakeTarget, **route: object) -> Harness:
    """A ledger, and two services that need it."""
    return Harness(policy, *targets, **route).add("ledger").add("api", "worker", depends_on=["ledger"])


# ---- effects


def test_a_cause_and_its_effects_are_one_message_and_one_recovery() -> None:
    harness = with_ledger().down("ledger").wait(2).down("api").wait(60)
    assert harness.kinds == [{"node": WORSE, "ledger": WORSE, "api": WORSE}]
    harness.down("worker").wait(3600)
    assert len(harness.reports) == 1, "the message has named it"
    harness.up("ledger").wait(20).up("api").wait(100).up("worker").wait(2 * RESOLVE_DELAY_S)
    ends = {"node": RECOVERED, "ledger": RECOVERED, "api": RECOVERED, "worker": TRANSIENT}
    assert harness.kinds[1:] == [ends]
    harness.wait(86_400)
    assert len(harness.reports) == 2


def test_an_effect_that_is_noticed_first_is_in_the_same_message() -> None:
    harness = with_ledger().down("api").wait(GROUP_WAIT_S - 1).down("ledger").wait(60)
    assert harness.kinds == [{"node": WORSE, "ledger": WORSE, "api": WORSE}]
    assert [one.service.id for one in entry_of(harness.last, "api").causes] == ["ledger"]
    assert [(one.service.id, int(one.health)) for one in entry_of(harness.last, "ledger").effects] == [
        ("api", 503),
        ("worker", 200),
    ]


def test_an_effect_that_fails_later_is_listed_in_the_next_message() -> None:
    harness = with_ledger().add("other").down("ledger").wait(60).down("worker").wait(60).down("other").wait(60)
    assert harness.kinds[1:] == [{"other": WORSE, "worker": WORSE}]
    harness = with_ledger().down("ledger").wait(60).starting("ledger").down("worker").wait(RESOLVE_DELAY_S - 1)
    assert len(harness.reports) == 1, "it is not Up"
    harness.wait(1)
    assert harness.kinds[1:] == [{"ledger": BETTER, "worker": WORSE}]


def test_the_recovery_of_an_effect_waits_for_that_of_its_cause() -> None:
    harness = with_ledger().down("ledger", "api").wait(60).up("api").wait(3600)
    assert len(harness.reports) == 1
    harness.up("ledger").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "ledger": RECOVERED, "api": RECOVERED}]


def test_a_problem_that_was_told_before_its_cause_stays_told_and_recovers_by_itself() -> None:
    harness = with_ledger().add("other").down("other", "api").wait(60).down("ledger").wait(60)
    assert harness.kinds[1:] == [{"ledger": WORSE}]
    harness.up("api").wait(SETTLED_S)
    assert harness.kinds[2:] == [{"api": RECOVERED}]


def test_what_remains_is_told_when_the_cause_has_recovered() -> None:
    harness = with_ledger().down("ledger", "api").wait(60).down("worker").wait(60).up("ledger").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"ledger": RECOVERED, "api": REMINDER, "worker": WORSE}]
    harness.up("api", "worker").wait(SETTLED_S)
    assert harness.kinds[2:] == [{"node": RECOVERED, "api": RECOVERED, "worker": RECOVERED}]


def test_a_service_that_fails_after_its_cause_is_up_again_is_told() -> None:
    harness = with_ledger().down("ledger").wait(60).up("ledger").wait(60).down("api").wait(GROUP_WAIT_S)
    assert harness.kinds[1:] == [{"api": WORSE}]


def test_what_remains_is_told_when_the_cause_is_removed() -> None:
    harness = with_ledger().down("ledger").wait(60).down("api").wait(60).remove("ledger").wait(GROUP_WAIT_S)
    assert harness.kinds[1:] == [{"api": WORSE}]


def test_maintenance_of_the_cause_holds_only_the_cause() -> None:
    harness = with_ledger().maintain("ledger", 3600).down("ledger", "api").wait(60)
    assert harness.kinds == [{"node": WORSE, "api": WORSE}]
    harness = with_ledger().down("ledger").wait(60).down("api").wait(60).maintain("ledger", 3600).wait(GROUP_WAIT_S)
    assert harness.kinds[1:] == [{"api": WORSE}]


@pytest.mark.parametrize(
    ("policy", "impact", "route"),
    [
        (ALL, "partial", {"min_severity": Severity.CRITICAL}),
        (ALL, "critical", {"services": frozenset({"api"})}),
        (ALL, "critical", {"groups": frozenset({"front"})}),
        (AlertPolicy(services="critical"), "none", {}),
    ],
)
def test_a_target_that_does_not_get_the_cause_gets_the_effect(
    policy: AlertPolicy, impact: str, route: dict[str, object]
) -> None:
    harness = Harness(policy, **route).add("ledger", impact=impact)  # type: ignore[arg-type]
    harness.add("api", depends_on=["ledger"], group="front")
    harness.down("ledger").wait(60).down("api").wait(GROUP_WAIT_S)
    assert harness.kinds[-1]["api"] is WORSE
    assert "ledger" not in harness.kinds[-1]


def test_an_effect_that_is_more_severe_than_its_cause_is_told() -> None:
    harness = Harness(ALL, services=frozenset({"ledger", "api"})).add("ledger", impact="partial")
    harness.add("api", depends_on=["ledger"]).down("ledger").wait(60).starting("api").wait(60)
    assert harness.kinds == [{"ledger": WORSE}]
    harness.down("api").wait(GROUP_WAIT_S)
    assert harness.kinds[1:] == [{"api": WORSE}]
    assert entry_of(harness.last, "api").severity is Severity.CRITICAL


def test_a_service_may_depend_on_a_group_and_through_others() -> None:
    harness = Harness(ALL).add("disk-1", "disk-2", group="storage").add("ledger", depends_on=["storage"])
    harness.add("api", depends_on=["ledger"]).down("disk-2").wait(60).down("api").wait(60)
    assert harness.kinds == [{"node": WORSE, "disk-2": WORSE}]


def test_services_that_depend_on_each_other_are_told_as_if_they_did_not() -> None:
    harness = Harness(ALL).add("a", "b")
    harness.node.replace(definition_with_a_new_probe("a", depends_on=["b"]))
    harness.node.replace(definition_with_a_new_probe("b", depends_on=["a"]))
    harness.up("a", "b").down("a").wait(60).down("b").wait(60)
    assert harness.kinds == [{"node": WORSE, "a": WORSE}, {"b": WORSE}]
    assert harness.last.services[0].effects == ()


def test_a_dependency_counts_from_its_definition_on() -> None:
    harness = Harness(ALL).add("ledger", "api").down("ledger").wait(60)
    harness.node.replace(definition_with_a_new_probe("api", depends_on=["ledger"]))
    harness.down("api").wait(60)
    assert harness.kinds[1:] == [{"api": WORSE}], "no message has named it"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_does_not_forget_what_the_message_about_the_cause_has_named(is_killed: bool) -> None:
    harness = with_ledger().down("ledger").wait(60).down("api").wait(60).restart(is_killed=is_killed)
    harness.add("ledger", up=False).add("api", depends_on=["ledger"], up=False)
    harness.down("ledger", "api").wait(60)
    assert len(harness.reports) == 1


def test_alertmanager_gets_every_effect_with_its_cause() -> None:
    harness = with_ledger(ALL, FakeAlertmanager()).down("ledger").wait(60).down("api").wait(GROUP_WAIT_S)
    found = {entry.subject.key.name: entry for entry in harness.last.open}
    assert found.keys() == {"", "ledger", "api"}
    assert [one.service.id for one in found["api"].causes] == ["ledger"]
    harness.up("api").wait(RESOLVE_DELAY_S)
    assert {entry.subject.key.name for entry in harness.last.open} == {"", "ledger"}


# ---- without configuration


HOST = "10.0.0.5"
REFUSED = Verdict.failed(f"connection refused: tcp://{HOST}:6379", code="connection_refused")
IDS = [f"db-{number:02}" for number in range(30)]


def host_with_30_services() -> Harness:
    harness = Harness(ALL)
    for service_id in IDS:
        harness.node.add(definition_with_a_new_probe(service_id, probe=f"tcp://{HOST}:6379"))
    return harness.up(*IDS)


def spread(harness: Harness, verdict: Verdict, seconds: float) -> None:
    for service_id in IDS:
        record(harness.node, service_id, verdict)
        harness.wait(seconds / len(IDS))


def test_a_host_with_30_services_dies_one_message_and_one_recovery_and_nothing_is_orphaned() -> None:
    harness = host_with_30_services()
    spread(harness, REFUSED, GROUP_WAIT_S - 0.1)
    built = harness.wait(60).message()
    assert len(harness.reports) == 1
    (line,) = built.lines
    assert line.startswith(f"30 services on {HOST} are Down, were Up: connection refused: db-00, ")
    (group,) = built.document()["groups"]
    assert (group["host"], group["code"], group["count"]) == (HOST, "connection_refused", 30)
    spread(harness, Verdict.ready(), 40)
    harness.wait(SETTLED_S)
    assert harness.kinds[1:] == [dict.fromkeys(["node", *IDS], RECOVERED)]
    (line,) = harness.message().lines
    assert line.startswith(f"30 services on {HOST} have recovered: Up after up to ")
    assert {harness.alerts.find(service_id).state for service_id in IDS} == {"inactive"}


def test_services_that_fail_after_the_message_follow_within_the_group_wait() -> None:
    harness = host_with_30_services()
    spread(harness, REFUSED, 2 * GROUP_WAIT_S - 0.5)
    harness.wait(GROUP_WAIT_S)
    assert len(harness.reports) == 2
    assert {harness.alerts.find(service_id).told for service_id in IDS} == {Health.UNHEALTHY}
    spread(harness, Verdict.ready(), 20)
    harness.wait(SETTLED_S)
    assert len(harness.reports) == 3


def test_a_recovery_waits_for_others_only_as_long_as_another_resolve_delay() -> None:
    harness = Harness(ALL).add("a", "b", "c").down("a", "b", "c").wait(60)
    harness.up("a").wait(250).up("b").wait(250).up("c").wait(99)
    assert harness.kinds[1:] == [{"a": RECOVERED, "b": RECOVERED}]
    harness.wait(SETTLED_S)
    assert harness.kinds[2:] == [{"node": RECOVERED, "c": RECOVERED}]


def test_a_recovery_that_waits_for_another_is_told_also_if_that_one_fails_again() -> None:
    harness = Harness(ALL).add("a", "b").down("a", "b").wait(60).up("a").wait(100).up("b").wait(250).down("b").wait(50)
    assert harness.kinds[1:] == [{"a": RECOVERED}]
