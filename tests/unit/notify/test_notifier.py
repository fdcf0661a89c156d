"""A node, its alert engine and the delivery of notifications, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.node.node_state import Handle
from svcnode.notify import NotifyStatus
from svcnode.notify.alert import AlertPolicy
from svcnode.notify.notifier import Notifier, NotifySettings
from svcnode.notify.targets import DeliveryError
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.node.node_state import NodeState
    from svcnode.notify.message import Message


class NodeChange(NamedTuple):
    """The fields of a message that are about the node."""

    change: str | None
    health: int
    health_before: int | None
    hours: int | None = None  # the duration
    is_upper_bound: bool = False

    @classmethod
    def of(cls, message: Message) -> NodeChange:
        node = message.fields["node"]
        hours = None if node["duration_s"] is None else int(node["duration_s"] // 3600)
        return cls(node["change"], node["health"], node["health_before"], hours, node["duration_is_upper_bound"])


IS_DOWN = NodeChange("worse", 503, 200)
IS_DOWN_AT_START = NodeChange("worse", 503, None)
RECOVERED = NodeChange("recovered", 200, 503, 0)
RECOVERED_DURING_RESTART = NodeChange("recovered", 200, 503, 1, is_upper_bound=True)
ONGOING = NodeChange("ongoing", 503, 503, 1)


class Receiver:
    name = "receiver"
    resend_interval_s: ClassVar[float | None] = None

    def __init__(self) -> None:
        self.attempts: list[tuple[float, NodeChange]] = []
        self.messages: list[Message] = []
        self.lost: list[int] = []

    async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
        self.attempts.append((asyncio.get_running_loop().time(), NodeChange.of(message)))
        self.messages.append(message)
        self.lost.append(lost)
        return None

    @property
    def changes(self) -> list[NodeChange]:
        return [change for _, change in self.attempts]


def settings_for(*targets: Receiver, policy: AlertPolicy | None = None) -> NotifySettings:
    return NotifySettings(targets=targets, policy=policy or AlertPolicy())


def empty_node() -> NodeState:
    """Its wall clock shows the start of 2026 at the virtual time 0."""
    clock = asyncio.get_running_loop().time
    return make_node("validator-7", version="v1.4.2", clock=clock, wall_clock=lambda: clock() + 1_767_225_600.0)


def node_and_db() -> tuple[NodeState, Handle]:
    node = empty_node()
    db = node.register("db", name="Ledger", description="", impact="critical")
    db.up()
    return node, db


@in_virtual_time
async def test_a_change_is_delivered_at_the_end_of_group_wait() -> None:
    node, db = node_and_db()
    receiver, stats = Receiver(), NotifyStatus()
    async with Notifier(node, settings_for(receiver), stats) as _:
        await asyncio.sleep(100)
        db.down("refused")
        await asyncio.sleep(400)
        db.up()
        await asyncio.sleep(400)
    assert receiver.attempts == [(105.0, IS_DOWN), (505.0, RECOVERED)]
    assert receiver.messages[1].fields["node"]["duration_s"] == 400
    assert stats.sent == 2
    assert [message.fields["at"] for message in receiver.messages] == [
        "2026-01-01T00:01:45.000Z",
        "2026-01-01T00:08:25.000Z",
    ]
    first, second = (message.fields["id"] for message in receiver.messages)
    assert first != second


@in_virtual_time
async def test_reminders_are_delivered_though_nothing_changes() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver, policy=AlertPolicy(repeat_interval_s=60.0)), NotifyStatus()):
        db.down("refused")
        await asyncio.sleep(200)
    assert [at_s for at_s, _ in receiver.attempts] == [5.0, 65.0, 125.0, 185.0]


@in_virtual_time
async def test_changes_from_other_threads_are_notified() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()):
        await asyncio.to_thread(db.down, "refused")
        await asyncio.sleep(10)
    assert receiver.changes == [IS_DOWN]


@pytest.mark.parametrize("is_flushed", [True, False])
@in_virtual_time
async def test_a_planned_stop_is_not_notified(is_flushed: bool) -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()) as notifier:
        await asyncio.sleep(10)
        if is_flushed:
            notifier.flush()
        node.overrides.drain()
        db.down("stopped")
        await asyncio.sleep(1000)
    assert not receiver.attempts


@in_virtual_time
async def test_flush_sends_pending_changes() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()) as notifier:
        db.down("refused")
        await asyncio.sleep(2)
        notifier.flush()
    assert receiver.attempts == [(2.0, IS_DOWN)]


@in_virtual_time
async def test_a_cancelled_notifier_ends_at_once() -> None:
    node, db = node_and_db()
    stats = NotifyStatus()

    class HangingReceiver(Receiver):
        async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
            await asyncio.sleep(1e9)
            return None

    async def scenario() -> None:
        async with Notifier(node, settings_for(HangingReceiver()), stats):
            db.down("refused")
            await asyncio.sleep(1e9)

    task = asyncio.create_task(scenario())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == 10
    assert stats.dropped == 1


@in_virtual_time
async def test_settings_can_be_added_changed_and_removed() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, None, NotifyStatus()) as notifier:
        db.down("refused")
        await asyncio.sleep(1000)
        notifier.apply(settings_for(receiver))
        await asyncio.sleep(10)
        assert receiver.changes == [IS_DOWN_AT_START]
        notifier.apply(settings_for(receiver, policy=AlertPolicy(resolve_delay_s=0, group_wait_s=1)))
        db.up()
        await asyncio.sleep(10)
        assert receiver.attempts[1:] == [(1011.0, RECOVERED)]
        assert receiver.messages[1].fields["node"]["duration_s"] == 10, "since the first settings"
        notifier.apply(None)
        db.down("refused")
        await asyncio.sleep(1000)
        notifier.apply(settings_for())
        await asyncio.sleep(1000)
        assert len(receiver.attempts) == 2


@in_virtual_time
async def test_a_service_registered_later_is_notified_with_its_definition() -> None:
    node, _ = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()):
        node.register("queue", name="Queue", description="", impact="critical").down("gone")
        node.register("extra", name="Extra", description="", impact="none").down("gone")
        await asyncio.sleep(10)
    (message,) = receiver.messages
    (service,) = message.fields["services"]
    assert {key: service[key] for key in ("id", "name", "impact", "status", "status_before", "reason", "code")} == {
        "id": "queue",
        "name": "Queue",
        "impact": "critical",
        "status": "Down",
        "status_before": None,
        "reason": "gone",
        "code": "reported",
    }


# ---- across a restart


class FakeStorage:
    """Storage that is shared by several notifiers and may open late."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()

    def save_state(self, text: str) -> None:
        self.text = text

    async def load_state(self) -> str | None:
        await self.is_open.wait()
        return self.text


class FailingReceiver(Receiver):
    async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
        await super().deliver(message, lost)
        return DeliveryError("connection refused", ReasonCode.CONNECTION_REFUSED)


class UnreliableReceiver(FailingReceiver):
    """Accepts messages until a test sets `is_failing`, or up to a number."""

    def __init__(self, name: str = "receiver", *, max_messages: int = 1000) -> None:
        super().__init__()
        self.name = name
        self.is_failing = False
        self.max_messages = max_messages

    async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
        error = await super().deliver(message, lost)
        if self.is_failing or self.max_messages == 0:
            return error
        self.max_messages -= 1
        return None


async def notify_down(storage: FakeStorage, *receivers: Receiver, is_killed: bool = False) -> None:
    """A process whose service goes down, and which stops after that."""
    node, db = node_and_db()
    async with Notifier(node, settings_for(*receivers), NotifyStatus(), storage=storage):
        db.down("refused")
        await asyncio.sleep(10)
        text = storage.text
    if is_killed:
        storage.text = text


async def changes_after_restart(storage: FakeStorage, status: str | None, *others: Receiver) -> list[NodeChange]:
    """The notifications of the next process, which starts an hour later."""
    await asyncio.sleep(3590)
    receiver = Receiver()
    node = empty_node()
    if status is not None:
        node.register("db", name="Ledger", description="", impact="critical")
    async with Notifier(node, settings_for(receiver, *others), NotifyStatus(), storage=storage):
        await asyncio.sleep(1)
        if status == "Up":
            Handle(node, "db").up()
        elif status == "Down":
            Handle(node, "db").down("refused")
        await asyncio.sleep(1000)
    return receiver.changes


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    ("status", "changes"),
    [("Down", []), ("Initializing", []), ("Up", [RECOVERED_DURING_RESTART]), (None, [RECOVERED_DURING_RESTART])],
)
def test_a_restart_continues_the_incidents(status: str | None, changes: list[NodeChange], is_killed: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        storage = FakeStorage()
        await notify_down(storage, Receiver(), is_killed=is_killed)
        assert await changes_after_restart(storage, status) == changes
        if status == "Up":
            assert await changes_after_restart(storage, "Up") == [], "the recovery was saved, too"

    scenario()


@in_virtual_time
async def test_an_incident_or_recovery_that_a_target_did_not_receive_is_notified_once_more() -> None:
    storage, receiver = FakeStorage(), FailingReceiver()
    await notify_down(storage, Receiver(), FailingReceiver())
    assert await changes_after_restart(storage, "Down") == [ONGOING]
    assert await changes_after_restart(storage, "Down") == []
    node, _ = node_and_db()
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage):
        await asyncio.sleep(10)
    assert receiver.attempts
    assert len(await changes_after_restart(storage, "Up")) == 1


@in_virtual_time
async def test_while_a_target_fails_every_restart_notifies_the_others_once_more() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver(), FailingReceiver())
    assert await changes_after_restart(storage, "Down", FailingReceiver()) == [ONGOING]
    assert len(await changes_after_restart(storage, "Up", FailingReceiver())) == 1
    assert len(await changes_after_restart(storage, "Up", FailingReceiver())) == 1
    assert len(await changes_after_restart(storage, "Up")) == 1
    assert await changes_after_restart(storage, "Up") == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_undelivered_recovery_is_notified_beside_a_target_that_always_fails(is_killed: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        storage, receiver = FakeStorage(), UnreliableReceiver()
        node, db = node_and_db()
        settings = settings_for(receiver, FailingReceiver())
        async with Notifier(node, settings, NotifyStatus(), storage=storage):
            db.down("refused")
            await asyncio.sleep(400)
            receiver.is_failing = True
            db.up()
            await asyncio.sleep(10)
            text = storage.text
        storage.text = text if is_killed else storage.text
        assert await changes_after_restart(storage, "Up") == [RECOVERED_DURING_RESTART]

    scenario()


@in_virtual_time
async def test_a_recovery_queued_behind_its_problem_is_notified_after_a_restart() -> None:
    storage, receiver = FakeStorage(), UnreliableReceiver(max_messages=1)
    receiver.is_failing = True
    node, db = node_and_db()
    settings = settings_for(receiver, policy=AlertPolicy(resolve_delay_s=0))
    async with Notifier(node, settings, NotifyStatus(), storage=storage):
        db.down("refused")
        await asyncio.sleep(10)
        db.up()
        await asyncio.sleep(10)
        receiver.is_failing = False
        await asyncio.sleep(60)
    assert await changes_after_restart(storage, "Up") == [RECOVERED_DURING_RESTART]


@in_virtual_time
async def test_an_incident_that_a_target_never_received_is_not_resolved_for_it() -> None:
    storage = FakeStorage()
    node, db = node_and_db()
    settings = settings_for(Receiver(), FailingReceiver(), policy=AlertPolicy(resolve_delay_s=0))
    async with Notifier(node, settings, NotifyStatus(), storage=storage):
        db.down("refused")
        await asyncio.sleep(10)
        db.up()
        await asyncio.sleep(10)
    assert await changes_after_restart(storage, "Up") == []


@in_virtual_time
async def test_an_open_incident_is_not_notified_again_for_a_new_target() -> None:
    storage, receiver = FakeStorage(), Receiver()
    node, db = node_and_db()
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage) as notifier:
        db.down("refused")
        await asyncio.sleep(10)
        notifier.apply(settings_for(receiver, Receiver()))
        await asyncio.sleep(10)
    assert await changes_after_restart(storage, "Down") == []


@in_virtual_time
async def test_a_problem_after_an_undelivered_recovery_is_notified_as_recurred() -> None:
    storage, receiver = FakeStorage(), UnreliableReceiver()
    node, db = node_and_db()
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage):
        db.down("refused")
        await asyncio.sleep(400)
        receiver.is_failing = True
        db.up()
        await asyncio.sleep(400)
        db.down("refused")
        await asyncio.sleep(10)
    await asyncio.sleep(7 * 3600)
    node = empty_node()
    db = node.register("db", name="Ledger", description="", impact="critical")
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage):
        await asyncio.sleep(1)
        db.down("refused")
        await asyncio.sleep(10)
    assert receiver.changes[-1] == NodeChange("recurred", 503, 503, 7), "this is not delivered, either"
    assert await changes_after_restart(storage, "Down") == [NodeChange("recurred", 503, 503, 8)]
    assert await changes_after_restart(storage, "Down") == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_lost_messages_are_counted_per_target_across_a_restart(is_killed: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        storage = FakeStorage()
        first, other, same_name = UnreliableReceiver("chat"), UnreliableReceiver("mail"), UnreliableReceiver("chat")
        same_name.is_failing = True
        node, db = node_and_db()
        settings = settings_for(first, other, same_name, policy=AlertPolicy(resolve_delay_s=0))
        async with Notifier(node, settings, NotifyStatus(), storage=storage):
            db.down("refused")
            await asyncio.sleep(10)
            first.is_failing = True
            db.up()
            await asyncio.sleep(10)
            text = storage.text
        storage.text = text if is_killed else storage.text
        targets = (
            UnreliableReceiver("mail"),
            UnreliableReceiver("chat"),
            UnreliableReceiver("chat"),
            UnreliableReceiver("new"),
        )
        node, _ = node_and_db()
        async with Notifier(node, settings_for(*targets), NotifyStatus(), storage=storage):
            await asyncio.sleep(60)
        assert [one.lost for one in targets] == [[0], [1], [2], [0]]
        text = storage.text
        assert text is not None
        assert json.loads(text)["lost"] == [["mail", 0], ["chat", 0], ["chat", 0], ["new", 0]]

    scenario()


@in_virtual_time
async def test_without_a_saved_state_an_incident_is_notified_as_new() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver())
    assert await changes_after_restart(FakeStorage(), "Down") == [IS_DOWN_AT_START]
    assert await changes_after_restart(FakeStorage(), "Up") == []


@in_virtual_time
async def test_slow_storage_delays_no_notification_and_is_not_overwritten() -> None:
    storage, receiver = FakeStorage(), Receiver()
    await notify_down(storage, Receiver())
    before = storage.text
    storage.is_open.clear()
    node, _ = node_and_db()
    queue = node.register("queue", name="", description="", impact="critical")
    queue.down("refused")
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage):
        await asyncio.sleep(60)
        assert receiver.changes == [IS_DOWN_AT_START]
        assert storage.text == before
        storage.is_open.set()
        await asyncio.sleep(60)
        (service,) = receiver.messages[-1].fields["services"]
        assert [service[key] for key in ("id", "change", "duration_is_upper_bound")] == ["db", "recovered", True]
        assert storage.text != before
        assert "queue" in str(storage.text)


@in_virtual_time
async def test_without_targets_the_saved_state_is_cleared() -> None:
    storage, receiver = FakeStorage(), Receiver()
    node, db = node_and_db()
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage) as notifier:
        db.down("refused")
        await asyncio.sleep(10)
        assert "db" in str(storage.text)
        notifier.apply(None)
        assert storage.text == '{"incidents": [], "lost": []}'


@in_virtual_time
async def test_a_stop_before_the_state_is_loaded_keeps_the_saved_state() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver())
    storage.is_open.clear()
    node, _ = node_and_db()
    async with Notifier(node, settings_for(Receiver()), NotifyStatus(), storage=storage) as notifier:
        notifier.flush()
        storage.is_open.set()
        await asyncio.sleep(1)
    assert await changes_after_restart(storage, "Up") == [RECOVERED_DURING_RESTART]


@in_virtual_time
async def test_a_state_cleared_before_it_is_loaded_stays_cleared() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver())
    storage.is_open.clear()
    node, _ = node_and_db()
    async with Notifier(node, settings_for(Receiver()), NotifyStatus(), storage=storage) as notifier:
        await asyncio.sleep(1)
        notifier.apply(None)
        storage.is_open.set()
        await asyncio.sleep(1)
    assert await changes_after_restart(storage, "Up") == []
