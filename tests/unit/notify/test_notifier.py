"""A node, its alerts and their delivery, in virtual time. What is told when, is in test_alerts.py."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.notify import NotifyStatus
from svcnode.notify.delivery import DELIVERY_TIMEOUT_S
from svcnode.notify.notifier import FAILING_AFTER_S, Notifier, NotifySettings
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.notify.targets import DeliveryError
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.node.node_state import Handle, NodeState
    from svcnode.notify.targets import Message

REFUSED = DeliveryError("connection refused", ReasonCode.CONNECTION_REFUSED)


class Receiver:
    resend_interval_s: ClassVar[float | None] = None

    def __init__(
        self, name: str = "receiver", *, is_failing: bool = False, takes_s: float = 0.0, fingerprint: str = "0"
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.is_failing = is_failing
        self.takes_s = takes_s
        self.attempts_s: list[float] = []
        self.documents: list[dict[str, Any]] = []  # that it has received

    async def deliver(self, message: Message) -> DeliveryError | None:
        self.attempts_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.is_failing:
            return REFUSED
        self.documents.append(message.document())
        return None

    @property
    def changes(self) -> list[tuple[str | None, int]]:
        """What each message says about the node, and its health."""
        return [(one["node"]["change"], one["node"]["health"]) for one in self.documents]


class RaisingReceiver(Receiver):
    async def deliver(self, message: Message) -> DeliveryError | None:
        error = await super().deliver(message)
        if error is not None:
            raise RuntimeError(error.reason)
        return error


class Alertmanager(Receiver):
    resend_interval_s: ClassVar[float | None] = 60.0


def settings_for(*targets: Receiver, policy: AlertPolicy | None = None) -> NotifySettings:
    routes = tuple(RouteSettings(target=target) for target in targets)
    return NotifySettings(routes=routes, policy=policy or AlertPolicy())


def empty_node() -> NodeState:
    """Its wall clock shows the start of 2026 at the virtual time 0."""
    clock = asyncio.get_running_loop().time
    return make_node("validator-7", version="v1.4.2", clock=clock, wall_clock=lambda: clock() + 1_767_225_600.0)


def node_and_db() -> tuple[NodeState, Handle]:
    node = empty_node()
    db = node.register("db", name="Ledger", description="", impact="critical")
    db.up()
    return node, db


# ---- delivery


@in_virtual_time
async def test_a_change_is_delivered_at_the_end_of_group_wait() -> None:
    node, db = node_and_db()
    receiver, status = Receiver(), NotifyStatus()
    async with Notifier(node, settings_for(receiver), status):
        await asyncio.sleep(100)
        db.down("refused")
        await asyncio.sleep(400)
        db.up()
        await asyncio.sleep(400)
        (deliveries,) = status.deliveries
    assert receiver.attempts_s == [105.0, 800.0]
    assert receiver.changes == [("worse", 503), ("recovered", 200)]
    assert [document["at"] for document in receiver.documents] == [
        "2026-01-01T00:01:45.000Z",
        "2026-01-01T00:13:20.000Z",
    ]
    assert receiver.documents[0]["id"] != receiver.documents[1]["id"]
    assert (deliveries.delivered, deliveries.failed, deliveries.last_delivery_at_s) == (2, 0, 800.0)


@in_virtual_time
async def test_changes_from_other_threads_are_notified() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()):
        await asyncio.to_thread(db.down, "refused")
        await asyncio.sleep(10)
    assert receiver.changes == [("worse", 503)]


@in_virtual_time
async def test_a_service_that_never_starts_is_told_although_nothing_changes() -> None:
    node, receiver = empty_node(), Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus()):
        await asyncio.sleep(10)
        node.register("db", name="Ledger", description="", impact="critical").initializing("syncing")
        await asyncio.sleep(1000)
    assert receiver.attempts_s == [315.0]


@pytest.mark.parametrize("receiver_type", [Receiver, RaisingReceiver])
def test_a_failed_delivery_is_repeated_with_increasing_delays_and_says_what_is_true_then(
    receiver_type: type[Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        node, db = node_and_db()
        failing, other, status = receiver_type(is_failing=True), Receiver("other"), NotifyStatus()
        async with Notifier(node, settings_for(failing, other), status):
            db.down("refused")
            await asyncio.sleep(30)
            assert failing.attempts_s == [5.0, 6.0, 8.0, 12.0, 20.0]
            assert other.attempts_s == [5.0], "the other target is not delayed"
            (deliveries, _) = status.deliveries
            assert (deliveries.failed, deliveries.failures_in_a_row) == (5, 5)
            assert "connection refused" in deliveries.error
            assert (deliveries.failing_since_s, deliveries.waiting_since_s) == (5.0, 5.0)
            db.initializing("loading")
            failing.is_failing = False
            await asyncio.sleep(30)
            assert failing.changes == [("worse", 206)]
            assert failing.documents[0]["delayed_s"] == 31.0
            assert (deliveries.failures_in_a_row, deliveries.waiting_since_s) == (0, None)

    with caplog.at_level(logging.INFO, logger="svcnode.notify"):
        scenario()
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events == ["notification_targets", "notification_failed", "notification_recovered"]


@in_virtual_time
async def test_the_others_are_told_of_a_target_that_fails_for_10_minutes_also_between_its_attempts() -> None:
    node, db = node_and_db()
    failing, same_host = Receiver(is_failing=True), Receiver(fingerprint="1")
    routes = tuple(RouteSettings(target=one, name=f"hook {one.fingerprint}") for one in (failing, same_host))
    settings = NotifySettings(routes=routes, policy=AlertPolicy())
    async with Notifier(node, settings, NotifyStatus()) as notifier:
        db.down("refused")
        await asyncio.sleep(300)
        notifier.apply(replace(settings, policy=AlertPolicy(resolve_delay_s=200)))
        assert "hook 0" in notifier.problem or failing.attempts_s[-1] < 300, "a reload ends no failure"
        await asyncio.sleep(600)
        assert [one["targets"][0]["name"] for one in same_host.documents if one["targets"]] == ["hook 0"]
        assert same_host.attempts_s[-1] == pytest.approx(5 + 600 + 5, abs=1)


@in_virtual_time
async def test_an_attempt_has_a_timeout_and_what_happens_meanwhile_is_not_lost() -> None:
    node, db = node_and_db()
    receiver = Receiver(takes_s=10.0)
    hanging = Receiver("hanging", takes_s=1e9)
    async with Notifier(node, settings_for(receiver, hanging, policy=AlertPolicy(resolve_delay_s=60)), NotifyStatus()):
        db.down("refused")
        await asyncio.sleep(10)
        db.up()
        await asyncio.sleep(200)
        assert receiver.changes == [("worse", 503), ("recovered", 200)]
        assert hanging.attempts_s[:2] == [5.0, 5.0 + DELIVERY_TIMEOUT_S + 1.0]


@in_virtual_time
async def test_a_target_that_fails_for_long_is_a_warning_on_the_others() -> None:
    node, db = node_and_db()
    failing, other = Receiver("pager", is_failing=True), Receiver("chat")
    async with Notifier(node, settings_for(failing, other), NotifyStatus()):
        db.down("refused")
        await asyncio.sleep(2 * FAILING_AFTER_S)
        (target,) = other.documents[1]["targets"]
        assert (target["name"], target["change"], target["code"]) == ("pager", "worse", "connection_refused")
        failing.is_failing = False
        await asyncio.sleep(1000)
        assert [one["change"] for one in other.documents[2]["targets"]] == ["recovered"]
        assert [one["targets"] for one in failing.documents] == [[]]


@in_virtual_time
async def test_alertmanager_gets_the_open_problems_again_and_again_which_are_no_messages() -> None:
    node, db = node_and_db()
    receiver, status = Alertmanager(), NotifyStatus()
    async with Notifier(node, settings_for(receiver), status):
        db.down("refused")
        await asyncio.sleep(200)
        assert receiver.attempts_s == [5.0, 65.0, 125.0, 185.0]
        receiver.is_failing = True
        await asyncio.sleep(49)
        assert receiver.attempts_s[4:] == [245.0, 246.0, 248.0]
        assert (status.deliveries[0].delivered, status.deliveries[0].failed) == (1, 3)


# ---- what helps the reader


class PastOutage:
    """A history with an outage two days before the start, which takes some time to read."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s

    async def load_latest(self, limit: int) -> list[Any]:
        await asyncio.sleep(self.takes_s)
        begin_s = 1_767_225_600.0 - 2 * 86_400
        rows = ((0, "started", None, None), (1, "status", "db", "Down"), (9, "status", "db", "Up"))
        return [
            SimpleNamespace(at_s=begin_s + at_s, kind=kind, service_id=service_id, after=after)
            for at_s, kind, service_id, after in rows
        ]


@in_virtual_time
async def test_a_message_has_advice_the_outages_of_the_history_and_links() -> None:
    node = empty_node()
    db = node.register("db", impact="critical", runbook="https://wiki.example.com/db")
    db.up()
    receiver, settings = Receiver(), replace(settings_for(Receiver()), page_url="https://node.example.com")
    settings = replace(settings, routes=(RouteSettings(target=receiver),))
    async with Notifier(node, settings, NotifyStatus(), history=PastOutage()):
        await asyncio.sleep(100)
        db.down("refused")
        await asyncio.sleep(10)
    (document,) = receiver.documents
    (service,) = document["services"]
    assert service["advice"]
    assert service["runbook"] == "https://wiki.example.com/db"
    assert service["outages"] == {"count": 2, "period_s": 2 * 86_400 + 105}
    assert (document["url"], service["url"]) == ("https://node.example.com/", "https://node.example.com/#q=db")


@in_virtual_time
async def test_a_slow_history_delays_no_message_and_its_outages_are_counted_later() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), NotifyStatus(), history=PastOutage(takes_s=200)):
        db.down("refused")
        await asyncio.sleep(100)
        assert receiver.attempts_s == [5.0]
        db.up()
        await asyncio.sleep(400)
    first, last = (document["services"][0]["outages"] for document in receiver.documents)
    assert first is None
    assert last["count"] == 2


# ---- the end


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_planned_stop_is_not_notified(is_flushed: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        node, db = node_and_db()
        receiver = Receiver()
        async with Notifier(node, settings_for(receiver), NotifyStatus()) as notifier:
            await asyncio.sleep(10)
            if is_flushed:
                notifier.flush()
            node.overrides.drain()
            db.down("stopped")
            await asyncio.sleep(1000)
        assert not receiver.attempts_s

    scenario()


def test_at_the_end_each_target_is_tried_once_more_and_not_for_long(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def scenario() -> None:
        node, db = node_and_db()
        receivers = Receiver("good"), Receiver("failing", is_failing=True), Receiver("hanging", takes_s=1e9)
        async with Notifier(node, settings_for(*receivers), NotifyStatus()):
            db.down("refused")
            await asyncio.sleep(2)
        assert asyncio.get_running_loop().time() == 4
        assert [receiver.attempts_s for receiver in receivers] == [[2.0]] * 3

    with caplog.at_level(logging.WARNING, logger="svcnode.notify"):
        scenario()
    undelivered = [one for one in caplog.records if getattr(one, "event", None) == "notifications_undelivered"]
    assert [getattr(one, "target", None) for one in undelivered] == ["failing", "hanging"]


@in_virtual_time
async def test_a_cancelled_notifier_ends_at_once() -> None:
    node, db = node_and_db()

    async def scenario() -> None:
        async with Notifier(node, settings_for(Receiver(takes_s=1e9)), NotifyStatus()):
            db.down("refused")
            await asyncio.sleep(1e9)

    task = asyncio.create_task(scenario())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == 10


# ---- new settings


@in_virtual_time
async def test_settings_can_be_added_changed_and_removed() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, None, NotifyStatus()) as notifier:
        db.down("refused")
        await asyncio.sleep(1000)
        notifier.apply(settings_for(receiver))
        await asyncio.sleep(10)
        assert receiver.changes == [("worse", 503)]
        notifier.apply(settings_for(receiver, policy=AlertPolicy(resolve_delay_s=0, group_wait_s=1)))
        db.up()
        await asyncio.sleep(10)
        assert receiver.changes[1:] == [("recovered", 200)]
        notifier.apply(None)
        db.down("refused")
        await asyncio.sleep(1000)
        assert len(receiver.attempts_s) == 2


@in_virtual_time
async def test_a_new_target_is_told_what_is_wrong_and_a_changed_one_continues_at_once() -> None:
    node, db = node_and_db()
    wrong, right = Receiver(is_failing=True), Receiver()
    new, other_path = Alertmanager("new"), Receiver(fingerprint="1")
    async with Notifier(node, settings_for(wrong), NotifyStatus()) as notifier:
        db.down("refused")
        await asyncio.sleep(100)
        notifier.apply(settings_for(right, new))
        await asyncio.sleep(0.1)
        assert right.changes == [("worse", 503)]
        await asyncio.sleep(10)
        assert new.changes == [("worse", 503)]
        notifier.apply(settings_for(other_path))
        await asyncio.sleep(10)
        assert other_path.changes == [("worse", 503)]
        notifier.apply(settings_for(right, new))
        await asyncio.sleep(10)
        assert right.changes == [("worse", 503)] * 2, "it was removed, so it is new again"
        notifier.apply(settings_for(right))
        db.up()
        await asyncio.sleep(400)
        assert (len(right.documents), len(new.documents)) == (3, 2)


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


async def notify_down(storage: FakeStorage, *receivers: Receiver) -> None:
    """A process whose service goes down, and which is stopped after that."""
    node, db = node_and_db()
    async with Notifier(node, settings_for(*receivers), NotifyStatus(), storage=storage):
        db.down("refused")
        await asyncio.sleep(10)


@in_virtual_time
async def test_what_each_target_was_told_is_saved_by_its_url_also_if_names_are_the_same() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver("chat"), Receiver("mail"), Receiver("chat", is_failing=True, fingerprint="1"))
    await asyncio.sleep(3600)
    mail, first, second, new = Receiver("mail"), Receiver("chat"), Receiver("chat", fingerprint="1"), Receiver("new")
    node, db = node_and_db()
    db.down("refused")
    async with Notifier(node, settings_for(mail, first, second, new), NotifyStatus(), storage=storage):
        await asyncio.sleep(10)
        assert [len(one.documents) for one in (mail, first, second, new)] == [0, 0, 1, 1]
        db.up()
        await asyncio.sleep(400)
        assert [one.documents[-1]["node"]["change"] for one in (mail, first, second, new)] == ["recovered"] * 4


@in_virtual_time
async def test_slow_storage_delays_no_notification_and_is_not_overwritten() -> None:
    storage, receiver = FakeStorage(), Receiver()
    await notify_down(storage, Receiver())
    before = storage.text
    storage.is_open.clear()
    node, _ = node_and_db()
    node.register("queue", name="", description="", impact="critical").down("refused")
    async with Notifier(node, settings_for(receiver), NotifyStatus(), storage=storage):
        await asyncio.sleep(60)
        assert receiver.changes == [("worse", 503)]
        assert storage.text == before
        storage.is_open.set()
        await asyncio.sleep(400)
        (service,) = receiver.documents[-1]["services"]
        assert [service[key] for key in ("id", "change", "duration_is_upper_bound")] == ["db", "recovered", True]
        assert "queue" in str(storage.text)


@in_virtual_time
async def test_without_targets_the_saved_state_is_cleared_also_before_it_is_loaded() -> None:
    storage = FakeStorage()
    for is_open in (True, False):
        await notify_down(storage, Receiver())
        assert "db" in str(storage.text)
        if not is_open:
            storage.is_open.clear()
        node, _ = node_and_db()
        async with Notifier(node, settings_for(Receiver()), NotifyStatus(), storage=storage) as notifier:
            await asyncio.sleep(1)
            notifier.apply(None)
            storage.is_open.set()
            await asyncio.sleep(1)
        assert json.loads(str(storage.text))["targets"] == []


@in_virtual_time
async def test_a_stop_before_the_state_is_loaded_keeps_the_saved_state() -> None:
    storage = FakeStorage()
    await notify_down(storage, Receiver())
    before = storage.text
    storage.is_open.clear()
    node, _ = node_and_db()
    async with Notifier(node, settings_for(Receiver()), NotifyStatus(), storage=storage):
        await asyncio.sleep(10)
    assert storage.text == before
