"""Heartbeats of a real process: whatever stops it from sending alerts leads to silence at the dead man's switch.

The rules themselves are tested in virtual time, in tests/unit/notify/test_heartbeat.py.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from svcnode import Node
from tests.support.backends import HttpBackend, closed_port, http_response
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ("--listen", "127.0.0.1:0", "--drain", "3s", "--log-level", "debug", "--name", "validator-7")
INTERVAL_S = 1.0
KEY = "0b5c1d8e-6f0a-4f3b-9d55-secret-of-hc"

# Loaded at the start of the process. The faults: a callback that blocks the event loop, and a scheduler that has ended.
FAULTS = """
import signal, time

def block(*_):
    import asyncio
    asyncio.get_running_loop().call_soon(time.sleep, 8.0)

def end_scheduler(*_):
    import asyncio
    from svcnode.node import checks
    (running,) = checks._instances
    asyncio.get_running_loop().create_task(running._scheduler.__aexit__())

signal.signal(signal.SIGRTMIN, block)
signal.signal(signal.SIGRTMIN + 1, end_scheduler)
"""


class Switch(HttpBackend):
    def __init__(self) -> None:
        super().__init__(http_response(200, "OK"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{KEY}"

    def wait_for_heartbeats(self, agent: Agent) -> None:
        before = len(self.requests)
        agent.wait_until(lambda: len(self.requests) >= before + 2)


def config(url: str, port: int) -> str:
    """A critical service that is Down: the node is unhealthy, and sends heartbeats."""
    service = f'[[services]]\nid = "db"\nprobe = "tcp://127.0.0.1:{port}"\nimpact = "critical"\n'
    fast = '[defaults]\ninterval = "100ms"\ntimeout = "90ms"\nstart_period = "0s"\n'
    return f'[notify]\nheartbeat = "{url}"\nheartbeat_interval = "{INTERVAL_S:g}s"\n{fast}{service}'


def is_unhealthy(agent: Agent) -> bool:
    return agent.health() == 503


def test_a_node_that_cannot_alert_is_silent_within_two_intervals_whatever_stops_it(tmp_path: Path) -> None:
    """Four nodes at once, each with its own fault, and one that works."""
    faults = {
        "works": signal.SIGCONT,
        "killed": signal.SIGKILL,
        "stopped": signal.SIGSTOP,
        "event loop blocked": signal.SIGRTMIN,
        "scheduler ended": signal.SIGRTMIN + 1,
    }
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    with ExitStack() as stack:
        port = stack.enter_context(closed_port())
        switches = {name: stack.enter_context(Switch()) for name in faults}
        agents: dict[str, Agent] = {}
        for name, switch in switches.items():
            (folder := tmp_path / name).mkdir()
            text = config(switch.url, port)
            agent = Agent(folder, *FLAGS, config=text, environ={"PYTHONPATH": str(tmp_path)})
            agents[name] = stack.enter_context(agent)
        for name, agent in agents.items():
            agent.wait_until(partial(is_unhealthy, agent))
            switches[name].wait_for_heartbeats(agent)
        for name, agent in agents.items():
            agent.signal(faults[name])
        time.sleep(2 * INTERVAL_S)
        before = {name: len(switch.requests) for name, switch in switches.items()}
        time.sleep(2 * INTERVAL_S)
        assert {name for name, switch in switches.items() if len(switch.requests) > before[name]} == {"works"}
        assert {name for name, agent in agents.items() if agent.process.poll() is not None} == {"killed"}
        agents["stopped"].signal(signal.SIGCONT)
        for name in ("stopped", "event loop blocked"):  # it is not blocked for ever
            switches[name].wait_for_heartbeats(agents[name])


def test_an_embedded_node_sends_heartbeats_while_its_checks_run() -> None:
    node = Node("validator-7", version="v1")
    with Switch() as switch:
        node.notify(heartbeat=switch.url, heartbeat_interval=f"{INTERVAL_S:g}s")
        node.start()
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while not switch.requests and time.monotonic() < deadline_s:
                time.sleep(0.05)
        finally:
            node.stop()
        before = len(switch.requests)
        assert before > 0
        time.sleep(2 * INTERVAL_S)
        assert len(switch.requests) == before


def test_a_reload_changes_the_heartbeat_a_planned_stop_ends_it_and_its_secret_is_never_shown(tmp_path: Path) -> None:
    with (
        Switch() as first,
        Switch() as second,
        closed_port() as refused,
        closed_port() as port,
        Agent(tmp_path, *FLAGS, config=config(f"http://127.0.0.1:{refused}/{KEY}", port)) as agent,
    ):
        assert agent.wait_for_event("heartbeat_failed")["code"] == "connection_refused"
        agent.reload(config(first.url, port))
        first.wait_for_heartbeats(agent)
        shown = agent.request("/details").json["node"]["heartbeat"]
        assert (shown["target"], shown["result"]) == (f"http://127.0.0.1:{first.port}", "sent")
        agent.reload(config(second.url, port))
        second.wait_for_heartbeats(agent)
        before = len(first.requests)
        second.wait_for_heartbeats(agent)
        assert len(first.requests) == before
        assert [(request.method, request.target) for request in second.requests[:1]] == [("GET", f"/{KEY}")]
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        time.sleep(0.2)  # one that was under way may arrive
        before = len(second.requests)
        assert agent.wait_for_exit() == 0
        assert len(second.requests) == before, "none during the drain"
        assert KEY not in "\n".join(agent.lines)
