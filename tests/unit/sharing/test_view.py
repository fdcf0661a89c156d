"""The view of the registry: ranges and events lead to the same view, and evidence is never dated too late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from svcnode.core.model import Status
from svcnode.net.etcd_json import OVERSIZED
from svcnode.sharing.format import (
    IgnoredKind,
    IssueDocument,
    KeyKind,
    ReportDocument,
    SenderDocument,
    StateDocument,
    ToldDocument,
    Written,
    encode_key,
    evidence_document,
)
from svcnode.sharing.rules import observers
from svcnode.sharing.view import RegistryView, SharedIssue, ViewChanges
from tests.support.registry_keys import ROOT, RegistryKeys

NO_CHANGES = ViewChanges(frozenset(), frozenset(), frozenset(), replicas=False, issues=False)


def exact(revision: int) -> float | None:
    """A key is written after the revision before it, which the registry in memory writes a second earlier."""
    return revision - 1.0


@pytest.fixture
def keys() -> RegistryKeys:
    return RegistryKeys()


def view_of(keys: RegistryKeys, written_after_s: Any = exact) -> RegistryView:
    view = RegistryView(ROOT, written_after_s)
    for event in keys.events:
        view.apply(event)
    return view


def evidence_at_s(view: RegistryView, replica: str = "a", service_id: str = "db") -> float | None:
    state = view.observed(replica, service_id)
    assert state is not None
    return state.evidence_at_s


# ---- notifications


def test_the_sender_of_a_target_and_what_it_was_told_are_known_until_the_keys_are_deleted(keys: RegistryKeys) -> None:
    keys.put(KeyKind.SENDERS, ("hook",), SenderDocument("a", "1f"), lease_id=1)
    keys.put(KeyKind.TOLD, ("hook",), ToldDocument([{"told": 503}]))
    view = view_of(keys)
    assert view.take_changes().targets == {"hook"}
    assert view.sender("hook") == (SenderDocument("a", "1f"), 1)
    assert view.told("hook") == (ToldDocument([{"told": 503}]), 2)
    for kind in (KeyKind.SENDERS, KeyKind.TOLD):
        event = keys.delete_key(kind, "hook")
        assert event is not None
        view.apply(event)
        assert view.take_changes().targets == {"hook"}
    assert (view.sender("hook"), view.told("hook")) == (None, None)


def test_a_sender_without_a_lease_would_never_go_and_is_ignored(keys: RegistryKeys) -> None:
    keys.put(KeyKind.SENDERS, ("hook",), SenderDocument("a", "1f"))
    view = view_of(keys)
    assert view.sender("hook") is None
    assert view.ignored_counts()[IgnoredKind.INVALID_VALUE] == 1


# ---- services


def test_services_are_listed_by_revision_then_position_then_id(keys: RegistryKeys) -> None:
    for service_id, position in (("z", 5), ("c", 1), ("b", 2), ("a", 2)):
        keys.define(service_id, position=position)
    keys.define("z", owner="another", position=0)
    keys.define("c", position=1, name="changed")  # keeps its place
    assert [service.id for service in view_of(keys).services()] == ["z", "c", "b", "a"]
    in_one_transaction = RegistryView(ROOT, exact)
    in_one_transaction.replace_all([kv._replace(create_revision=1) for kv in keys.range()])
    assert [service.id for service in in_one_transaction.services()] == ["z", "c", "a", "b"]


def test_the_definition_that_was_written_last_is_shown_while_it_exists(keys: RegistryKeys) -> None:
    keys.define("db", owner="replica:a", name="of a")
    keys.define("db", owner="replica:b", name="of b")
    view = view_of(keys)
    service = view.service("db")
    assert service is not None
    assert (service.definition.service.name, service.owner_replicas) == ("of b", frozenset("ab"))
    for owner, expected in (("replica:b", "of a"), ("replica:a", None)):
        event = keys.delete_key(KeyKind.SERVICES, "db", owner)
        assert event is not None
        view.apply(event)
        shown = view.service("db")
        assert (None if shown is None else shown.definition.service.name) == expected
    assert view.services() == ()


def test_replicas_with_the_same_file_share_a_definition_and_a_client_has_its_own_limits(keys: RegistryKeys) -> None:
    for owner in ("replica:a", "replica:b", "client"):
        keys.define("db", owner, name="x" * 300)  # which only a file may have
    view = view_of(keys)
    assert view.definition("db", "replica:a") is view.definition("db", "replica:b") is not None
    assert [*view.ignored] == [encode_key(ROOT, KeyKind.SERVICES, "db", "client")]
    keys.define("db", "replica:b", name="y")
    assert view_of(keys).definition("db", "replica:b") != view.definition("db", "replica:a")


def test_issues_and_replicas_are_listed(keys: RegistryKeys) -> None:
    keys.join("a")
    keys.put(KeyKind.ISSUES, ("disk", "replica:a"), IssueDocument("full"))
    view = view_of(keys)
    assert view.issues() == (SharedIssue("disk", "replica:a", "full"),)
    assert view.replicas.keys() == {"a"}
    event = keys.delete_key(KeyKind.ISSUES, "disk", "replica:a")
    assert event is not None
    view.apply(event)
    assert view.issues() == ()
    assert view.take_changes().issues


# ---- evidence


def test_evidence_is_dated_by_the_revision_at_which_it_was_composed(keys: RegistryKeys) -> None:
    keys.revision = 99
    keys.publish("a", "db", age_s=3.0)  # composed at revision 99, which was written after 98 s
    assert evidence_at_s(view_of(keys)) == 95.0


def test_a_document_that_was_delayed_is_as_old_as_when_it_was_composed(keys: RegistryKeys) -> None:
    """A suspended writer, or a request that waited in a socket."""
    document = StateDocument(Status.UP, "", "ok", 0.0, 0.0, "", Written(5, 2.0))
    keys.revision = 1000
    keys.put(KeyKind.STATES, ("a", "db"), document)
    assert evidence_at_s(view_of(keys)) == 4.0 + 2.0


def test_a_document_that_is_composed_at_a_later_revision_than_its_own_is_not_dated(keys: RegistryKeys) -> None:
    document = StateDocument(Status.UP, "", "ok", 0.0, 0.0, "", Written(50, 0.0))
    keys.put(KeyKind.STATES, ("a", "db"), document)
    assert evidence_at_s(view_of(keys)) is None


def test_a_state_of_unknown_time_counts_only_after_it_is_renewed(keys: RegistryKeys) -> None:
    keys.publish("a", "db")
    first = keys.revision
    view = RegistryView(ROOT, lambda revision: exact(revision) if revision > first else None)
    view.replace_all(keys.range())
    assert evidence_at_s(view) is None
    keys.join("b")
    view.apply(keys.renew("a", age_s=0.0))
    assert evidence_at_s(view) == first


def test_a_record_renews_all_states_of_its_replica_and_no_others(keys: RegistryKeys) -> None:
    for replica in ("a", "b"):
        for service_id in ("x", "y", "z"):
            keys.publish(replica, service_id, age_s=100.0)
    view = view_of(keys)
    view.take_changes()
    view.apply(keys.renew("a", age_s=0.0))
    assert [evidence_at_s(view, "a", service_id) for service_id in ("x", "y", "z")] == [5.0, 5.0, 5.0]
    assert evidence_at_s(view, "b", "x") == 3 - 1 - 100
    assert view.take_changes() == NO_CHANGES._replace(renewed=frozenset({"a"}))


def test_a_record_does_not_make_evidence_older(keys: RegistryKeys) -> None:
    keys.publish("a", "db", age_s=0.0)
    view = view_of(keys)
    before_s = evidence_at_s(view)
    view.apply(keys.renew("a", age_s=1e6))
    assert evidence_at_s(view) == before_s


def test_a_record_does_not_renew_a_state_that_was_written_after_it(keys: RegistryKeys) -> None:
    keys.publish("a", "db")
    keys.renew("a")
    keys.publish("a", "db", Status.UP, age_s=50.0)
    assert evidence_at_s(view_of(keys)) == 3 - 2 - 50


@pytest.mark.parametrize(
    "states",
    [
        {},
        {"db": (Status.DOWN, 0.0)},
        {"other": (Status.UP, 0.0)},
        {"db": (Status.UP, 0.0), "other": (Status.UP, 0.0)},
    ],
)
def test_a_record_about_other_states_is_ignored_and_counted(keys: RegistryKeys, states: dict[str, Any]) -> None:
    keys.publish("a", "db", age_s=10.0)
    keys.put(KeyKind.EVIDENCE, ("a",), evidence_document(states, keys.written()))
    view = view_of(keys)
    assert (view.unmatched_records, evidence_at_s(view)) == (1, -11.0)


def test_every_report_is_a_heartbeat(keys: RegistryKeys) -> None:
    keys.put(KeyKind.REPORTS, ("job", "cron"), ReportDocument(Status.UP, "", "reported"))
    view = view_of(keys)
    assert [report.evidence_at_s for report in view.reports("job")] == [0.0]
    view.apply(keys.put(KeyKind.REPORTS, ("job", "cron"), ReportDocument(Status.UP, "", "reported")))
    assert [(report.observer, report.evidence_at_s) for report in view.reports("job")] == [("cron", 1.0)]
    event = keys.delete_key(KeyKind.REPORTS, "job", "cron")
    assert event is not None
    view.apply(event)
    assert view.reports("job") == ()


# ---- what is not understood


def test_keys_that_are_not_understood_are_counted_until_they_are_gone(keys: RegistryKeys) -> None:
    keys.put_raw(f"{ROOT}unknown", b"{}")
    keys.put(KeyKind.SERVICES, ("a", "x"), {"version": 2})
    keys.put(KeyKind.SERVICES, ("b", "x"), {"version": 1})
    keys.put_raw(f"{ROOT}services/c/x", OVERSIZED)
    view = view_of(keys)
    assert view.ignored_counts() == dict.fromkeys(IgnoredKind, 1)
    view.apply(keys.define("b", owner="x"))
    event = keys.delete(f"{ROOT}unknown")
    assert event is not None
    view.apply(event)
    assert view.ignored.keys() == {encode_key(ROOT, KeyKind.SERVICES, id_, "x") for id_ in "ac"}
    assert [service.id for service in view.services()] == ["b"]


def test_events_that_are_known_already_change_nothing(keys: RegistryKeys) -> None:
    keys.define("a", name="old")
    keys.delete_key(KeyKind.SERVICES, "a", "client")
    keys.define("a", name="new")
    view = view_of(keys)
    view.take_changes()
    for event in keys.events:
        view.apply(event)
    service = view.service("a")
    assert service is not None
    assert service.definition.service.name == "new"
    assert view.take_changes() == NO_CHANGES


def test_changes_are_reported_once(keys: RegistryKeys) -> None:
    keys.join("a")
    keys.define("db")
    keys.publish("a", "db")
    keys.put(KeyKind.ISSUES, ("x", "y"), IssueDocument(""))
    view = view_of(keys)
    db = frozenset({"db"})
    assert view.take_changes() == ViewChanges(services=db, states=db, renewed=frozenset(), replicas=True, issues=True)
    assert view.take_changes() == NO_CHANGES


# ---- ranges and events

REPLICAS, IDS, OWNERS = ("a", "b", "c"), ("x", "y", "z"), ("replica:a", "replica:b", "client")
replicas, ids, owners = st.sampled_from(REPLICAS), st.sampled_from(IDS), st.sampled_from(OWNERS)
ages_s = st.floats(0, 100)


def test_after_a_restore_old_evidence_does_not_renew_old_states(keys: RegistryKeys) -> None:
    keys.publish("a", "db", Status.UP)
    snapshot = keys.range()
    keys.publish("a", "db", Status.DOWN)
    keys.renew("a")
    view = view_of(keys)
    view.replace_all(snapshot)
    observed = view.observed("a", "db")
    assert observed is not None
    assert (observed.status, observed.evidence_at_s) == (Status.UP, exact(keys.revision - 3))


def test_a_revision_that_was_used_twice_is_noticed(keys: RegistryKeys) -> None:
    """etcd was restored, and has reached the revision of before."""
    other = RegistryKeys()
    for registry, status in ((keys, Status.UP), (other, Status.DOWN)):
        registry.publish("a", "db", status)
    view = view_of(keys)
    view.replace_all(other.range())
    observed = view.observed("a", "db")
    assert observed is not None
    assert observed.status is Status.DOWN


class ViewMachine(RuleBasedStateMachine):
    """One view receives events, one receives ranges, one both; a fresh one receives the last range."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = RegistryKeys()
        self.by_events, self.by_ranges = RegistryView(ROOT, exact), RegistryView(ROOT, exact)
        self.applied = 0

    @rule(replica=replicas)
    def join(self, replica: str) -> None:
        self.keys.join(replica)

    @rule(replica=replicas)
    def leave(self, replica: str) -> None:
        self.keys.leave(replica)

    @rule(service_id=ids, owner=owners, position=st.integers(0, 3), probe=st.sampled_from(["tcp://a:1", "exec:x"]))
    def define(self, service_id: str, owner: str, position: int, probe: str) -> None:
        self.keys.define(service_id, owner, position, probe=probe, observers=2)

    @rule(service_id=ids, owner=owners)
    def undefine(self, service_id: str, owner: str) -> None:
        self.keys.delete_key(KeyKind.SERVICES, service_id, owner)

    @rule(replica=replicas, service_id=ids, status=st.sampled_from(Status), age_s=ages_s)
    def publish(self, replica: str, service_id: str, status: Status, age_s: float) -> None:
        self.keys.publish(replica, service_id, status, age_s)

    @rule(replica=replicas, service_id=ids)
    def give_up(self, replica: str, service_id: str) -> None:
        self.keys.delete_key(KeyKind.STATES, replica, service_id)

    @rule(replica=replicas, age_s=ages_s)
    def renew(self, replica: str, age_s: float) -> None:
        self.keys.renew(replica, age_s)

    @rule(service_id=ids, owner=owners, status=st.sampled_from(Status))
    def report(self, service_id: str, owner: str, status: Status) -> None:
        self.keys.put(KeyKind.REPORTS, (service_id, owner), ReportDocument(status, "", "reported"))

    @rule(kind=st.sampled_from([KeyKind.SERVICES, KeyKind.STATES]), name=ids, owner=owners, value=st.binary(max_size=3))
    def break_key(self, kind: KeyKind, name: str, owner: str, value: bytes) -> None:
        self.keys.put_raw(encode_key(ROOT, kind, name, owner), value)

    @rule()
    def receive_events(self) -> None:
        for event in self.keys.events[self.applied :]:
            self.by_events.apply(event)
        self.applied = len(self.keys.events)

    @rule()
    def receive_range(self) -> None:
        self.by_ranges.replace_all(self.keys.range())

    @invariant()
    def all_views_are_equal(self) -> None:
        self.receive_events()
        self.receive_range()
        fresh = RegistryView(ROOT, exact)
        fresh.replace_all(self.keys.range())
        for other in (self.by_ranges, fresh):
            assert other.services() == self.by_events.services()
            assert other.replicas == self.by_events.replicas
            assert other.issues() == self.by_events.issues()
            assert other.ignored == self.by_events.ignored
            for service_id in IDS:
                assert other.reports(service_id) == self.by_events.reports(service_id)
                self.compare_states(other, service_id)
            for service in other.services():
                assert observers(service, other.replicas) == observers(service, self.by_events.replicas)

    def compare_states(self, other: RegistryView, service_id: str) -> None:
        """A range has no record of before the last change of a state, so it may know older evidence only."""
        for mine, known in zip(
            other.observed_by_all(service_id), self.by_events.observed_by_all(service_id), strict=True
        ):
            assert mine._replace(evidence_at_s=None, known_at_s=None) == known._replace(
                evidence_at_s=None, known_at_s=None
            )
            assert mine.evidence_at_s is not None
            assert known.evidence_at_s is not None
            assert mine.evidence_at_s <= known.evidence_at_s < self.keys.revision


TestViews = ViewMachine.TestCase
TestViews.settings = settings(max_examples=15, stateful_step_count=20)
