"""`svcnode serve` as process 1 of a container."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import descendants, wait_until
from tests.support.servers.provision import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.wide

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# Each check leaves two orphans: one in the session of the program, one in a session of its own.
CONFIG = """
[server]
listen = "127.0.0.1:0"
drain = "{drain}"
[security]
allow_exec = true
[[services]]
id = "orphans"
probe = {{ url = "exec:", argv = ["/bin/sh", "-c", "echo >> {ran}; sleep 0.1 & setsid sleep 0.1 & exit 0"] }}
interval = "200ms"
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path, config=config(tmp_path), prefix=UNSHARE) as agent:
        agent.wait_for_event("started")
        yield agent


def config(folder: Path, drain: str = "0s") -> str:
    return CONFIG.format(drain=drain, ran=folder / "ran")


def process_1(agent: Agent) -> int:
    (found,) = (each.pid for each in descendants(agent.process.pid) if each.parent == agent.process.pid)
    return found


def node_process(agent: Agent) -> int:
    """The agent itself: the first child of process 1."""
    return min(each.pid for each in descendants(agent.process.pid) if each.parent == process_1(agent))


def test_orphans_of_an_exec_probe_do_not_stay_as_zombies(agent: Agent, tmp_path: Path) -> None:
    wait_until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) >= 5, "checks")
    agent.config_file.write_text('[server]\nlisten = "127.0.0.1:0"\n[[services]]\nid = "a"\nstatus = "Up"\n')
    os.kill(process_1(agent), signal.SIGHUP)
    agent.wait_for_event("reloaded")
    wait_until(lambda: len(descendants(process_1(agent))) == 1, "no process but the node")
    assert agent.process.poll() is None


def test_each_signal_is_forwarded_once(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(tmp_path, drain="1h"), prefix=UNSHARE) as agent:
        agent.wait_for_event("started")
        os.kill(process_1(agent), signal.SIGINT)
        agent.wait_for_event("draining")
        assert agent.process.poll() is None
        os.kill(process_1(agent), signal.SIGINT)
        assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGINT


def test_a_node_that_kills_itself_ends_process_1(agent: Agent) -> None:
    """SIGPROF is how a node ends itself that has run without end. Process 1 itself would not get it."""
    os.kill(node_process(agent), signal.SIGPROF)
    assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGPROF


def test_an_invalid_configuration_is_the_exit_code_of_process_1(tmp_path: Path) -> None:
    with Agent(tmp_path, config="[node]\nname = 5\n", prefix=UNSHARE) as agent:
        assert agent.process.wait(DEADLINE_S) == 2


def test_a_socket_that_is_passed_to_process_1_is_that_of_the_node(tmp_path: Path) -> None:
    """podman passes it so."""
    with socket.create_server(("127.0.0.1", 0)) as passed:
        port = passed.getsockname()[1]
        text = config(tmp_path).replace("127.0.0.1:0", f"127.0.0.1:{port}")
        to_process_1 = ("sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh")
        with Agent(tmp_path, config=text, prefix=(*UNSHARE, *to_process_1), passed=passed) as agent:
            agent.wait_for_event("started")
            assert agent.request("/livez").code == 200
