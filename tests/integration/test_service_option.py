"""`svcnode serve --service id=URL`: what to look at, named on the command line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANYWHERE = ("--listen", "127.0.0.1:0")
# A node that notices soon, and a machine that may be busy.
SOON = {
    "SVCNODE_DEFAULTS_INTERVAL": "500ms",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "50ms",
    "SVCNODE_DEFAULTS_TIMEOUT": "490ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "SVCNODE_DEFAULTS_STALE_AFTER": "60s",
}
ALLOW_EXEC = (
    "exec probes run programs on this machine; to allow them, set allow_exec = true in [security], or give --allow-exec"
)


@pytest.fixture
def listening_port() -> Iterator[str]:
    """The URL of something that is there."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_services_are_checked_without_any_file(listening_port: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = ("--service", f"db={listening_port}", "--service", f"sync=file:{state}")
    with Agent(tmp_path, *ANYWHERE, *arguments, environ=SOON) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Up", "sync": "Down"})
        assert agent.health() == 206
        state.touch()
        agent.wait_until(lambda: agent.statuses() == {"db": "Up", "sync": "Up"})
        assert agent.health() == 200
        assert not list(tmp_path.rglob("store.db")), "a node with services of its own needs no store"


@pytest.mark.parametrize("service_id", ["a/b c", "a=b", "tcp://x:1", "%2F", "é☃"])
def test_an_id_with_odd_characters_is_answered_for(service_id: str, listening_port: str, tmp_path: Path) -> None:
    with Agent(
        tmp_path, *ANYWHERE, f"--service={service_id}={listening_port}", environ={**SOON, "PYTHONUTF8": "1"}
    ) as agent:
        agent.wait_until(lambda: agent.statuses() == {service_id: "Up"})
        assert agent.request(f"/svc/node/services/{quote(service_id, safe='')}/health").code == 200


def test_a_service_stands_beside_those_of_the_file_or_checks_one_of_them(listening_port: str, tmp_path: Path) -> None:
    config = (
        '[[services]]\nid = "fixed"\nname = "Fixed"\nstatus = "Down"\n'
        '[[services]]\nid = "other"\nname = "Other"\nstatus = "Up"\n'
    )
    arguments = ("--service", f"fixed={listening_port}", "--service", f"more={listening_port}")
    with Agent(tmp_path, *ANYWHERE, *arguments, config=config, environ=SOON) as agent:
        agent.wait_until(lambda: agent.statuses() == {"fixed": "Up", "other": "Up", "more": "Up"})
        names = {one["id"]: one["name"] for one in agent.request("/svc/node/services").json["services"]}
        assert names == {"fixed": "Fixed", "other": "Other", "more": "more"}


def test_a_reload_keeps_what_the_command_line_says(listening_port: str, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--service", f"db={listening_port}", environ=SOON) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Up"})
        agent.reload('[[services]]\nid = "a"\nstatus = "Up"\n')
        assert agent.messages[-1] == "reloaded: added a"
        assert agent.statuses() == {"a": "Up", "db": "Up"}
        agent.reload('[[services]]\nid = "db"\nname = "Ledger"\nstatus = "Down"\n')
        assert agent.messages[-1] == "reloaded: removed a; changed db"
        assert agent.statuses() == {"db": "Up"}
        agent.config_file.unlink()
        agent.reload()
        assert agent.messages[-1] == "reloaded: changed db"
        assert agent.statuses() == {"db": "Up"}
        assert agent.health() == 200
        assert sum("service db is " in message for message in agent.messages) == 1  # it has not left Up


def test_a_program_is_run_where_that_is_allowed(tmp_path: Path) -> None:
    arguments = ("--allow-exec", "--service", "yes=exec:/bin/true", "--service", "no=exec:/bin/false")
    with Agent(tmp_path, *ANYWHERE, *arguments, environ=SOON) as agent:
        agent.wait_until(lambda: agent.statuses() == {"yes": "Up", "no": "Down"})
        agent.wait_for_log("service no is Down, was Initializing: exit 1")


@pytest.mark.parametrize(
    ("services", "reason"),
    [
        (["db"], "--service: write an id, =, and a probe URL, such as db=tcp://127.0.0.1:5432"),
        (["=file:/a"], "--service: write an id, =, and a probe URL, such as db=tcp://127.0.0.1:5432"),
        (["db=file:/a", "db=file:/b"], '--service: "db" is named twice; ids are unique'),
        (["db=tcp://127.0.0.1"], "services.db.probe: names no port; write tcp://127.0.0.1:port (--service db=…)"),
        (
            ["a\nb=file:/a"],
            "services.a\\nb.id: service id 'a\\nb' must not hold control characters (--service a\\nb=…)",
        ),
        (
            ["db=exec:/bin/true"],
            f"services.db.probe: {ALLOW_EXEC} (--service db=…)",
        ),
    ],
)
def test_a_service_that_cannot_be_had_ends_with_one_line_and_code_2(
    services: list[str], reason: str, tmp_path: Path
) -> None:
    arguments = [word for service in services for word in ("--service", service)]
    ended = subprocess.run(
        [sys.executable, "-m", "svcnode", "serve", *ANYWHERE, *arguments],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("", f"svcnode: {reason}\n")
    assert ended.returncode == 2
