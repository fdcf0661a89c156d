"""Racing the addresses of a name, errors of this machine's network, and connections that are kept between checks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.net.connect import (
    ATTEMPT_DELAY_S,
    RESOLVE_INTERVAL_S,
    ConnectionCache,
    race_addresses,
    raise_if_own_network,
)
from svcnode.net.dns import interleave_families
from svcnode.net.os_errors import InconclusiveError, verdict_for_os_error
from svcnode.net.trace import details_of, interrupted_step
from tests.support.virtual_time import in_virtual_time

NO_ROUTE = InconclusiveError("no route from this machine", ReasonCode.NETWORK_UNREACHABLE)
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")


class Attempts:
    """An attempt per address: connects after some seconds, or raises an error then. Records what happens, and when."""

    def __init__(self, **script: tuple[float, Exception | None]) -> None:
        self._script = script
        self.events: list[tuple[str, str, float]] = []

    async def __call__(self, address: str) -> str:
        duration_s, error = self._script[address]
        self._record(address, "started")
        try:
            await asyncio.sleep(duration_s)
        except asyncio.CancelledError:
            self._record(address, "cancelled")
            raise
        if error is not None:
            raise error
        return f"connection to {address}"

    def discard(self, connection: str) -> None:
        self._record(connection.rpartition(" ")[2], "discarded")

    def _record(self, address: str, event: str) -> None:
        self.events.append((address, event, round(asyncio.get_running_loop().time(), 6)))

    async def race(self) -> str:
        return await race_addresses(list(self._script), self, self.discard)


@in_virtual_time
async def test_an_address_that_does_not_respond_delays_the_next_by_250_ms() -> None:
    attempts = Attempts(a=(60, None), b=(0.01, None))
    assert await attempts.race() == "connection to b"
    assert attempts.events == [("a", "started", 0), ("b", "started", 0.25), ("a", "cancelled", 0.26)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_an_address_that_refuses_delays_the_next_by_nothing() -> None:
    attempts = Attempts(a=(0, REFUSED), b=(0, None), c=(0, None))
    assert await attempts.race() == "connection to b"
    assert attempts.events == [("a", "started", 0), ("b", "started", 0)]


@in_virtual_time
async def test_a_second_connection_of_the_same_moment_is_discarded() -> None:
    attempts = Attempts(a=(ATTEMPT_DELAY_S + 0.1, None), b=(0.1, None))
    winner = await attempts.race()
    (discarded,) = [address for address, event, _ in attempts.events if event in ("discarded", "cancelled")]
    assert {winner, f"connection to {discarded}"} == {"connection to a", "connection to b"}


@pytest.mark.parametrize(
    ("errors", "raised"),
    [((REFUSED, NO_ROUTE), REFUSED), ((NO_ROUTE, REFUSED), REFUSED), ((NO_ROUTE, NO_ROUTE), NO_ROUTE)],
    ids=["service first", "service last", "no route"],
)
@in_virtual_time
async def test_an_error_of_the_service_outweighs_one_of_this_machine(
    errors: tuple[OSError, OSError], raised: OSError
) -> None:
    with pytest.raises(OSError) as caught:
        await Attempts(a=(0, errors[0]), b=(0, errors[1])).race()
    assert caught.value is raised


@in_virtual_time
async def test_a_race_that_is_cancelled_cancels_every_attempt() -> None:
    attempts = Attempts(a=(60, None), b=(60, None))
    task = asyncio.create_task(attempts.race())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert interrupted_step(caught.value) == "connect"
    assert {address for address, event, _ in attempts.events if event == "cancelled"} == {"a", "b"}
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_race_that_is_cancelled_says_what_the_first_failed_attempts_got() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "")
    attempts = Attempts(a=(60, None), b=(0, refused), c=(0, ValueError("not\nan error of the system")), d=(0, refused))
    task = asyncio.create_task(attempts.race())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert details_of(caught.value) == ["b: connection refused; c: not; d: connection refused"]


@in_virtual_time
async def test_a_race_that_is_cancelled_when_it_is_won_discards_the_connection() -> None:
    attempts = Attempts(a=(60, None), b=(0.5, None))
    task = asyncio.create_task(attempts.race())
    await asyncio.sleep(ATTEMPT_DELAY_S + 0.5)
    while not any(event == "cancelled" for _, event, _ in attempts.events):  # noqa: ASYNC110  by iterations of the loop
        await asyncio.sleep(0)
    assert not task.done()  # it has a result, and waits for the cancelled attempt
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ("b", "discarded") in [(address, event) for address, event, _ in attempts.events]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["::1", "::2", "1.1.1.1", "2.2.2.2"], ["::1", "1.1.1.1", "::2", "2.2.2.2"]),
        (["1.1.1.1", "2.2.2.2", "3.3.3.3", "::1"], ["1.1.1.1", "::1", "2.2.2.2", "3.3.3.3"]),
        (["1.1.1.1"], ["1.1.1.1"]),
    ],
)
def test_the_families_of_addresses_are_tried_in_turn(addresses: list[str], expected: list[str]) -> None:
    assert interleave_families(addresses) == expected


def test_an_interface_that_is_down_is_unknown_and_other_errors_for_an_address_with_a_route_are_of_the_service() -> None:
    for number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED):
        raise_if_own_network(OSError(number, os.strerror(number)), "127.0.0.1")
    for number in (errno.ENETDOWN, errno.EAFNOSUPPORT):
        with pytest.raises(InconclusiveError) as caught:
            raise_if_own_network(OSError(number, os.strerror(number)), "127.0.0.1")
        verdict = verdict_for_os_error(caught.value, "127.0.0.1:80")
        assert (verdict.outcome, verdict.code) == (Outcome.UNKNOWN, ReasonCode.NETWORK_UNREACHABLE)


async def lookup_ends() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were resolved. Their answers are in `answers`."""
    found: list[str] = []

    def pending_lookup(host: str) -> asyncio.Task[list[str]]:
        async def resolve() -> list[str]:
            found.append(host)
            answer = ANSWERS[host]
            if isinstance(answer, Exception):
                raise answer
            return answer

        task = asyncio.get_running_loop().create_task(resolve())
        task.add_done_callback(lambda done: done.exception())
        return task

    monkeypatch.setattr("svcnode.net.connect.pending_lookup", pending_lookup)
    return found


ANSWERS: dict[str, list[str] | Exception] = {
    "stays": ["10.0.0.1", "10.0.0.2"],
    "moves": ["10.0.0.3"],
    "vanishes": socket.gaierror(socket.EAI_NONAME, ""),
    "resolver fails": socket.gaierror(socket.EAI_AGAIN, ""),
}


@pytest.mark.parametrize(
    ("host", "expected"), [("stays", False), ("moves", True), ("vanishes", True), ("resolver fails", False)]
)
def test_a_moved_name_is_noticed_after_a_minute(lookups: list[str], host: str, expected: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        cache: ConnectionCache[str] = ConnectionCache()
        for _ in range(6):  # 50 s of checks
            assert not cache.has_moved(host, "10.0.0.1")
            await asyncio.sleep(10)
        assert lookups == []
        assert not cache.has_moved(host, "10.0.0.1")  # starts the lookup and does not wait
        await asyncio.sleep(10)
        assert lookups == [host]
        assert cache.has_moved(host, "10.0.0.1") is expected
        assert not cache.has_moved(host, "10.0.0.1")  # the next lookup is due in a minute
        await lookup_ends()
        assert lookups == [host]

    scenario()


@in_virtual_time
async def test_an_address_is_not_resolved(lookups: list[str]) -> None:
    cache: ConnectionCache[str] = ConnectionCache()
    for _ in range(5):
        assert not cache.has_moved("10.0.0.9", "10.0.0.1")
        assert not cache.has_moved("moves", "")  # the kind does not know the address
        await asyncio.sleep(RESOLVE_INTERVAL_S)
    assert lookups == []


async def put(slot: ConnectionCache[str], connection: str) -> None:
    slot.put(connection)


async def take(slot: ConnectionCache[str]) -> str | None:
    return slot.take()


async def close(slot: ConnectionCache[str], aborted: list[str]) -> None:
    slot.close(aborted.append)


def test_a_connection_of_another_loop_is_neither_taken_nor_aborted() -> None:
    slot, aborted = ConnectionCache[str](), list[str]()
    asyncio.run(put(slot, "a"))
    assert asyncio.run(take(slot)) is None
    asyncio.run(put(slot, "b"))
    asyncio.run(close(slot, aborted))
    assert aborted == []
    with asyncio.Runner() as runner:  # the slot is usable again
        runner.run(put(slot, "c"))
        assert runner.run(take(slot)) == "c"
