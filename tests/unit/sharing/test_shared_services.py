"""The services of a replica: what it and the registry define, who checks it, and what the node says."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import DuplicateServiceError
from svcnode.core.model import Evidence, ServiceState, Status, Verdict
from svcnode.node.definition import define
from svcnode.sharing.format import KeyKind, ReportDocument
from svcnode.sharing.shared_services import CHUNK, SharedServices
from svcnode.sharing.view import RegistryView
from tests.support.nodes import beat, make_node
from tests.support.registry_keys import ROOT, RegistryKeys
from tests.support.replica_simulation import definition
from tests.support.virtual_time import VirtualClock, run_in_virtual_time

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
READY, FAILED = Verdict.ready(), Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
CHECKED: dict[str, Any] = {"probe": "tcp://a:1", "interval": "2s", "stale_after": "10s", "start_period": "0s"}
VALID_S = 10.0


class Harness:
    """One replica, `me`, without I/O. A revision is written at the second of the same number."""

    def __init__(self, *others: str, default_observers: int = 1) -> None:
        self.clock = VirtualClock()
        self.node = make_node("n", version="v1", clock=self.clock)
        self.keys = RegistryKeys()
        self.view = RegistryView(ROOT, lambda revision: revision - 1.0)
        self.on_change_calls = 0
        self.services = SharedServices(
            self.node, self.view, "me", default_observers=default_observers, on_change=self._on_change
        )
        for name in ("me", *others):
            self.keys.join(name)
        self.receive()
        self.connect()

    def _on_change(self) -> None:
        self.on_change_calls += 1

    def receive(self) -> None:
        """The range of the keys; the time is that of the last revision."""
        self.clock.now_s = max(self.clock.now_s, float(self.keys.revision))
        self.view.replace_all(self.keys.range())
        run_in_virtual_time(self.services.update(self.view.take_changes()))

    def connect(self) -> None:
        run_in_virtual_time(self.services.set_connected())

    def lose(self) -> None:
        run_in_virtual_time(self.services.set_lost(self.clock()))

    def report(self, status: Status = UP) -> None:
        """Of the service `job`, by a client."""
        self.keys.revision = max(self.keys.revision, int(self.clock()))
        self.keys.put(KeyKind.REPORTS, ("job", "client"), ReportDocument(status, "", "reported"))
        self.receive()

    def tick(self) -> None:
        run_in_virtual_time(self.services.tick())

    def publish_own(self) -> None:
        """As the publisher does."""
        changed, self.services.changed_definitions = self.services.changed_definitions, set()
        for service_id in changed:
            document = self.services.document(service_id)
            if document is None:
                self.keys.delete_key(KeyKind.SERVICES, service_id, "replica:me")
            else:
                self.keys.put(KeyKind.SERVICES, (service_id, "replica:me"), document)
        self.receive()

    def record(self, verdict: Verdict, service_id: str = "db") -> ServiceState | None:
        return self.services.record({service_id: Evidence(verdict, self.clock())}).get(service_id)

    def status(self, service_id: str = "db") -> Status | None:
        return self.node.status(service_id)

    def code(self, service_id: str = "db") -> str:
        return self.node.state(service_id).code

    def is_checked(self, service_id: str = "db") -> bool:
        return self.node.probe_config(service_id) is not None


# ---- own services


def test_an_own_service_is_checked_before_the_registry_has_it() -> None:
    replica = Harness("other")
    replica.services.add(definition("db", CHECKED))
    assert replica.is_checked()
    assert replica.services.observers_of("db") == ("me",)
    replica.record(READY)
    assert replica.status() is UP
    assert "db" in replica.services
    assert replica.services.changed_definitions == {"db"}
    with pytest.raises(DuplicateServiceError):
        replica.services.add(definition("db", CHECKED))


@pytest.mark.parametrize("has_reported", [False, True])
def test_an_own_service_that_is_down_by_the_registry_and_stays_silent_is_published_as_down(has_reported: bool) -> None:
    replica = Harness("other")
    replica.services.add(definition("job", {"ttl": "8s"}))
    replica.publish_own()
    if has_reported:
        replica.node.report("job", READY)
    lost = replica.node.state("job")._replace(status=DOWN, reason="lost", code=ReasonCode.REGISTRY_LOST)
    replica.node.set_decided_states({"job": lost})
    replica.tick()
    before = replica.services.published("job")
    assert before is None or before.status is UP, "it may still report"
    replica.clock.advance(8.0)
    replica.tick()
    published = replica.services.published("job")
    assert published is not None
    assert published.status is DOWN
    assert "job" in replica.services.changed_states


def test_a_service_of_a_program_is_not_published() -> None:
    replica = Harness()
    replica.services.add(define("db", probe="tcp://a:1"))
    assert replica.services.document("db") is None
    replica.record(READY)
    assert replica.status() is UP


def test_options_that_cannot_be_shared_are_logged_and_the_service_stays_local(caplog: pytest.LogCaptureFixture) -> None:
    replica = Harness()
    replica.services.add(define("db", probe="tcp://a:1")._replace(options={**CHECKED, "observers": 99}))
    assert replica.services.document("db") is None
    assert "db" in caplog.text
    assert replica.is_checked()


def test_the_default_number_of_observers_is_published_and_may_change() -> None:
    replica = Harness("b", "c")
    replica.services.add(definition("db", CHECKED))
    replica.services.add(definition("fixed", {"status": "Up"}))
    replica.publish_own()
    assert len(replica.services.observers_of("db")) == 1
    replica.services.set_default_observers(3)
    assert replica.services.changed_definitions == {"db", "fixed"}
    replica.publish_own()
    assert len(replica.services.observers_of("db")) == 3


def test_changes_of_own_services_count_at_once_also_when_etcd_is_away() -> None:
    replica = Harness()
    replica.services.add(definition("db", CHECKED))
    replica.services.add(definition("web", CHECKED))
    replica.publish_own()
    replica.services.replace(definition("db", {**CHECKED, "name": "new", "stale_after": "20s"}))
    service, _ = replica.node.find("db") or (None, None)
    assert service is not None
    assert (service.name, service.policy.stale_after_s) == ("new", 20.0)
    replica.services.deregister("web")
    assert [service.id for service, _ in replica.node] == ["db"]


def test_a_service_that_another_owner_has_stays_without_the_own_definition() -> None:
    replica = Harness()
    replica.keys.define("db", "client", **CHECKED)
    replica.services.add(definition("db", {**CHECKED, "probe": {"url": "http://a/", "headers": {"X-Key": "s"}}}))
    replica.publish_own()
    assert replica.is_checked()
    replica.services.deregister("db")  # the registry still shows the own definition, whose probe is not in it
    replica.publish_own()
    assert replica.is_checked()
    replica.record(READY)
    assert replica.status() is UP


# ---- the registry


def test_services_of_the_registry_come_and_go_in_its_order() -> None:
    replica = Harness()
    replica.services.add(definition("mine", CHECKED))
    replica.keys.define("b")
    replica.keys.define("a")
    replica.receive()
    assert [service.id for service, _ in replica.node] == ["b", "a", "mine"]
    replica.keys.delete_key(KeyKind.SERVICES, "b", "client")
    replica.receive()
    assert [service.id for service, _ in replica.node] == ["a", "mine"]


def test_thousands_of_services_are_compared_in_chunks() -> None:
    replica = Harness("other")
    ids = [f"s{number:04}" for number in range(2 * CHUNK + 5)]
    for service_id in ids:
        replica.keys.define(service_id, **CHECKED)
    replica.receive()
    assert [service.id for service, _ in replica.node] == ids
    observed_here = {id_ for id_ in ids if replica.services.observers_of(id_) == ("me",)}
    assert {id_ for id_ in ids if replica.is_checked(id_)} == observed_here
    replica.keys.leave("other")
    replica.receive()
    assert all(replica.is_checked(id_) for id_ in ids)


def test_an_update_that_is_cancelled_is_completed_by_the_next_one() -> None:
    replica = Harness("other")
    for number in range(2 * CHUNK):
        replica.keys.define(f"s{number}", **CHECKED)
    replica.view.replace_all(replica.keys.range())
    update = replica.services.update(replica.view.take_changes())
    update.send(None)
    update.close()
    assert 0 < len(replica.node) < 2 * CHUNK
    replica.tick()
    assert len(replica.node) == 2 * CHUNK


def test_a_probe_that_cannot_be_made_here_is_a_vote_that_is_not_up() -> None:
    replica = Harness()
    replica.keys.put(
        KeyKind.SERVICES, ("db", "client"), {"version": 1, "position": 0, "options": {"probe": "nosuch://a:1"}}
    )
    replica.receive()
    assert (replica.status(), replica.code()) == (INITIALIZING, ReasonCode.DRIVER_MISSING)
    published = replica.services.published("db")
    assert published is not None
    assert (published.status, published.code) == (INITIALIZING, ReasonCode.DRIVER_MISSING)
    replica.services.changed_states.clear()
    replica.services.compare()
    replica.tick()
    assert not replica.services.changed_states


def test_a_down_service_stays_down_if_the_replica_that_takes_over_cannot_check_it() -> None:
    replica = Harness("other")
    options = {"probe": "nosuch://a:1", "checked_by": ["other"]}
    replica.keys.put(KeyKind.SERVICES, ("db", "client"), {"version": 1, "position": 0, "options": options})
    replica.receive()
    replica.node.set_decided_states({"db": replica.node.state("db")._replace(status=DOWN, reason="refused")})
    options["checked_by"] = ["me"]
    replica.keys.put(KeyKind.SERVICES, ("db", "client"), {"version": 1, "position": 0, "options": options})
    replica.receive()
    assert (replica.status(), replica.code()) == (DOWN, ReasonCode.DRIVER_MISSING)
    assert replica.node.state("db").reason.endswith("refused")


# ---- the source of evidence


@pytest.mark.parametrize("before", [{"status": "Up"}, {"ttl": "30s"}, {**CHECKED, "probe": "tcp://old:1"}])
def test_evidence_of_another_source_does_not_count(before: dict[str, Any]) -> None:
    replica = Harness()
    replica.services.add(definition("db", before))
    replica.publish_own()
    if "ttl" in before:
        beat(replica.node, "db")
    elif "probe" in before:
        replica.record(READY)
    assert replica.status() is UP
    replica.services.replace(definition("db", CHECKED))
    assert replica.status() is INITIALIZING
    replica.publish_own()
    assert replica.status() is INITIALIZING
    replica.record(READY)
    assert replica.status() is UP


def test_an_observer_that_has_not_seen_the_new_probe_does_not_count() -> None:
    replica = Harness("other")
    replica.keys.define("db", **CHECKED, checked_by=["other"])
    replica.keys.publish("other", "db", UP)
    replica.receive()
    assert replica.status() is UP
    [old_source] = [state.source for state in replica.services.observed("db")]
    replica.keys.define("db", **{**CHECKED, "probe": "tcp://new:1"}, checked_by=["other"])
    replica.keys.renew("other")
    replica.receive()
    assert replica.status() is INITIALIZING
    replica.keys.publish("other", "db", UP, source=old_source)  # with its old probe, after the definition was written
    replica.keys.renew("other")
    replica.receive()
    assert replica.status() is INITIALIZING
    replica.keys.publish("other", "db", UP)
    replica.receive()
    assert replica.status() is UP


# ---- states


def test_evidence_of_others_expires_as_lost() -> None:
    replica = Harness("other")
    replica.keys.define("db", **CHECKED, checked_by=["other"])
    replica.keys.publish("other", "db", UP, age_s=3.0)
    replica.receive()
    assert replica.status() is UP
    replica.clock.advance(VALID_S - 3)
    assert (replica.status(), replica.code()) == (INITIALIZING, ReasonCode.REGISTRY_LOST)
    replica.keys.revision = int(replica.clock())
    replica.keys.renew("other")
    replica.receive()
    replica.tick()
    assert replica.status() is UP


def test_the_first_check_by_a_new_definition_is_published_at_once() -> None:
    replica = Harness("other")
    for options in (CHECKED, {**CHECKED, "stale_after": "5s"}):  # the evidence that others have may expire by it
        replica.keys.define("db", **options, checked_by=["me"])
        replica.receive()
        published = []
        for _ in range(2):
            replica.services.changed_states.clear()
            replica.record(READY)
            published.append(bool(replica.services.changed_states))
        assert published == [True, False]


def test_a_new_observer_continues_from_the_state_of_the_node() -> None:
    replica = Harness("other")
    replica.keys.define("db", **CHECKED, checked_by=["other"])
    replica.keys.publish("other", "db", UP)
    replica.receive()
    replica.keys.define("db", **CHECKED)
    replica.keys.leave("other")
    replica.receive()
    assert replica.is_checked()
    assert replica.status() is UP
    assert replica.services.published("db") is None  # no vote before own evidence
    replica.record(Verdict.unknown("no sockets"))
    assert replica.services.published("db") is None
    replica.record(FAILED)
    assert replica.status() is UP  # one failure of three
    published = replica.services.published("db")
    assert published is not None
    assert published.last_ready_at_s is not None
    assert published.last_ready_at_s < replica.clock()


def test_the_majority_of_observers_decides() -> None:
    replica = Harness("b", "c")
    replica.keys.define("db", **CHECKED, observers=3)
    replica.receive()
    replica.record(READY)
    assert replica.status() is INITIALIZING
    replica.keys.publish("b", "db", UP)
    replica.receive()
    assert replica.status() is UP
    for _ in range(3):
        replica.clock.advance(0.1)
        replica.record(FAILED)
    replica.keys.publish("b", "db", UP)
    replica.keys.publish("c", "db", UP)
    replica.receive()
    assert replica.status() is UP
    seen = {state.observer: state.status for state in replica.services.observed("db")}
    assert seen == {"me": DOWN, "b": UP, "c": UP}


def test_a_down_service_stays_down_while_its_observers_disagree() -> None:
    replica = Harness("b")
    replica.keys.define("db", **CHECKED, observers=2)
    replica.keys.publish("b", "db", DOWN)
    replica.receive()
    for _ in range(3):
        replica.clock.advance(0.1)
        replica.record(FAILED)
    assert replica.status() is DOWN
    for status in (UP, DOWN, UP):
        replica.keys.publish("b", "db", status)
        replica.receive()
        assert replica.status() is DOWN
    for _ in range(3):  # the text does not grow with each check
        replica.record(FAILED)
    assert replica.node.state("db").reason.count("disagree") == 1
    for _ in range(2):
        replica.clock.advance(0.1)
        replica.record(READY)
    assert replica.status() is UP


# ---- several observers without the registry


def lonely(*others: str) -> Harness:
    """Up by all its observers, at the moment at which the registry is lost."""
    replica = Harness(*others)
    replica.keys.define("db", **CHECKED, observers=2)
    replica.receive()
    replica.record(READY)
    for name in others:
        replica.keys.publish(name, "db", UP)
    replica.receive()
    assert (replica.status(), replica.node.health) == (UP, 200)
    replica.lose()
    return replica


def advance(replica: Harness, duration_s: float, verdict: Verdict = READY) -> set[tuple[Status | None, int]]:
    """Checks every two seconds; what the node has said at each tick."""
    seen = set()
    for tick in range(int(2 * duration_s)):
        replica.clock.advance(0.5)
        if tick % 4 == 0:
            replica.record(verdict)
        replica.tick()
        seen.add((replica.status(), int(replica.node.health)))
    return seen


@pytest.mark.parametrize("others", [("other",), ()])
def test_without_the_registry_the_own_checks_decide_and_the_node_is_206_at_best(others: tuple[str, ...]) -> None:
    replica = lonely(*others)
    assert advance(replica, VALID_S - 4) == {(UP, 200)}, "the votes of the others are still valid"
    assert advance(replica, 4 if others else 6) == {(UP, 200), (UP, 206)}, "no moment without evidence"
    assert advance(replica, 3 * VALID_S) == {(UP, 206)}
    assert replica.code() == ReasonCode.UNCONFIRMED
    for _ in range(3):
        replica.record(FAILED)
    assert (replica.status(), replica.code()) == (DOWN, ReasonCode.CONNECTION_REFUSED), "bad news arrives as ever"
    assert replica.node.health == 503


def test_what_the_others_saw_fail_stays_down_without_the_registry_although_this_replica_sees_it_work() -> None:
    replica = Harness("b", "c")
    replica.keys.define("db", **CHECKED, observers=3)
    replica.receive()
    replica.record(READY)
    replica.record(READY)
    for name in ("b", "c"):
        replica.keys.publish(name, "db", DOWN)
    replica.receive()
    assert replica.status() is DOWN
    replica.lose()
    assert {status for status, _ in advance(replica, 3 * VALID_S)} == {DOWN}
    assert replica.node.state("db").reason.count("unreachable") == 1


def test_with_the_registry_the_other_observers_count_again() -> None:
    replica = lonely("other")
    advance(replica, 2 * VALID_S)
    replica.connect()
    assert advance(replica, 2) == {(UP, 206)}, "they have not said anything yet"
    replica.keys.revision = int(replica.clock())
    replica.keys.renew("other")
    replica.receive()
    assert (UP, 200) in advance(replica, 2)
    assert replica.code() != ReasonCode.UNCONFIRMED
    assert not replica.node.condition.caveats


def test_a_service_that_one_replica_checks_needs_no_confirmation() -> None:
    replica = Harness("other")
    replica.keys.define("db", **CHECKED, checked_by=["me"])
    replica.receive()
    replica.record(READY)
    replica.record(READY)
    replica.lose()
    assert advance(replica, 3 * VALID_S) == {(UP, 200)}


def test_the_own_checks_do_not_outvote_others_that_are_still_valid() -> None:
    replica = lonely("other")
    assert advance(replica, 6, FAILED) <= {(UP, 200), (INITIALIZING, 206)}
    assert replica.code() == ReasonCode.OBSERVERS_DISAGREE
    advance(replica, VALID_S, FAILED)
    assert (replica.status(), replica.code()) == (DOWN, ReasonCode.CONNECTION_REFUSED)


def test_checks_of_a_service_that_is_no_longer_observed_are_ignored() -> None:
    replica = Harness("other")
    assert replica.record(READY) is None
    replica.keys.define("db", **CHECKED, checked_by=["other"])
    replica.receive()
    assert replica.record(READY) is None
    assert replica.status() is INITIALIZING


# ---- reports


def test_who_receives_reports_applies_the_ttl() -> None:
    replica = Harness("other")
    replica.services.add(definition("job", {"ttl": "10s"}))
    replica.publish_own()
    beat(replica.node, "job")
    assert replica.services.changed_states == {"job"}
    assert replica.status("job") is UP
    replica.clock.advance(10)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)
    published = replica.services.published("job")
    assert published is not None
    assert published.status is DOWN


def test_a_report_to_another_replica_counts_and_its_loss_is_not_silence() -> None:
    replica = Harness("other")
    replica.services.add(definition("job", {"ttl": "10s"}))
    replica.publish_own()
    replica.keys.define("job", "replica:other", ttl="10s")
    replica.keys.publish("other", "job", UP)
    replica.receive()
    assert replica.status("job") is UP
    replica.clock.advance(11)
    assert (replica.status("job"), replica.code("job")) == (INITIALIZING, ReasonCode.REGISTRY_LOST)
    beat(replica.node, "job")  # from now on, reports come here
    assert replica.status("job") is UP
    replica.clock.advance(10)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)


def test_a_silent_service_is_down_also_when_its_replica_says_nothing_any_more() -> None:
    replica = Harness("other")
    replica.keys.define("job", "replica:other", ttl="10s")
    replica.keys.publish("other", "job", DOWN, age_s=100.0)
    replica.receive()
    assert replica.status("job") is DOWN
    replica.keys.revision = int(replica.clock() + 9)
    replica.keys.renew("other", age_s=109.0)
    replica.receive()
    replica.tick()
    replica.clock.advance(5)
    assert replica.status("job") is DOWN
    replica.clock.advance(6)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.REGISTRY_LOST)


def reported(ttl_s: int = 10) -> Harness:
    replica = Harness()
    replica.keys.define("job", "client", ttl=f"{ttl_s}s")
    replica.report()
    assert replica.status("job") is UP
    return replica


def test_silence_is_not_known_while_the_registry_is_lost_and_for_a_ttl_after_it() -> None:
    replica = reported()
    replica.lose()
    assert replica.status("job") is UP
    replica.clock.advance(10)
    assert (replica.status("job"), replica.code("job")) == (INITIALIZING, ReasonCode.REGISTRY_LOST)
    replica.clock.advance(100)
    replica.connect()
    replica.clock.advance(9)
    replica.tick()
    assert (replica.status("job"), replica.code("job")) == (INITIALIZING, ReasonCode.REGISTRY_LOST)
    replica.clock.advance(1)
    replica.tick()
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)
    replica.report()
    assert replica.status("job") is UP


def test_a_report_after_the_loss_begins_a_new_ttl() -> None:
    replica = reported()
    replica.lose()
    replica.clock.advance(5)
    replica.connect()
    replica.clock.advance(2)
    replica.report()
    replica.clock.advance(8)
    assert replica.status("job") is UP
    replica.clock.advance(3)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)


def test_silence_that_was_known_before_the_loss_stays_known() -> None:
    replica = reported()
    replica.clock.advance(10)
    assert replica.status("job") is DOWN
    replica.lose()
    replica.clock.advance(100)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)
    replica.connect()
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)


def test_silence_after_the_last_time_when_reports_were_received_is_corrected() -> None:
    replica = reported()
    received_until_s = replica.clock()
    replica.clock.advance(11)
    assert replica.status("job") is DOWN
    run_in_virtual_time(replica.services.set_lost(received_until_s))  # the loss is noticed late
    assert (replica.status("job"), replica.code("job")) == (INITIALIZING, ReasonCode.REGISTRY_LOST)


def test_a_service_that_never_reported_is_not_silent_while_the_registry_is_lost() -> None:
    replica = Harness()
    replica.keys.define("job", "client", ttl="10s")
    replica.receive()
    replica.lose()
    replica.clock.advance(100)
    assert replica.status("job") is INITIALIZING
    replica.connect()
    replica.clock.advance(10)
    replica.tick()
    assert replica.status("job") is DOWN


def test_reports_to_this_replica_are_received_without_the_registry() -> None:
    replica = Harness()
    replica.services.add(definition("job", {"ttl": "10s"}))
    replica.publish_own()
    beat(replica.node, "job")
    replica.lose()
    replica.clock.advance(10)
    assert (replica.status("job"), replica.code("job")) == (DOWN, ReasonCode.TTL_EXPIRED)


def test_a_fixed_status_is_the_same_everywhere() -> None:
    replica = Harness("other")
    replica.keys.define("old", "replica:other", status="Down")
    replica.receive()
    assert (replica.status("old"), replica.code("old")) == (DOWN, ReasonCode.FIXED)
    replica.clock.advance(1e6)
    assert replica.status("old") is DOWN


# ---- after a restore


def test_after_a_restore_the_list_stays_until_the_replicas_have_written_again() -> None:
    """From the first range after it on. What is missing then is kept, until the registry has it as lost."""
    replica = Harness()
    replica.keys.define("kept")
    replica.receive()
    replica.keys = RegistryKeys()
    replica.keys.join("me")
    replica.keys.define("restored")
    replica.view = RegistryView(ROOT, lambda revision: None)
    replica.services.set_view(replica.view)
    replica.clock.advance(10)
    replica.tick()
    replica.services.losses.expect_until(replica.clock() + 10, revision=1)
    replica.receive()
    assert [service.id for service, _ in replica.node] == ["kept"]
    replica.tick()
    assert [service.id for service, _ in replica.node] == ["kept"]
    replica.clock.advance(10)
    replica.tick()
    assert {service.id for service, _ in replica.node} == {"kept", "restored"}
    assert [key.names for key in replica.services.losses.puts()] == [("kept", "lost:client")]
