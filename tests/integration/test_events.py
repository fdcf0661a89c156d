"""`/events` of a running node: no event is lost over reconnects, restarts and crashes."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from tests.support.event_streams import Event, EventReader
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable
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


# ---- real processes


def test_no_event_is_lost_over_reconnects_restarts_and_crashes(tmp_path: Path) -> None:
    many = [f"s{number}" for number in range(30)]
    with Agent(tmp_path, config=config("db")) as agent:
        address = listen_address(agent)
        with EventReader(address) as reader:
            assert (reader.head.code, reader.head.header("Content-Type")) == (200, "text/event-stream")
            agent.reload(config("db", "cache", status="Down"))
            agent.reload(config("cache"))
            received = [one for one in reader.read_until(summary_is("deregistered", "db")) if one.data["service_id"]]
        assert summary(received) == [
            ("status", "db", "Down"),
            ("registered", "cache", "Initializing"),
            ("status", "cache", "Down"),
            ("status", "cache", "Up"),
            ("deregistered", "db", None),
        ]
        down, last_id = received[0].data, received[-1].id
        assert (down["before"], down["code"], down["health_before"], down["health"]) == ("Up", "fixed", 200, 503)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", down["at"])
        assert [event.data["id"] for event in received] == [event.id for event in received]
        agent.reload(config("cache", status="Down"))
        for options in ({"after": last_id}, {"query": f"?after={last_id}"}):
            with EventReader(address, **options) as resumed:
                assert resumed.read_until(summary_is("status", "cache", "Down"))
        with EventReader(address, after=10**18) as unknown:
            assert unknown.read().name == "gap"
        assert agent.stop() == 0
    with Agent(tmp_path, config=config("db")) as agent, EventReader(listen_address(agent), after=last_id) as resumed:
        agent.reload(config("db", *many))
        received = [
            event for event in resumed.read_until(summary_is("status", many[-1], "Up")) if event.name == "transition"
        ]
        assert summary(received)[:2] == [("reloaded", None, None), ("status", "cache", "Down")]
        assert summary(received).index(("stopped", None, None)) < summary(received).index(("started", None, None))
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    with (
        Agent(tmp_path, config=config("db")) as agent,
        EventReader(listen_address(agent), after=received[0].id) as resumed,
    ):
        assert resumed.read_many(len(received) - 1) == received[1:], "an event is stored before it is sent"
        following = resumed.read_until(summary_is("started"))
        assert is_in_order([*received, *following])


def test_without_history_a_restart_is_a_gap(tmp_path: Path) -> None:
    off = "[history]\nkeep = false\n"
    with Agent(tmp_path, config=config("db", history=off)) as agent, EventReader(listen_address(agent)) as reader:
        agent.reload(config("db", status="Down", history=off))
        first = reader.read_until(summary_is("status", "db", "Down"))[-1]
        agent.reload(config("db", history=off))
        expected = [("reloaded", None, None), ("status", "db", "Up")]
        assert summary(reader.read_many(2)) == expected
        with EventReader(listen_address(agent), after=first.id) as resumed:
            assert summary(resumed.read_many(2)) == expected
    with (
        Agent(tmp_path, config=config("db", history=off)) as agent,
        EventReader(listen_address(agent), after=first.id) as resumed,
    ):
        assert resumed.read().name == "gap"
