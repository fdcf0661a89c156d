"""The notifications of replicas in virtual time, on a simulated etcd: one replica sends, and another one continues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import RegistryPermissionError
from svcnode.core.model import Status
from svcnode.net.etcd_json import Delete, Put
from svcnode.notify.notifier import NotifySettings
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.notify.targets import DeliveryError
from svcnode.sharing.format import KeyKind, ToldDocument, encode_document, encode_key
from svcnode.sharing.turns import LAST_SENDER_WAIT_S, OTHERS_WAIT_S
from tests.support.replica_simulation import LEASE_S, ROOT, Process, Simulation

if TYPE_CHECKING:
    from svcnode.notify.targets import Message

HOOK = "https://hooks"
GROUP_WAIT_S, RESOLVE_DELAY_S = 5.0, 30.0
NOTICED_S = 10.0  # a change of a backend is known to all replicas
TOLD_S = NOTICED_S + GROUP_WAIT_S
TAKEOVER_S = LEASE_S + 2.0
STARTED_AT_S = 1_767_225_600.0
REFUSED = DeliveryError("connection refused", ReasonCode.CONNECTION_REFUSED)


class Received(NamedTuple):
    at_s: float
    replica: str
    target: str
    changes: dict[str, str]  # of the services
    statuses: dict[str, str]  # of the same


class Storage:
    """The history file of a replica."""

    text: str | None = None

    def save_state(self, text: str) -> None:
        self.text = text

    async def load_state(self) -> str | None:
        return self.text


class Network:
    """All targets of all replicas, and what they have received; and what the replicas have stored."""

    def __init__(self) -> None:
        self.storages = defaultdict[str, Storage](Storage)
        self.received: list[Received] = []
        self.unreachable: set[tuple[str, str]] = set()  # replica and target
        self.delay_s = 0.0

    def of(self, service_id: str, target: str = HOOK) -> list[str]:
        """What the target was told about a service."""
        return [one.changes[service_id] for one in self.received if one.target == target and service_id in one.changes]


class Hook:
    fingerprint = "0"
    resend_interval_s: ClassVar[float | None] = None

    def __init__(self, replica: str, name: str, simulation: Simulation, network: Network) -> None:
        self.replica, self.name, self._simulation, self._network = replica, name, simulation, network

    async def deliver(self, message: Message) -> DeliveryError | None:
        await asyncio.sleep(self._network.delay_s / 2)
        if (self.replica, self.name) in self._network.unreachable:
            return REFUSED
        changes = {service["id"]: service["change"] for service in message.fields["services"]}
        statuses = {service["id"]: service["status"] for service in message.fields["services"]}
        self._network.received.append(Received(self._simulation.now_s, self.replica, self.name, changes, statuses))
        await asyncio.sleep(self._network.delay_s / 2)
        return None


class Alertmanager(Hook):
    resend_interval_s: ClassVar[float | None] = 60.0


@pytest.fixture
def network() -> Network:
    return Network()


def checked(backend: str, **options: Any) -> dict[str, Any]:
    times = {"interval": "2s", "stale_after": "60s", "start_period": "0s"}
    return {"probe": f"sim://{backend}", "impact": "critical", **times, **options}


def start_one(
    simulation: Simulation, network: Network, name: str, *targets: str, offset_s: float = 0.0, **options: Any
) -> Process:
    hooks = [Hook(name, target, simulation, network) for target in targets or (HOOK,)]
    return start_with(simulation, network, name, hooks, offset_s=offset_s, **options)


def start_with(
    simulation: Simulation, network: Network, name: str, hooks: list[Hook], *, offset_s: float = 0.0, **options: Any
) -> Process:
    """The clocks of the replicas differ: the monotonic ones by days, the wall clocks by a second."""
    policy = AlertPolicy(group_wait_s=GROUP_WAIT_S, resolve_delay_s=RESOLVE_DELAY_S)
    notify = NotifySettings(routes=tuple(RouteSettings(target=hook) for hook in hooks), policy=policy)
    services = {"db": checked("db", **options), "web": checked("web", **options)}
    return simulation.start(
        name,
        services,
        clock_s=1e5 * offset_s,
        notify=notify,
        wall_clock=lambda: STARTED_AT_S + simulation.now_s + offset_s,
        storage=network.storages[name],
    )


def start(simulation: Simulation, network: Network, **options: Any) -> list[Process]:
    processes = [start_one(simulation, network, name, offset_s=number, **options) for number, name in enumerate("abc")]
    simulation.run_for(10.0)
    assert all(process.statuses() == {"db": Status.UP, "web": Status.UP} for process in processes)
    assert not network.received
    return processes


def start_one_by_one(simulation: Simulation, network: Network, **options: Any) -> list[Process]:
    """The first one is the sender."""
    processes = []
    for number, name in enumerate("abc"):
        processes.append(start_one(simulation, network, name, offset_s=number, **options))
        simulation.run_for(5.0)
    assert [may_send(process) for process in processes] == [True, False, False]
    return processes


def may_send(process: Process) -> bool:
    turn = process.notify_status.deliveries[0].turn
    return turn is not None and turn.may_send


def split(processes: list[Process]) -> tuple[Process, list[Process]]:
    """The sender and the others."""
    (sender,) = (process for process in processes if process.is_alive and may_send(process))
    return sender, [process for process in processes if process.is_alive and process is not sender]


def shown_sender(process: Process) -> str | None:
    turn = process.notify_status.deliveries[0].turn
    return None if turn is None else turn.sender


# ---- one sends


def test_one_replica_sends_and_all_know_what_was_told(simulation: Simulation, network: Network) -> None:
    processes = start(simulation, network)
    sender, others = split(processes)
    assert {shown_sender(process) for process in processes} == {sender.name}
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert [(one.replica, one.changes) for one in network.received] == [(sender.name, {"db": "worse"})]
    for process in others:
        assert process.notify_status.alerts is not None
        assert process.notify_status.alerts.find("db").state == "firing"
        assert process.notifier.problem == ""
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S + 320.0)
    assert network.of("db") == ["worse", "recovered"]
    assert all(process.notifier.problem == "" for process in processes)


def test_every_replica_sends_to_alertmanager(simulation: Simulation, network: Network) -> None:
    for name in "ab":
        start_with(simulation, network, name, [Alertmanager(name, "http://alertmanager", simulation, network)])
    simulation.run_for(10.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert {one.replica for one in network.received if one.changes} == {"a", "b"}


def test_each_target_has_a_sender_among_the_replicas_that_have_it(simulation: Simulation, network: Network) -> None:
    start_one(simulation, network, "a", "https://one", "https://both")
    start_one(simulation, network, "b", "https://other", "https://both", offset_s=1)
    simulation.run_for(10.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    for target in ("https://one", "https://other", "https://both"):
        assert network.of("db", target) == ["worse"]


def test_targets_with_the_same_name_are_counted(simulation: Simulation, network: Network) -> None:
    for number, name in enumerate("ab"):
        start_one(simulation, network, name, HOOK, HOOK, offset_s=number)
    simulation.run_for(10.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert network.of("db") == ["worse", "worse"]


# ---- the sender is lost


def test_what_was_told_is_not_told_again_when_the_sender_is_killed(simulation: Simulation, network: Network) -> None:
    sender, _ = split(processes := start(simulation, network))
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    sender.kill()
    simulation.run_for(TAKEOVER_S)
    successor, _ = split(processes)
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S)
    assert [(one.replica, one.changes) for one in network.received] == [
        (sender.name, {"db": "worse"}),
        (successor.name, {"db": "recovered"}),
    ]


def test_what_was_not_told_is_told_by_the_next_sender(simulation: Simulation, network: Network) -> None:
    sender, others = split(start(simulation, network))
    simulation.down.add("db")
    while others[0].statuses()["db"] is not Status.DOWN:
        simulation.run_for(0.1)
    simulation.run_for(GROUP_WAIT_S / 2)
    sender.kill()
    simulation.run_for(TAKEOVER_S)
    assert [one.changes for one in network.received] == [{"db": "worse"}]


def test_a_short_problem_is_told_by_the_next_sender(simulation: Simulation, network: Network) -> None:
    sender, others = split(start(simulation, network))
    simulation.down.add("db")
    while others[0].statuses()["db"] is not Status.DOWN:
        simulation.run_for(0.1)
    sender.kill()
    simulation.down.clear()
    simulation.run_for(TAKEOVER_S + NOTICED_S)
    assert network.of("db") == ["transient"]


def test_only_the_message_in_flight_comes_twice(simulation: Simulation, network: Network) -> None:
    sender, _ = split(start(simulation, network))
    network.delay_s = 4.0
    simulation.down.add("db")
    while not network.received:
        simulation.run_for(0.1)
    sender.kill()  # it never knew that the message was received
    simulation.run_for(TAKEOVER_S + 100.0)
    assert network.of("db") == ["worse", "worse"]


def test_a_replica_that_was_suspended_sends_nothing_old(simulation: Simulation, network: Network) -> None:
    sender, _ = split(processes := start(simulation, network))
    sender.suspend()
    simulation.run_for(1.0)
    simulation.down.add("db")
    simulation.run_for(TAKEOVER_S + TOLD_S)
    assert network.of("db") == ["worse"]
    sender.resume()
    simulation.run_for(60.0)
    assert network.of("db") == ["worse"]
    assert sender.name not in {one.replica for one in network.received}
    assert sender not in [process for process in processes if may_send(process)]


def test_a_message_that_was_received_during_a_suspension_ends_with_one_message(
    simulation: Simulation, network: Network
) -> None:
    sender, _ = split(start(simulation, network))
    network.delay_s = 4.0
    simulation.down.add("db")
    while not network.received:
        simulation.run_for(0.1)
    sender.suspend()
    simulation.run_for(TAKEOVER_S)
    sender.resume()  # and learns that its message was received
    simulation.run_for(10.0)
    assert network.of("db") == ["worse", "worse"]
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S + 60.0)
    assert network.of("db") == ["worse", "worse", "recovered"]


def test_a_planned_stop_hands_over_at_once(simulation: Simulation, network: Network) -> None:
    sender, others = split(processes := start(simulation, network))
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    sender.shut_down()
    simulation.run_for(2.0)
    successor, _ = split(others)
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S)
    assert network.of("db") == ["worse", "recovered"]
    assert network.received[-1].replica == successor.name
    assert processes


def test_a_planned_stop_loses_nothing_that_waits(simulation: Simulation, network: Network) -> None:
    sender, others = split(start(simulation, network))
    simulation.down.add("db")
    while others[0].statuses()["db"] is not Status.DOWN:
        simulation.run_for(0.1)
    sender.shut_down()
    simulation.run_for(30.0)
    assert network.of("db") == ["worse"]


def test_a_drained_replica_lets_another_send(simulation: Simulation, network: Network) -> None:
    sender, others = split(start(simulation, network))
    sender.call(lambda: sender.node.overrides.drain("by hand"))
    simulation.run_for(2.0)
    assert [may_send(process) for process in others].count(True) == 1
    assert not may_send(sender)


def test_a_replica_that_starts_again_continues(simulation: Simulation, network: Network) -> None:
    """The lease of its earlier process has not ended yet."""
    process = start_one(simulation, network, "a")
    simulation.run_for(10.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    process.kill()
    process = start_one(simulation, network, "a", offset_s=3)
    simulation.run_for(2.0)
    assert may_send(process)
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S)
    assert network.of("db") == ["worse", "recovered"]


def test_a_sender_that_cannot_deliver_lets_another_try(simulation: Simulation, network: Network) -> None:
    sender, others = split(start(simulation, network))
    network.unreachable = {(sender.name, HOOK)}
    simulation.down.add("db")
    simulation.run_for(TOLD_S + 20.0)
    assert network.of("db") == ["worse"]
    assert network.received[0].replica in {process.name for process in others}
    simulation.run_for(320.0)
    assert len(network.received) == 1
    assert sender.notifier.problem == ""


# ---- without etcd


def test_the_last_sender_goes_on_while_etcd_is_away(simulation: Simulation, network: Network) -> None:
    start_one_by_one(simulation, network, stale_after="10m", checked_by=["a"])
    simulation.etcd.stop()
    simulation.run_for(LEASE_S + LAST_SENDER_WAIT_S + 2.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert [(one.replica, one.changes) for one in network.received] == [("a", {"db": "worse"})]


def test_a_sender_that_alone_is_cut_off_goes_on_and_another_one_continues(
    simulation: Simulation, network: Network
) -> None:
    """It alone checks the services, so the others soon have no evidence."""
    alone, *others = start_one_by_one(simulation, network, stale_after="20s", checked_by=["a"])
    alone.client.requests.is_cut = alone.client.responses.is_cut = True
    simulation.run_for(LEASE_S + LAST_SENDER_WAIT_S + 2.0)
    successor, _ = split(others)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert sorted((one.replica, one.changes) for one in network.received) == [
        ("a", {"db": "worse"}),
        (successor.name, {"db": "worse", "web": "worse"}),
    ]


def test_after_a_minute_without_etcd_every_replica_sends(simulation: Simulation, network: Network) -> None:
    """The sender may be lost, and here it does not know what another replica sees."""
    start_one_by_one(simulation, network, stale_after="10m", checked_by=["b"])
    simulation.etcd.stop()
    simulation.down.add("db")
    simulation.run_for(OTHERS_WAIT_S)
    assert not network.received
    simulation.run_for(LEASE_S + TOLD_S)
    assert [(one.replica, one.changes) for one in network.received] == [("b", {"db": "worse"})]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_told_without_etcd_is_ended_by_the_sender(
    simulation: Simulation, network: Network, is_restarted: bool
) -> None:
    _, _, alone = start_one_by_one(simulation, network, stale_after="20s", checked_by=["a"])
    alone.client.requests.is_cut = alone.client.responses.is_cut = True
    simulation.run_for(2 * OTHERS_WAIT_S)
    assert [(one.replica, one.changes) for one in network.received] == [("c", {"db": "worse", "web": "worse"})]
    if is_restarted:
        alone.kill()
        start_one(simulation, network, "c", offset_s=7)
    else:
        alone.client.reconnect()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S + 5.0)
    assert [(one.replica, one.changes) for one in network.received[1:]] == [
        ("a", {"db": "recovered", "web": "recovered"})
    ]


def test_every_replica_sends_if_nobody_may_write(simulation: Simulation, network: Network) -> None:
    processes = start(simulation, network)
    for process in processes:
        process.client.refusal = RegistryPermissionError("etcd: permission denied")
    simulation.run_for(LEASE_S + OTHERS_WAIT_S + 10.0)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert network.of("db")
    for process in processes:
        process.client.refusal = None
    simulation.run_for(20.0)
    split(processes)


@pytest.mark.parametrize(
    "away_s", [8.0, *(pytest.param(away_s, marks=pytest.mark.wide) for away_s in (5.0, 12.0, 30.0))]
)
def test_evidence_that_was_lost_for_a_moment_is_no_message(
    simulation: Simulation, network: Network, away_s: float
) -> None:
    start(simulation, network, stale_after="7s")
    simulation.etcd.stop()
    simulation.run_for(away_s)
    simulation.etcd.start()
    simulation.run_for(320.0)
    for service_id in ("db", "web"):
        assert network.of(service_id) in ([], ["worse", "recovered"])


def test_a_failure_that_ends_with_a_loss_of_evidence_is_told(simulation: Simulation, network: Network) -> None:
    start(simulation, network)
    simulation.down.add("db")
    simulation.run_for(4.0)
    simulation.etcd.stop()
    simulation.run_for(2.0)
    simulation.etcd.start()
    simulation.run_for(TOLD_S)
    assert network.of("db") == ["worse"]


# ---- what the registry has


def test_a_document_that_is_not_valid_is_ignored(simulation: Simulation, network: Network) -> None:
    simulation.write(Put(encode_key(ROOT, KeyKind.TOLD, HOOK), encode_document(ToldDocument([{"type": "node"}]))))
    processes = start(simulation, network)
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    assert network.of("db") == ["worse"]
    assert processes


def test_a_restored_etcd_repeats_nothing(simulation: Simulation, network: Network) -> None:
    processes = start(simulation, network)
    simulation.down.add("web")
    simulation.run_for(TOLD_S)
    snapshot = simulation.etcd.snapshot()
    simulation.down.add("db")
    simulation.run_for(TOLD_S)
    simulation.etcd.stop()
    simulation.run_for(1.0)
    simulation.etcd.start(snapshot)
    simulation.run_for(60.0)
    split(processes)
    simulation.down.clear()
    simulation.run_for(NOTICED_S + RESOLVE_DELAY_S + 5.0)
    assert network.of("db") == network.of("web") == ["worse", "recovered"]


def test_a_sender_whose_key_is_deleted_gets_its_turn_again(simulation: Simulation, network: Network) -> None:
    processes = start(simulation, network)
    simulation.write(Delete(encode_key(ROOT, KeyKind.SENDERS, HOOK)))
    simulation.run_for(2.0)
    split(processes)
