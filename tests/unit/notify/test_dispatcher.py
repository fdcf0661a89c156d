"""Messages on their way, in virtual time: an outage of a day takes milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Health, Service
from svcnode.notify.dispatcher import (
    CLOSE_TIMEOUT_S,
    DELIVERY_TIMEOUT_S,
    MAX_BACKOFF_S,
    MAX_MESSAGE_AGE_S,
    MAX_QUEUED,
    Dispatcher,
    try_deliver,
)
from svcnode.notify.message import Message
from svcnode.notify.model import DeliveryStats, Incident
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence


class Receiver:
    """A target in the hands of a test."""

    def __init__(self, name: str = "receiver") -> None:
        self.name = name
        self.error: str | None = None
        self.is_hung = False
        self.is_broken = False
        self.attempts: list[tuple[float, str]] = []
        self.taken: list[str] = []
        self.lost: list[int] = []

    async def deliver(self, message: Message, lost: int) -> str | None:
        self.attempts.append((asyncio.get_running_loop().time(), message.title))
        if self.is_hung:
            await asyncio.sleep(1e9)
        if self.is_broken:
            raise RuntimeError("of its own")
        if self.error is None:
            self.taken.append(message.title)
            self.lost.append(lost)
        return self.error


class Other(Receiver):
    """A target of another kind."""


def message(title: str) -> Message:
    return Message(title=title, lines=(), notify_type="info")


def sender_to(*targets: Receiver) -> tuple[Dispatcher, DeliveryStats]:
    notices = DeliveryStats()
    sender = Dispatcher(notices)
    sender.set_targets(targets)
    return sender, notices


def post(sender: Dispatcher, titles: Sequence[str]) -> None:
    for title in titles:
        sender.dispatch(message(title), {})


def pauses(receiver: Receiver) -> list[float]:
    times = [at_s for at_s, _ in receiver.attempts]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# ---- trying again


@in_virtual_time
async def test_messages_arrive_in_their_order() -> None:
    receiver = Receiver()
    sender, notices = sender_to(receiver)
    post(sender, "abc")
    await asyncio.sleep(1)
    assert receiver.taken == ["a", "b", "c"]
    assert notices == DeliveryStats(sent=3)
    await sender.close()


@in_virtual_time
async def test_what_was_not_taken_is_tried_again_with_growing_pauses() -> None:
    receiver = Receiver()
    receiver.error = "it answered 500"
    sender, notices = sender_to(receiver)
    post(sender, "ab")
    await asyncio.sleep(3600)
    assert pauses(receiver)[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_BACKOFF_S]
    assert set(pauses(receiver)[10:]) == {MAX_BACKOFF_S}
    assert {title for _, title in receiver.attempts} == {"a"}, "the order is kept"
    receiver.error = None
    await asyncio.sleep(MAX_BACKOFF_S)
    assert receiver.taken == ["a", "b"]
    assert (notices.sent, notices.failed, notices.dropped, notices.queued) == (2, len(receiver.attempts) - 2, 0, 0)
    await sender.close()


@in_virtual_time
async def test_new_messages_do_not_cut_a_pause_short() -> None:
    receiver = Receiver()
    receiver.error = "refused"
    sender, _ = sender_to(receiver)
    for number in range(50):
        post(sender, [str(number)])
        await asyncio.sleep(0.01)
    assert len(receiver.attempts) == 1
    await sender.close()


@in_virtual_time
async def test_an_attempt_has_a_deadline() -> None:
    receiver = Receiver()
    receiver.is_hung = True
    sender, notices = sender_to(receiver)
    post(sender, "a")
    await asyncio.sleep(DELIVERY_TIMEOUT_S + 0.5)
    assert notices.failed == 1
    receiver.is_hung = False
    await asyncio.sleep(1)
    assert receiver.taken == ["a"]
    await sender.close()


@in_virtual_time
async def test_a_target_that_raises_is_tried_again() -> None:
    receiver = Receiver()
    receiver.is_broken = True
    sender, notices = sender_to(receiver)
    post(sender, "a")
    await asyncio.sleep(0.5)
    receiver.is_broken = False
    await asyncio.sleep(1)
    assert (receiver.taken, notices.failed) == (["a"], 1)
    assert await try_deliver(receiver, message("b")) is None
    receiver.is_broken = True
    assert await try_deliver(receiver, message("b")) == "RuntimeError: of its own"
    await sender.close()


@in_virtual_time
async def test_a_slow_target_does_not_keep_another_waiting() -> None:
    slow, quick = Receiver("slow"), Receiver("quick")
    slow.is_hung = True
    sender, _ = sender_to(slow, quick)
    post(sender, "abc")
    await asyncio.sleep(0.01)
    assert quick.taken == ["a", "b", "c"]
    await sender.close()


@in_virtual_time
async def test_a_message_is_given_up_after_a_day_and_the_next_one_says_so() -> None:
    receiver = Receiver()
    receiver.error = "refused"
    sender, notices = sender_to(receiver)
    post(sender, "a")
    await asyncio.sleep(MAX_MESSAGE_AGE_S + MAX_BACKOFF_S)
    assert (notices.dropped, notices.queued) == (1, 0)
    receiver.error = None
    post(sender, "bc")
    await asyncio.sleep(1)
    assert receiver.lost == [1, 0]
    await sender.close()


def test_an_outage_is_one_line_in_the_log_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def story() -> None:
        receiver = Receiver("https://hooks.example.com")
        receiver.error = "it answered 500"
        sender, _ = sender_to(receiver)
        post(sender, "a")
        await asyncio.sleep(3600)
        receiver.error = None
        await asyncio.sleep(3600)
        await sender.close()

    with caplog.at_level(logging.INFO):
        story()
    assert caplog.messages == [
        "a message to https://hooks.example.com was not delivered: it answered 500",
        "messages to https://hooks.example.com are delivered again, after 20 failures",
    ]


# ---- the bound


@in_virtual_time
async def test_when_too_many_wait_the_oldest_goes_and_the_next_message_says_how_many() -> None:
    receiver = Receiver()
    receiver.error = "refused"
    sender, notices = sender_to(receiver)
    post(sender, [str(number) for number in range(MAX_QUEUED + 20)])
    await asyncio.sleep(0.5)
    assert (notices.dropped, notices.queued) == (20, MAX_QUEUED)
    receiver.error = None
    await asyncio.sleep(10)
    assert receiver.taken == [str(number) for number in range(20, MAX_QUEUED + 20)]
    assert receiver.lost == [20] + [0] * (MAX_QUEUED - 1)
    await sender.close()


@in_virtual_time
async def test_a_message_that_is_on_its_way_is_not_the_one_that_goes() -> None:
    receiver = Receiver()
    receiver.is_hung = True
    sender, notices = sender_to(receiver)
    post(sender, ["first"])
    await asyncio.sleep(0.1)
    receiver.is_hung = False
    post(sender, [str(number) for number in range(MAX_QUEUED)])
    await asyncio.sleep(2 * DELIVERY_TIMEOUT_S)
    assert receiver.taken[:2] == ["first", "1"]
    assert notices.dropped == 1
    await sender.close()


# ---- other targets


@in_virtual_time
async def test_what_waits_for_a_target_that_stays_is_kept() -> None:
    receiver, other = Receiver(), Other()
    receiver.error = other.error = "refused"
    sender, notices = sender_to(receiver, other)
    post(sender, "ab")
    await asyncio.sleep(0.5)
    new = Receiver("new")
    sender.set_targets([new, receiver, other])
    receiver.error = other.error = None
    await asyncio.sleep(10)
    assert receiver.taken == other.taken == ["a", "b"]
    assert not new.taken, "it was not there when they were sent"
    assert not notices.dropped
    await sender.close()


@in_virtual_time
async def test_what_waits_for_a_target_that_was_mended_is_tried_at_once() -> None:
    wrong, other = Receiver("wrong"), Other()
    wrong.error = "it answered 404"
    sender, notices = sender_to(other, wrong)
    post(sender, "ab")
    await asyncio.sleep(600)
    right = Receiver("right")
    sender.set_targets([right, other])
    await asyncio.sleep(0.1)
    assert right.taken == ["a", "b"]
    assert other.taken == ["a", "b"]
    assert not notices.dropped
    await sender.close()


@in_virtual_time
async def test_what_waits_for_a_target_that_is_gone_is_lost_and_counted() -> None:
    receiver, other = Receiver(), Other()
    receiver.error = "refused"
    sender, notices = sender_to(receiver, other)
    post(sender, "ab")
    await asyncio.sleep(0.5)
    sender.set_targets([other])
    attempts = len(receiver.attempts)
    await asyncio.sleep(600)
    assert (notices.dropped, notices.queued) == (2, 0)
    assert len(receiver.attempts) == attempts
    await sender.close()


def test_a_target_that_is_gone_with_one_message_is_told_in_the_singular(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def story() -> None:
        receiver = Receiver("https://hooks.example.com")
        receiver.is_hung = True
        sender, _ = sender_to(receiver)
        post(sender, "a")
        await asyncio.sleep(0.5)
        sender.set_targets([])

    story()
    assert caplog.messages == ["https://hooks.example.com is no longer told; 1 message for it is lost"]


# ---- the end


@pytest.mark.parametrize(("titles", "counted"), [("a", "1 message to chat was"), ("ab", "2 messages to chat were")])
def test_what_was_left_at_the_end_is_counted_in_the_log(
    titles: str, counted: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_virtual_time
    async def story() -> None:
        receiver = Receiver("chat")
        receiver.is_hung = True
        sender, _ = sender_to(receiver)
        post(sender, titles)
        await sender.close()

    story()
    assert caplog.messages == [f"{counted} not delivered before the end"]


@in_virtual_time
async def test_an_end_that_is_cut_short_leaves_no_attempt_behind() -> None:
    receiver = Receiver()
    receiver.is_hung = True
    sender, notices = sender_to(receiver)
    post(sender, "ab")
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0.5)
    closing.cancel()
    await asyncio.wait([closing])
    assert (notices.dropped, notices.queued) == (2, 0)


@in_virtual_time
async def test_at_the_end_what_is_left_is_tried_once() -> None:
    receiver, dead = Receiver(), Receiver("dead")
    receiver.error = dead.error = "refused"
    sender, notices = sender_to(receiver, dead)
    post(sender, "abc")
    await asyncio.sleep(0.5)
    receiver.error = None
    await sender.close()
    assert receiver.taken == ["a", "b", "c"]
    assert [title for _, title in dead.attempts] == ["a", "a", "b", "c"]
    assert (notices.sent, notices.dropped, notices.queued) == (3, 3, 0)


@in_virtual_time
async def test_the_end_does_not_wait_for_a_target_that_hangs() -> None:
    receiver = Receiver()
    receiver.is_hung = True
    sender, notices = sender_to(receiver)
    post(sender, "abc")
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    began_s = loop.time()
    await sender.close()
    assert loop.time() - began_s == CLOSE_TIMEOUT_S
    assert (notices.dropped, notices.queued) == (3, 0)


@in_virtual_time
async def test_the_end_does_not_wait_when_there_is_nothing_to_send() -> None:
    sender, _ = sender_to(Receiver(), Receiver())
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    await sender.close()
    assert loop.time() == 1
    nobody, _ = sender_to()
    await nobody.close()


# ---- what is not over


def is_down(service_id: str) -> dict[str | None, Incident]:
    service = Service(id=service_id, name="", description="")
    return {service_id: Incident(service=service, notified_health=Health.UNHEALTHY, since_s=0.0, is_confirmed=True)}


def is_sure(sender: Dispatcher) -> dict[str, bool]:
    return {one.service.id: one.is_confirmed for one in sender.state.incidents if one.service}


@in_virtual_time
async def test_what_one_target_was_told_and_another_was_not_is_not_over_before_that_one_took_the_end() -> None:
    receiver, deaf = Receiver(), Receiver()
    sender, _ = sender_to(receiver, deaf)
    deaf.error = "refused"
    sender.dispatch(message("it is Down"), is_down("db"))
    await asyncio.sleep(1)
    assert is_sure(sender) == {"db": False}
    receiver.error = "refused"
    sender.dispatch(message("it has recovered"), {})
    await asyncio.sleep(1)
    assert is_sure(sender) == {"db": False}
    receiver.error = None
    await asyncio.sleep(60)
    assert is_sure(sender) == {}, "the other one has never heard of it"
    await sender.close()


@in_virtual_time
async def test_what_is_recalled_while_a_message_waits_is_not_over_by_that() -> None:
    receiver = Receiver()
    sender, _ = sender_to(receiver)
    receiver.error = "refused"
    sender.dispatch(message("the queue is Down"), is_down("queue"))
    await asyncio.sleep(1)
    sender.restore({**is_down("queue"), **is_down("db")}, [])
    assert is_sure(sender) == {"queue": False, "db": True}
    receiver.error = None
    await asyncio.sleep(60)
    assert is_sure(sender) == {"queue": True, "db": True}
    receiver.error = "refused"
    sender.dispatch(message("db has recovered"), is_down("queue"))
    await asyncio.sleep(1)
    assert is_sure(sender) == {"queue": True, "db": False}
    await sender.close()


@in_virtual_time
async def test_a_target_that_is_no_longer_told_leaves_nothing_unsure() -> None:
    receiver, deaf = Receiver(), Receiver()
    sender, _ = sender_to(receiver, deaf)
    deaf.error = "refused"
    sender.dispatch(message("it is Down"), is_down("db"))
    await asyncio.sleep(1)
    sender.set_targets([receiver])
    assert is_sure(sender) == {"db": True}
    await sender.close()
