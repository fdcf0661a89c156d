"""What is kept of nodes over time: states, when they changed, and the last minutes."""

from __future__ import annotations

import pytest

from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import NodeFailedError, UnreachableError
from svcnode.terminal.snapshot import NodeSnapshot
from svcnode.terminal.watch.model import HISTORY_CELLS, Severity, Timeline, UnknownStatus, WatchedNode, WatchModel

WHO = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
GOOD, SOON, BAD, LOST, UNSEEN = Severity.OK, Severity.WARNING, Severity.CRITICAL, Severity.ERROR, Severity.NO_DATA


def services(**statuses: Status | None) -> tuple[BackingService, ...]:
    return tuple(BackingService(id=key, name=key, description="", status=status) for key, status in statuses.items())


def look(
    health: Health | None = Health.HEALTHY, *listed: BackingService, identity: Identity = WHO, url: str = "http://a"
) -> NodeSnapshot:
    return NodeSnapshot(url=url, identity=identity, health=health, services=listed)


def lost(reason: str = "why") -> NodeSnapshot:
    return NodeSnapshot(url="http://a", errors=(UnreachableError(reason),))


def node(*seen: tuple[float, NodeSnapshot]) -> WatchedNode:
    watch = WatchModel(["http://a"], 2.0)
    for at_s, one in seen:
        watch.update(0, one, at_s)
    return watch.nodes[0]


def statuses(seen: WatchedNode) -> dict[str, object]:
    return {service.key.id: service.status for service in seen.services}


# ---- the last minutes


def history(*added: tuple[float, Severity]) -> Timeline:
    made = Timeline(10.0)
    for at_s, level in added:
        made.add(level, at_s)
    return made


def test_a_cell_keeps_the_worst_that_was_seen_in_it() -> None:
    assert history((1, GOOD), (3, BAD), (5, SOON)).last(2, 5) == [UNSEEN, BAD]


def test_the_newest_cell_is_the_last() -> None:
    assert history((5, GOOD), (15, SOON), (25, BAD)).last(4, 25) == [UNSEEN, GOOD, SOON, BAD]


def test_a_time_without_a_look_is_a_gap() -> None:
    assert history((5, GOOD), (35, GOOD)).last(4, 35) == [GOOD, UNSEEN, UNSEEN, GOOD]


def test_a_cell_that_has_just_begun_is_no_gap() -> None:
    made = history((5, GOOD))
    assert made.last(2, 12) == [UNSEEN, GOOD]
    assert made.last(2, 22) == [UNSEEN, UNSEEN]
    assert made.last(3, 22) == [GOOD, UNSEEN, UNSEEN]


def test_what_lasted_fills_all_of_its_cells_and_makes_none_better() -> None:
    made = history((5, BAD))
    made.add(LOST, 38, from_s=12)
    assert made.last(5, 38) == [UNSEEN, BAD, LOST, LOST, LOST]
    made.add(GOOD, 45, from_s=5)
    assert made.last(5, 45) == [BAD, LOST, LOST, LOST, GOOD]


def test_a_history_has_an_end() -> None:
    made = history(*((at_s, GOOD) for at_s in range(0, 10 * HISTORY_CELLS * 3, 5)))
    assert made.last(1000, 10 * HISTORY_CELLS * 3 - 5) == [GOOD] * HISTORY_CELLS
    made.add(LOST, 1e9, from_s=0)
    assert made.last(1000, 1e9) == [LOST] * HISTORY_CELLS
    assert made.last(1000, 2e9) == [UNSEEN] * HISTORY_CELLS
    assert made.last(0, 1e9) == []


def test_cells_are_longer_than_two_intervals() -> None:
    assert WatchModel(["http://a"], 2.0).cell_s == 10
    assert WatchModel(["http://a"], 30.0).cell_s == 60


# ---- since when


def test_what_is_seen_first_is_no_change() -> None:
    seen = node((3, look(Health.PARTIAL, *services(db=Status.DOWN))))
    assert seen.tracker is not None
    assert seen.changed_s is None
    assert not seen.tracker.is_recently_changed(3)
    assert not seen.services[0].tracker.is_recently_changed(3)
    assert seen.tracker.age_s(10) == 7


def test_a_change_is_fresh_for_some_seconds_and_its_age_begins_anew() -> None:
    up, down = services(db=Status.UP), services(db=Status.DOWN)
    seen = node((0, look(Health.HEALTHY, *up)), (60, look(Health.PARTIAL, *down)), (62, look(Health.PARTIAL, *down)))
    for track in (seen.tracker, seen.services[0].tracker):
        assert track is not None
        assert track.changed_s == 60
        assert track.is_recently_changed(65)
        assert not track.is_recently_changed(66)
        assert track.age_s(75) == 15
    assert seen.services_changed_s == 60


def test_a_service_may_change_while_its_node_does_not() -> None:
    seen = node((0, look(Health.HEALTHY, *services(db=Status.UP))), (5, look(Health.HEALTHY, *services(db=None))))
    assert seen.tracker is not None
    assert seen.tracker.changed_s is None
    assert seen.services_changed_s == seen.changed_s == 5


def test_services_that_come_and_go_are_changes() -> None:
    seen = node((0, look(Health.HEALTHY, *services(db=Status.UP))))
    seen.update(look(Health.HEALTHY, *services(db=Status.UP, cache=Status.UP)), 10)
    assert seen.services_changed_s == 10
    assert [service.tracker.changed_s for service in seen.services] == [None, 10]
    seen.update(look(Health.HEALTHY, *services(cache=Status.UP)), 20)
    assert seen.services_changed_s == 20
    assert list(statuses(seen)) == ["cache"]


def test_services_stand_as_the_node_lists_them() -> None:
    seen = node((0, look(Health.HEALTHY, *services(a=Status.UP, b=Status.UP))))
    seen.update(look(Health.HEALTHY, *services(b=Status.UP, a=Status.UP)), 1)
    assert list(statuses(seen)) == ["b", "a"]
    assert seen.services_changed_s is None


def test_an_id_that_stands_twice_is_two_services() -> None:
    twice = services(db=Status.UP) + services(db=Status.DOWN)
    seen = node((0, look(Health.HEALTHY, *twice)), (2, look(Health.HEALTHY, *twice)))
    assert [service.status for service in seen.services] == [Status.UP, Status.DOWN]
    assert seen.services_changed_s is None


def test_another_name_or_version_is_a_change() -> None:
    newer = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.5.0")
    seen = node((0, look()), (9, look(identity=newer)))
    assert seen.identity == newer
    assert seen.changed_s == 9


# ---- a node that is gone


def test_of_a_node_that_is_gone_the_services_are_unknown_and_the_name_is_kept() -> None:
    seen = node((0, look(Health.HEALTHY, *services(db=Status.UP))), (4, lost()))
    assert seen.identity == WHO
    assert statuses(seen) == {"db": UnknownStatus.UNKNOWN}
    assert seen.services[0].tracker.changed_s == 4
    seen.update(look(Health.HEALTHY, *services(db=Status.UP)), 8)
    assert statuses(seen) == {"db": Status.UP}
    assert seen.services[0].tracker.changed_s == 8


def test_services_of_a_node_that_was_gone_at_first_are_no_change() -> None:
    seen = node((0, lost()), (4, look(Health.HEALTHY, *services(db=Status.UP))))
    assert seen.tracker is not None
    assert seen.tracker.changed_s == 4
    assert seen.services[0].tracker.changed_s is None
    assert seen.services_changed_s is None


def test_another_kind_of_error_is_a_change_and_another_text_is_not() -> None:
    seen = node((0, lost("one")), (2, lost("two")))
    assert seen.changed_s is None
    seen.update(NodeSnapshot(url="http://a", errors=(NodeFailedError("why"),)), 4)
    assert seen.changed_s == 4


def test_a_look_that_hung_fills_the_time_that_it_took() -> None:
    watch = WatchModel(["http://a"], 2.0)
    watch.update(0, look(Health.HEALTHY, *services(db=Status.UP)), 5)
    watch.mark_requested(0, 11)
    watch.update(0, lost(), 31)
    seen = watch.nodes[0]
    assert seen.tracker is not None
    for track in (seen.tracker, seen.services[0].tracker):
        assert track.history.last(4, 31) == [GOOD, LOST, LOST, LOST]


def test_a_late_answer_says_nothing_of_the_time_before() -> None:
    watch = WatchModel(["http://a"], 2.0)
    watch.mark_requested(0, 1)
    watch.update(0, look(), 25)
    track = watch.nodes[0].tracker
    assert track is not None
    assert track.history.last(3, 25) == [UNSEEN, UNSEEN, GOOD]


@pytest.mark.parametrize(("interval_s", "at_s", "waited_s"), [(1, 11.9, None), (1, 12, 2), (5, 14, None), (5, 16, 6)])
def test_who_keeps_us_waiting_for_longer_than_it_should_is_told(
    interval_s: float, at_s: float, waited_s: float | None
) -> None:
    watch = WatchModel(["http://a"], interval_s)
    watch.mark_requested(0, 10)
    assert watch.nodes[0].waiting_s(at_s, watch.wait_notice_s) == waited_s
    watch.update(0, look(), at_s)
    assert watch.nodes[0].waiting_s(at_s + 100, watch.wait_notice_s) is None
