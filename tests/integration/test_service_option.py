"""`svcnode serve --service ID=URL`: tests/unit/cli/test_args.py has the rules."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.support.processes import Agent

if TYPE_CHECKING:
    from pathlib import Path

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


def test_services_of_the_command_line_are_probed_and_kept_by_a_reload(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        services = ("--service", f"db={url}", "--allow-exec", "--service", "no=exec:/bin/false")
        with Agent(tmp_path, "--listen", "127.0.0.1:0", *services, environ=FREQUENT) as agent:
            agent.wait_until(lambda: agent.statuses() == {"db": "Up", "no": "Down"})
            assert agent.health() == 206
            assert not list(tmp_path.rglob("store.db")), "a node with services needs no store"
            agent.reload('[[services]]\nid = "a"\nstatus = "Up"\n')
            assert reload_counts(agent) == (0, 1, 0)
            assert agent.statuses() == {"a": "Up", "db": "Up", "no": "Down"}
            agent.reload('[[services]]\nid = "db"\nname = "Ledger"\nstatus = "Down"\n')
            assert reload_counts(agent) == (1, 0, 1)
            agent.config_file.unlink()
            agent.reload()
            assert reload_counts(agent) == (0, 0, 1)
            assert agent.statuses() == {"db": "Up", "no": "Down"}
            changes = [entry for entry in agent.events("service_status") if entry["service"] == "db"]
            assert [entry["status"] for entry in changes] == ["Up"]
