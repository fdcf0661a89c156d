"""`/events` of a running node: nothing is lost between two connections, two processes or a crash and what follows."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.app import Mount
from svcnode.core.address import Address
from svcnode.history import Transition
from svcnode.history.backlog import Batch
from svcnode.history.database import Database
from svcnode.history.records import RetentionLimits
from svcnode.node import Node
from svcnode.operator import OperatorApp
from svcnode.operator import events as events_module
from svcnode.operator.auth import OperatorAuth
from svcnode.operator.events import MAX_BUFFERED_BYTES, MAX_RECENT_EVENTS, PAGE_BYTES, EventHub
from tests.support.backends import HttpBackend, http_response
from tests.support.event_streams import Event, EventReader
from tests.support.http_server import RunningServer, becomes_true, loopback_socket, request, running_server
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HERE = '[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"\n'


def config(*services: str, status: str = "Up", history: str = "") -> str:
    tables = "".join(f'[[services]]\nid = "{service_id}"\nstatus = "{status}"\n' for service_id in services)
    return f"{HERE}{history}{tables}"


def listen_address(agent: Agent) -> tuple[str, int]:
    agent.wait_for_event("started")
    return "127.0.0.1", agent.port


def summary(events: list[Event]) -> list[tuple[str, str | None, str | None]]:
    return [event.summary for event in events]


def summary_is(kind: str, service_id: str | None = None, after: str | None = None) -> Callable[[Event], bool]:
    return lambda event: event.name == "transition" and event.summary == (kind, service_id, after)


def is_in_order(events: list[Event]) -> bool:
    ids = [event.id or 0 for event in events]
    return ids == sorted(set(ids))


# ---- one process


def test_every_transition_is_one_event_in_order(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent)) as reader:
        assert (reader.head.code, reader.head.header("Content-Type")) == (200, "text/event-stream")
        agent.reload(config("db", "cache", status="Down"))
        agent.reload(config("cache"))
        seen = [event for event in reader.read_until(summary_is("deregistered", "db")) if event.data["service_id"]]
    assert summary(seen) == [
        ("status", "db", "Down"),
        ("registered", "cache", "Initializing"),
        ("status", "cache", "Down"),
        ("status", "cache", "Up"),
        ("deregistered", "db", None),
    ]
    assert is_in_order(seen)
    down = seen[0].data
    assert (down["before"], down["reason"], down["health_before"], down["health"]) == (
        "Up",
        "set in the configuration",
        200,
        503,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", down["at"])
    assert [event.data["id"] for event in seen] == [event.id for event in seen]


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_reader_who_comes_again_goes_on_where_they_were(tmp_path: Path, how: str) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        here = listen_address(agent)
        with EventReader(here) as reader:
            agent.reload(config("db", status="Down"))
            first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db"))
        agent.reload(config("db", status="Initializing"))
        words: dict[str, Any] = {"after": first.id} if how == "header" else {"query": f"?after={first.id}"}
        with EventReader(here, **words) as again:
            assert summary(again.read_many(2)) == [("status", "db", "Up"), ("status", "db", "Initializing")]
            agent.reload(config("db"))
            assert summary(again.read_many(1)) == [("status", "db", "Up")]


def test_a_reader_who_missed_more_than_is_at_hand_gets_all_of_it_from_history(tmp_path: Path) -> None:
    many = [f"s{number}" for number in range(MAX_RECENT_EVENTS)]
    with Agent(tmp_path, config=config("db")) as agent:
        here = listen_address(agent)
        with EventReader(here) as reader:
            agent.reload(config("db", status="Down"))
            first = reader.read_until(summary_is("status", "db", "Down"))[-1]
            agent.reload(config("db", *many))
            live = reader.read_until(summary_is("status", many[-1], "Up"))
        with EventReader(here, after=first.id) as again:
            assert again.read_many(len(live)) == live
    assert is_in_order(live)
    assert len(live) == 2 * len(many) + 1
    assert {event.summary for event in live} >= {("status", service_id, "Up") for service_id in many}


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "9" * 20])
def test_what_is_no_id_is_refused(tmp_path: Path, bad: str) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        for target, header in (("/events", f"Last-Event-ID: {bad}"), (f"/events?after={bad}", "X-None: x")):
            with agent.connect() as client:
                client.sock.sendall(request(target, header, host="localhost"))
                assert client.sock.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_id_that_was_never_given_is_a_gap(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        with EventReader(listen_address(agent), after=1) as reader:
            first = reader.read()
            assert first.name in ("gap", "transition"), "what is kept begins here"
        with EventReader(listen_address(agent), after=10**18) as reader:
            assert reader.read().name == "gap"


# ---- several processes, one after the other


def test_nothing_is_lost_over_a_restart(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent)) as reader:
        agent.reload(config("db", status="Down"))
        first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db"))
        assert agent.stop() == 0
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), after=first.id) as again:
        seen = again.read_until(summary_is("started"))
        assert summary(seen)[0] == ("status", "db", "Up")
        assert ("stopped", None, None) in summary(seen)
        assert is_in_order(seen)
        agent.reload(config("db", status="Down"))
        assert again.read_until(summary_is("status", "db", "Down"))[-1].data["health"] == 503


def test_what_a_reader_saw_before_a_crash_is_still_there_after_it(tmp_path: Path) -> None:
    """An event is told once it is kept, so the one who saw it last can always go on from there."""
    many = [f"s{number}" for number in range(50)]
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), query="?after=0") as reader:
        agent.reload(config("db", *many))
        seen = reader.read_until(summary_is("status", many[-1], "Up"))
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    seen = [event for event in seen if event.name == "transition"]
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), after=seen[0].id) as again:
        assert again.read_many(len(seen) - 1) == seen[1:]
        following = again.read_until(summary_is("started"))
        assert is_in_order([*seen, *following])


def test_without_history_a_restart_is_a_gap(tmp_path: Path) -> None:
    off = "[history]\nkeep = false\n"
    with Agent(tmp_path, config=config("db", history=off)) as agent, EventReader(listen_address(agent)) as reader:
        agent.reload(config("db", status="Down", history=off))
        first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db", history=off))
        assert reader.read_many(1)[0].summary == ("status", "db", "Up")
        with EventReader(listen_address(agent), after=first.id) as again:
            assert again.read_many(1)[0].summary == ("status", "db", "Up"), "within one process nothing is missing"
    with (
        Agent(tmp_path, config=config("db", history=off)) as agent,
        EventReader(listen_address(agent), after=first.id) as again,
    ):
        assert again.read().name == "gap"


# ---- readers who are slow, silent or many; in this process, where time and limits can be shorter


class FakeHistory:
    """Stands where history stands, and tells what a test makes up."""

    last_id = pruned_to = 0

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        self._listener = listener

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        return []

    def publish(self, reason: str = "") -> None:
        self.last_id += 1
        self._listener(Transition(self.last_id, 0.0, "status", "db", "Up", "Down", reason, "timeout", 200, 503))


@contextmanager
def publishing(
    loop_name: str, a_story: FakeHistory | None = None
) -> Iterator[tuple[RunningServer, FakeHistory, EventHub]]:
    story: Any = a_story or FakeHistory()
    hub = EventHub(story)
    desk: Any = type("Desk", (), {"events": hub})
    listener = loopback_socket()
    address = Address(scheme="http", host="127.0.0.1", port=listener.getsockname()[1])
    mount = Mount(OperatorApp(desk, OperatorAuth(address, None)))
    with running_server(Node("validator-7", version="v1"), loop_name, listener=listener, mount=mount) as server:
        yield server, story, hub


def test_a_slow_reader_is_dropped_while_a_quick_one_gets_everything(loop_name: str) -> None:
    reason = "x" * 50_000
    with publishing(loop_name) as (server, story, hub):
        with EventReader(server.address, receive_buffer=4096) as slow, EventReader(server.address) as quick:
            assert becomes_true(lambda: hub.stream_count == 2)
            most_waiting = 0
            for _ in range(400):
                server.call(lambda: story.publish(reason))
                waiting = server.call(lambda: max(outlet.buffered_bytes for outlet in hub._live))
                most_waiting = max(most_waiting, waiting)
                assert quick.read().data["reason"] == reason
            assert becomes_true(lambda: hub.stream_count == 1)
            assert most_waiting <= MAX_BUFFERED_BYTES + len(reason) + 1000
            assert slow.is_closed()
        assert becomes_true(lambda: hub.stream_count == 0)


def test_who_was_dropped_may_come_again_and_miss_nothing(loop_name: str) -> None:
    reason = "x" * 50_000
    with publishing(loop_name) as (server, story, hub):
        with EventReader(server.address, receive_buffer=4096) as slow:
            assert becomes_true(lambda: hub.stream_count == 1)
            for _ in range(400):
                server.call(lambda: story.publish(reason))
            assert becomes_true(lambda: hub.stream_count == 0)
            seen = [event.id for event in slow.read_all()]
        with EventReader(server.address, after=seen[-1]) as again:
            seen += [event.id for event in again.read_many(400 - len(seen))]
    assert seen == [*range(1, 401)]


def test_one_reader_too_many_is_asked_to_come_later(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MAX_READERS", 3)
    with publishing(loop_name) as (server, _, hub), ExitStack() as stack:
        readers = [stack.enter_context(EventReader(server.address)) for _ in range(3)]
        assert becomes_true(lambda: hub.stream_count == 3)
        with EventReader(server.address) as too_many:
            assert (too_many.head.code, too_many.head.header("Retry-After")) == (503, "10")
        readers[0].sock.close()
        assert becomes_true(lambda: hub.stream_count == 2)
        with EventReader(server.address) as another:
            assert another.head.code == 200


def test_a_silent_stream_gives_a_sign_of_life_now_and_then(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_S", 0.05)
    with publishing(loop_name) as (server, story, _), EventReader(server.address) as reader:
        began_s = time.monotonic()
        assert [event.data for event in reader.read_many(3)] == ["still here"] * 3
        assert time.monotonic() - began_s > 0.1
        server.call(story.publish)
        assert reader.read_until(lambda event: event.name == "transition")[-1].id == 1


class LongHistory(FakeHistory):
    """So much has come to pass that those who want all of it would keep the loop busy for a minute."""

    last_id = 60_000

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        await asyncio.sleep(0)
        numbers = range(transition_id + 1, min(transition_id + limit, self.last_id) + 1)
        return [Transition(number, 0.0, "status", "db", "Up", "Down", "x" * 60, "timeout", 200, 503) for number in numbers]


class Ticker:
    """For how long the loop was at work, at worst, before it came to what was due.

    In time of the processor: what else this machine has to do is not the loop's fault.
    """

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def run(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0.005)
            self.worst_s = max(self.worst_s, time.thread_time() - began_s)


@pytest.mark.serial
def test_those_who_want_a_long_history_and_hardly_read_do_not_keep_others_waiting(loop_name: str) -> None:
    with publishing(loop_name, LongHistory()) as (server, _, hub), ExitStack() as stack:
        ticker = Ticker()
        ticking = asyncio.run_coroutine_threadsafe(ticker.run(), server.loop)
        slow = [
            stack.enter_context(EventReader(server.address, query="?after=0", receive_buffer=4096)) for _ in range(99)
        ]
        with EventReader(server.address, query="?after=0") as quick, server.connect() as client:
            for number in range(1, 10_001):
                assert quick.read().id == number
                if number % 1000 == 0:
                    assert client.request(request("/svc/node/health")).code == 200
        assert becomes_true(lambda: hub.stream_count == len(slow))
        waiting = server.call(lambda: [outlet.buffered_bytes for outlet in hub._replaying])
        ticking.cancel()
        assert max(waiting) <= 64 * 1024 + 2 * PAGE_BYTES, "what the transport keeps, and a page"
        assert ticker.worst_s < 0.05


@pytest.mark.serial
def test_checks_do_not_fail_while_many_want_a_long_history(tmp_path: Path) -> None:
    collect(tmp_path / "history.db", 30_000)
    history = f'[history]\npath = "{tmp_path}/history.db"\n'
    with HttpBackend(http_response()) as backend, ExitStack() as stack:
        look = f'[[services]]\nid = "web"\nprobe = "http://{backend.address}/"\ninterval = "600ms"\ntimeout = "500ms"\n'
        agent = stack.enter_context(Agent(tmp_path, config=f"{HERE}{history}{look}"))
        here = listen_address(agent)
        slow = [stack.enter_context(EventReader(here, query="?after=0", receive_buffer=4096)) for _ in range(100)]
        with EventReader(here, query="?after=0") as quick:
            seen = quick.read_until(summary_is("status", "web", "Up"))
        assert is_in_order(seen)
        assert len(seen) > 30_000
        assert len(slow) == 100
        with agent.connect() as client:
            told = json.loads(client.request("/details").body)
        (web,) = told["services"]
        assert (web["status"], web["looks"]["failed"], web["looks"]["unknown"]) == ("Up", 0, 0)
        assert told["node"]["last_event_id"] == seen[-1].id, "nothing has changed since"


def collect(path: Path, count: int) -> None:
    """A file with so many transitions, as a node has written it."""
    now_us = int(time.time() * 1e6)
    with closing(Database(path, RetentionLimits(86_400.0, 2**30))) as database:
        for first in range(0, count, 1000):
            ids = range(now_us - count + first, now_us - count + first + 1000)
            some = [Transition(one, one / 1e6, "status", "db", "Up", "Down", "x" * 60, "timeout", 200, 503) for one in ids]
            database.write(Batch(some, [], 0))


def test_500_readers_are_told_of_every_transition(loop_name: str) -> None:
    with publishing(loop_name) as (server, story, hub), ExitStack() as stack:
        readers = [stack.enter_context(EventReader(server.address)) for _ in range(500)]
        assert becomes_true(lambda: hub.stream_count == 500)
        for _ in range(5):
            server.call(story.publish)
        for reader in readers:
            assert [event.id for event in reader.read_many(5)] == [1, 2, 3, 4, 5]
