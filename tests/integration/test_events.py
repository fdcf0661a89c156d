"""`/events` of a running node: no event is lost over reconnects, restarts and crashes."""

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
from svcnode.operator import OperatorApp, event_hub
from svcnode.operator.auth import OperatorAuth
from svcnode.operator.event_hub import (
    MAX_BUFFERED_BYTES,
    MAX_RECENT_EVENTS,
    PAGE_BYTES,
    PAGE_EVENTS,
    EventHub,
    encode_event,
)
from tests.support.backends import HttpBackend, http_response
from tests.support.event_streams import Event, EventReader
from tests.support.http_server import RunningServer, becomes_true, loopback_socket, request, running_server
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SERVER = '[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"\n'


def config(*services: str, status: str = "Up", history: str = "") -> str:
    tables = "".join(f'[[services]]\nid = "{service_id}"\nstatus = "{status}"\n' for service_id in services)
    return f"{SERVER}{history}{tables}"


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
        received = [event for event in reader.read_until(summary_is("deregistered", "db")) if event.data["service_id"]]
    assert summary(received) == [
        ("status", "db", "Down"),
        ("registered", "cache", "Initializing"),
        ("status", "cache", "Down"),
        ("status", "cache", "Up"),
        ("deregistered", "db", None),
    ]
    assert is_in_order(received)
    down = received[0].data
    assert (down["before"], down["code"], down["health_before"], down["health"]) == ("Up", "fixed", 200, 503)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", down["at"])
    assert [event.data["id"] for event in received] == [event.id for event in received]


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_reconnected_client_continues_after_its_last_event(tmp_path: Path, how: str) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        address = listen_address(agent)
        with EventReader(address) as reader:
            agent.reload(config("db", status="Down"))
            first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db"))
        agent.reload(config("db", status="Initializing"))
        options: dict[str, Any] = {"after": first.id} if how == "header" else {"query": f"?after={first.id}"}
        with EventReader(address, **options) as resumed:
            assert summary(resumed.read_many(2)) == [("status", "db", "Up"), ("status", "db", "Initializing")]
            agent.reload(config("db"))
            assert summary(resumed.read_many(1)) == [("status", "db", "Up")]


def test_events_that_are_no_longer_in_memory_come_from_history(tmp_path: Path) -> None:
    many = [f"s{number}" for number in range(MAX_RECENT_EVENTS)]
    with Agent(tmp_path, config=config("db")) as agent:
        address = listen_address(agent)
        with EventReader(address) as reader:
            agent.reload(config("db", status="Down"))
            first = reader.read_until(summary_is("status", "db", "Down"))[-1]
            agent.reload(config("db", *many))
            live = reader.read_until(summary_is("status", many[-1], "Up"))
        with EventReader(address, after=first.id) as resumed:
            assert resumed.read_many(len(live)) == live
    assert is_in_order(live)
    assert len(live) == 2 * len(many) + 1
    assert {event.summary for event in live} >= {("status", service_id, "Up") for service_id in many}


@pytest.mark.parametrize("invalid", ["x", "-1", "1.5", "9" * 20])
def test_an_invalid_event_id_is_rejected(tmp_path: Path, invalid: str) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        for target, header in (("/events", f"Last-Event-ID: {invalid}"), (f"/events?after={invalid}", "X-None: x")):
            with agent.connect() as client:
                client.sock.sendall(request(target, header, host="localhost"))
                assert client.sock.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_unknown_event_id_is_a_gap(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("db")) as agent:
        with EventReader(listen_address(agent), after=1) as reader:
            first = reader.read()
            assert first.name in ("gap", "transition")
        with EventReader(listen_address(agent), after=10**18) as reader:
            assert reader.read().name == "gap"


# ---- several processes, one after the other


def test_no_event_is_lost_over_a_restart(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent)) as reader:
        agent.reload(config("db", status="Down"))
        first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db"))
        assert agent.stop() == 0
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), after=first.id) as resumed:
        received = resumed.read_until(summary_is("started"))
        assert summary(received)[0] == ("status", "db", "Up")
        assert ("stopped", None, None) in summary(received)
        assert is_in_order(received)
        agent.reload(config("db", status="Down"))
        assert resumed.read_until(summary_is("status", "db", "Down"))[-1].data["health"] == 503


def test_events_received_before_a_crash_are_in_history_after_it(tmp_path: Path) -> None:
    """An event is stored before it is sent."""
    many = [f"s{number}" for number in range(50)]
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), query="?after=0") as reader:
        agent.reload(config("db", *many))
        received = reader.read_until(summary_is("status", many[-1], "Up"))
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    received = [event for event in received if event.name == "transition"]
    with (
        Agent(tmp_path, config=config("db")) as agent,
        EventReader(listen_address(agent), after=received[0].id) as resumed,
    ):
        assert resumed.read_many(len(received) - 1) == received[1:]
        following = resumed.read_until(summary_is("started"))
        assert is_in_order([*received, *following])


def test_without_history_a_restart_is_a_gap(tmp_path: Path) -> None:
    off = "[history]\nkeep = false\n"
    with Agent(tmp_path, config=config("db", history=off)) as agent, EventReader(listen_address(agent)) as reader:
        agent.reload(config("db", status="Down", history=off))
        first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db", history=off))
        assert reader.read_many(1)[0].summary == ("status", "db", "Up")
        with EventReader(listen_address(agent), after=first.id) as resumed:
            assert resumed.read_many(1)[0].summary == ("status", "db", "Up")
    with (
        Agent(tmp_path, config=config("db", history=off)) as agent,
        EventReader(listen_address(agent), after=first.id) as resumed,
    ):
        assert resumed.read().name == "gap"


# ---- slow, idle and many clients; the server runs in this process, with shorter limits


class FakeHistory:
    """Publishes the transitions that a test makes."""

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
    loop_name: str, given: FakeHistory | None = None
) -> Iterator[tuple[RunningServer, FakeHistory, EventHub]]:
    history: Any = given or FakeHistory()
    hub = EventHub(history)
    context: Any = type("Context", (), {"events": hub})
    listener = loopback_socket()
    address = Address(scheme="http", host="127.0.0.1", port=listener.getsockname()[1])
    mount = Mount(OperatorApp(context, OperatorAuth(address, None, trusts_loopback=True)))
    with running_server(Node("validator-7", version="v1"), loop_name, listener=listener, mount=mount) as server:
        yield server, history, hub


def test_a_slow_client_is_disconnected_while_a_fast_one_gets_everything(loop_name: str) -> None:
    reason = "x" * 50_000
    with publishing(loop_name) as (server, history, hub):
        with EventReader(server.address, receive_buffer=4096) as slow, EventReader(server.address) as fast:
            assert becomes_true(lambda: hub.stream_count == 2)
            max_buffered = 0
            for _ in range(400):
                server.call(lambda: history.publish(reason))
                buffered = server.call(lambda: max(writer.buffered_bytes for writer in hub._live))
                max_buffered = max(max_buffered, buffered)
                assert fast.read().data["reason"] == reason
            assert becomes_true(lambda: hub.stream_count == 1)
            assert max_buffered <= MAX_BUFFERED_BYTES + len(reason) + 1000
            assert slow.is_closed()
        assert becomes_true(lambda: hub.stream_count == 0)


def test_a_disconnected_client_can_resume_without_a_gap(loop_name: str) -> None:
    reason = "x" * 50_000
    with publishing(loop_name) as (server, history, hub):
        with EventReader(server.address, receive_buffer=4096) as slow:
            assert becomes_true(lambda: hub.stream_count == 1)
            for _ in range(400):
                server.call(lambda: history.publish(reason))
            assert becomes_true(lambda: hub.stream_count == 0)
            received = [event.id for event in slow.read_all()]
        with EventReader(server.address, after=received[-1]) as resumed:
            received += [event.id for event in resumed.read_many(400 - len(received))]
    assert received == [*range(1, 401)]


def test_a_stream_beyond_the_limit_is_rejected_with_retry_after(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "MAX_STREAMS", 3)
    with publishing(loop_name) as (server, _, hub), ExitStack() as stack:
        readers = [stack.enter_context(EventReader(server.address)) for _ in range(3)]
        assert becomes_true(lambda: hub.stream_count == 3)
        with EventReader(server.address) as too_many:
            assert (too_many.head.code, too_many.head.header("Retry-After")) == (503, "10")
        readers[0].sock.close()
        assert becomes_true(lambda: hub.stream_count == 2)
        with EventReader(server.address) as another:
            assert another.head.code == 200


def test_an_idle_stream_gets_heartbeats(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "HEARTBEAT_S", 0.05)
    with publishing(loop_name) as (server, history, _), EventReader(server.address) as reader:
        started_s = time.monotonic()
        assert [event.data for event in reader.read_many(3)] == ["heartbeat"] * 3
        assert time.monotonic() - started_s > 0.1
        server.call(history.publish)
        assert reader.read_until(lambda event: event.name == "transition")[-1].id == 1


class LongHistory(FakeHistory):
    """Encoding all of it would block the loop for seconds."""

    last_id = 60_000

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        await asyncio.sleep(0)
        numbers = range(transition_id + 1, min(transition_id + limit, self.last_id) + 1)
        return [
            Transition(number, 0.0, "status", "db", "Up", "Down", "x" * 60, "timeout", 200, 503) for number in numbers
        ]


class LoopMonitor:
    """The longest CPU time between two turns of the loop. CPU time does not include the work of other processes."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            started_s = time.thread_time()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.thread_time() - started_s)


def page_cpu_time_s() -> float:
    """The CPU time of encoding one page of events on this machine now."""
    transition = Transition(1, 0.0, "status", "db", "Up", "Down", "x" * 60, "timeout", 200, 503)
    started_s = time.thread_time()
    for _ in range(10 * PAGE_EVENTS):
        encode_event(transition)
    return (time.thread_time() - started_s) / 10


def test_slow_replays_of_a_long_history_do_not_block_the_loop(loop_name: str) -> None:
    with publishing(loop_name, LongHistory()) as (server, _, hub), ExitStack() as stack:
        monitor = LoopMonitor()
        task = asyncio.run_coroutine_threadsafe(monitor.run(), server.loop)
        slow = [
            stack.enter_context(EventReader(server.address, query="?after=0", receive_buffer=4096)) for _ in range(99)
        ]
        with EventReader(server.address, query="?after=0") as fast, server.connect() as client:
            for number in range(1, 10_001):
                assert fast.read_event().id == number
                if number % 1000 == 0:
                    assert client.request(request("/svc/node/health")).code == 200
        assert becomes_true(lambda: hub.stream_count == len(slow))
        buffered = server.call(lambda: [writer.buffered_bytes for writer in hub._replaying])
        task.cancel()
        assert max(buffered) <= 64 * 1024 + 2 * PAGE_BYTES
        assert monitor.longest_s < 100 * page_cpu_time_s()  # the whole history has 600 pages


def test_checks_do_not_fail_during_many_replays(tmp_path: Path) -> None:
    write_history(tmp_path / "history.db", 30_000)
    history = f'[history]\npath = "{tmp_path}/history.db"\n'
    with HttpBackend(http_response()) as backend, ExitStack() as stack:
        service = f'[[services]]\nid = "web"\nprobe = "http://{backend.address}/"\ninterval = "6s"\ntimeout = "5s"\n'
        agent = stack.enter_context(Agent(tmp_path, config=f"{SERVER}{history}{service}"))
        address = listen_address(agent)
        slow = [stack.enter_context(EventReader(address, query="?after=0", receive_buffer=4096)) for _ in range(100)]
        with EventReader(address, query="?after=0") as fast:
            received = fast.read_until(summary_is("status", "web", "Up"))
        events = [event for event in received if event.id is not None]  # without heartbeats
        assert is_in_order(events)
        assert len(events) > 30_000
        assert len(slow) == 100
        with agent.connect() as client:
            document = json.loads(client.request("/details").body)
        (web,) = document["services"]
        assert (web["status"], web["checks"]["failed"], web["checks"]["unknown"]) == ("Up", 0, 0)
        assert document["node"]["last_event_id"] == received[-1].id


def write_history(path: Path, count: int) -> None:
    """A history file with this many transitions."""
    now_us = int(time.time() * 1e6)
    with closing(Database(path, RetentionLimits(86_400.0, 2**30))) as database:
        for first in range(0, count, 1000):
            ids = range(now_us - count + first, now_us - count + first + 1000)
            some = [
                Transition(one, one / 1e6, "status", "db", "Up", "Down", "x" * 60, "timeout", 200, 503) for one in ids
            ]
            database.write(Batch(some, [], 0))


def test_500_clients_get_every_transition(loop_name: str) -> None:
    with publishing(loop_name) as (server, history, hub), ExitStack() as stack:
        readers = [stack.enter_context(EventReader(server.address)) for _ in range(500)]
        assert becomes_true(lambda: hub.stream_count == 500)
        for _ in range(5):
            server.call(history.publish)
        for reader in readers:
            assert [event.id for event in reader.read_many(5)] == [1, 2, 3, 4, 5]
