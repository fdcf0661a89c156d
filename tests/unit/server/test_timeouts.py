"""Timeout lists: which connections have exceeded the limit of their list."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from svcnode.server.timeouts import TimeoutList

UNLISTED = TimeoutList(0.0)
EVERY_BRANCH = [
    ("add", 0),
    ("add", 1),
    ("active", 0),
    ("find", 0),
    ("active", 1),
    ("find", 0),
    ("remove", 0),
    ("find", 0),
]


class FakeConnection:
    def __init__(self, active_at_s: float = 0.0) -> None:
        self.active_at_s: float = active_at_s
        self.timeout_list = UNLISTED

    @property
    def buffered_bytes(self) -> int:
        return 0

    def is_reading_slowly(self) -> bool:
        return False

    def shutdown(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def handle_timeout(self) -> None: ...

    def answer_queued(self, deadline_s: float) -> bool:
        return False


def test_a_connection_expires_when_the_limit_is_reached_and_adding_it_again_restarts_it() -> None:
    receiving, first, second = TimeoutList(10.0), FakeConnection(), FakeConnection()
    receiving.add(first, 100.0)
    first.active_at_s = 109.0  # activity does not delay it
    assert receiving.expired(109.9) == []
    assert receiving.expired(110.0) == [first]
    receiving.add(second, 111.0)
    receiving.add(first, 118.0)
    assert receiving.expired(121.0) == [second]
    assert receiving.expired(128.0) == [second, first]


def test_activity_delays_the_idle_limit_only_of_that_connection() -> None:
    idle, busy, silent = TimeoutList(75.0), FakeConnection(100.0), FakeConnection(100.0)
    for connection in (busy, silent):
        idle.add(connection, 100.0)
    busy.active_at_s = 170.0
    assert idle.inactive(174.9) == []
    assert idle.inactive(175.0) == [silent]
    assert idle.inactive(245.0) == [busy, silent]


def test_a_connection_is_in_one_list_at_a_time_and_does_not_expire_after_it_is_removed() -> None:
    receiving, idle, connection = TimeoutList(10.0), TimeoutList(75.0), FakeConnection()
    receiving.add(connection, 100.0)
    idle.add(connection, 101.0)
    assert (receiving.connections(), idle.connections()) == ([], [connection])
    assert connection.timeout_list is idle
    idle.remove(connection)
    idle.remove(connection)  # twice is harmless
    assert (len(idle), idle.expired(200.0)) == (0, [])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["add", "active", "remove", "find"]), st.integers(0, 9))))
@example(EVERY_BRANCH)
def test_the_least_recently_active_connection_is_found_after_any_activity(steps: list[tuple[str, int]]) -> None:
    idle, connections = TimeoutList(75.0), [FakeConnection() for _ in range(10)]
    listed: set[FakeConnection] = set()
    for now_s, (step, number) in enumerate(steps, start=1):
        connection = connections[number]
        match step:
            case "add":
                connection.active_at_s = now_s
                idle.add(connection, now_s)
                listed.add(connection)
            case "active":
                connection.active_at_s = now_s
            case "remove":
                idle.remove(connection)
                listed.discard(connection)
            case _:
                if listed:
                    assert idle.least_recently_active() is min(listed, key=lambda one: one.active_at_s)
