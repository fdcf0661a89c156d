"""Every change to every listener, once and in order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from svcnode.core.model import Change, ChangeKind, Health
from svcnode.feed import ChangeFeed


def change(number: int) -> Change:
    return Change(kind=ChangeKind.NODE, at_s=float(number), health_before=Health.HEALTHY, health=Health.HEALTHY)


def tell(feed: ChangeFeed, *numbers: int) -> None:
    for number in numbers:
        feed.append(change(number))
    feed.deliver()


class Listener:
    def __init__(self) -> None:
        self.heard: list[float] = []

    def __call__(self, change: Change) -> None:
        self.heard.append(change.at_s)


def test_every_listener_hears_every_change_in_order() -> None:
    feed, first, second = ChangeFeed(), Listener(), Listener()
    feed.subscribe(first)
    feed.subscribe(second)
    tell(feed, 1, 2, 3)
    assert first.heard == second.heard == [1, 2, 3]


def test_nothing_is_told_twice() -> None:
    feed, listener = ChangeFeed(), Listener()
    feed.subscribe(listener)
    tell(feed, 1)
    feed.deliver()
    assert listener.heard == [1]


def test_a_feed_knows_whether_anybody_listens() -> None:
    feed = ChangeFeed()
    before = feed.has_listeners
    unsubscribe = feed.subscribe(Listener())
    meanwhile = feed.has_listeners
    unsubscribe()
    assert (before, meanwhile, feed.has_listeners) == (False, True, False)


def test_unsubscribing_ends_one_listening_and_no_other() -> None:
    feed, stays, leaves = ChangeFeed(), Listener(), Listener()
    feed.subscribe(stays)
    unsubscribe = feed.subscribe(leaves)
    tell(feed, 1)
    unsubscribe()
    unsubscribe()
    tell(feed, 2)
    assert (stays.heard, leaves.heard) == ([1, 2], [1])


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit, SystemExit, BaseException])
def test_whatever_a_listener_raises_is_logged_and_the_others_go_on(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(change: Change) -> None:
        raise error("not today")

    feed, listener = ChangeFeed(), Listener()
    feed.subscribe(fails)
    feed.subscribe(listener)
    tell(feed, 1, 2)
    assert listener.heard == [1, 2]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_change_made_by_a_listener_follows_the_one_it_answers() -> None:
    feed, listener = ChangeFeed(), Listener()

    def answers(change: Change) -> None:
        if change.at_s < 3:
            tell(feed, int(change.at_s) + 1)

    feed.subscribe(answers)
    feed.subscribe(listener)
    tell(feed, 1)
    assert listener.heard == [1, 2, 3]


def test_who_subscribes_while_a_change_is_told_hears_the_next_one() -> None:
    feed, late = ChangeFeed(), Listener()

    def brings_another(change: Change) -> None:
        if change.at_s == 1:
            feed.subscribe(late)

    feed.subscribe(brings_another)
    tell(feed, 1)
    tell(feed, 2)
    assert late.heard == [2]


def test_a_change_that_comes_while_another_thread_delivers_is_taken_along() -> None:
    feed, listener = ChangeFeed(), Listener()
    is_in_the_middle, may_go_on = threading.Event(), threading.Event()

    def dawdles(change: Change) -> None:
        is_in_the_middle.set()
        assert may_go_on.wait(10.0)

    feed.subscribe(dawdles)
    feed.subscribe(listener)
    busy = threading.Thread(target=tell, args=(feed, 1))
    busy.start()
    assert is_in_the_middle.wait(10.0)
    tell(feed, 2)  # returns at once: the other thread is told to tell
    assert listener.heard == []
    may_go_on.set()
    busy.join(10.0)
    assert listener.heard == [1, 2]


def test_a_change_that_comes_just_before_the_delivery_ends_is_not_left_behind() -> None:
    feed, listener = ChangeFeed(), Listener()

    class InterruptedLock:
        """Another thread brings a change when everything is told and the lock is still held."""

        def __init__(self, lock: threading.Lock) -> None:
            self.acquire = lock.acquire
            self._lock = lock
            self._is_interrupted = False

        def release(self) -> None:
            if not self._is_interrupted:
                self._is_interrupted = True
                tell(feed, 2)
            self._lock.release()

    feed._delivery_lock = InterruptedLock(feed._delivery_lock)  # type: ignore[assignment]  # all of a lock that is needed
    feed.subscribe(listener)
    tell(feed, 1)
    assert listener.heard == [1, 2]


def test_a_ctrl_c_that_finds_a_listener_at_work_ends_the_program_as_ever_and_leaves_the_feed_usable() -> None:
    def is_interrupted(change: Change) -> None:
        if change.at_s == 1:
            raise KeyboardInterrupt

    feed, listener = ChangeFeed(), Listener()
    feed.subscribe(is_interrupted)
    feed.subscribe(listener)
    with pytest.raises(KeyboardInterrupt):
        tell(feed, 1)
    tell(feed, 2)
    assert listener.heard == [2]
