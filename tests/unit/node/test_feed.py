"""Every listener is called once per change, in order; a listener that raises affects no other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from svcnode.core.model import Change, ChangeKind, Evidence, Health, Verdict
from svcnode.core.state_machine import initial_state
from svcnode.node.feed import ChangeFeed, changes_by
from tests.support.nodes import make_node

WAIT_TIMEOUT_S = 30.0


def change(number: int) -> Change:
    return Change(kind=ChangeKind.NODE, at_s=float(number), health_before=Health.HEALTHY, health=Health.HEALTHY)


def publish(feed: ChangeFeed, *numbers: int) -> None:
    for number in numbers:
        feed.append(change(number))
    feed.deliver()


class Listener:
    def __init__(self) -> None:
        self.received: list[float] = []

    def __call__(self, change: Change) -> None:
        self.received.append(change.at_s)


def test_every_listener_receives_every_change_once_and_in_order_until_it_unsubscribes() -> None:
    feed, remaining, leaving = ChangeFeed(), Listener(), Listener()
    assert not feed.has_listeners
    end_other = feed.subscribe(remaining)
    unsubscribe = feed.subscribe(leaving)
    publish(feed, 1, 2)
    feed.deliver()
    unsubscribe()
    unsubscribe()
    publish(feed, 3)
    assert (remaining.received, leaving.received, feed.has_listeners) == ([1, 2, 3], [1, 2], True)
    end_other()
    assert not feed.has_listeners


EVIDENCE = Evidence(Verdict.ready(), 1.0)
STATE = initial_state(0.0)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, SystemExit])
def test_an_exception_of_a_listener_is_logged_and_the_others_are_called(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def raise_error(*_: object) -> None:
        raise error

    feed, listener, received = ChangeFeed(), Listener(), list[tuple[object, ...]]()
    feed.subscribe(raise_error, on_evidence=raise_error)
    feed.subscribe(listener, on_evidence=lambda *evidence: received.append(evidence))
    publish(feed, 1, 2)
    feed.publish_evidence("db", EVIDENCE, STATE)
    assert (listener.received, received) == ([1, 2], [("db", EVIDENCE, STATE)])
    assert [record.exc_info is not None for record in caplog.records] == [True] * 3


def test_a_ctrl_c_during_a_listener_is_raised_and_the_feed_stays_usable() -> None:
    def interrupt(*arguments: object) -> None:
        if arguments[0] != change(2):
            raise KeyboardInterrupt

    feed, listener = ChangeFeed(), Listener()
    feed.subscribe(interrupt, on_evidence=interrupt)
    feed.subscribe(listener)
    with pytest.raises(KeyboardInterrupt):
        publish(feed, 1)
    with pytest.raises(KeyboardInterrupt):
        feed.publish_evidence("db", EVIDENCE, STATE)
    publish(feed, 2)
    assert listener.received == [2]


def test_a_subscription_to_evidence_receives_no_changes_and_ends_alone() -> None:
    feed, received, other = ChangeFeed(), list[str](), list[str]()
    unsubscribe = feed.subscribe(on_evidence=lambda service_id, *_: received.append(service_id))
    feed.subscribe(on_evidence=lambda service_id, *_: other.append(service_id))
    assert not feed.has_listeners
    publish(feed, 1)
    feed.publish_evidence("db-1", EVIDENCE, STATE)
    unsubscribe()
    feed.publish_evidence("db-2", EVIDENCE, STATE)
    assert (received, other) == (["db-1"], ["db-1", "db-2"])


def test_a_change_that_a_listener_causes_is_delivered_after_the_current_one() -> None:
    feed, listener = ChangeFeed(), Listener()

    def cause_another(change: Change) -> None:
        if change.at_s < 3:
            publish(feed, int(change.at_s) + 1)

    feed.subscribe(cause_another)
    feed.subscribe(listener)
    publish(feed, 1)
    assert listener.received == [1, 2, 3]


def test_a_change_published_while_another_thread_delivers_is_delivered_by_it() -> None:
    feed, listener = ChangeFeed(), Listener()
    is_delivering, may_continue = threading.Event(), threading.Event()

    def wait(change: Change) -> None:
        is_delivering.set()
        assert may_continue.wait(WAIT_TIMEOUT_S)

    feed.subscribe(wait)
    feed.subscribe(listener)
    busy = threading.Thread(target=publish, args=(feed, 1))
    busy.start()
    assert is_delivering.wait(WAIT_TIMEOUT_S)
    publish(feed, 2)  # returns at once: the other thread delivers it
    assert listener.received == []
    may_continue.set()
    busy.join(WAIT_TIMEOUT_S)
    assert listener.received == [1, 2]


def test_a_change_published_just_before_the_delivery_ends_is_delivered() -> None:
    feed, listener = ChangeFeed(), Listener()

    class InterruptedLock:
        """Publishes a change after the last delivery, while the lock is still held, like another thread."""

        def __init__(self, lock: threading.Lock) -> None:
            self.acquire = lock.acquire
            self._lock = lock
            self._is_interrupted = False

        def release(self) -> None:
            if not self._is_interrupted:
                self._is_interrupted = True
                publish(feed, 2)
            self._lock.release()

    feed._delivery_lock = InterruptedLock(feed._delivery_lock)  # type: ignore[assignment]
    feed.subscribe(listener)
    publish(feed, 1)
    assert listener.received == [1, 2]


def test_a_change_has_the_author_of_its_own_thread_and_time_only() -> None:
    node, authors = make_node(), list[str]()
    node.subscribe(lambda change: authors.append(change.by))
    with changes_by("ann"):
        node.register("a", ttl=5)
        other = threading.Thread(target=lambda: node.register("b", ttl=5))
        other.start()
        other.join()
    node.deregister("a")
    assert authors == ["ann", "", ""]
