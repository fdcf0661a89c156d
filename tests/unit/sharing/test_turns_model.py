"""The notifications of replicas over random faults, in virtual time. The messages are read as a person would.

When all faults have ended, what the messages say is true, no message follows, and one replica sends. As long as etcd
works and no message is in flight, nothing is told twice.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.support.replica_simulation import Process, Simulation, simulated_probes
from tests.unit.sharing.test_turns import HOOK, RESOLVE_DELAY_S, Network, may_send, start_one

NAMES, SERVICES = ("a", "b", "c"), ("db", "web")
STEPS = 30
WAITS_S = (0.1, 1.0, 4.0, 10.0, 20.0, 40.0)
EVENTS = ("down", "up", "down", "up", "kill", "stop", "suspend", "resume", "block", "unblock", "wait")
REGISTRY_EVENTS = ("cut", "cut one way", "reconnect", "stop etcd", "start etcd")
SETTLE_S = 400.0  # an attempt that has failed for long is repeated after 300 s
IS_OPEN = {"worse": True, "better": True, "recurred": True, "reminder": True, "recovered": False, "removed": False}


class World:
    def __init__(self, seed: int, *, with_registry_faults: bool) -> None:
        random.seed(seed)  # the delays between attempts
        self.rng = random.Random(seed)
        self.simulation, self.network = Simulation(seed), Network()
        self.events = EVENTS + (REGISTRY_EVENTS if with_registry_faults else ())
        self.delays_s = (0.0, 0.0, 0.2, 4.0) if with_registry_faults else (0.0,)
        self.has_registry_faults = with_registry_faults
        self.starts = 0
        self.log: list[str] = []
        for name in NAMES:
            self.start(name)
        self.simulation.run_for(10.0)

    def start(self, name: str) -> None:
        self.starts += 1
        stale_after = self.rng.choice(["7s", "30s"])
        start_one(self.simulation, self.network, name, offset_s=0.37 * self.starts, stale_after=stale_after)

    def step(self) -> None:
        event, service_id = self.rng.choice(self.events), self.rng.choice(SERVICES)
        process = self.simulation.processes[self.rng.choice(NAMES)]
        self.log.append(f"{self.simulation.now_s:.1f} {event} {process.name} {service_id}")
        self.change(event, service_id, process)
        self.network.delay_s = self.rng.choice(self.delays_s)
        self.simulation.run_for(self.rng.choice(WAITS_S))

    def change(self, event: str, service_id: str, process: Process) -> None:  # noqa: C901, PLR0912  one case for each event
        simulation, network, client = self.simulation, self.network, process.client
        match event:
            case "down":
                simulation.down.add(service_id)
            case "up":
                simulation.down.discard(service_id)
            case "kill":
                self.restart(process)
            case "stop" if not process.is_suspended:
                process.shut_down()
                simulation.run_for(3.0)
                self.restart(process)
            case "suspend":
                process.suspend()
            case "resume":
                process.resume()
            case "block":
                network.unreachable.add((process.name, HOOK))
            case "unblock":
                network.unreachable.clear()
            case "cut":
                client.requests.is_cut = client.responses.is_cut = True
            case "cut one way":
                self.rng.choice([client.requests, client.responses]).is_cut = True
            case "reconnect":
                client.reconnect()
            case "stop etcd" if simulation.etcd.is_running:
                simulation.etcd.stop()
            case "start etcd" if not simulation.etcd.is_running:
                simulation.etcd.start()

    def restart(self, process: Process) -> None:
        process.kill()
        self.simulation.run_for(self.rng.choice([0.0, 3.0, 12.0]))
        self.start(process.name)

    def end_faults(self) -> None:
        for process in self.simulation.processes.values():
            process.resume()
            process.client.reconnect()
        self.network.unreachable.clear()
        self.network.delay_s = 0.0
        if not self.simulation.etcd.is_running:
            self.simulation.etcd.start()
        self.simulation.run_for(SETTLE_S)

    def told(self) -> set[str]:
        """The services that are open for a reader of the messages."""
        is_open = dict.fromkeys(SERVICES, False)
        for one in self.network.received:
            is_open |= {id_: IS_OPEN.get(change, is_open[id_]) for id_, change in one.changes.items()}
        return {service_id for service_id in SERVICES if is_open[service_id]}

    def senders(self) -> list[str]:
        return [process.name for process in self.simulation.processes.values() if may_send(process)]


def run(seed: int, *, with_registry_faults: bool) -> None:
    with simulated_probes():
        world = World(seed, with_registry_faults=with_registry_faults)
        try:
            verify(world)
        except AssertionError as exc:
            exc.add_note("\n".join([f"seed {seed}", *world.log, *map(str, world.network.received)]))
            raise
        finally:
            world.simulation.close()


def verify(world: World) -> None:
    for _ in range(STEPS):
        world.step()
    world.end_faults()
    assert world.told() == world.simulation.down
    assert len(world.senders()) == 1
    world.simulation.down.clear()
    world.simulation.run_for(4 * RESOLVE_DELAY_S)
    assert world.told() == set()
    count = len(world.network.received)
    world.simulation.run_for(60.0)
    assert len(world.network.received) == count < 2 * STEPS
    for service_id in () if world.has_registry_faults else SERVICES:
        received = [one for one in world.network.received if service_id in one.changes]
        told = [(one.changes[service_id], one.statuses[service_id]) for one in received]
        assert all(one != other for one, other in pairwise(told)), told


@pytest.mark.wide
@pytest.mark.parametrize("seed", [5, 27])
def test_what_the_messages_say_is_true_after_faults_of_the_registry(seed: int) -> None:
    run(seed, with_registry_faults=True)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(100, 106))
def test_what_the_messages_say_is_true_after_more_faults_of_the_registry(seed: int) -> None:
    run(seed, with_registry_faults=True)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(8, 14))
def test_nothing_is_told_twice_while_the_registry_works(seed: int) -> None:
    run(seed, with_registry_faults=False)
