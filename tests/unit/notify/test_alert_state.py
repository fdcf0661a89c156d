"""What is told of the node and of each service, and when."""

from __future__ import annotations

from svcnode.core.model import Health
from svcnode.notify.engine import AlertEngine
from svcnode.notify.model import ChangeType
from svcnode.notify.settings import AlertPolicy
from tests.unit.notify.world import GROUP_S, MANNERS, QUIET_S, World, definition_with_a_new_probe, item, turns

# ---- recovery


def test_recovered_says_how_long_it_lasted() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(400)
    world.up("db")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert item(world.last, "db").duration_s == 400
    assert world.last.node
    assert world.last.node.duration_s == 400


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
    assert [turns(news)["db"] for news in world.told] == [
        ChangeType.WORSE,
        ChangeType.WORSE,
        ChangeType.BETTER,
        ChangeType.RECOVERED,
    ]
    assert item(world.last, "db").duration_s == 900
    assert item(world.last, "db").changes == 4


def test_trouble_that_is_over_before_it_was_told_is_told_as_over() -> None:
    world = World()
    world.add("db")
    world.down("db", why="reset")
    world.wait(2)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.TRANSIENT, "db": ChangeType.TRANSIENT}
    told = item(news, "db")
    assert (told.health, told.worst, told.duration_s, told.reason) == (Health.HEALTHY, Health.UNHEALTHY, 2, "reset")


def test_a_service_that_is_not_critical_is_named_when_its_moment_was_one_of_the_node() -> None:
    world = World()
    world.add("db")
    world.add("cache", impact="partial")
    world.down("cache")
    world.wait(2)
    world.up("cache")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.TRANSIENT, "cache": ChangeType.TRANSIENT}


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
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert item(world.last, "db").duration_s == 60


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
    assert turns(world.last)["db"] is ChangeType.RECOVERED
    world.down("db")
    world.wait(GROUP_S)
    assert turns(world.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


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
    assert turns(world.last) == {"db": ChangeType.RECOVERED, "queue": ChangeType.WORSE}
    world.wait(3600)
    assert len(world.told) == 2


def test_without_a_quiet_period_every_change_is_told() -> None:
    world = World(AlertPolicy(resolve_delay_s=0))
    world.add("db")
    for _ in range(2):
        world.down("db")
        world.wait(10)
        world.up("db")
        world.wait(10)
    assert [turns(news)["db"] for news in world.told] == [ChangeType.WORSE, ChangeType.RECOVERED] * 2


# ---- starts


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
    assert turns(news) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert item(news, "db").before is None


def test_what_is_down_when_we_begin_is_news() -> None:
    world = World()
    world.add("db")
    world.down("db")
    rules = AlertEngine(MANNERS, world.clock.now_s)
    rules.start(world.node, world.node.health, (), world.clock.now_s)
    news = rules.take_due(world.clock.now_s + GROUP_S)
    assert news
    assert turns(news) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_service_that_is_added_while_the_node_runs_is_no_news_until_it_is_down() -> None:
    world = World()
    world.add("db")
    world.add("new", up=False)
    assert world.node.health is Health.PARTIAL
    world.wait(60)
    assert not world.told
    world.down("new")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.WORSE, "new": ChangeType.WORSE}


def test_another_probe_for_a_service_is_no_news() -> None:
    world = World()
    world.add("db")
    node = world.node
    for _ in range(10):
        node.replace(definition_with_a_new_probe("db"))
        assert node.health is Health.PARTIAL
        world.wait(10)
        world.up("db")
        world.wait(10)
    assert not world.told


def test_another_probe_for_a_service_that_was_told_as_down_does_not_hide_that_it_recovers() -> None:
    world = World()
    world.add("db")
    world.down("db")
    world.wait(400)
    world.node.replace(definition_with_a_new_probe("db"))
    world.up("db")
    world.wait(400)
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_a_start_that_a_message_spoke_of_is_told_when_it_is_over() -> None:
    world = World()
    world.add("db")
    world.add("new", impact="partial", up=False)
    world.starting("db")
    world.wait(60)
    assert world.last.health is Health.PARTIAL
    world.up("db")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({"db": ChangeType.RECOVERED}, Health.PARTIAL)
    world.up("new")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)


def test_a_start_that_a_message_about_something_else_spoke_of_is_told_when_it_is_over() -> None:
    world = World(AlertPolicy(services="all"))
    world.add("extra", impact="none")
    world.add("new", up=False)
    world.wait(60)
    world.down("extra")
    world.wait(60)
    assert (turns(world.last), world.last.health) == ({"extra": ChangeType.WORSE}, Health.PARTIAL)
    world.up("new")
    world.wait(400)
    assert (turns(world.last), world.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)
    assert world.last.node
    assert world.last.node.duration_s == 120
