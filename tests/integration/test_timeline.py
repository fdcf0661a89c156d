"""What happened at a real node, over a restart: as the node tells it, and from its file when it does not run."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from tests.integration.test_notify import FAST, Receiver
from tests.support.backends import closed_port
from tests.support.commands import svcnode
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.tcp_service import TcpService

if TYPE_CHECKING:
    from pathlib import Path


def config(folder: Path, receiver: Receiver, closed: int, service: TcpService) -> str:
    return "\n".join(
        [
            f'[node]\nname = "validator-7"\n[server]\nlisten = ["127.0.0.1:{free_port()}"]\ndrain = "0s"',
            f'[history]\npath = "{folder}/history.db"',
            f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"',
            '[notify]\ngroup_wait = "50ms"\nresolve_delay = "0s"',
            f'webhook = ["http://127.0.0.1:{receiver.port}/", "http://127.0.0.1:{closed}/"]',
            FAST,
            f'[[services]]\nid = "db"\nprobe = "tcp://127.0.0.1:{service.port}"\nimpact = "critical"',
        ]
    )


def command(folder: Path, *arguments: str) -> str:
    done = svcnode(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def items(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command(folder, "history", "--json", *arguments))["items"]
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [item["kind"] for item in found if item["type"] == "event"]


def test_the_time_line_of_a_node_over_a_restart(tmp_path: Path) -> None:
    with TcpService() as db, Receiver() as receiver, closed_port() as closed:
        text = config(tmp_path, receiver, closed, db)
        with Agent(tmp_path, config=text) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            command(tmp_path, "note", "deployed v1.4.3", "--by", "ops")
            agent.reload(text + '\ninterval = "600ms"')
            agent.wait_for_event("reloaded")
            agent.reload(text + "\nunknown = 1")
            agent.wait_for_event("reload_failed")
            agent.reload(text)
            db.stop()
            agent.wait_until(lambda: agent.health() == 503)
            agent.wait_until(lambda: {"message_sent", "message_failed"} <= {*kinds(items(tmp_path))})
            (before,) = [item for item in items(tmp_path, "db") if item["type"] == "outage"]
            assert (before["service"], before["status"], before["open"]) == ("db", "Down", True)
            assert agent.stop() == 0
        from_file = items(tmp_path)
        expected = ["started", "note", "reloaded", "reload_failed", "reloaded", "message_sent", "node", "stopped"]
        assert [kind for kind in kinds(from_file) if kind != "message_failed"] == expected
        assert kinds(from_file).count("message_failed") == 1, "of the failures in a row, the first"
        note = next(item for item in from_file if item["kind"] == "note")
        assert note["reason"].startswith("deployed v1.4.3 (by ops")
        with Agent(tmp_path, config=text) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            details = agent.request("/details/db").json
            assert details["since_before_restart"]
            (outage,) = [item for item in items(tmp_path) if item["type"] == "outage"]
            assert (outage["id"], outage["from"], outage["open"]) == (before["id"], before["from"], True)
            db.start()
            agent.wait_until(lambda: agent.health() == 200)
            (outage,) = [item for item in items(tmp_path) if item["type"] == "outage"]
            assert (outage["id"], outage["open"], outage["until"] > outage["from"]) == (before["id"], False, True)
            assert outage["from"].endswith("Z")
            rows = list(csv.DictReader(command(tmp_path, "history", "--csv").splitlines()))
            assert [row["id"] for row in rows] == [item["id"] for item in items(tmp_path)]
            lines = command(tmp_path, "history", "db", "--since", "1h").splitlines()
            assert sum(" Down: " in line for line in lines) == 1
            assert items(tmp_path, "--until", "1h") == []
