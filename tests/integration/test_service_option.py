"""`svcnode serve --service ID=URL`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANYWHERE = ("--listen", "127.0.0.1:0")
# Frequent checks with a long timeout.
FREQUENT = {
    "SVCNODE_DEFAULTS_INTERVAL": "6s",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "50ms",
    "SVCNODE_DEFAULTS_TIMEOUT": "5s",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "SVCNODE_DEFAULTS_STALE_AFTER": "120s",
}


def reload_counts(agent: Agent) -> tuple[int, int, int]:
    entry = agent.events("reloaded")[-1]
    return entry["removed"], entry["added"], entry["changed"]


@pytest.fixture
def listening_port() -> Iterator[str]:
    """The URL of a listening port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_services_are_probed_without_a_file(listening_port: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = ("--service", f"db={listening_port}", "--service", f"sync=file:{state}")
    with Agent(tmp_path, *ANYWHERE, *arguments, environ=FREQUENT) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Up", "sync": "Down"})
        assert agent.health() == 206
        state.touch()
        agent.wait_until(lambda: agent.statuses() == {"db": "Up", "sync": "Up"})
        assert agent.health() == 200
        assert not list(tmp_path.rglob("store.db")), "a node with services needs no store"


@pytest.mark.parametrize("service_id", ["a/b c", "a=b", "tcp://x:1", "%2F", "é☃"])
def test_an_id_may_have_special_characters(service_id: str, listening_port: str, tmp_path: Path) -> None:
    with Agent(
        tmp_path, *ANYWHERE, f"--service={service_id}={listening_port}", environ={**FREQUENT, "PYTHONUTF8": "1"}
    ) as agent:
        agent.wait_until(lambda: agent.statuses() == {service_id: "Up"})
        assert agent.request(f"/svc/node/services/{quote(service_id, safe='')}/health").code == 200


def test_a_service_is_added_to_those_of_the_file_or_replaces_a_probe(listening_port: str, tmp_path: Path) -> None:
    config = (
        '[[services]]\nid = "fixed"\nname = "Fixed"\nstatus = "Down"\n'
        '[[services]]\nid = "other"\nname = "Other"\nstatus = "Up"\n'
    )
    arguments = ("--service", f"fixed={listening_port}", "--service", f"more={listening_port}")
    with Agent(tmp_path, *ANYWHERE, *arguments, config=config, environ=FREQUENT) as agent:
        agent.wait_until(lambda: agent.statuses() == {"fixed": "Up", "other": "Up", "more": "Up"})
        names = {service["id"]: service["name"] for service in agent.request("/svc/node/services").json["services"]}
        assert names == {"fixed": "Fixed", "other": "Other", "more": "more"}


def test_a_reload_keeps_the_services_of_the_command_line(listening_port: str, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--service", f"db={listening_port}", environ=FREQUENT) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Up"})
        agent.reload('[[services]]\nid = "a"\nstatus = "Up"\n')
        assert reload_counts(agent) == (0, 1, 0)
        assert agent.statuses() == {"a": "Up", "db": "Up"}
        agent.reload('[[services]]\nid = "db"\nname = "Ledger"\nstatus = "Down"\n')
        assert reload_counts(agent) == (1, 0, 1)
        assert agent.statuses() == {"db": "Up"}
        agent.config_file.unlink()
        agent.reload()
        assert reload_counts(agent) == (0, 0, 1)
        assert agent.statuses() == {"db": "Up"}
        assert agent.health() == 200
        changes = [entry for entry in agent.events("service_status") if entry["service"] == "db"]
        assert [entry["status"] for entry in changes] == ["Up"]


def test_with_allow_exec_programs_run(tmp_path: Path) -> None:
    arguments = ("--allow-exec", "--service", "yes=exec:/bin/true", "--service", "no=exec:/bin/false")
    with Agent(tmp_path, *ANYWHERE, *arguments, environ=FREQUENT) as agent:
        agent.wait_until(lambda: agent.statuses() == {"yes": "Up", "no": "Down"})
        agent.wait_for_event("service_status", service="no", status="Down", code="exit_status")
