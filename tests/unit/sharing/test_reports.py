"""Heartbeats and reports that arrive at several replicas, or by the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Evidence, Status, Verdict
from tests.support.replica_simulation import LEASE_S, MemoryCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.replica_simulation import Process, Simulation

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
TTL_S = 40.0
BEAT_S = 6.0
NAMES = ("a", "b", "c")
READY, FAILED = Verdict.ready(code=ReasonCode.REPORTED), Verdict.failed("no disk", code=ReasonCode.REPORTED)
FILE = {"hb": {"ttl": f"{TTL_S:g}s"}}


class Heartbeats:
    """Three replicas with one service of the common file, which beats every 6 s, and what they say of it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.caches = {name: MemoryCache() for name in NAMES}
        for name in NAMES:
            self.start(name)
        simulation.run_for(2)

    def start(self, name: str) -> Process:
        clock_s = 1e5 * NAMES.index(name)
        return self.simulation.start(name, FILE, clock_s=clock_s, cache=self.caches[name])

    def __getitem__(self, name: str) -> Process:
        return self.simulation.processes[name]

    def alive(self) -> list[Process]:
        return [each for each in self.simulation.processes.values() if each.is_alive and not each.is_suspended]

    def run(self, duration_s: float, *receivers: str) -> dict[str, list[tuple[Status, str]]]:
        """With a beat every 6 s, at these replicas in turn, the first one at once. Returns what each replica says."""
        seen: dict[str, list[tuple[Status, str]]] = {}
        self.simulation.after_step = lambda: self._note(seen)
        end_s, number = self.simulation.now_s + duration_s, 0
        while self.simulation.now_s < end_s:
            if receivers:
                self[receivers[number % len(receivers)]].beat("hb")
                number += 1
            self.simulation.run_for(min(BEAT_S, end_s - self.simulation.now_s))
        self.simulation.after_step = lambda: None
        return seen

    def _note(self, seen: dict[str, list[tuple[Status, str]]]) -> None:
        for process in self.alive():
            state, states = process.node.state("hb"), seen.setdefault(process.name, [])
            if not states or states[-1] != (state.status, state.code):
                states.append((state.status, state.code))

    def statuses(self) -> dict[str, Status]:
        return {process.name: process.statuses()["hb"] for process in self.alive()}


def statuses(seen: dict[str, list[tuple[Status, str]]], *names: str) -> set[Status]:
    return {status for name in names or seen for status, _ in seen[name]}


@pytest.fixture
def heartbeats(simulation: Simulation) -> Heartbeats:
    return Heartbeats(simulation)


def begin(heartbeats: Heartbeats) -> None:
    """One beat at a, long ago. Then they come to b; the others know the last one."""
    heartbeats.run(BEAT_S, "a")
    assert statuses(heartbeats.run(TTL_S + BEAT_S, "b"), "a", "c") == {UP}
    heartbeats["b"].beat("hb")
    heartbeats.simulation.run_for(2)


# ---- the newest one counts, wherever it arrived


def test_the_beats_of_a_replica_that_is_lost_count_until_their_ttl(heartbeats: Heartbeats) -> None:
    begin(heartbeats)
    heartbeats["b"].kill()
    assert statuses(heartbeats.run(TTL_S - 8.0)) == {UP}
    seen = heartbeats.run(2 * TTL_S)
    assert [seen[name] for name in "ac"] == [
        [(UP, ReasonCode.REPORTED), (INITIALIZING, ReasonCode.REGISTRY_LOST)] for _ in "ac"
    ]


@pytest.mark.parametrize("away_s", [0.0, 0.8, 5.0, LEASE_S + 5.0])
def test_the_beats_count_while_the_replica_that_received_them_starts_again(
    heartbeats: Heartbeats, away_s: float
) -> None:
    begin(heartbeats)
    heartbeats["b"].kill()
    heartbeats.simulation.run_for(away_s)
    heartbeats.start("b")
    assert statuses(heartbeats.run(TTL_S - away_s - 8.0), "a", "c") == {UP}
    seen = heartbeats.run(TTL_S + 8.0)
    assert [status for status, _ in seen["a"]] == [UP, INITIALIZING, DOWN], "silent for a ttl since b is back"
    assert set(heartbeats.statuses().values()) == {DOWN}
    heartbeats["c"].beat("hb")
    heartbeats.simulation.run_for(1)
    assert set(heartbeats.statuses().values()) == {UP}


def test_beats_at_any_replica_keep_the_service_up_on_all(heartbeats: Heartbeats) -> None:
    heartbeats.run(BEAT_S, "a")
    assert statuses(heartbeats.run(3 * TTL_S, "a", "b", "c", "b")) == {UP}


@pytest.mark.parametrize("name", NAMES)
def test_a_report_that_was_sent_seconds_ago_ends_down(heartbeats: Heartbeats, name: str) -> None:
    """It is stored on disk before it is recorded; meanwhile the replicas confirm what they know."""
    heartbeats["a"].report("hb", FAILED)
    heartbeats.simulation.run_for(30)
    heartbeats[name].report("hb", READY, sent_s=5.0)
    heartbeats.simulation.run_for(2)
    assert set(heartbeats.statuses().values()) == {UP}


def test_silence_is_down_everywhere_after_the_ttl(heartbeats: Heartbeats) -> None:
    heartbeats.run(TTL_S, "a", "b", "c")
    heartbeats.run(TTL_S + 2.0)
    assert set(heartbeats.statuses().values()) == {DOWN}


def test_a_service_that_never_beats_is_down_after_the_ttl(heartbeats: Heartbeats) -> None:
    heartbeats.run(TTL_S + 5.0)
    assert set(heartbeats.statuses().values()) == {DOWN}


# ---- reports that contradict each other


def contradict(heartbeats: Heartbeats) -> None:
    """First Up, at c; later Down, at b."""
    heartbeats["c"].report("hb", READY)
    heartbeats.simulation.run_for(2)
    heartbeats["b"].report("hb", FAILED)
    heartbeats.simulation.run_for(2)
    assert set(heartbeats.statuses().values()) == {DOWN}


def restart(heartbeats: Heartbeats, name: str, restored_s: float | None = None) -> None:
    """`restored_s`: how old the report is that the control store of the replica has kept."""
    heartbeats[name].kill()
    heartbeats.start(name)
    if restored_s is not None:
        heartbeats[name].node.set_registered_at("hb", heartbeats[name].node.now_s() - restored_s)
        heartbeats[name].report("hb", READY, sent_s=restored_s)


@pytest.mark.parametrize("leaves", [True, False])
def test_down_counts_when_the_replica_that_received_it_is_gone_and_another_starts_again(
    heartbeats: Heartbeats, *, leaves: bool
) -> None:
    contradict(heartbeats)
    if leaves:
        heartbeats["b"].stop()
    else:
        heartbeats["b"].kill()
    heartbeats.simulation.run_for(LEASE_S + 4.0)
    heartbeats["b"].kill()
    restart(heartbeats, "c", restored_s=LEASE_S + 8.0)
    assert UP not in statuses(heartbeats.run(TTL_S), "a", "c")
    assert set(heartbeats.statuses().values()) == {DOWN}
    heartbeats["c"].beat("hb")
    heartbeats.simulation.run_for(1)
    assert set(heartbeats.statuses().values()) == {UP}


def test_an_old_report_is_not_up_before_the_registry_is_read(heartbeats: Heartbeats) -> None:
    contradict(heartbeats)
    restart(heartbeats, "c", restored_s=4.0)
    assert UP not in statuses(heartbeats.run(5.0))
    heartbeats.simulation.etcd.stop()
    restart(heartbeats, "c", restored_s=9.0)
    seen = heartbeats.run(10.0)
    heartbeats.simulation.etcd.start()
    assert UP not in statuses(seen, "c") | statuses(heartbeats.run(10.0))
    assert set(heartbeats.statuses().values()) == {DOWN}


@pytest.mark.parametrize("name", NAMES)
def test_a_replica_that_starts_later_knows_which_report_is_the_newest(heartbeats: Heartbeats, name: str) -> None:
    contradict(heartbeats)
    heartbeats.simulation.run_for(0.8 * TTL_S)
    restart(heartbeats, name)
    assert UP not in statuses(heartbeats.run(0.8 * TTL_S))


@pytest.mark.parametrize("after_s", [0.1, 0.6, 1.1, 2.5])
def test_down_that_is_reported_while_etcd_stands_still_stays_down(heartbeats: Heartbeats, after_s: float) -> None:
    heartbeats.run(BEAT_S, "c")
    heartbeats.simulation.etcd.suspend()
    heartbeats.simulation.run_for(after_s)
    heartbeats["b"].report("hb", FAILED)
    heartbeats.simulation.run_for(4.0 - after_s)
    heartbeats.simulation.etcd.resume()
    heartbeats.simulation.run_for(2)
    assert set(heartbeats.statuses().values()) == {DOWN}
    assert statuses(heartbeats.run(TTL_S)) == {DOWN}


@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.8])
def test_up_right_after_down_at_another_replica_counts_on_all(heartbeats: Heartbeats, after_s: float) -> None:
    for _ in range(5):
        heartbeats["b"].report("hb", FAILED)
        heartbeats.simulation.run_for(after_s)
        heartbeats["c"].report("hb", READY)
        heartbeats.simulation.run_for(3)
        assert set(heartbeats.statuses().values()) == {UP}


def test_a_new_reason_of_down_reaches_all(heartbeats: Heartbeats) -> None:
    for reason in ("no disk", "no key"):
        heartbeats["a"].report("hb", FAILED._replace(reason=reason))
        heartbeats.simulation.run_for(2)
        assert {process.node.state("hb").reason for process in heartbeats.alive()} == {reason}


# ---- etcd fails


def wipe(heartbeats: Heartbeats) -> None:
    heartbeats.simulation.etcd.wipe()


def restart_etcd(heartbeats: Heartbeats) -> None:
    heartbeats.simulation.etcd.stop()
    heartbeats.simulation.run_for(3)
    heartbeats.simulation.etcd.start()


def wipe_and_reconnect_late(heartbeats: Heartbeats) -> None:
    """All but one, which does not receive the beats: in the registry, it is the only one that has the service."""
    heartbeats.simulation.etcd.stop()
    heartbeats.run(TTL_S - 2.0, "b")
    clients = [heartbeats[name].client for name in "bc"]
    for client in clients:
        client.requests.is_cut = client.responses.is_cut = True
    heartbeats.simulation.etcd.start()
    wipe(heartbeats)
    assert DOWN not in statuses(heartbeats.run(8.0, "b"))
    for client in clients:
        client.reconnect()


@pytest.mark.parametrize("fault", [wipe, restart_etcd, wipe_and_reconnect_late])
def test_beats_are_known_while_etcd_is_wiped_or_restarted(
    heartbeats: Heartbeats, fault: Callable[[Heartbeats], None]
) -> None:
    begin(heartbeats)
    fault(heartbeats)
    assert DOWN not in statuses(heartbeats.run(10.0, "b"))
    assert statuses(heartbeats.run(2 * TTL_S, "b")) == {UP}


@pytest.mark.parametrize("between_s", [0.01, 0.1, 0.5])
def test_a_report_right_after_etcd_was_wiped_counts_on_all(heartbeats: Heartbeats, between_s: float) -> None:
    """Nobody knows exactly when it was made; but it came to the same process as the one before, so it is newer."""
    begin(heartbeats)
    heartbeats["b"].report("hb", Verdict.not_ready("starting", code=ReasonCode.REPORTED))
    heartbeats.simulation.run_for(between_s)
    wipe(heartbeats)
    heartbeats["b"].report("hb", FAILED)
    heartbeats.simulation.run_for(10)
    assert set(heartbeats.statuses().values()) == {DOWN}


def test_if_etcd_is_full_the_other_replicas_do_not_know(heartbeats: Heartbeats) -> None:
    begin(heartbeats)
    heartbeats.simulation.etcd.is_full = True
    seen = heartbeats.run(2 * TTL_S, "b")
    assert statuses(seen, "b") == {UP}
    assert statuses(seen, "a", "c") == {UP, INITIALIZING}
    heartbeats.simulation.etcd.is_full = False
    assert DOWN not in statuses(heartbeats.run(15.0, "b"))
    assert set(heartbeats.statuses().values()) == {UP}


def test_a_replica_that_starts_while_etcd_is_away_knows_nothing(heartbeats: Heartbeats) -> None:
    begin(heartbeats)
    heartbeats.simulation.run_for(8)  # its cache is written
    heartbeats.simulation.etcd.stop()
    heartbeats["a"].kill()
    heartbeats.simulation.run_for(5)
    process = heartbeats.start("a")
    # As the control store restores what it has: the last beat that came to this replica.
    process.node.set_registered_at("hb", process.node.now_s() - 100.0)
    process.node.record({"hb": Evidence(READY, process.node.now_s() - 60.0)})
    assert statuses(heartbeats.run(2 * TTL_S, "b"), "a") == {INITIALIZING}
    process.beat("hb")
    assert statuses(heartbeats.run(TTL_S - 1.0), "a") == {UP}
    heartbeats.simulation.etcd.start()
    heartbeats.run(5.0, "a")
    assert set(heartbeats.statuses().values()) == {UP}


@pytest.mark.parametrize(("others", "status"), [(("a", "b"), INITIALIZING), (("a",), DOWN)])
def test_without_etcd_silence_counts_where_all_reports_have_come_so_far(
    heartbeats: Heartbeats, others: tuple[str, ...], status: Status
) -> None:
    heartbeats.run(2 * BEAT_S, *others)
    heartbeats["a"].beat("hb")
    heartbeats.simulation.run_for(2)
    heartbeats.simulation.etcd.stop()
    heartbeats.run(TTL_S + 2.0)
    assert heartbeats.statuses()["a"] is status


def test_a_replica_that_reconnects_first_does_not_take_reports_for_missing(heartbeats: Heartbeats) -> None:
    """They came to b, and to a while etcd was stopped; a is connected again later than b."""
    begin(heartbeats)
    heartbeats.simulation.etcd.stop()
    heartbeats.run(TTL_S + 2.0, "a")
    client = heartbeats["a"].client
    client.requests.is_cut = client.responses.is_cut = True
    heartbeats.simulation.etcd.start()
    seen = heartbeats.run(8.0, "a")
    client.reconnect()
    assert DOWN not in statuses(seen) | statuses(heartbeats.run(8.0, "a"))
    assert set(heartbeats.statuses().values()) == {UP}


def test_silence_after_etcd_was_lost_is_down_one_ttl_after_it_is_back(heartbeats: Heartbeats) -> None:
    heartbeats.run(TTL_S, "a", "b")
    restart_etcd(heartbeats)
    heartbeats.run(TTL_S + 5.0)
    assert set(heartbeats.statuses().values()) == {DOWN}


def test_the_newest_of_two_reports_that_contradict_each_other_counts_at_once(heartbeats: Heartbeats) -> None:
    """Two programs report the same service, one to each replica, and repeat what they say."""
    for name, verdict, status in (("a", FAILED, DOWN), ("b", READY, UP), ("a", FAILED, DOWN), ("b", READY, UP)) * 2:
        heartbeats[name].report("hb", verdict)
        heartbeats.simulation.run_for(2)
        assert set(heartbeats.statuses().values()) == {status}


# ---- jobs

GRACE_S = 10.0


def start_jobs(simulation: Simulation, **options: str) -> dict[str, Process]:
    """Three replicas, at second 30 of a minute."""
    probe = {"url": "heartbeat:", "grace": f"{GRACE_S:g}s", **options}
    began_s = simulation.now_s
    processes = {
        name: simulation.start(
            name,
            {"job": {"probe": probe}},
            clock_s=1e5 * number,
            wall_clock=lambda: 6000.0 + 28.0 + simulation.now_s - began_s,
        )
        for number, name in enumerate(NAMES)
    }
    simulation.run_for(2)
    return processes


def statuses_of(processes: dict[str, Process]) -> set[Status]:
    return {process.statuses()["job"] for process in processes.values() if process.is_alive}


def test_a_success_is_valid_until_the_next_run_on_all_replicas(simulation: Simulation) -> None:
    processes = start_jobs(simulation, schedule="* * * * *", timezone="UTC")
    processes["a"].beat("job")
    simulation.run_for(5)
    assert statuses_of(processes) == {UP}
    processes["a"].kill()
    simulation.run_for(30.0 - 5.0 + GRACE_S - 3.0)
    assert statuses_of(processes) == {UP}
    simulation.run_for(5)
    assert statuses_of(processes) == {INITIALIZING}, "nobody knows whether a has received the next one"


def test_a_run_that_does_not_end_is_down_wherever_its_start_was_told(simulation: Simulation) -> None:
    processes = start_jobs(simulation, period="2m")
    processes["c"].beat("job")
    simulation.run_for(3)
    processes["b"].call(lambda: processes["b"].node.record_start("job", at_s=processes["b"].node.now_s()))
    simulation.run_for(GRACE_S - 2.0)
    assert statuses_of(processes) == {UP}
    simulation.run_for(5)
    assert statuses_of(processes) == {DOWN}
    processes["c"].beat("job")
    simulation.run_for(2)
    assert statuses_of(processes) == {UP}


def test_a_run_that_has_ended_elsewhere_is_not_overdue(simulation: Simulation) -> None:
    processes = start_jobs(simulation, period="2m")
    processes["c"].beat("job")
    simulation.run_for(3)
    processes["b"].call(lambda: processes["b"].node.record_start("job", at_s=processes["b"].node.now_s()))
    simulation.run_for(0.05)
    processes["c"].beat("job")
    simulation.run_for(2 * GRACE_S)
    assert statuses_of(processes) == {UP}


# ---- a replica was suspended


@pytest.mark.parametrize("suspended_s", [16.0, 18.0, 60.0])
def test_a_replica_that_was_suspended_does_not_take_reports_for_missing(
    simulation: Simulation, suspended_s: float
) -> None:
    """A client reports by the registry every 5 s, with a ttl of 20 s."""
    simulation.define("job", ttl="20s")
    process = simulation.start("a", {}, clock_s=1e5)
    seen: set[tuple[Status, str]] = set()

    def report_for(duration_s: float) -> None:
        end_s = simulation.now_s + duration_s
        while simulation.now_s < end_s:
            simulation.report("job")
            simulation.run_for(5.0)

    report_for(30.0)
    simulation.run_for(2.0)
    process.suspend()
    report_for(suspended_s)
    process.resume()
    first = process.node.state("job")  # as a request finds it that is read first
    assert first.status is not DOWN
    simulation.after_step = lambda: seen.add((process.statuses()["job"], process.codes()["job"]))
    report_for(30.0)
    assert DOWN not in {status for status, _ in seen}
    assert process.statuses()["job"] is UP
    simulation.run_for(21.0)
    assert process.codes()["job"] == ReasonCode.TTL_EXPIRED


def test_a_client_that_ended_while_a_replica_was_suspended_is_down_a_ttl_later(simulation: Simulation) -> None:
    simulation.define("job", ttl="20s")
    process = simulation.start("a", {}, clock_s=1e5)
    simulation.run_for(1.0)
    simulation.report("job")
    simulation.run_for(1.0)
    process.suspend()
    simulation.run_for(60.0)
    process.resume()
    simulation.run_for(19.0)
    assert process.statuses()["job"] is INITIALIZING
    simulation.run_for(3.0)
    assert (process.statuses()["job"], process.codes()["job"]) == (DOWN, ReasonCode.TTL_EXPIRED)


def test_beats_that_went_elsewhere_while_their_replica_was_suspended_count(heartbeats: Heartbeats) -> None:
    begin(heartbeats)
    heartbeats["b"].suspend()
    assert statuses(heartbeats.run(TTL_S + BEAT_S, "c")) == {UP}
    heartbeats["b"].resume()
    assert heartbeats["b"].node.state("hb").status is not DOWN
    assert DOWN not in statuses(heartbeats.run(BEAT_S, "c"))
    assert set(heartbeats.statuses().values()) == {UP}
