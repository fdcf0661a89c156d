"""States of nodes over time: changes and timelines."""

from __future__ import annotations

import pytest

from svcnode.cli.terminal.snapshot import NodeSnapshot
from svcnode.cli.terminal.watch.model import (
    HISTORY_CELLS,
    Severity,
    Timeline,
    UnreachableStatus,
    WatchedNode,
    WatchModel,
    is_recently_changed,
)
from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import NodeFailedError, UnreachableError

IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
OK, WARNING, CRITICAL, ERROR, NO_DATA = (
    Severity.OK,
    Severity.WARNING,
    Severity.CRITICAL,
    Severity.ERROR,
    Severity.NO_DATA,
)


def services(**statuses: Status | None) -> tuple[BackingService, ...]:
    return tuple(BackingService(id=key, name=key, description="", status=status) for key, status in statuses.items())


def snapshot(
    health: Health | None = Health.HEALTHY,
    *listed: BackingService,
    identity: Identity = IDENTITY,
    url: str = "http://a",
) -> NodeSnapshot:
    return NodeSnapshot(url=url, identity=identity, health=health, services=listed)


def unreachable(reason: str = "why") -> NodeSnapshot:
    return NodeSnapshot(url="http://a", errors=(UnreachableError(reason),))


def node(*watched: tuple[float, NodeSnapshot]) -> WatchedNode:
    model = WatchModel(["http://a"], 2.0)
    for at_s, snapshot_ in watched:
        model.nodes[0].update(snapshot_, at_s)
    return model.nodes[0]


def statuses(watched: WatchedNode) -> dict[str, object]:
    return {service.key.id: service.status for service in watched.services}


def timeline(*added: tuple[float, Severity]) -> Timeline:
    made = Timeline(10.0)
    for at_s, severity in added:
        made.add(severity, at_s)
    return made


@pytest.mark.parametrize(
    ("added", "now_s", "cells"),
    [
        ([(1, OK), (3, CRITICAL), (5, WARNING)], 5, [NO_DATA, CRITICAL]),
        ([(5, OK), (15, WARNING), (25, CRITICAL)], 25, [NO_DATA, OK, WARNING, CRITICAL]),
        ([(5, OK), (35, OK)], 35, [OK, NO_DATA, NO_DATA, OK]),
        ([(5, OK)], 12, [NO_DATA, OK]),
        ([(5, OK)], 22, [OK, NO_DATA, NO_DATA]),
    ],
    ids=["the worst of a period", "newest last", "a gap", "a new cell is not a gap", "an old one is"],
)
def test_a_timeline_has_cells(added: list[tuple[float, Severity]], now_s: float, cells: list[Severity]) -> None:
    assert timeline(*added).last(len(cells), now_s) == cells


def test_a_period_fills_all_of_its_cells_and_improves_none() -> None:
    made = timeline((5, CRITICAL))
    made.add(ERROR, 38, from_s=12)
    assert made.last(5, 38) == [NO_DATA, CRITICAL, ERROR, ERROR, ERROR]
    made.add(OK, 45, from_s=5)
    assert made.last(5, 45) == [CRITICAL, ERROR, ERROR, ERROR, OK]


def test_a_timeline_has_a_limited_length_of_cells_that_are_longer_than_two_intervals() -> None:
    made = timeline(*((at_s, OK) for at_s in range(0, 10 * HISTORY_CELLS * 3, 5)))
    assert made.last(1000, 10 * HISTORY_CELLS * 3 - 5) == [OK] * HISTORY_CELLS
    made.add(ERROR, 1e9, from_s=0)
    assert made.last(1000, 1e9) == [ERROR] * HISTORY_CELLS
    assert made.last(1000, 2e9) == [NO_DATA] * HISTORY_CELLS
    assert made.last(0, 1e9) == []
    assert [WatchModel(["http://a"], interval_s).cell_s for interval_s in (2.0, 30.0)] == [10, 60]


def test_the_first_snapshot_is_not_a_change_nor_is_another_order_of_services() -> None:
    first = services(a=Status.UP, b=Status.DOWN) + services(a=Status.DOWN)  # one id twice
    watched = node((3, snapshot(Health.PARTIAL, *first)), (5, snapshot(Health.PARTIAL, *reversed(first[:2]), first[2])))
    assert [(service.key.id, service.status) for service in watched.services] == [
        ("b", Status.DOWN),
        ("a", Status.UP),
        ("a", Status.DOWN),
    ]
    assert watched.tracker is not None
    assert watched.changed_s is watched.services_changed_s is None
    assert not is_recently_changed(watched.tracker.changed_s, 3)
    assert not is_recently_changed(watched.services[0].tracker.changed_s, 3)
    assert watched.tracker.age_s(10) == 7


def test_a_change_is_recent_for_some_seconds_and_resets_the_age() -> None:
    up, down = services(db=Status.UP), services(db=Status.DOWN)
    watched = node(
        (0, snapshot(Health.HEALTHY, *up)), (60, snapshot(Health.PARTIAL, *down)), (62, snapshot(Health.PARTIAL, *down))
    )
    for tracker in (watched.tracker, watched.services[0].tracker):
        assert tracker is not None
        assert tracker.changed_s == 60
        assert is_recently_changed(tracker.changed_s, 65)
        assert not is_recently_changed(tracker.changed_s, 66)
        assert tracker.age_s(75) == 15
    assert watched.services_changed_s == 60


def test_a_service_that_changes_is_added_or_removed_is_a_change_while_its_node_does_not_change() -> None:
    watched = node((0, snapshot(Health.HEALTHY, *services(db=Status.UP))))
    watched.update(snapshot(Health.HEALTHY, *services(db=None)), 5)
    assert watched.tracker is not None
    assert watched.tracker.changed_s is None
    assert watched.services_changed_s == watched.changed_s == 5
    watched.update(snapshot(Health.HEALTHY, *services(db=None, cache=Status.UP)), 10)
    assert watched.services_changed_s == 10
    assert [service.tracker.changed_s for service in watched.services] == [5, 10]
    watched.update(snapshot(Health.HEALTHY, *services(cache=Status.UP)), 20)
    assert watched.services_changed_s == 20
    assert list(statuses(watched)) == ["cache"]


def test_an_unreachable_node_keeps_its_name_and_its_services_are_unknown() -> None:
    watched = node((0, snapshot(Health.HEALTHY, *services(db=Status.UP))), (4, unreachable()))
    assert watched.identity == IDENTITY
    assert statuses(watched) == {"db": UnreachableStatus.UNKNOWN}
    assert watched.services[0].tracker.changed_s == 4
    watched.update(snapshot(Health.HEALTHY, *services(db=Status.UP)), 8)
    assert statuses(watched) == {"db": Status.UP}
    assert watched.services[0].tracker.changed_s == 8


def test_the_first_services_of_a_node_are_not_a_change() -> None:
    watched = node((0, unreachable()), (4, snapshot(Health.HEALTHY, *services(db=Status.UP))))
    assert watched.tracker is not None
    assert watched.tracker.changed_s == 4
    assert watched.services[0].tracker.changed_s is None
    assert watched.services_changed_s is None


def test_another_version_or_type_of_error_is_a_change_and_another_text_is_not() -> None:
    newer = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.5.0")
    watched = node((0, snapshot()), (9, snapshot(identity=newer)))
    assert (watched.identity, watched.changed_s) == (newer, 9)
    watched = node((0, unreachable("one")), (2, unreachable("two")))
    assert watched.changed_s is None
    watched.update(NodeSnapshot(url="http://a", errors=(NodeFailedError("why"),)), 4)
    assert watched.changed_s == 4


def test_a_request_that_failed_fills_the_time_it_took_and_a_late_response_does_not() -> None:
    watched = node((5, snapshot(Health.HEALTHY, *services(db=Status.UP))))
    watched.requested_s = 11
    watched.update(unreachable(), 31)
    assert watched.tracker is not None
    for tracker in (watched.tracker, watched.services[0].tracker):
        assert tracker.timeline.last(4, 31) == [OK, ERROR, ERROR, ERROR]
    late = node()
    late.requested_s = 1
    late.update(snapshot(), 25)
    assert late.tracker is not None
    assert late.tracker.timeline.last(3, 25) == [NO_DATA, NO_DATA, OK]


@pytest.mark.parametrize(("interval_s", "at_s", "waited_s"), [(1, 11.9, None), (1, 12, 2), (5, 14, None), (5, 16, 6)])
def test_a_request_that_is_pending_for_too_long_has_an_age(
    interval_s: float, at_s: float, waited_s: float | None
) -> None:
    model = WatchModel(["http://a"], interval_s)
    model.nodes[0].requested_s = 10
    assert model.nodes[0].waiting_s(at_s, model.wait_notice_s) == waited_s
    model.nodes[0].update(snapshot(), at_s)
    assert model.nodes[0].waiting_s(at_s + 100, model.wait_notice_s) is None
