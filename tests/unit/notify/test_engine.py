"""Which changes are worth a message, and what goes into one."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.model import Health, Impact, Status
from svcnode.core.state_machine import service_health
from svcnode.notify.flapping import SETTLED_AFTER_S
from svcnode.notify.model import MAX_LISTED_SERVICES, ChangeType, Notification
from svcnode.notify.settings import AlertPolicy
from tests.unit.notify.world import (
    GROUP_S,
    QUIET_S,
    ImpactWord,
    World,
    definition_with_a_new_probe,
    flap,
    item,
    turns,
)

# ---- one message


def test_a_critical_service_that_goes_down_and_the_node_with_it_are_one_message() -> None:
    world = World()
    world.add("db")
    world.down("db", why="connection refused")
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert (news.health, item(news, "db").reason) == (Health.UNHEALTHY, "connection refused")
    assert item(news, "db").before is Health.HEALTHY


def test_it_is_told_when_the_time_for_others_to_join_is_over_and_not_before() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(GROUP_S - 0.1)
    assert not world.told
    world.wait(0.2)
    assert len(world.told) == 1


def test_what_changes_within_that_time_is_told_in_the_same_message() -> None:
    world = World()
    world.add("db", "queue")
    world.down("db")
    world.wait(4)
    world.down("queue")
    world.wait(60)
    assert [set(turns(news)) for news in world.told] == [{None, "db", "queue"}]


def test_what_changes_later_is_told_in_a_message_of_its_own() -> None:
    world = World()
    world.add("db", "queue")
    world.down("db")
    world.wait(6)
    world.down("queue")
    world.wait(60)
    assert [set(turns(news)) for news in world.told] == [{None, "db"}, {"queue"}]


def test_two_thousand_services_that_go_down_at_once_are_one_message() -> None:
    world = World(AlertPolicy(services="all"))
    ids = [f"s{number}" for number in range(2000)]
    world.add(*ids)
    world.down(*ids)
    world.wait(60)
    (news,) = world.told
    assert (len(news.services), news.truncated_services) == (MAX_LISTED_SERVICES, 2000 - MAX_LISTED_SERVICES)
    world.up(*ids)
    world.wait(600)
    assert (len(world.last.services), world.last.truncated_services) == (
        MAX_LISTED_SERVICES,
        2000 - MAX_LISTED_SERVICES,
    )
    assert len(world.told) == 2


def test_the_worst_and_the_critical_services_are_told_first() -> None:
    world = World(AlertPolicy(services="all"))
    world.add("a", "b", "c", "d")
    world.add("e", impact="partial")
    world.add("f", impact="partial")
    world.starting("a")
    world.down("e", "d", "b")
    world.wait(60)
    assert list(turns(world.last)) == [None, "b", "d", "e", "a"]


# ---- which services


def test_a_service_that_is_not_critical_is_told_as_the_cause_of_the_change_of_the_node() -> None:
    world = World()
    world.add("db")
    world.add("cache", impact="partial")
    world.down("cache")
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.WORSE, "cache": ChangeType.WORSE}
    assert news.health is Health.PARTIAL


def test_a_service_that_is_not_critical_and_changes_nothing_for_the_node_is_not_told_by_itself() -> None:
    world = World()
    world.add("a", "b", impact="partial")
    world.add("c", impact="partial")
    world.down("a")
    world.wait(60)
    world.down("b")
    world.wait(3600)
    assert len(world.told) == 1
    world.up("a", "b")
    world.wait(3600)
    assert turns(world.last) == {None: ChangeType.RECOVERED, "a": ChangeType.RECOVERED}, "b was never told as Down"


def test_a_moment_that_was_never_told_does_not_come_up_again_hours_later() -> None:
    world = World()
    world.add("db")
    world.add("cache", impact="none")
    world.add("a", "b", impact="partial")
    world.down("a")
    world.wait(3600)
    world.down("b")
    world.up("b")
    world.wait(3600)
    world.down("db")
    world.wait(60)
    assert set(turns(world.last)) == {None, "db"}


def test_all_services_are_told_by_themselves_when_asked_for() -> None:
    world = World(AlertPolicy(services="all"))
    world.add("a", "b", impact="partial")
    world.add("extra", impact="none")
    world.down("extra")
    world.wait(60)
    assert turns(world.last) == {"extra": ChangeType.WORSE}
    world.down("a")
    world.wait(60)
    world.down("extra", "b")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.WORSE, "b": ChangeType.WORSE}


def test_without_services_only_the_node_causes_a_message_which_names_the_cause() -> None:
    world = World(AlertPolicy(services="none"))
    world.add("db", "queue")
    world.down("db")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    world.down("queue")
    world.wait(3600)
    assert len(world.told) == 1, "the node is as it was told"


def test_what_does_not_count_is_not_told_unless_asked_for() -> None:
    world = World()
    world.add("db")
    world.add("extra", impact="none")
    world.down("extra", "db")
    world.wait(60)
    assert set(turns(world.last)) == {None, "db"}


def test_a_message_names_what_else_is_not_up() -> None:
    world = World()
    world.add("db")
    world.add("cache", impact="partial")
    world.down("cache")
    world.wait(60)
    world.down("db")
    world.wait(60)
    assert [service.id for service in world.last.not_up] == ["cache"]


# ---- the node itself


def test_an_issue_is_told_with_the_node() -> None:
    world = World()
    world.add("db")
    world.node.set_issue("the disk is full")
    world.wait(400)
    assert (turns(world.last), world.last.issues) == ({None: ChangeType.WORSE}, ("the disk is full",))
    world.node.clear_issue()
    world.wait(60)
    assert (turns(world.last), world.last.issues) == ({None: ChangeType.RECOVERED}, ())


# ---- ends


def test_draining_is_no_news() -> None:
    world = World()
    world.add("db")
    world.node.drain()
    world.wait(3600)
    assert world.node.health is Health.UNHEALTHY
    assert not world.told


def test_what_was_held_back_is_told_at_the_end() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.up("db")
    world.stop()
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_nothing_is_told_at_the_end_when_everything_was_told() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.stop()
    flap(world, times=20)
    told = len(world.told)
    world.stop()
    assert len(world.told) == told, "what flaps has not settled"


# ---- services that go


def test_a_service_that_was_told_as_down_and_is_removed_is_told_as_removed() -> None:
    world = World()
    world.add("db", "queue")
    world.down("db")
    world.wait(400)
    world.node.deregister("db")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.REMOVED}
    world.add("db")
    world.wait(3600)
    assert len(world.told) == 2


def test_a_service_that_was_well_or_never_told_is_removed_in_silence() -> None:
    world = World()
    world.add("db", "queue")
    world.node.deregister("db")
    world.down("queue")
    world.node.deregister("queue")
    world.wait(3600)
    assert [turns(news) for news in world.told] == [{None: ChangeType.TRANSIENT}]


# ---- other manners


def test_other_manners_hold_for_what_waits_already() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.add("cache", impact="none")
    world.down("cache")
    world.rules.set_policy(AlertPolicy(services="all"), world.clock.now_s)
    world.wait(GROUP_S)
    assert turns(world.last) == {"cache": ChangeType.WORSE}


# ---- whatever happens


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 2.0, 4.9, 20.0, 70.0, 310.0, 1000.0]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["up", "up", "down", "down", "starting", "remove", "replace", "issue"]),
    ),
    max_size=60,
)
IMPACTS: dict[str, ImpactWord] = {"a": "critical", "b": "critical", "c": "partial", "d": "none"}
ANY_MANNERS = st.builds(
    AlertPolicy,
    services=st.sampled_from(["critical", "all", "none"]),
    group_wait_s=st.sampled_from([0.0, GROUP_S, 60.0]),
    resolve_delay_s=st.sampled_from([0.0, 60.0, QUIET_S, 3600.0]),
)


class Reader:
    """Somebody who believes what the messages say."""

    def __init__(self, told: list[Notification]) -> None:
        self.believed: dict[str | None, Health] = {}
        self.flapping: set[str | None] = set()
        for news in told:
            self._read(news)

    def _read(self, news: Notification) -> None:
        self.believed[None] = news.health
        for one in (*([news.node] if news.node else []), *news.services):
            key = one.service.id if one.service else None
            if one.change_type is ChangeType.FLAPPING:
                self.flapping.add(key)
            else:
                self.flapping.discard(key)
            if one.change_type is ChangeType.REMOVED:
                del self.believed[key]
            elif one.service:
                self.believed[key] = one.health


def play(steps: list[tuple[float, str, str]], manners: AlertPolicy) -> tuple[World, set[str]]:
    """Returns the world, and which services have not been seen but starting."""
    world = World(manners)
    fresh: set[str] = set()
    for wait_s, service_id, action in steps:
        if service_id not in world.node:
            world.add(service_id, impact=IMPACTS[service_id], up=False)
            fresh.add(service_id)
        match action:
            case "up":
                world.up(service_id)
                fresh.discard(service_id)
            case "down":
                world.down(service_id)
                fresh.discard(service_id)
            case "starting":
                world.starting(service_id)
            case "remove":
                world.node.deregister(service_id)
                fresh.discard(service_id)
            case "replace":
                world.node.replace(definition_with_a_new_probe(service_id, IMPACTS[service_id]))
                fresh.add(service_id)
            case _:
                is_set = "full" in world.node.condition.issues
                (world.node.clear_issue if is_set else world.node.set_issue)("full")
        world.wait(wait_s)
    return world, fresh


@settings(max_examples=300, deadline=None)
@given(STEPS, ANY_MANNERS)
def test_when_everything_has_settled_what_was_told_last_is_the_truth(
    steps: list[tuple[float, str, str]], manners: AlertPolicy
) -> None:
    world, fresh = play(steps, manners)
    world.wait(2 * (manners.resolve_delay_s + SETTLED_AFTER_S + manners.group_wait_s))
    reader = Reader(world.told)
    assert world.rules.due_at_s == math.inf
    assert not reader.flapping
    for service, state in world.node:
        has_messages = manners.services == "all" or (
            manners.services == "critical" and service.impact is Impact.CRITICAL
        )
        is_starting = service.id in fresh and state.status is Status.INITIALIZING
        believed = reader.believed.get(service.id, Health.HEALTHY)
        if has_messages and not (is_starting and believed is Health.HEALTHY):
            assert believed is service_health(state.status), service.id
    is_only_starting = not world.node.condition.issues and all(
        state.status is Status.UP or service.impact is Impact.NONE or service.id in fresh
        for service, state in world.node
    )
    believed = reader.believed.get(None, Health.HEALTHY)
    if not (is_only_starting and believed is Health.HEALTHY):
        assert believed is world.node.health


@settings(max_examples=200, deadline=None)
@given(STEPS, ANY_MANNERS)
def test_nobody_hears_of_a_recovery_from_something_they_were_not_told(
    steps: list[tuple[float, str, str]], manners: AlertPolicy
) -> None:
    world, _ = play(steps, manners)
    world.wait(2 * (manners.resolve_delay_s + SETTLED_AFTER_S + manners.group_wait_s))
    for place, news in enumerate(world.told):
        believed = Reader(world.told[:place]).believed
        for service_id, turn in turns(news).items():
            if turn is ChangeType.RECOVERED:
                assert believed[service_id] > Health.HEALTHY
        assert turns(news), "an empty message"


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_one_thing_is_told_three_times_in_a_quiet_period_at_most(steps: list[tuple[float, str, str]]) -> None:
    """Bad news, good news that have waited, and that it flaps."""
    only_db = [(wait_s, "a", action) for wait_s, _, action in steps if action in ("up", "down")]
    world, _ = play(only_db, AlertPolicy(resolve_delay_s=QUIET_S))
    times_s = [news.at_s for news in world.told]
    assert all(later - earlier >= GROUP_S for earlier, later in pairwise(times_s))
    for place, at_s in enumerate(times_s):
        within = [other for other in times_s[place:] if other - at_s < QUIET_S]
        assert len(within) <= 3
