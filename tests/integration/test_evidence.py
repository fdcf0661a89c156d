"""The status of a service follows real servers that are killed, frozen and restarted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.support.backends import Backend, HttpBackend, close, http_response, unresponsive
from tests.support.commands import svcnode
from tests.support.event_streams import EventReader
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, is_listening
from tests.support.servers.base import is_stopped, wait_until

if TYPE_CHECKING:
    from pathlib import Path

ANY_PORT = ("--listen", "127.0.0.1:0")
DEFAULTS = """
[defaults]
interval = "1s"
timeout = "900ms"
transition_interval = "100ms"
stale_after = "1m"
start_period = "0s"
"""

COMMANDS = {
    "tcp": ("http.server", "--bind", "127.0.0.1", "{port}"),
    "http": ("http.server", "--bind", "127.0.0.1", "{port}"),
    "svc+http": ("svcnode", "serve", "--listen", "127.0.0.1:{port}"),
}


def service(service_id: str, probe: str, **options: str) -> str:
    lines = [f'id = "{service_id}"', f'probe = "{probe}"', *(f'{key} = "{value}"' for key, value in options.items())]
    return "[[services]]\n" + "\n".join(lines) + "\n"


class Server:
    """A server process that the agent checks, always on the same port."""

    def __init__(self, folder: Path, scheme: str) -> None:
        self._folder = folder
        self.port = free_port()
        self.probe = f"{scheme}://127.0.0.1:{self.port}"
        self._arguments = [argument.format(port=self.port) for argument in COMMANDS[scheme]]
        folder.mkdir()
        (folder / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when the server accepts connections."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_listening(self.port):
            assert time.monotonic() < deadline_s, "the server does not listen"
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(self._process.pid), "frozen")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def test_killed_and_frozen_servers_are_down_and_others_are_not_affected(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = {scheme: stack.enter_context(Server(tmp_path / scheme[:3], scheme)) for scheme in COMMANDS}
        probes = [service(scheme[:3], server.probe) for scheme, server in servers.items()]
        steady = stack.enter_context(Backend(close))
        config = (
            DEFAULTS + "".join(probes) + service("steady", f"tcp://{steady.address}", interval="20s", timeout="15s")
        )
        agent = stack.enter_context(Agent(tmp_path, *ANY_PORT, config=config))

        def wait_for(health: int, **statuses: str) -> None:
            expected = {"steady": "Up", **dict.fromkeys(("tcp", "htt", "svc"), "Up"), **statuses}
            agent.wait_until(lambda: agent.statuses() == expected and agent.health() == health)

        wait_for(200)
        for server in servers.values():
            server.kill()
        wait_for(206, tcp="Down", htt="Down", svc="Down")
        for one in ("tcp", "htt", "svc"):
            agent.wait_for_event("service_status", service=one, status="Down", code="connection_refused")
        for server in servers.values():
            server.start()
        wait_for(200)
        for scheme in ("http", "svc+http"):
            servers[scheme].freeze()  # the kernel still accepts connections
        wait_for(206, htt="Down", svc="Down")
        for one in ("htt", "svc"):
            agent.wait_for_event("service_status", service=one, status="Down", code="timeout")
        for scheme in ("http", "svc+http"):
            servers[scheme].resume()
        wait_for(200)
        changes = [entry["status"] for entry in agent.events("service_status") if entry["service"] == "steady"]
        assert changes == ["Up"]


def test_a_node_that_stood_still_does_not_improve_a_service_that_was_down(tmp_path: Path) -> None:
    defaults = DEFAULTS.replace('"1m"', '"1500ms"').replace('"0s"', '"10m"')  # stale_after and start_period
    with (
        Server(tmp_path / "server", "tcp") as server,
        Agent(tmp_path, *ANY_PORT, config=defaults + service("db", server.probe, impact="critical")) as agent,
    ):
        agent.wait_until(lambda: agent.health() == 200)
        server.kill()
        agent.wait_until(lambda: agent.health() == 503)
        agent.signal(signal.SIGSTOP)
        time.sleep(2)
        agent.signal(signal.SIGCONT)
        answers = [(agent.health(), agent.request("/readyz").code) for _ in range(20)]
        assert set(answers) == {(503, 503)}


def test_a_node_that_stood_still_names_itself_as_the_cause(tmp_path: Path) -> None:
    defaults = DEFAULTS.replace('"1m"', '"1500ms"')  # stale_after
    with Backend(close) as backend:
        services = [service(f"db-{number}", f"tcp://{backend.address}") for number in range(3)]
        with Agent(tmp_path, *ANY_PORT, "--log-format", "json", config=defaults + "".join(services)) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            agent.signal(signal.SIGSTOP)
            time.sleep(4)
            agent.signal(signal.SIGCONT)
            for number in range(3):
                agent.wait_for_event("service_status", service=f"db-{number}", code="cannot_check")
            agent.wait_until(lambda: agent.health() == 200)


# ---- one transition, one time


def test_every_surface_shows_the_same_time_of_a_transition(tmp_path: Path) -> None:
    """The check that decides takes its whole timeout; its start is not the time of the transition."""
    with HttpBackend(http_response(200, "ok")) as receiver, Backend(unresponsive) as backend:
        probe = service("db", f"http://127.0.0.1:{backend.port}/", interval="1m", timeout="400ms", stale_after="5m")
        text = f'[notify]\nwebhook = "http://127.0.0.1:{receiver.port}/"\nservices = "all"\ngroup_wait = "10ms"\n'
        with Agent(tmp_path, *ANY_PORT, "--log-format", "json", config=text + DEFAULTS + probe) as agent:
            logged = agent.wait_for_event("service_status", service="db", status="Down")
            agent.wait_until(lambda: bool(receiver.requests))
            details = agent.request("/details/db").json
            (transition,) = [
                one
                for one in agent.request("/history?id=db&transitions=10").json["transitions"]["db"]
                if one["after"] == "Down"
            ]
            page = agent.request("/").body.decode()
            with EventReader(("127.0.0.1", agent.port), after=0) as events:
                event = next(one for one in iter(events.read_event, None) if one.data["after"] == "Down")
            explained = json.loads(
                svcnode("explain", f"http://127.0.0.1:{agent.port}", "--service", "db", "--json").stdout
            )
    (sent,) = json.loads(receiver.requests[0].body)["services"]
    since, first_failure = details["since"], details["first_failure"]["at"]
    assert (explained["since"], explained["first_failure"]["at"]) == (since, first_failure)
    assert (logged["since"], logged["first_failure"]) == (since, first_failure)
    assert (sent["since"], sent["first_failure"]) == (since, first_failure)
    assert transition["at"] == event.data["at"] == since
    assert f'datetime="{since[:19]}' in page  # to the second
    first, *_, deciding = reversed(details["recent_checks"][-3:])
    assert [known_at(check) for check in (first, deciding)] == [in_ms(first_failure), in_ms(since)]
    assert in_ms(since) - in_ms(deciding["at"]) >= 400


def in_ms(time_text: str) -> int:
    return round(datetime.fromisoformat(time_text).timestamp() * 1000)


def known_at(check: dict[str, Any]) -> Any:
    """When a check ended; its start and its duration are rounded, and recording takes a moment."""
    return pytest.approx(in_ms(check["at"]) + check["duration_ms"], abs=50)
