"""What the node says of a service is what is so: a real agent, real servers that are killed, frozen and restarted."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.processes import DEADLINE_S, Agent, is_listening
from tests.support.servers.base import free_port, is_stopped, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.serial
ANYWHERE = ("--listen", "127.0.0.1:0")
INTERVAL_S, TIMEOUT_S, FALL, RISE = 0.4, 0.2, 3, 2
# What may pass before it is noticed: the looks it takes, the last of them to its end, and half a second for the rest.
DOWN_BOUND_S = FALL * INTERVAL_S + TIMEOUT_S + 0.5
UP_BOUND_S = RISE * INTERVAL_S + 0.5
DEFAULTS = f"""
[defaults]
interval = "{INTERVAL_S * 1000:g}ms"
timeout = "{TIMEOUT_S * 1000:g}ms"
fall = {FALL}
rise = {RISE}
start_period = "0s"
"""

COMMANDS = {
    "tcp": ("http.server", "--bind", "127.0.0.1", "{port}"),
    "http": ("http.server", "--bind", "127.0.0.1", "{port}"),
    "svc+http": ("svcnode", "serve", "--listen", "127.0.0.1:{port}"),
}


def service(service_id: str, probe: str, **words: str) -> str:
    lines = [f'id = "{service_id}"', f'probe = "{probe}"', *(f'{key} = "{value}"' for key, value in words.items())]
    return "[[services]]\n" + "\n".join(lines) + "\n"


class Server:
    """A process that the agent watches, always on the same port."""

    def __init__(self, folder: Path, scheme: str) -> None:
        self._folder = folder
        self.port = free_port()
        self.probe = f"{scheme}://127.0.0.1:{self.port}"
        self._arguments = [word.format(port=self.port) for word in COMMANDS[scheme]]
        folder.mkdir()
        (folder / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns as soon as it accepts connections."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_listening(self.port):
            assert time.monotonic() < deadline_s, "it does not listen"
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(self._process.pid), "frozen")

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def seconds_until(agent: Agent, status: str) -> float:
    """How long it takes from now until the agent's only service is published so."""
    began_s = time.monotonic()
    with agent.connect() as client:
        while client.request("/svc/node/services").json["services"][0]["status"] != status:
            assert time.monotonic() < began_s + DEADLINE_S, f"it is not {status}\n" + "\n".join(agent.lines)
            time.sleep(0.01)
    return time.monotonic() - began_s


@pytest.mark.parametrize("scheme", COMMANDS)
def test_a_server_that_is_killed_is_down_in_time_and_up_in_time_when_it_is_back(scheme: str, tmp_path: Path) -> None:
    with (
        Server(tmp_path / "watched", scheme) as server,
        Agent(tmp_path, *ANYWHERE, config=DEFAULTS + service("watched", server.probe)) as agent,
    ):
        seconds_until(agent, "Up")
        server.kill()
        assert seconds_until(agent, "Down") <= DOWN_BOUND_S
        assert agent.health() == 503
        server.start()
        assert seconds_until(agent, "Up") <= UP_BOUND_S
        assert agent.health() == 200
        agent.wait_for_log("service watched is Down, was Up: connection refused")


@pytest.mark.parametrize("scheme", ["http", "svc+http"])
def test_a_server_that_is_frozen_is_down_in_time_and_up_in_time_when_it_goes_on(scheme: str, tmp_path: Path) -> None:
    with (
        Server(tmp_path / "watched", scheme) as server,
        Agent(tmp_path, *ANYWHERE, config=DEFAULTS + service("watched", server.probe)) as agent,
    ):
        seconds_until(agent, "Up")
        server.freeze()  # the kernel still accepts connections for it
        assert seconds_until(agent, "Down") <= DOWN_BOUND_S
        server.thaw()
        assert seconds_until(agent, "Up") <= UP_BOUND_S
        agent.wait_for_log("service watched is Down, was Up: no answer within 0.2 s, in its step exchange")


def test_one_server_that_dies_takes_no_other_with_it(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "dying", "tcp") as dying,
        Server(tmp_path / "living", "http") as living,
        Agent(
            tmp_path, *ANYWHERE, config=DEFAULTS + service("dying", dying.probe) + service("living", living.probe)
        ) as agent,
    ):
        agent.wait_until(lambda: agent.statuses() == {"dying": "Up", "living": "Up"})
        dying.kill()
        agent.wait_until(lambda: agent.statuses()["dying"] == "Down")
        assert agent.statuses() == {"dying": "Down", "living": "Up"}
        assert agent.health() == 206
        assert sum("service living " in message for message in agent.messages) == 1  # it has not left Up


# ---- reloading


class CountingServer:
    """Accepts every connection and notes when."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.accepted_at_s: list[float] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the one who accepts
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted_at_s.append(time.monotonic())
            connection.close()

    @property
    def probe(self) -> str:
        return f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"

    def is_checked_after(self, moment_s: float) -> bool:
        return bool(self.accepted_at_s) and self.accepted_at_s[-1] > moment_s


def reload_and_check(agent: Agent, config: str, server: CountingServer) -> None:
    """Reload, and wait until the server is looked at after that."""
    now_s = time.monotonic()
    agent.reload(config)
    agent.wait_until(lambda: server.is_checked_after(now_s))


def test_a_reload_that_changes_one_service_leaves_the_checks_of_the_others_alone(tmp_path: Path) -> None:
    with CountingServer() as steady, CountingServer() as first, CountingServer() as second:
        configs = [
            DEFAULTS + service("steady", steady.probe) + service("changing", changing.probe)
            for changing in (first, second)
        ]
        with Agent(tmp_path, *ANYWHERE, config=configs[0]) as agent:
            agent.wait_until(lambda: len(steady.accepted_at_s) > 0 and len(first.accepted_at_s) > 0)
            began_s = time.monotonic()
            for _ in range(10):
                reload_and_check(agent, configs[1], second)
                reload_and_check(agent, configs[0], first)
            agent.wait_until(lambda: steady.is_checked_after(began_s + 3 * INTERVAL_S))
            during_s = time.monotonic() - began_s
            looks = [at_s for at_s in steady.accepted_at_s if at_s >= began_s]
            # The interval is moved by a twentieth at most; a restart at each of the reloads would be 20 looks more.
            assert len(looks) <= 1 + during_s / (0.95 * INTERVAL_S)
            assert sum("service steady " in message for message in agent.messages) == 1  # it has not left Up


def test_a_reload_starts_and_stops_the_checks_of_services_that_come_and_go(tmp_path: Path) -> None:
    with CountingServer() as steady, CountingServer() as guest:
        without = DEFAULTS + service("steady", steady.probe, interval="100ms", timeout="50ms")
        with Agent(tmp_path, *ANYWHERE, config=without) as agent:
            agent.wait_until(lambda: agent.statuses() == {"steady": "Up"})
            assert guest.accepted_at_s == []
            agent.reload(without + service("guest", guest.probe, interval="100ms", timeout="50ms"))
            agent.wait_until(lambda: len(guest.accepted_at_s) >= 3)
            assert agent.statuses() == {"steady": "Up", "guest": "Up"}
            agent.reload(without)
            time.sleep(0.1)  # for a connection that was still on its way
            seen, gone_at_s = len(guest.accepted_at_s), time.monotonic()
            agent.wait_until(lambda: steady.is_checked_after(gone_at_s + 0.5))
            assert len(guest.accepted_at_s) == seen
            assert agent.statuses() == {"steady": "Up"}
