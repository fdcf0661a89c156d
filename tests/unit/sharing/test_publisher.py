"""What a replica writes, and what it writes again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcnode.core.model import Evidence, Status, Verdict
from svcnode.net.etcd_json import Delete, Put
from svcnode.sharing.format import EvidenceDocument, KeyKind, ReplicaDocument, Written, decode_age_s
from svcnode.sharing.publisher import Publisher, Write
from svcnode.sharing.shared_services import SharedServices
from svcnode.sharing.view import RegistryView
from tests.support.nodes import make_node
from tests.support.registry_keys import ROOT, RegistryKeys
from tests.support.replica_simulation import definition
from tests.support.virtual_time import VirtualClock, run_in_virtual_time

CHECKED: dict[str, Any] = {"probe": "tcp://a:1", "interval": "2s", "stale_after": "10s", "start_period": "0s"}
IDENTITY = ReplicaDocument("1", "", "test")
LEASE_ID = 7


class Harness:
    """The publisher of the replica `me`, and the keys that it writes."""

    def __init__(self) -> None:
        self.clock = VirtualClock(100.0)
        self.node = make_node("n", version="v1", clock=self.clock)
        self.keys = RegistryKeys()
        self.view = RegistryView(ROOT, lambda _: self.clock() - 1)
        self.services = SharedServices(self.node, self.view, "me", default_observers=1, on_change=lambda: None)
        self.publisher = Publisher(ROOT, "me", IDENTITY, self.services)

    def take(self, *, with_evidence: bool = False) -> list[Write]:
        written = Written(self.keys.revision, 0.0)
        return self.publisher.take_writes(self.clock(), LEASE_ID, written, with_evidence=with_evidence)

    def apply(self, write: Write) -> None:
        """As etcd does."""
        if isinstance(write.operation, Put):
            self.keys.put_raw(write.operation.key, write.operation.value)
        else:
            self.keys.delete(write.operation.key)

    def publish(self, *, with_evidence: bool = False) -> list[str]:
        """The keys that are written, and come back in the view."""
        writes = self.take(with_evidence=with_evidence)
        for write in writes:
            self.apply(write)
            self.publisher.commit(write)
        self.receive()
        return [_name(write) for write in writes]

    def receive(self) -> None:
        for event in self.keys.events:
            self.view.apply(event)
        changes = self.view.take_changes()
        self.publisher.check(self.view, changes)
        run_in_virtual_time(self.services.update(changes))

    def compare(self) -> None:
        self.view.replace_all(self.keys.range())
        self.publisher.compare(self.view)

    def add(self, service_id: str, **options: Any) -> None:
        self.services.add(definition(service_id, options or CHECKED))

    def record(self, verdict: Verdict, *ids: str) -> None:
        self.services.record(dict.fromkeys(ids or ("db",), Evidence(verdict, self.clock())))


def _name(write: Write) -> str:
    name = write.operation.key.removeprefix(ROOT)
    return f"-{name}" if isinstance(write.operation, Delete) else name


READY, NOT_READY = Verdict.ready(), Verdict.not_ready("loading")


@pytest.fixture
def replica() -> Harness:
    replica = Harness()
    replica.compare()
    return replica


def test_a_replica_writes_its_services_in_their_order_and_joins_with_its_evidence(replica: Harness) -> None:
    replica.add("web")
    replica.add("db")
    replica.record(READY)
    writes = replica.take(with_evidence=True)
    assert [_name(write) for write in writes] == [
        "services/web/replica%3Ame",
        "services/db/replica%3Ame",
        "states/me/db",
        "replicas/me",
        "evidence/me",
    ]
    leases = [write.operation.lease_id for write in writes if isinstance(write.operation, Put)]
    assert leases == [0, 0, LEASE_ID, LEASE_ID, LEASE_ID]  # services outlive the replica


def test_a_change_is_written_once(replica: Harness) -> None:
    replica.add("db")
    replica.publish()
    assert replica.publish() == []
    replica.record(READY)
    assert replica.publish() == ["states/me/db"]
    replica.clock.advance(1)
    replica.record(READY)
    assert replica.publish() == []
    replica.record(NOT_READY)
    assert replica.publish() == ["states/me/db"]
    replica.services.deregister("db")
    assert replica.publish() == ["-services/db/replica%3Ame", "-states/me/db"]


def test_ages_are_rounded_up_to_milliseconds(replica: Harness) -> None:
    replica.add("db")
    replica.record(READY)
    replica.clock.advance(0.12345)
    state = json.loads(
        next(
            write.operation.value
            for write in replica.take()
            if isinstance(write.operation, Put) and write.kind is KeyKind.STATES
        )
    )
    assert (state["age_s"], state["since_age_s"]) == (0.124, 0.124)


def test_the_record_of_evidence_is_about_the_states_in_the_registry(replica: Harness) -> None:
    for service_id in ("b", "a", "c"):
        replica.add(service_id)
    replica.record(READY, "a", "b")
    replica.publish()
    replica.clock.advance(4)
    replica.record(READY, "b")
    replica.record(READY, "c")
    *_, write = replica.take(with_evidence=True)
    assert isinstance(write.document, EvidenceDocument)
    ages_s = [decode_age_s(age) or 0.0 for age in write.document.ages]
    assert ages_s == [pytest.approx(4, rel=0.1), 0.0, 0.0]
    assert ages_s[0] >= 4
    replica.publisher.put_back([write])
    replica.receive()
    assert replica.view.unmatched_records == 0


def test_what_is_not_committed_is_written_again(replica: Harness) -> None:
    replica.add("db")
    replica.record(READY)
    replica.publisher.set_issues(["disk"])
    writes = replica.take()
    assert len(writes) == 4
    replica.publisher.put_back(writes)
    assert replica.take() == writes


def test_after_the_lease_all_states_are_written_again(replica: Harness) -> None:
    replica.add("db")
    replica.record(READY)
    replica.publish()
    replica.publisher.leave()
    assert replica.publish() == ["states/me/db", "replicas/me"]


def test_a_write_that_etcd_receives_late_is_corrected(replica: Harness) -> None:
    replica.add("db")
    replica.record(READY)
    late = replica.take()
    replica.publisher.put_back(late)
    replica.record(NOT_READY)
    replica.services.replace(definition("db", {**CHECKED, "name": "new"}))
    replica.publish()
    for write in late:
        replica.apply(write)
    replica.receive()
    assert replica.publish() == ["services/db/replica%3Ame", "states/me/db"]
    assert replica.view.observed_statuses("me") == {"db": Status.INITIALIZING}
    assert replica.publish() == []


def test_a_write_without_a_response_is_deleted_when_it_is_no_longer_true(replica: Harness) -> None:
    replica.add("db")
    replica.publish()
    replica.record(READY)
    unconfirmed = replica.take()
    for write in unconfirmed:
        replica.apply(write)
    replica.publisher.put_back(unconfirmed)
    replica.services.deregister("db")
    replica.publish()
    assert replica.publish() in ([], ["-states/me/db"])
    replica.compare()
    replica.publish()
    assert replica.view.observed_statuses("me") == {}
    assert replica.view.services() == ()


def test_a_range_shows_what_is_missing_and_what_is_too_much(replica: Harness) -> None:
    replica.add("db")
    replica.record(READY)
    replica.publish()
    replica.keys.leave("me")
    replica.keys.define("gone", "replica:me")
    replica.keys.delete_key(KeyKind.SERVICES, "db", "replica:me")
    replica.compare()
    assert set(replica.publish()) == {
        "replicas/me",
        "-services/gone/replica%3Ame",
        "services/db/replica%3Ame",
        "states/me/db",
    }


def test_a_document_of_a_newer_version_is_neither_changed_nor_deleted(replica: Harness) -> None:
    for service_id in ("db", "web"):
        replica.keys.put(KeyKind.SERVICES, (service_id, "replica:me"), {"version": 2})
    replica.compare()
    replica.add("db")
    assert replica.publish() == ["replicas/me"]


def test_issues_are_written_and_deleted(replica: Harness) -> None:
    assert replica.publisher.set_issues(["disk: full", "x" * 300])
    assert not replica.publisher.set_issues(["disk: full", "x" * 300])
    replica.publish()
    assert [(issue.name, issue.reason) for issue in replica.view.issues()] == [
        ("disk: full", ""),
        ("x" * 256, "x" * 300),
    ]
    replica.publisher.set_issues([])
    replica.publish()
    assert replica.view.issues() == ()
