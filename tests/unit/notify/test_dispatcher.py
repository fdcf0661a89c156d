"""Delivery and retries, in virtual time: an outage of a day takes milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Service
from svcnode.notify import NotifyStatus
from svcnode.notify.dispatcher import (
    CLOSE_TIMEOUT_S,
    DELIVERY_TIMEOUT_S,
    MAX_BACKOFF_S,
    MAX_MESSAGE_AGE_S,
    MAX_QUEUED,
    Dispatcher,
    try_deliver,
)
from svcnode.notify.incidents import Incident
from svcnode.notify.message import Message
from svcnode.notify.targets import DeliveryError
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


REFUSED = DeliveryError("connection refused", ReasonCode.CONNECTION_REFUSED)
HTTP_404 = DeliveryError("HTTP 404", ReasonCode.NOT_FOUND)
HTTP_500 = DeliveryError("HTTP 500", ReasonCode.SERVER_ERROR)


class Receiver:
    """A target that a test controls."""

    resend_interval_s: ClassVar[float | None] = None

    def __init__(self, name: str = "receiver") -> None:
        self.name = name
        self.error: DeliveryError | None = None
        self.is_hanging = False
        self.is_broken = False
        self.attempts: list[tuple[float, str]] = []
        self.received: list[str] = []
        self.lost: list[int] = []

    async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
        self.attempts.append((asyncio.get_running_loop().time(), message.title))
        if self.is_hanging:
            await asyncio.sleep(1e9)
        if self.is_broken:
            raise RuntimeError("bug")
        if self.error is None:
            self.received.append(message.title)
            self.lost.append(lost)
        return self.error


class OtherReceiver(Receiver):
    """A target of another type."""


def message(title: str) -> Message:
    return Message(title=title, lines=(), notify_type="info")


def dispatcher_to(*targets: Receiver) -> tuple[Dispatcher, NotifyStatus]:
    stats = NotifyStatus()
    dispatcher = Dispatcher(stats)
    dispatcher.set_targets(targets)
    return dispatcher, stats


def dispatch_all(dispatcher: Dispatcher, titles: Sequence[str]) -> None:
    for title in titles:
        dispatcher.dispatch(message(title), {})


def delays_s(receiver: Receiver) -> list[float]:
    times = [at_s for at_s, _ in receiver.attempts]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# ---- retries


@in_virtual_time
async def test_messages_arrive_in_order_although_another_target_is_slow() -> None:
    slow, receiver = Receiver("slow"), Receiver()
    slow.is_hanging = True
    dispatcher, stats = dispatcher_to(slow, receiver)
    dispatch_all(dispatcher, "abc")
    await asyncio.sleep(0.01)
    assert receiver.received == ["a", "b", "c"]
    assert (stats.sent, stats.failed, stats.dropped, stats.queued) == (3, 0, 0, 3)
    await dispatcher.close()


@in_virtual_time
async def test_a_failed_delivery_is_retried_with_increasing_delays_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    receiver = Receiver("https://hooks.example.com")
    receiver.error = HTTP_500
    dispatcher, stats = dispatcher_to(receiver)
    for title in "ab":  # a new message does not shorten the delay
        dispatch_all(dispatcher, title)
        await asyncio.sleep(0.5)
    await asyncio.sleep(3600)
    assert delays_s(receiver)[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_BACKOFF_S]
    assert set(delays_s(receiver)[10:]) == {MAX_BACKOFF_S}
    assert {title for _, title in receiver.attempts} == {"a"}, "in order"
    receiver.error = None
    await asyncio.sleep(MAX_BACKOFF_S)
    assert receiver.received == ["a", "b"]
    assert (stats.sent, stats.failed, stats.dropped, stats.queued) == (2, len(receiver.attempts) - 2, 0, 0)
    await dispatcher.close()
    assert [(record.levelname, vars(record)["event"], vars(record)["target"]) for record in caplog.records] == [
        ("WARNING", "notification_failed", "https://hooks.example.com"),
        ("INFO", "notification_recovered", "https://hooks.example.com"),
    ]
    assert vars(caplog.records[0])["code"] is ReasonCode.SERVER_ERROR


@in_virtual_time
async def test_an_attempt_has_a_timeout() -> None:
    receiver = Receiver()
    receiver.is_hanging = True
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, "a")
    await asyncio.sleep(DELIVERY_TIMEOUT_S + 0.5)
    assert stats.failed == 1
    receiver.is_hanging = False
    await asyncio.sleep(1)
    assert receiver.received == ["a"]
    await dispatcher.close()


@in_virtual_time
async def test_a_target_that_raises_is_retried() -> None:
    receiver = Receiver()
    receiver.is_broken = True
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, "a")
    await asyncio.sleep(0.5)
    receiver.is_broken = False
    await asyncio.sleep(1)
    assert (receiver.received, stats.failed) == (["a"], 1)
    assert await try_deliver(receiver, message("b")) is None
    receiver.is_broken = True
    error = await try_deliver(receiver, message("b"))
    assert error is not None
    assert error.code is ReasonCode.OTHER
    await dispatcher.close()


@in_virtual_time
async def test_a_message_is_dropped_after_a_day_and_the_next_one_counts_it_as_lost() -> None:
    receiver = Receiver()
    receiver.error = REFUSED
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, "a")
    await asyncio.sleep(MAX_MESSAGE_AGE_S + MAX_BACKOFF_S)
    assert (stats.dropped, stats.queued) == (1, 0)
    receiver.error = None
    dispatch_all(dispatcher, "bc")
    await asyncio.sleep(1)
    assert receiver.lost == [1, 0]
    await dispatcher.close()


# ---- the limit of the queue


@in_virtual_time
async def test_a_full_queue_drops_the_oldest_message_and_the_next_one_counts_the_lost() -> None:
    receiver = Receiver()
    receiver.error = REFUSED
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, [str(number) for number in range(MAX_QUEUED + 20)])
    await asyncio.sleep(0.5)
    assert (stats.dropped, stats.queued) == (20, MAX_QUEUED)
    receiver.error = None
    await asyncio.sleep(10)
    assert receiver.received == [str(number) for number in range(20, MAX_QUEUED + 20)]
    assert receiver.lost == [20] + [0] * (MAX_QUEUED - 1)
    await dispatcher.close()


@in_virtual_time
async def test_a_message_that_is_being_sent_is_not_dropped() -> None:
    receiver = Receiver()
    receiver.is_hanging = True
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, ["first"])
    await asyncio.sleep(0.1)
    receiver.is_hanging = False
    dispatch_all(dispatcher, [str(number) for number in range(MAX_QUEUED)])
    await asyncio.sleep(2 * DELIVERY_TIMEOUT_S)
    assert receiver.received[:2] == ["first", "1"]
    assert stats.dropped == 1
    await dispatcher.close()


# ---- new targets


@in_virtual_time
async def test_a_target_that_stays_keeps_its_queue() -> None:
    receiver, other = Receiver(), OtherReceiver()
    receiver.error = other.error = REFUSED
    dispatcher, stats = dispatcher_to(receiver, other)
    dispatch_all(dispatcher, "ab")
    await asyncio.sleep(0.5)
    new = Receiver("new")
    dispatcher.set_targets([new, receiver, other])
    receiver.error = other.error = None
    await asyncio.sleep(10)
    assert receiver.received == other.received == ["a", "b"]
    assert not new.received, "it was added after they were dispatched"
    assert not stats.dropped
    await dispatcher.close()


@in_virtual_time
async def test_the_queue_of_a_changed_target_is_retried_at_once() -> None:
    wrong, other = Receiver("wrong"), OtherReceiver()
    wrong.error = HTTP_404
    dispatcher, stats = dispatcher_to(other, wrong)
    dispatch_all(dispatcher, "ab")
    await asyncio.sleep(600)
    right = Receiver("right")
    dispatcher.set_targets([right, other])
    await asyncio.sleep(0.1)
    assert right.received == ["a", "b"]
    assert other.received == ["a", "b"]
    assert not stats.dropped
    await dispatcher.close()


@in_virtual_time
async def test_the_queue_of_a_removed_target_is_dropped_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    receiver, other = Receiver("https://hooks.example.com"), OtherReceiver()
    receiver.is_hanging = True
    dispatcher, stats = dispatcher_to(receiver, other)
    dispatch_all(dispatcher, "ab")
    await asyncio.sleep(0.5)
    dispatcher.set_targets([other])
    attempts = len(receiver.attempts)
    await asyncio.sleep(600)
    assert (stats.dropped, stats.queued) == (2, 0)
    assert len(receiver.attempts) == attempts
    assert logged_counts(caplog) == [("https://hooks.example.com", 2)]
    await dispatcher.close()


# ---- shutdown


@in_virtual_time
async def test_a_cancelled_close_leaves_no_message_queued() -> None:
    receiver = Receiver()
    receiver.is_hanging = True
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, "ab")
    closing = asyncio.create_task(dispatcher.close())
    await asyncio.sleep(0.5)
    closing.cancel()
    await asyncio.wait([closing])
    assert (stats.dropped, stats.queued) == (2, 0)


@in_virtual_time
async def test_close_tries_each_queued_message_once() -> None:
    receiver, dead = Receiver(), Receiver("dead")
    receiver.error = dead.error = REFUSED
    dispatcher, stats = dispatcher_to(receiver, dead)
    dispatch_all(dispatcher, "abc")
    await asyncio.sleep(0.5)
    receiver.error = None
    await dispatcher.close()
    assert receiver.received == ["a", "b", "c"]
    assert [title for _, title in dead.attempts] == ["a", "a", "b", "c"]
    assert (stats.sent, stats.dropped, stats.queued) == (3, 3, 0)


def logged_counts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(vars(record)["target"], vars(record)["count"]) for record in caplog.records]


@in_virtual_time
async def test_close_does_not_wait_for_a_hanging_target_and_logs_what_is_undelivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver("chat")
    receiver.is_hanging = True
    dispatcher, stats = dispatcher_to(receiver)
    dispatch_all(dispatcher, "abc")
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    started_s = loop.time()
    await dispatcher.close()
    assert loop.time() - started_s == CLOSE_TIMEOUT_S
    assert (stats.dropped, stats.queued) == (3, 0)
    assert logged_counts(caplog) == [("chat", 3)]


@in_virtual_time
async def test_close_does_not_wait_if_the_queues_are_empty() -> None:
    dispatcher, _ = dispatcher_to(Receiver(), Receiver())
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    await dispatcher.close()
    assert loop.time() == 1
    empty, _ = dispatcher_to()
    await empty.close()


# ---- open incidents


def down_incident(service_id: str) -> dict[str | None, Incident]:
    service = Service(id=service_id, name="", description="")
    return {service_id: Incident(service=service, notified_health=Health.UNHEALTHY, since_s=0.0, is_confirmed=True)}


def confirmed(dispatcher: Dispatcher) -> dict[str, bool]:
    return {one.service.id: one.is_confirmed for one in dispatcher.state.incidents if one.service}


@in_virtual_time
async def test_an_incident_stays_open_until_its_recovery_is_delivered() -> None:
    receiver, failing = Receiver(), Receiver()
    dispatcher, _ = dispatcher_to(receiver, failing)
    failing.error = REFUSED
    dispatcher.dispatch(message("Down"), down_incident("db"))
    await asyncio.sleep(1)
    assert confirmed(dispatcher) == {"db": False}
    receiver.error = REFUSED
    dispatcher.dispatch(message("recovered"), {})
    await asyncio.sleep(1)
    assert confirmed(dispatcher) == {"db": False}
    receiver.error = None
    await asyncio.sleep(60)
    assert confirmed(dispatcher) == {}, "the other target never received it"
    await dispatcher.close()


@in_virtual_time
async def test_a_restored_incident_is_not_resolved_by_a_queued_message() -> None:
    receiver = Receiver()
    dispatcher, _ = dispatcher_to(receiver)
    receiver.error = REFUSED
    dispatcher.dispatch(message("queue Down"), down_incident("queue"))
    await asyncio.sleep(1)
    dispatcher.restore({**down_incident("queue"), **down_incident("db")}, [], message(""))
    assert confirmed(dispatcher) == {"queue": False, "db": True}
    receiver.error = None
    await asyncio.sleep(60)
    assert confirmed(dispatcher) == {"queue": True, "db": True}
    receiver.error = REFUSED
    dispatcher.dispatch(message("db recovered"), down_incident("queue"))
    await asyncio.sleep(1)
    assert confirmed(dispatcher) == {"queue": True, "db": False}
    await dispatcher.close()


@in_virtual_time
async def test_a_removed_target_does_not_keep_an_incident_unconfirmed() -> None:
    receiver, failing = Receiver(), Receiver()
    dispatcher, _ = dispatcher_to(receiver, failing)
    failing.error = REFUSED
    dispatcher.dispatch(message("Down"), down_incident("db"))
    await asyncio.sleep(1)
    dispatcher.set_targets([receiver])
    assert confirmed(dispatcher) == {"db": True}
    await dispatcher.close()


# ---- targets that receive all alerts again and again


class AlertReceiver(Receiver):
    resend_interval_s: ClassVar[float | None] = 60.0


def with_alerts(title: str) -> Message:
    return replace(message(title), alerts=({"labels": {}},))


@in_virtual_time
async def test_a_message_with_alerts_is_delivered_again_until_one_without_them() -> None:
    receiver, other = AlertReceiver(), Receiver("other")
    dispatcher, stats = dispatcher_to(receiver, other)
    dispatcher.dispatch(with_alerts("Down"), down_incident("db"))
    await asyncio.sleep(150.0)
    dispatcher.dispatch(message("recovered"), {})
    await asyncio.sleep(150.0)
    assert receiver.attempts == [(0.0, "Down"), (60.0, "Down"), (120.0, "Down"), (150.0, "recovered")]
    assert other.received == ["Down", "recovered"]
    assert stats.sent == 4
    await dispatcher.close()


@in_virtual_time
async def test_alerts_that_cannot_be_delivered_again_are_tried_at_the_next_interval() -> None:
    receiver = AlertReceiver()
    dispatcher, stats = dispatcher_to(receiver)
    dispatcher.dispatch(with_alerts("Down"), down_incident("db"))
    await asyncio.sleep(30.0)
    receiver.error = REFUSED
    await asyncio.sleep(60.0)
    receiver.error = None
    await asyncio.sleep(60.0)
    assert (receiver.received, stats.failed, stats.queued) == (["Down", "Down"], 1, 0)
    await dispatcher.close()


@in_virtual_time
async def test_after_a_restart_and_in_a_new_target_the_open_alerts_are_delivered() -> None:
    receiver, other, new = AlertReceiver(), Receiver("other"), AlertReceiver("new")
    dispatcher, _ = dispatcher_to(receiver, other)
    dispatcher.restore(down_incident("db"), [], with_alerts("open"))
    await asyncio.sleep(1.0)
    dispatcher.set_targets([receiver, other, new])
    await asyncio.sleep(1.0)
    assert (receiver.received, other.received, new.received) == (["open"], [], ["open"])
    await dispatcher.close()
