"""When people are told, and what: a real node, hours in milliseconds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.model import Health, Impact, Service, Status
from svcnode.core.rules import service_health
from svcnode.definition import define
from svcnode.node import Node
from svcnode.notify.rules import (
    FLAPPING_AFTER,
    MAX_INCIDENTS,
    SETTLED_AFTER_S,
    TOLD_ONE_BY_ONE,
    Incident,
    Item,
    Manners,
    News,
    Rules,
    Turn,
)
from svcnode.probes.function import FunctionProbe
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Change
    from svcnode.definition import Definition

ImpactWord = Literal["critical", "partial", "none"]

GROUP_S, QUIET_S = 5.0, 300.0
MANNERS = Manners(group_within_s=GROUP_S, quiet_s=QUIET_S)


class World:
    """A node whose services are set by hand, and everything that was told about it."""

    def __init__(self, manners: Manners = MANNERS, *, is_starting: bool = False) -> None:
        self.clock = VirtualClock(1000.0)
        self.node = Node("validator-7", version="v1.4.2", starting=is_starting, clock=self.clock)
        self.rules = Rules(manners, self.clock.now_s)
        self.rules.begin(self.node, self.node.health, (), self.clock.now_s)
        self.told: list[News] = []
        self.node.subscribe(self._heard)

    def _heard(self, change: Change) -> None:
        found = None if change.service_id is None else self.node.find(change.service_id)
        self.rules.note(change, None if found is None else found[0], self.node.condition.issues)

    def add(self, *service_ids: str, impact: ImpactWord = "critical", up: bool = True) -> None:
        for service_id in service_ids:
            handle = self.node.register(service_id, name=service_id, description="", impact=impact)
            if up:
                handle.up()

    def up(self, *service_ids: str) -> None:
        for service_id in service_ids:
            self.node.handle(service_id).up()

    def down(self, *service_ids: str, why: str = "refused") -> None:
        for service_id in service_ids:
            self.node.handle(service_id).down(why)

    def starting(self, service_id: str, why: str = "loading") -> None:
        self.node.handle(service_id).initializing(why)

    def wait(self, seconds: float) -> None:
        end_s = self.clock.now_s + seconds
        while (next_s := min(self.rules.due_at_s, self.node.next_lapse_at_s)) <= end_s:
            self.clock.now_s = max(self.clock.now_s, next_s)
            self.node.settle()
            self._keep(self.rules.take(self.clock.now_s))
        self.clock.now_s = end_s

    def stop(self) -> None:
        self._keep(self.rules.take_all(self.clock.now_s))

    def _keep(self, news: News | None) -> None:
        if news is not None:
            self.told.append(news)

    @property
    def last(self) -> News:
        return self.told[-1]


def turns(news: News) -> dict[str | None, Turn]:
    """What a message says, by id; the node is None."""
    items = (*([news.node] if news.node else []), *news.services)
    return {item.service.id if item.service else None: item.turn for item in items}


def item(news: News, service_id: str) -> Item:
    (found,) = (one for one in news.services if one.service and one.service.id == service_id)
    return found


# ---- one message


def test_a_critical_service_that_goes_down_and_the_node_with_it_are_one_message() -> None:
    world = World()
    world.add("db")
    world.down("db", why="connection refused")
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {None: Turn.WORSE, "db": Turn.WORSE}
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
    world = World(Manners(services="all"))
    ids = [f"s{number}" for number in range(2000)]
    world.add(*ids)
    world.down(*ids)
    world.wait(60)
    (news,) = world.told
    assert (len(news.services), news.more_services) == (TOLD_ONE_BY_ONE, 2000 - TOLD_ONE_BY_ONE)
    world.up(*ids)
    world.wait(600)
    assert (len(world.last.services), world.last.more_services) == (TOLD_ONE_BY_ONE, 2000 - TOLD_ONE_BY_ONE)
    assert len(world.told) == 2


def test_the_worst_and_the_critical_services_are_told_first() -> None:
    world = World(Manners(services="all"))
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
    assert turns(news) == {None: Turn.WORSE, "cache": Turn.WORSE}
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
    assert turns(world.last) == {None: Turn.RECOVERED, "a": Turn.RECOVERED}, "b was never told as Down"


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
    world = World(Manners(services="all"))
    world.add("a", "b", impact="partial")
    world.add("extra", impact="none")
    world.down("extra")
    world.wait(60)
    assert turns(world.last) == {"extra": Turn.WORSE}
    world.down("a")
    world.wait(60)
    world.down("extra", "b")
    world.wait(60)
    assert turns(world.last) == {None: Turn.WORSE, "b": Turn.WORSE}


def test_without_services_only_the_node_causes_a_message_which_names_the_cause() -> None:
    world = World(Manners(services="none"))
    world.add("db", "queue")
    world.down("db")
    world.wait(60)
    assert turns(world.last) == {None: Turn.WORSE, "db": Turn.WORSE}
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


# ---- recovery


def test_recovered_says_how_long_it_lasted() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(400)
    world.up("db")
    world.wait(60)
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}
    assert item(world.last, "db").lasted_s == 400
    assert world.last.node
    assert world.last.node.lasted_s == 400


def test_how_long_it_lasted_is_counted_from_the_first_step_down() -> None:
    world = World()
    world.add("db")
    world.starting("db")
    world.wait(100)
    world.down("db")
    world.wait(400)
    world.starting("db")
    world.wait(400)
    world.up("db")
    world.wait(400)
    assert [turns(news)["db"] for news in world.told] == [Turn.WORSE, Turn.WORSE, Turn.BETTER, Turn.RECOVERED]
    assert item(world.last, "db").lasted_s == 900
    assert item(world.last, "db").changes == 4


def test_trouble_that_is_over_before_it_was_told_is_told_as_over() -> None:
    world = World()
    world.add("db")
    world.down("db", why="reset")
    world.wait(2)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: Turn.PASSED, "db": Turn.PASSED}
    told = item(news, "db")
    assert (told.health, told.worst, told.lasted_s, told.reason) == (Health.HEALTHY, Health.UNHEALTHY, 2, "reset")


def test_a_service_that_is_not_critical_is_named_when_its_moment_was_one_of_the_node() -> None:
    world = World()
    world.add("db")
    world.add("cache", impact="partial")
    world.down("cache")
    world.wait(2)
    world.up("cache")
    world.wait(60)
    assert turns(world.last) == {None: Turn.PASSED, "cache": Turn.PASSED}


# ---- quiet


def test_good_news_wait_until_the_quiet_period_is_over() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.up("db")
    world.wait(QUIET_S - 60 + GROUP_S - 1)
    assert len(world.told) == 1
    world.wait(2)
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}
    assert item(world.last, "db").lasted_s == 60


def test_nothing_is_told_at_the_end_of_the_quiet_period_when_all_is_as_it_was_told() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.up("db")
    world.wait(60)
    world.down("db")
    world.wait(3600)
    assert len(world.told) == 1
    world.up("db")
    world.wait(60)
    assert item(world.last, "db").changes == 4, "what was in between is not hidden"


def test_bad_news_do_not_wait_for_people_who_were_told_that_all_is_well() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.up("db")
    world.wait(300)
    assert turns(world.last)["db"] is Turn.RECOVERED
    world.down("db")
    world.wait(GROUP_S)
    assert turns(world.last) == {None: Turn.WORSE, "db": Turn.WORSE}


def test_a_node_that_gets_worse_still_is_told_in_the_quiet_period() -> None:
    world = World()
    world.add("a", "b", impact="partial")
    world.down("a")
    world.wait(10)
    world.down("b")
    world.wait(10)
    assert [news.health for news in world.told] == [Health.PARTIAL, Health.UNHEALTHY]


def test_a_moment_within_the_quiet_period_is_not_told() -> None:
    world = World()
    world.add("db")
    for _ in range(3):
        world.down("db")
        world.wait(2)
        world.up("db")
        world.wait(60)
    assert len(world.told) == 1


def test_a_message_takes_along_what_was_held_back() -> None:
    world = World()
    world.add("db", "queue")
    world.down("db")
    world.wait(60)
    world.up("db")
    world.wait(60)
    world.down("queue")
    world.wait(GROUP_S)
    assert turns(world.last) == {"db": Turn.RECOVERED, "queue": Turn.WORSE}
    world.wait(3600)
    assert len(world.told) == 2


def test_without_a_quiet_period_every_change_is_told() -> None:
    world = World(Manners(quiet_s=0))
    world.add("db")
    for _ in range(2):
        world.down("db")
        world.wait(10)
        world.up("db")
        world.wait(10)
    assert [turns(news)["db"] for news in world.told] == [Turn.WORSE, Turn.RECOVERED] * 2


# ---- flapping


def flap(world: World, *, times: int, every_s: float = 30.0) -> None:
    for _ in range(times):
        world.down("db")
        world.wait(every_s)
        world.up("db")
        world.wait(every_s)


def test_what_flaps_is_told_once_as_flapping_and_once_when_it_has_settled() -> None:
    world = World()
    world.add("db")
    flap(world, times=100)
    world.wait(3600)
    assert [turns(news)["db"] for news in world.told] == [Turn.WORSE, Turn.FLAPPING, Turn.SETTLED]
    assert [turns(news)[None] for news in world.told] == [Turn.WORSE, Turn.FLAPPING, Turn.SETTLED]
    assert item(world.told[1], "db").changes == FLAPPING_AFTER
    assert item(world.last, "db").changes == 200
    assert item(world.last, "db").health is Health.HEALTHY
    assert item(world.last, "db").lasted_s == pytest.approx(SETTLED_AFTER_S)


def test_what_settles_down_is_told_to_be_down() -> None:
    world = World()
    world.add("db")
    flap(world, times=20)
    world.down("db")
    world.wait(3600)
    assert turns(world.last) == {None: Turn.SETTLED, "db": Turn.SETTLED}
    assert item(world.last, "db").health is Health.UNHEALTHY
    world.up("db")
    world.wait(60)
    assert turns(world.last)["db"] is Turn.RECOVERED


def test_other_services_are_told_while_one_flaps() -> None:
    world = World()
    world.add("db", "queue")
    flap(world, times=20)
    before = len(world.told)
    world.down("queue")
    world.wait(GROUP_S)
    assert turns(world.told[before]) == {"queue": Turn.WORSE}
    assert world.last.health is Health.UNHEALTHY


def test_slow_changes_are_not_flapping() -> None:
    world = World()
    world.add("db")
    flap(world, times=20, every_s=130)
    world.wait(3600)
    assert not {turn for news in world.told for turn in turns(news).values()} & {Turn.FLAPPING, Turn.SETTLED}


def test_a_node_that_falls_and_rises_in_steps_does_not_flap() -> None:
    world = World()
    ids = [f"s{number}" for number in range(10)]
    world.add(*ids, impact="partial")
    for _ in range(2):
        world.down(*ids)
        world.wait(120)
        world.up(*ids)
        world.wait(120)
    world.wait(3600)
    assert Turn.FLAPPING not in {turns(news).get(None) for news in world.told}


# ---- starts and ends


def test_a_start_is_no_news() -> None:
    world = World(is_starting=True)
    world.add("db", up=False)
    world.wait(20)
    world.starting("db")
    world.wait(600)
    world.node.started()
    world.up("db")
    world.wait(3600)
    assert not world.told


def test_a_service_that_never_came_up_and_is_down_is_news() -> None:
    world = World()
    world.add("db", up=False)
    world.wait(40)
    world.down("db")
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {None: Turn.WORSE, "db": Turn.WORSE}
    assert item(news, "db").before is None


def test_what_is_down_when_we_begin_is_news() -> None:
    world = World()
    world.add("db")
    world.down("db")
    rules = Rules(MANNERS, world.clock.now_s)
    rules.begin(world.node, world.node.health, (), world.clock.now_s)
    news = rules.take(world.clock.now_s + GROUP_S)
    assert news
    assert turns(news) == {None: Turn.WORSE, "db": Turn.WORSE}


def test_a_service_that_is_added_while_the_node_runs_is_no_news_until_it_is_down() -> None:
    world = World()
    world.add("db")
    world.add("new", up=False)
    assert world.node.health is Health.PARTIAL
    world.wait(60)
    assert not world.told
    world.down("new")
    world.wait(60)
    assert turns(world.last) == {None: Turn.WORSE, "new": Turn.WORSE}


def test_another_probe_for_a_service_is_no_news() -> None:
    world = World()
    world.add("db")
    node = world.node
    for _ in range(10):
        node.replace(_definition_with_a_new_probe("db"))
        assert node.health is Health.PARTIAL
        world.wait(10)
        node.handle("db").up()
        world.wait(10)
    assert not world.told


def test_another_probe_for_a_service_that_was_told_as_down_does_not_hide_that_it_recovers() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(400)
    world.node.replace(_definition_with_a_new_probe("db"))
    world.up("db")
    world.wait(400)
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}


def test_a_start_that_a_message_spoke_of_is_told_when_it_is_over() -> None:
    world = World()
    world.add("db")
    world.add("new", impact="partial", up=False)
    world.starting("db")
    world.wait(60)
    assert world.last.health is Health.PARTIAL
    world.up("db")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({"db": Turn.RECOVERED}, Health.PARTIAL)
    world.up("new")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({None: Turn.RECOVERED}, Health.HEALTHY)


def test_a_start_that_a_message_about_something_else_spoke_of_is_told_when_it_is_over() -> None:
    world = World(Manners(services="all"))
    world.add("extra", impact="none")
    world.add("new", up=False)
    world.wait(60)
    world.down("extra")
    world.wait(60)
    assert (turns(world.last), world.last.health) == ({"extra": Turn.WORSE}, Health.PARTIAL)
    world.up("new")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({None: Turn.RECOVERED}, Health.HEALTHY)
    assert world.last.node
    assert world.last.node.lasted_s == 120


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
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}


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


# ---- the node itself


def test_an_issue_is_told_with_the_node() -> None:
    world = World()
    world.add("db")
    world.node.set_issue("the disk is full")
    world.wait(400)
    assert (turns(world.last), world.last.issues) == ({None: Turn.WORSE}, ("the disk is full",))
    world.node.clear_issue()
    world.wait(60)
    assert (turns(world.last), world.last.issues) == ({None: Turn.RECOVERED}, ())


# ---- services that go


def test_a_service_that_was_told_as_down_and_is_removed_is_told_as_removed() -> None:
    world = World()
    world.add("db", "queue")
    world.down("db")
    world.wait(400)
    world.node.deregister("db")
    world.wait(60)
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.REMOVED}
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
    assert [turns(news) for news in world.told] == [{None: Turn.PASSED}]


def test_a_service_that_flaps_and_is_removed_is_told_as_removed() -> None:
    world = World()
    world.add("db")
    flap(world, times=20)
    world.node.deregister("db")
    world.wait(3600)
    assert Turn.REMOVED in {turns(news).get("db") for news in world.told}


# ---- other manners


def test_other_manners_hold_for_what_waits_already() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(60)
    world.add("cache", impact="none")
    world.down("cache")
    world.rules.adopt(Manners(services="all"), world.clock.now_s)
    world.wait(GROUP_S)
    assert turns(world.last) == {"cache": Turn.WORSE}


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
    Manners,
    services=st.sampled_from(["critical", "all", "none"]),
    group_within_s=st.sampled_from([0.0, GROUP_S, 60.0]),
    quiet_s=st.sampled_from([0.0, 60.0, QUIET_S, 3600.0]),
)


class Reader:
    """Somebody who believes what the messages say."""

    def __init__(self, told: list[News]) -> None:
        self.believed: dict[str | None, Health] = {}
        self.flapping: set[str | None] = set()
        for news in told:
            self._read(news)

    def _read(self, news: News) -> None:
        self.believed[None] = news.health
        for one in (*([news.node] if news.node else []), *news.services):
            key = one.service.id if one.service else None
            if one.turn is Turn.FLAPPING:
                self.flapping.add(key)
            else:
                self.flapping.discard(key)
            if one.turn is Turn.REMOVED:
                del self.believed[key]
            elif one.service:
                self.believed[key] = one.health


def play(steps: list[tuple[float, str, str]], manners: Manners) -> tuple[World, set[str]]:
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
                world.node.replace(_definition_with_a_new_probe(service_id, IMPACTS[service_id]))
                fresh.add(service_id)
            case _:
                is_set = "full" in world.node.condition.issues
                (world.node.clear_issue if is_set else world.node.set_issue)("full")
        world.wait(wait_s)
    return world, fresh


@settings(max_examples=300, deadline=None)
@given(STEPS, ANY_MANNERS)
def test_when_everything_has_settled_what_was_told_last_is_the_truth(
    steps: list[tuple[float, str, str]], manners: Manners
) -> None:
    world, fresh = play(steps, manners)
    world.wait(2 * (manners.quiet_s + SETTLED_AFTER_S + manners.group_within_s))
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
    steps: list[tuple[float, str, str]], manners: Manners
) -> None:
    world, _ = play(steps, manners)
    world.wait(2 * (manners.quiet_s + SETTLED_AFTER_S + manners.group_within_s))
    for place, news in enumerate(world.told):
        believed = Reader(world.told[:place]).believed
        for service_id, turn in turns(news).items():
            if turn is Turn.RECOVERED:
                assert believed[service_id] > Health.HEALTHY
        assert turns(news), "an empty message"


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_one_thing_is_told_three_times_in_a_quiet_period_at_most(steps: list[tuple[float, str, str]]) -> None:
    """Bad news, good news that have waited, and that it flaps."""
    only_db = [(wait_s, "a", action) for wait_s, _, action in steps if action in ("up", "down")]
    world, _ = play(only_db, Manners(quiet_s=QUIET_S))
    times_s = [news.at_s for news in world.told]
    assert all(later - earlier >= GROUP_S for earlier, later in pairwise(times_s))
    for place, at_s in enumerate(times_s):
        within = [other for other in times_s[place:] if other - at_s < QUIET_S]
        assert len(within) <= 3


def _definition_with_a_new_probe(service_id: str, impact: ImpactWord = "critical") -> Definition:
    """One report is enough for any status, and holds for long."""
    return define(
        service_id,
        name=service_id,
        description="",
        impact=impact,
        probe=FunctionProbe(lambda: None),
        rise=1,
        fall=1,
        start_period="0s",
        stale_after="30d",
    )


# ---- over a restart


def told_before(
    world: World, service_id: str | None, told: Health = Health.UNHEALTHY, *, is_sure: bool = True
) -> Incident:
    """Ten minutes ago."""
    service = None
    if service_id is not None:
        service = Service(id=service_id, name="Ledger", description="", impact=Impact.CRITICAL)
    return Incident(service=service, told=told, since_s=world.clock.now_s - 600, is_sure=is_sure)


def restarted(*, is_sure: bool = True) -> World:
    """One whose critical service was told as Down, and the node with it; nobody has looked yet."""
    world = World()
    world.add("db", up=False)
    before = [told_before(world, service_id, is_sure=is_sure) for service_id in (None, "db")]
    world.rules.recall(before, world.clock.now_s)
    return world


def test_what_is_as_it_was_told_before_a_restart_is_not_told_again() -> None:
    world = restarted()
    world.wait(30)
    world.down("db")
    world.wait(3600)
    assert not world.told


def test_what_recovered_over_a_restart_is_told_with_the_longest_it_can_have_lasted() -> None:
    world = restarted()
    world.wait(30)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}
    assert news.node is not None
    assert [(one.lasted_s, one.is_at_most) for one in (news.node, item(news, "db"))] == [(630.0, True)] * 2
    assert not world.rules.incidents()


def test_what_was_seen_again_after_a_restart_has_lasted_exactly_so_long() -> None:
    world = restarted()
    world.down("db")
    world.wait(100)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}
    assert (item(news, "db").lasted_s, item(news, "db").is_at_most) == (700.0, False)


def test_what_not_all_may_have_been_told_is_told_once_more() -> None:
    world = restarted(is_sure=False)
    world.wait(3600)
    assert not world.told, "a start is no news"
    world.down("db", why="refused")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: Turn.STILL, "db": Turn.STILL}
    assert (item(news, "db").lasted_s, item(news, "db").reason) == (600 + 3600 + GROUP_S, "refused")
    assert all(incident.is_sure for incident in world.rules.incidents().values())
    world.up("db")
    world.wait(3600)
    assert turns(world.last) == {None: Turn.RECOVERED, "db": Turn.RECOVERED}


def test_what_not_all_may_have_been_told_and_was_well_meanwhile_is_told_as_having_begun_again() -> None:
    world = restarted(is_sure=False)
    world.up("db")
    world.wait(1)
    world.down("db", why="refused")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: Turn.AGAIN, "db": Turn.AGAIN}
    assert item(news, "db").lasted_s == GROUP_S - 1, "not since what was told before the restart"
    assert not any(incident.is_again for incident in world.rules.incidents().values()), "that was told"


def test_what_is_worse_than_before_a_restart_is_told() -> None:
    world = World()
    world.add("db", up=False)
    world.rules.recall([told_before(world, "db", Health.PARTIAL)], world.clock.now_s)
    world.down("db")
    world.wait(60)
    assert item(world.last, "db").turn is Turn.WORSE
    assert item(world.last, "db").before is Health.PARTIAL


def test_a_service_that_is_no_longer_there_after_a_restart_is_told_as_removed() -> None:
    world = World()
    world.add("db")
    world.rules.recall([told_before(world, "ledger")], world.clock.now_s)
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {"ledger": Turn.REMOVED}
    assert not world.rules.incidents()


def test_a_message_during_the_start_says_how_the_node_is_and_not_how_it_was_before() -> None:
    world = restarted()
    world.add("queue", up=False)
    world.up("db")
    world.wait(60)
    assert turns(world.last) == {None: Turn.BETTER, "db": Turn.RECOVERED}
    assert world.last.health is Health.PARTIAL
    world.up("queue")
    world.wait(3600)
    assert turns(world.last) == {None: Turn.RECOVERED}


def test_what_was_told_since_the_start_stands_when_what_was_told_before_is_known_late() -> None:
    world = World()
    world.add("db", "queue", up=False)
    world.down("db")
    world.wait(60)
    world.up("queue")
    before = [told_before(world, service_id, is_sure=False) for service_id in (None, "db", "queue")]
    world.rules.recall(before, world.clock.now_s)
    world.wait(60)
    assert [turns(news) for news in world.told] == [{None: Turn.WORSE, "db": Turn.WORSE}, {"queue": Turn.RECOVERED}]


def test_what_was_told_and_is_not_over_is_known_with_when_it_was_last_well() -> None:
    world = World()
    world.add("db", "queue")
    began_s = world.clock.now_s
    world.down("db")
    assert not world.rules.incidents()
    world.wait(60)
    found = world.rules.incidents()
    assert set(found) == {None, "db"}
    assert (found["db"].told, found["db"].since_s, found["db"].is_sure) == (Health.UNHEALTHY, began_s, True)


def test_there_is_an_end_to_what_is_known_as_not_over_and_the_node_is_part_of_it() -> None:
    world = World(Manners(services="all"))
    ids = [f"s{number}" for number in range(2 * MAX_INCIDENTS)]
    world.add(*ids)
    world.down(*ids)
    world.wait(60)
    assert list(world.rules.incidents()) == [None, *ids[: MAX_INCIDENTS - 1]]


def test_what_flaps_at_a_restart_is_told_once_more_whatever_it_is() -> None:
    world = World()
    world.add("db")
    for _ in range(FLAPPING_AFTER):
        world.down("db")
        world.wait(10)
        world.up("db")
        world.wait(10)
    assert turns(world.last)["db"] is Turn.FLAPPING
    before = world.rules.incidents()["db"]
    assert (before.told, before.is_sure) == (Health.PARTIAL, False)
    after = World()
    after.add("db", up=False)
    after.rules.recall([before], after.clock.now_s)
    after.up("db")
    after.wait(60)
    assert turns(after.last) == {"db": Turn.RECOVERED}


@pytest.mark.parametrize("is_sure", [True, False])
@pytest.mark.parametrize("of_node", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("of_db", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("is_down", [True, False])
def test_whatever_was_told_before_a_restart_what_was_told_is_the_truth_soon_after_it(
    is_down: bool, of_db: Health, of_node: Health, is_sure: bool
) -> None:
    world = World()
    world.add("db", up=False)
    before: dict[str | None, Health] = {None: of_node, "db": of_db}
    incidents = [
        told_before(world, key, told, is_sure=is_sure) for key, told in before.items() if told > Health.HEALTHY
    ]
    world.rules.recall(incidents, world.clock.now_s)
    world.wait(60)
    assert not world.told, "a start is no news"
    (world.down if is_down else world.up)("db")
    world.wait(60)
    truth = Health.UNHEALTHY if is_down else Health.HEALTHY
    known = world.rules.incidents()
    assert {key: known[key].told if key in known else Health.HEALTHY for key in before} == {None: truth, "db": truth}
    is_to_be_told = set(before.values()) != {truth} or (is_down and not is_sure)
    assert len(world.told) == is_to_be_told
    assert all(incident.is_sure for incident in known.values())
