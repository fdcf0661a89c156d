"""`svcnode serve` and its history with real file errors: checks and responses continue in each case."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
rise = 1
fall = 4
start_period = "0s"
tolerance = "off"

[[services]]
id = "<job>"
probe = "file:{flag}"
"""

FILL = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
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


NO_SUCH_UID = 54321


def serve_as(uid: int, folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `serve` as another user; its `exec:` probe stops it. The user may read Python, wherever it is installed."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    capability = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = [sys.executable, "-m", "svcnode", "serve", "--listen", "127.0.0.1:0", "--drain", "0s", *arguments]
    return subprocess.run(
        [*user, *capability, *command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="svcnode-tests-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


STOP = ("--allow-exec", "--service", "stop=exec:/bin/sh -c 'kill -TERM $PPID'", "--service", "n=disk:/?min_free=1B")
as_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to become another user"
)


@as_root
def test_a_node_without_a_home_folder_starts_with_one_warning_that_has_both_fixes(public_folder: Path) -> None:
    done = serve_as(NO_SUCH_UID, public_folder, *STOP)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if '"warning"' in line and "svcnode.history" in line]
    assert '"code": "no_folder"' in warning
    assert "keep = false" in warning
    assert "path" in warning
    assert '"event": "started"' in done.stderr
    assert list(public_folder.iterdir()) == []


@as_root
def test_a_node_without_a_home_folder_that_needs_its_store_does_not_start(public_folder: Path) -> None:
    done = serve_as(NO_SUCH_UID, public_folder)
    assert done.returncode == 2
    assert "store.path" in done.stderr


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


# ---- file errors


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small tmpfs; skips the test if mounting is not allowed."""
    folder.mkdir()
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if result.returncode:
        pytest.skip(f"cannot mount a tmpfs: {result.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_on_a_full_disk_changes_are_buffered_and_written_later(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m"):
        filler = history_node.path.parent / "filler"
        with history_node.agent() as agent:
            history_node.make_up(agent)
            subprocess.run([sys.executable, "-c", FILL, filler], check=True)
            history_node.make_down(agent)
            history_node.make_up(agent)
            agent.wait_until(lambda: problem_code(agent) == "disk_full")
            history_node.checks_and_responds(agent)
            agent.wait_for_event("history_failed", code="disk_full")
            filler.unlink()
            agent.wait_until(lambda: history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"])
            assert agent.stop() == 0
        assert history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"]


@pytest.mark.parametrize(
    "manipulations",
    [
        (
            lambda path: path.with_name("history.db-wal").unlink(),
            lambda path: path.with_name("history.db-shm").unlink(),
            lambda path: path.unlink(),
            lambda path: path.write_bytes(b""),
        ),
        (lambda path: path.write_text("another text"),),
    ],
    ids=["removed and emptied", "overwritten"],
)
def test_changes_after_manipulations_of_the_files_are_written(
    history_node: HistoryNode, manipulations: Sequence[Callable[[Path], object]]
) -> None:
    with history_node.agent() as agent:
        for manipulate in manipulations:
            history_node.checks_and_responds(agent)
            manipulate(history_node.path)
            history_node.make_up(agent)
            history(agent, "transitions=50")
            history_node.make_down(agent)
            history(agent, "transitions=50")
        history_node.checks_and_responds(agent)
        assert agent.stop() == 0
    assert history_node.stored()[-2:] == ["Up", "Down"]


def make_read_only(folder: Path) -> Callable[[], object]:
    """Makes a directory read-only, also for root; returns a function that reverts it."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return lambda: folder.chmod(0o755)
    if subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode:
        pytest.skip("chattr +i does not work here")
    return lambda: subprocess.run(["chattr", "-i", folder], check=True)


def test_a_directory_that_is_not_writable_does_not_stop_the_node(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    revert = make_read_only(history_node.path.parent)
    try:
        with history_node.agent() as agent:
            agent.wait_for_event("history_failed", code="not_writable")
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: problem_code(agent) == "not_writable")
            revert()
            agent.wait_for_event("history_recovered")
            agent.stop()
    finally:
        revert()
    assert history_node.stored()[-2:] == ["Up", "Down"]
