"""`svcnode serve` and its history: where it is, what it has after reloads and kills, and a full disk."""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.disks import MemoryDisk
from tests.support.processes import Agent

PAGE = Path(__file__).parents[2] / "docs" / "see.md"

# Four failures in a row: a missing file is noticed soon, and a busy machine is not mistaken for one.
CONFIG = """
[server]
listen = "127.0.0.1:0"
drain = "0s"

[history]
path = "{path}"

[defaults]
interval = "500ms"
transition_interval = "20ms"
timeout = "490ms"
stale_after = "1m"
rise = 1
fall = 4
start_period = "0s"
tolerance = "off"

[[services]]
id = "<job>"
probe = "file:{flag}"
"""


class HistoryNode:
    """A node with one service that is Up while a file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.flag = folder / "flag"
        self.path = folder / "state" / "history.db"

    def agent(self) -> Agent:
        return Agent(self.folder, config=CONFIG.format(path=self.path, flag=self.flag))

    def make_up(self, agent: Agent) -> None:
        self.flag.touch()
        agent.wait_until(lambda: agent.statuses() == {"<job>": "Up"})

    def make_down(self, agent: Agent) -> None:
        self.flag.unlink()
        agent.wait_until(lambda: agent.statuses() == {"<job>": "Down"})

    def checks_and_responds(self, agent: Agent) -> None:
        """Changes of the service are checked, published and recorded, whatever the state of the history file."""
        self.make_up(agent)
        assert agent.health() == 200
        self.make_down(agent)
        assert agent.health() == 503
        agent.wait_until(lambda: self.published(agent)[-2:] == ["Up", "Down"])

    def published(self, agent: Agent) -> list[str]:
        """The statuses according to /history, the oldest first."""
        return [one["after"] for one in history(agent, "transitions=50")["transitions"]["<job>"]][::-1]

    def stored(self, column: str = "after") -> list[Any]:
        condition = "WHERE kind = 'status'" if column == "after" else ""
        with closing(sqlite3.connect(self.path)) as database:
            rows = database.execute(f"SELECT {column} FROM transitions {condition} ORDER BY id")
            return [value for (value,) in rows]


@pytest.fixture
def history_node(tmp_path: Path) -> HistoryNode:
    return HistoryNode(tmp_path)


def history(agent: Agent, more: str = "resolution=minutes") -> Any:
    response = agent.request(f"/history?id=%3Cjob%3E&{more}")
    assert response.code == 200, response.body
    return response.json


def problem_code(agent: Agent) -> str | None:
    found: str | None = agent.request("/details").json["node"]["history_problem_code"]
    return found


FIXED = """
[node]
name = "{name}"

[server]
listen = "127.0.0.1:0"
drain = "0s"

[[services]]
id = "db"
status = "Up"
"""


def test_a_node_cannot_take_the_name_of_a_node_with_a_history_while_it_runs(tmp_path: Path) -> None:
    nodes = tmp_path / ".local" / "state" / "svcnode" / "nodes"
    (nodes / "two").mkdir(parents=True)
    (nodes / "two" / "history.db").write_bytes(b"of two")
    with Agent(tmp_path, config=FIXED.format(name="one")) as agent:
        agent.wait_for_event("history_location")
        agent.reload(FIXED.format(name="two"))
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["error"]) == ("reload_failed", "ConfigError")
        assert str(nodes / "two" / "history.db") in entry["message"]
        assert agent.request("/svc/node").json["node_name"] == "one"
        assert (nodes / "two" / "history.db").read_bytes() == b"of two"
        agent.reload(FIXED.format(name="three"))
        agent.wait_until((nodes / "three" / "history.db").exists)
        assert agent.request("/svc/node").json["node_name"] == "three"
        agent.wait_until(lambda: not (nodes / "one").exists())
        assert problem_code(agent) is None
        assert agent.stop() == 0


def test_changes_are_written_and_published_over_reloads_and_a_kill(history_node: HistoryNode) -> None:
    config = CONFIG.format(path=history_node.path, flag=history_node.flag)
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        history_node.make_up(agent)
        assert agent.events("history_failed") == []

        agent.reload(config.replace(str(history_node.path), f"{history_node.path}.other"))
        agent.wait_for_event("history_failed", code="restart_required", level="warning")
        agent.wait_until(lambda: problem_code(agent) == "restart_required")
        agent.reload(config)
        agent.wait_until(lambda: problem_code(agent) is None)

        agent.wait_until(lambda: history_node.published(agent)[-3:] == ["Up", "Down", "Up"])
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    assert history_node.stored()[-3:] == ["Up", "Down", "Up"]
    with Agent(history_node.folder, "--drain", "60s", config=config) as agent:
        agent.wait_until(lambda: "Down" in history_node.published(agent))
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        agent.signal(signal.SIGTERM)
        assert agent.wait_for_exit() == 128 + signal.SIGTERM
    assert history_node.stored("kind")[-1] == "stopped", "also after a second signal"
    assert history_node.stored("code").count("unclean_shutdown") == 1
    assert not history_node.path.with_name("history.db.other").exists()


def test_the_sql_of_the_docs_works_while_the_node_runs(history_node: HistoryNode) -> None:
    statements = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(statements) == 2
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        with closing(sqlite3.connect(f"file:{history_node.path}?mode=ro", uri=True)) as reader:
            changes, days = [reader.execute(statement).fetchall() for statement in statements]
        assert [after for _, service_id, _, after, _, _ in changes if service_id == "<job>"][:2] == ["Down", "Up"]
        assert days == [], "the first minute has not ended"
        agent.stop()
    with closing(sqlite3.connect(history_node.path)) as reader:
        _, ((service_id, percent),) = [reader.execute(statement).fetchall() for statement in statements]
    assert service_id == "<job>"
    assert 0 < percent < 100


def test_on_a_full_disk_changes_are_buffered_and_written_later(history_node: HistoryNode) -> None:
    with MemoryDisk(history_node.path.parent) as disk:
        with history_node.agent() as agent:
            history_node.make_up(agent)
            with disk.full():
                history_node.make_down(agent)
                history_node.make_up(agent)
                agent.wait_until(lambda: problem_code(agent) == "disk_full")
                history_node.checks_and_responds(agent)
                agent.wait_for_event("history_failed", code="disk_full")
            agent.wait_until(lambda: history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"])
            agent.wait_for_event("history_recovered")
            assert agent.stop() == 0
        assert history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"]
