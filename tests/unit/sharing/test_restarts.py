"""What the node knows as Down stays Down when the replica that checks it starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import KnownBefore, Status
from tests.support.replica_simulation import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.replica_simulation import Options, Process, Simulation

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
INTERVAL_S = 2.0
SETTLE_S = 5.0
START_PERIOD_S = 30.0
NAMES = ("a", "b", "c")


def checked(**options: Any) -> dict[str, Options]:
    """As in the common file: with a start period, and `rise` successes for a recovery."""
    return {
        "db": {
            "probe": "sim://db",
            "interval": f"{INTERVAL_S:g}s",
            "transition_interval": f"{INTERVAL_S:g}s",
            "stale_after": "7s",
            "start_period": f"{START_PERIOD_S:g}s",
            "tolerance": "off",
            **options,
        }
    }


class Cluster:
    """Three replicas of which the first ones in the order of the service check it. Its status is noted at each step."""

    def __init__(self, simulation: Simulation, **options: Any) -> None:
        self.simulation, self.file = simulation, checked(**options)
        for name in NAMES:
            self.start(name)
        simulation.run_for(SETTLE_S)

    def start(self, name: str) -> None:
        self.simulation.start(name, self.file, clock_s=1e5 * NAMES.index(name))

    @property
    def processes(self) -> list[Process]:
        return [each for each in self.simulation.processes.values() if each.is_alive and not each.is_suspended]

    def statuses(self) -> set[Status]:
        return {process.statuses()["db"] for process in self.processes}

    def checking(self) -> str:
        return next(process.name for process in self.processes if process.checked())

    def fail(self) -> None:
        """Until all replicas know it as Down."""
        self.simulation.down.add("db")
        self.simulation.run_for(3 * INTERVAL_S + SETTLE_S)
        assert self.statuses() == {DOWN}

    def remember_down(self, name: str) -> None:
        """By its history, the replica knows it as Down from before it was started."""
        node = self.simulation.processes[name].node
        node.remember({"db": KnownBefore(DOWN, node.now_s() - 100.0, "refused", ReasonCode.CONNECTION_REFUSED)})

    def seen(self, duration_s: float, *, is_ready: Callable[[Process], bool] = lambda _: True) -> set[Status]:
        """The statuses in this time on all replicas that have read the registry."""
        seen: set[Status] = set()

        def note() -> None:
            ready = [each for each in self.processes if not each.node.condition.starting and is_ready(each)]
            seen.update(process.statuses()["db"] for process in ready)

        self.simulation.after_step = note
        self.simulation.run_for(duration_s)
        self.simulation.after_step = lambda: None
        return seen


@pytest.mark.parametrize(
    ("away_s", "observers"), [(0.0, 1), (2.0, 1), (2.0, 2), (2.0, 3), (LEASE_S + 0.005, 1), (LEASE_S + 8.0, 1)]
)
def test_a_replica_that_is_killed_and_starts_does_not_soften_a_down(
    simulation: Simulation, away_s: float, observers: int
) -> None:
    cluster = Cluster(simulation, observers=observers)
    cluster.fail()
    name = cluster.checking()
    simulation.processes[name].kill()
    assert cluster.seen(away_s) <= {DOWN}
    cluster.start(name)
    assert cluster.seen(3 * SETTLE_S) == {DOWN}


@pytest.mark.parametrize("away_s", [0.5, 8.0])
def test_a_replica_that_is_stopped_and_starts_does_not_soften_a_down(simulation: Simulation, away_s: float) -> None:
    cluster = Cluster(simulation)
    cluster.fail()
    name = cluster.checking()
    simulation.processes[name].stop()
    simulation.run_for(away_s)
    simulation.processes[name].kill()
    cluster.start(name)
    assert cluster.seen(2 * SETTLE_S) == {DOWN}


@pytest.mark.parametrize("suspended_s", [4.0, LEASE_S + 5.0])
def test_a_replica_that_was_suspended_does_not_soften_a_down(simulation: Simulation, suspended_s: float) -> None:
    cluster = Cluster(simulation)
    cluster.fail()
    process = simulation.processes[cluster.checking()]
    process.suspend()
    assert cluster.seen(suspended_s) == {DOWN}
    process.resume()
    assert cluster.seen(SETTLE_S + INTERVAL_S) == {DOWN}


def test_all_replicas_that_start_together_do_not_soften_a_down(simulation: Simulation) -> None:
    cluster = Cluster(simulation)
    cluster.fail()
    for process in cluster.processes:
        process.kill()
    simulation.run_for(2)
    for name in NAMES:
        cluster.start(name)
    assert cluster.seen(2 * SETTLE_S) == {DOWN}


def test_without_any_other_replica_the_history_of_a_replica_counts(simulation: Simulation) -> None:
    """All were away for longer than their leases. The first failure confirms what they know, as on one machine."""
    cluster = Cluster(simulation)
    cluster.fail()
    for process in cluster.processes:
        process.kill()
    simulation.run_for(2 * LEASE_S)
    for name in NAMES:
        cluster.start(name)
        cluster.remember_down(name)
    simulation.run_for(INTERVAL_S + 1.0)
    assert cluster.statuses() == {DOWN}


def test_the_history_of_a_replica_does_not_count_if_the_others_know_more(simulation: Simulation) -> None:
    cluster = Cluster(simulation)
    name = cluster.checking()
    simulation.processes[name].kill()
    simulation.run_for(2 * LEASE_S)
    cluster.start(name)
    cluster.remember_down(name)
    simulation.down.add("db")  # for one check
    assert DOWN not in cluster.seen(INTERVAL_S - 0.5)


@pytest.mark.parametrize("away_s", [2.0, LEASE_S + 8.0])
def test_the_replica_that_starts_needs_as_many_successes_for_a_recovery(simulation: Simulation, away_s: float) -> None:
    cluster = Cluster(simulation, rise=3)
    cluster.fail()
    name = cluster.checking()
    simulation.processes[name].kill()
    simulation.run_for(away_s)
    simulation.down.clear()
    cluster.start(name)
    assert cluster.seen(INTERVAL_S + 0.5) == {DOWN}, "two successes of three"
    assert cluster.seen(2 * INTERVAL_S) == {DOWN, UP}
    assert cluster.statuses() == {UP}


def test_a_service_that_is_not_ready_any_more_but_starts_is_no_longer_down(simulation: Simulation) -> None:
    """A new process does not doubt what the service says of itself."""
    cluster = Cluster(simulation)
    cluster.fail()
    name = cluster.checking()
    simulation.processes[name].kill()
    simulation.down.clear()
    simulation.loading.add("db")
    cluster.start(name)
    assert INITIALIZING in cluster.seen(SETTLE_S)
    assert cluster.statuses() == {INITIALIZING}


def test_a_service_that_is_up_does_not_flap_when_its_replica_starts(simulation: Simulation) -> None:
    cluster = Cluster(simulation)
    name = cluster.checking()
    simulation.processes[name].kill()
    simulation.run_for(2)
    cluster.start(name)
    assert cluster.seen(SETTLE_S, is_ready=lambda each: each.name != name) == {UP}
    assert cluster.seen(SETTLE_S) == {UP}


def test_one_observer_of_three_that_sees_it_fail_does_not_make_a_replica_begin_with_down(
    simulation: Simulation,
) -> None:
    cluster = Cluster(simulation, observers=3)
    simulation.processes["a"].reaches_backends = False
    simulation.run_for(3 * INTERVAL_S + SETTLE_S)
    assert cluster.statuses() == {UP}
    simulation.processes["b"].kill()
    cluster.start("b")
    assert DOWN not in cluster.seen(2 * SETTLE_S)
    assert cluster.statuses() == {UP}
