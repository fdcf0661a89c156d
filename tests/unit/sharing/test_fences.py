from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import RegistryRestoredError
from svcnode.net.etcd_json import Header
from svcnode.sharing.fences import MAX_FENCES, Fences

CLUSTER = 7


def add(
    fences: Fences, sent_at_s: float, revision: int, *, received_at_s: float = 0.0, cluster_id: int = CLUSTER
) -> None:
    header = Header(cluster_id=cluster_id, member_id=1, revision=revision, raft_term=2)
    fences.add(header, sent_at_s=sent_at_s, received_at_s=received_at_s or sent_at_s)


class Request(NamedTuple):
    """Sent, executed by the cluster and received, in the order of these times."""

    sent_at_s: int
    executed_at_s: int
    received_at_s: int

    def revision(self, writes: list[int]) -> int:
        return sum(written_at_s <= self.executed_at_s for written_at_s in writes)


times = st.integers(0, 40)
requests = st.builds(lambda moments: Request(*sorted(moments)), st.tuples(times, times, times))


@given(st.lists(times, max_size=30).map(sorted), st.lists(requests, max_size=30))
def test_a_key_is_never_dated_later_than_it_was_written(writes: list[int], sent: list[Request]) -> None:
    """Writes of revision 1, 2, …; responses arrive in any order that a linearizable store allows."""
    fences = Fences()
    for request in sorted(sent, key=lambda request: request.received_at_s):
        add(fences, request.sent_at_s, request.revision(writes), received_at_s=request.received_at_s)
    for revision, written_at_s in enumerate(writes, 1):
        known = [request.sent_at_s for request in sent if request.revision(writes) < revision]
        assert fences.written_after_s(revision) == max(known, default=None)
        assert all(sent_at_s <= written_at_s for sent_at_s in known)


def test_only_the_last_fences_are_kept() -> None:
    fences = Fences()
    for revision in range(1, MAX_FENCES + 11):
        add(fences, float(revision), revision)
    assert fences.written_after_s(11) is None
    assert fences.written_after_s(12) == 11.0


def test_a_revision_that_goes_back_is_reported_once() -> None:
    fences = Fences()
    add(fences, 10.0, 5)
    add(fences, 11.0, 8)
    with pytest.raises(RegistryRestoredError):
        add(fences, 12.0, 6)
    assert fences.written_after_s(6) is None
    add(fences, 13.0, 7)
    assert fences.written_after_s(7) == 12.0


def test_another_cluster_is_reported_once() -> None:
    fences = Fences()
    add(fences, 10.0, 5)
    with pytest.raises(RegistryRestoredError):
        add(fences, 11.0, 9, cluster_id=8)
    add(fences, 12.0, 9, cluster_id=8)
    assert fences.written_after_s(10) == 12.0


def test_responses_that_overtake_each_other_are_not_a_revision_that_goes_back() -> None:
    fences = Fences()
    add(fences, 10.0, 8, received_at_s=12.0)
    add(fences, 11.0, 7, received_at_s=13.0)
    assert fences.written_after_s(8) == 11.0


def test_a_late_response_from_before_the_restore_is_ignored() -> None:
    fences = Fences()
    add(fences, 10.0, 8)
    with pytest.raises(RegistryRestoredError):
        add(fences, 12.0, 6)
    add(fences, 11.0, 9, received_at_s=13.0)
    add(fences, 14.0, 7)
    assert fences.written_after_s(7) == 12.0


@pytest.mark.parametrize(("cluster_id", "revision"), [(CLUSTER, 6), (CLUSTER + 1, 9)])
def test_a_restore_since_an_earlier_process_is_noticed_once(cluster_id: int, revision: int) -> None:
    fences = Fences()
    fences.expect(CLUSTER, 7)
    with pytest.raises(RegistryRestoredError):
        add(fences, 1, revision, cluster_id=cluster_id)
    add(fences, 2, revision, cluster_id=cluster_id)


def test_what_an_earlier_process_has_read_dates_nothing() -> None:
    fences = Fences()
    fences.expect(CLUSTER, 7)
    assert fences.written_after_s(8) is None
    add(fences, 1, 8)
    assert (fences.written_after_s(8), fences.written_after_s(9)) == (None, 1)


def test_what_was_requested_before_dates_nothing_of_other_data() -> None:
    fences = Fences()
    add(fences, 1, 5)
    fences.forget(10)
    add(fences, 9, 6, received_at_s=11)
    assert fences.written_after_s(8) is None
    add(fences, 12, 3)
    assert fences.written_after_s(4) == 12
