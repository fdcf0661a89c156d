"""`svcnode serve` and its history with real file errors: checks and responses continue in each case."""

from __future__ import annotations

import os
import re
import resource
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
    from collections.abc import Callable, Iterator

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
LOCK_CODE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
input()
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

    def quarantined(self) -> list[Path]:
        pattern = re.compile(r"history\.db\.corrupt-\d{8}T\d{6}Z")
        return [file for file in self.path.parent.iterdir() if pattern.fullmatch(file.name)]

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


def problem_of(agent: Agent) -> str:
    found: str = agent.request("/details").json["node"]["history_problem"]
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


def run_once(folder: Path, name: str, **environ: str) -> Agent:
    """Start and stop a node with the default path of the history."""
    with Agent(folder, config=FIXED.format(name=name), environ=environ) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        assert agent.stop() == 0
    return agent


def test_the_file_of_another_node_is_refused_and_the_error_has_the_command_that_gives_it_up(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    run_once(tmp_path, "old", SVCNODE_HISTORY_PATH=str(path))
    before = path.read_bytes()
    with Agent(tmp_path, config=FIXED.format(name="new"), environ={"SVCNODE_HISTORY_PATH": str(path)}) as agent:
        agent.wait_for_event("history_failed", level="error", code="other_node")
        assert agent.health() == 200
        assert problem_code(agent) == "other_node"
        assert path.read_bytes() == before
        match = re.search(r'sqlite3 (\S+) "(.*)"', problem_of(agent))
        assert match is not None
        with closing(sqlite3.connect(match[1])) as database, database:
            database.execute(match[2])
        agent.wait_for_event("history_recovered")
        agent.wait_until(lambda: problem_code(agent) is None)
        assert agent.stop() == 0
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM transitions WHERE kind = 'started'").fetchone() == (2,)


def test_the_shared_file_of_an_earlier_version_is_named_and_left_alone(tmp_path: Path) -> None:
    shared = tmp_path / ".local" / "state" / "svcnode" / "history.db"
    run_once(tmp_path, "n", SVCNODE_HISTORY_PATH=str(shared))
    before = shared.read_bytes()
    agent = run_once(tmp_path, "n")
    (warning,) = [entry for entry in agent.events("history_location") if entry["level"] == "warning"]
    assert str(shared) in warning["message"]
    assert shared.read_bytes() == before
    assert (shared.parent / "nodes" / "n" / "history.db").exists()
    agent = run_once(tmp_path, "n", SVCNODE_HISTORY_PATH=str(shared))
    assert agent.events("history_location") == agent.events("history_failed") == []


def test_a_node_whose_history_begins_names_the_folders_of_other_nodes(tmp_path: Path) -> None:
    (first,) = run_once(tmp_path, "one").events("history_location")
    (second,) = run_once(tmp_path, "two").events("history_location")
    assert "one" not in first["message"].split(";")[1:]
    assert second["message"].endswith(" one")
    assert run_once(tmp_path, "two").events("history_location") == []


def test_a_node_cannot_take_the_name_of_a_node_with_a_history_while_it_runs(tmp_path: Path) -> None:
    run_once(tmp_path, "two")
    nodes = tmp_path / ".local" / "state" / "svcnode" / "nodes"
    before = (nodes / "two" / "history.db").read_bytes()
    with Agent(tmp_path, config=FIXED.format(name="one")) as agent:
        agent.reload(FIXED.format(name="two"))
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["error"]) == ("reload_failed", "ConfigError")
        assert str(nodes / "two" / "history.db") in entry["message"]
        assert agent.request("/svc/node").json["node_name"] == "one"
        assert (nodes / "two" / "history.db").read_bytes() == before
        agent.reload(FIXED.format(name="three"))
        agent.wait_until((nodes / "three" / "history.db").exists)
        assert agent.request("/svc/node").json["node_name"] == "three"
        agent.wait_until(lambda: not (nodes / "one").exists())
        assert problem_code(agent) is None
        assert agent.stop() == 0
    assert run_once(tmp_path, "three").events("history_failed") == []


def test_of_two_nodes_with_the_same_name_one_writes_the_file(tmp_path: Path) -> None:
    with Agent(tmp_path, config=FIXED.format(name="n")) as first:
        first.wait_until(lambda: first.health() == 200)
        with Agent(tmp_path, config=FIXED.format(name="n")) as second:
            second.wait_for_event("history_failed", code="in_use")
            assert second.health() == 200
        assert first.events("history_failed") == []


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
    assert "svcnode.history" not in serve_as(NO_SUCH_UID, public_folder, *STOP, SVCNODE_HISTORY_KEEP="false").stderr


@as_root
def test_a_node_without_a_home_folder_that_needs_its_store_does_not_start(public_folder: Path) -> None:
    done = serve_as(NO_SUCH_UID, public_folder)
    assert done.returncode == 2
    assert "store.path" in done.stderr


@as_root
def test_a_node_whose_state_folder_is_not_writable_starts_with_one_error(public_folder: Path) -> None:
    done = serve_as(NO_SUCH_UID, public_folder, *STOP, STATE_DIRECTORY=str(public_folder / "state"))
    assert done.returncode == 0, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if "svcnode.history" in line]
    assert '"code": "not_writable"' in error
    assert "keep = false" in error
    assert "path" in error


def test_every_change_is_written_and_published(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        history_node.make_down(agent)
        history_node.make_up(agent)
        assert agent.stop() == 0
    assert history_node.stored()[-3:] == ["Up", "Down", "Up"]
    assert history_node.stored("kind")[0] == "started"
    assert history_node.stored("kind")[-2:] == ["node", "stopped"]
    assert not [line for line in agent.lines if "svcnode.history" in line]


def test_the_current_minute_has_its_checks(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history(agent)["services"]["<job>"][-1][1] > 0.5)
        document = history(agent)
        buckets = document["services"]["<job>"]
        assert (document["length_s"], len(buckets)) == (60, 90)
        begin_s, up_s, initializing_s, down_s, checks, failures, mean_ms, max_ms, _ = buckets[-1]
        assert begin_s % 60 == 0
        assert 0 < up_s + initializing_s + down_s <= 60
        assert checks > failures
        assert 0 < mean_ms <= max_ms
        assert [bucket[0] for bucket in buckets] == list(range(begin_s - 89 * 60, begin_s + 60, 60))


def test_an_invalid_query_gets_a_400_with_a_message(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        for query in (
            "",
            "?id=x&resolution=weeks",
            "?id=x&transitions=all",
            "?" + "&".join(f"id={n}" for n in range(101)),
        ):
            response = agent.request(f"/history{query}")
            assert (response.code, list(response.json)) == (400, ["message"])


def test_after_a_second_signal_the_history_is_complete(history_node: HistoryNode) -> None:
    with Agent(
        history_node.folder, "--drain", "60s", config=CONFIG.format(path=history_node.path, flag=history_node.flag)
    ) as agent:
        history_node.make_up(agent)
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        agent.signal(signal.SIGTERM)
        assert agent.wait_for_exit() == 128 + signal.SIGTERM
    assert history_node.stored("kind")[-1] == "stopped"


def test_after_a_kill_all_published_changes_are_stored_and_the_next_start_has_a_code(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        history_node.make_down(agent)
        agent.wait_until(lambda: history_node.published(agent)[-2:] == ["Up", "Down"])
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    with history_node.agent() as agent:
        agent.wait_until(
            lambda: (
                history_node.published(agent)[:2] == ["Up", "Down"]
                or history_node.published(agent)[1:3] == ["Up", "Down"]
            )
        )
        agent.stop()
    assert history_node.stored("code").count("unclean_shutdown") == 1


def test_with_history_disabled_there_is_no_file(history_node: HistoryNode) -> None:
    config = CONFIG.format(path=history_node.path, flag=history_node.flag).replace(
        "[history]", "[history]\nkeep = false"
    )
    with Agent(history_node.folder, config=config) as agent:
        history_node.checks_and_responds(agent)
        assert problem_code(agent) is None
        agent.stop()
    assert not history_node.path.parent.exists()


def test_a_reload_applies_new_limits(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.stored("kind")[:1] == ["started"])
        with closing(sqlite3.connect(history_node.path)) as database, database:
            database.execute("UPDATE transitions SET at_us = at_us - 7200 * 1000000 WHERE kind = 'started'")
        text = agent.config_file.read_text()
        agent.reload(text.replace("[history]", '[history]\nmax_age = "1h"'))
        agent.wait_until(lambda: "started" not in history_node.stored("kind"))
        assert problem_code(agent) is None


def test_a_reload_with_a_new_path_requires_a_restart(history_node: HistoryNode) -> None:
    other_path = history_node.folder / "other_path.db"
    with history_node.agent() as agent:
        text = agent.config_file.read_text()
        agent.reload(text.replace(str(history_node.path), str(other_path)))
        agent.wait_for_event("history_failed", code="restart_required", level="warning")
        agent.wait_until(lambda: problem_code(agent) == "restart_required")
        agent.reload(text)
        agent.wait_until(lambda: problem_code(agent) is None)
    assert not other_path.exists()


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


def start_script(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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


def test_a_disk_that_is_full_at_the_start_is_retried(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m"):
        filler = history_node.path.parent / "filler"
        subprocess.run([sys.executable, "-c", FILL, filler], check=True)
        with history_node.agent() as agent:
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: problem_code(agent) == "disk_full")
            filler.unlink()
            agent.wait_for_event("history_recovered")
            agent.stop()
        assert history_node.stored("kind")[0] == "started"
        assert history_node.stored()[-2:] == ["Up", "Down"]


def test_a_file_size_limit_is_treated_like_a_full_disk(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.published(agent)[-1:] == ["Up"])
        _, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        history_node.make_down(agent)
        agent.wait_until(lambda: problem_code(agent) is not None)
        history_node.checks_and_responds(agent)
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        agent.wait_for_event("history_recovered")
        agent.stop()
    assert history_node.stored()[-1] == "Down"


def test_a_file_locked_by_another_program_does_not_stop_the_node(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.published(agent)[-1:] == ["Up"])
        with start_script(LOCK_CODE, str(history_node.path)) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            history_node.make_down(agent)
            agent.wait_for_event("history_failed", code="locked")
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: problem_code(agent) == "locked")
            holder.kill()
        agent.wait_for_event("history_recovered")
        agent.stop()
    assert history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"]


def test_a_second_node_with_the_same_file_writes_no_history(history_node: HistoryNode, tmp_path: Path) -> None:
    with history_node.agent() as first:
        history_node.make_up(first)
        (tmp_path / "second").mkdir()
        with Agent(tmp_path / "second", config=CONFIG.format(path=history_node.path, flag=history_node.flag)) as second:
            entry = second.wait_for_event("history_failed", code="in_use")
            assert str(first.process.pid) in entry["reason"]
            history_node.checks_and_responds(second)
            history_node.checks_and_responds(first)
            assert problem_code(first) is None
            second.stop()
        first.stop()
    assert history_node.stored("kind").count("started") == 1


def test_after_the_lock_file_was_removed_only_one_node_writes(history_node: HistoryNode, tmp_path: Path) -> None:
    with history_node.agent() as first:
        history_node.make_up(first)
        first.wait_until(lambda: history_node.published(first)[-1:] == ["Up"])
        history_node.path.with_name("history.db-lock").unlink()
        (tmp_path / "second").mkdir()
        with Agent(tmp_path / "second", config=CONFIG.format(path=history_node.path, flag=history_node.flag)) as second:
            second.wait_until(lambda: second.statuses() == {"<job>": "Up"})
            history_node.make_down(first)
            loser, winner = (first, second) if problem_code(second) is None else (second, first)
            entry = loser.wait_for_event("history_failed", code="in_use")
            assert str(winner.process.pid) in entry["reason"]
            assert problem_code(winner) is None
            second.stop()
        first.stop()


def test_history_files_are_private(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.published(agent)[-1:] == ["Up"])
        assert history_node.path.parent.stat().st_mode & 0o777 == 0o700
        modes = {one.name: one.stat().st_mode & 0o777 for one in history_node.path.parent.iterdir()}
        assert modes == {f"history.db{suffix}": 0o600 for suffix in ("", "-wal", "-shm", "-lock")}


def test_an_unknown_service_is_listed_as_unknown(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        document = agent.request("/history?id=%3Cjob%3E&id=zzz").json
        assert (list(document["services"]), document["unknown"]) == (["<job>"], ["zzz"])
        assert agent.request("/history?id=%ff").code == 400


def corrupt(path: Path, first: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(first)
        file.write(os.urandom(size - first))


@pytest.mark.parametrize("first", [0, 2 * 4096], ids=["whole file", "all but the header"])
def test_a_corrupt_file_is_quarantined_at_the_start(history_node: HistoryNode, first: int) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.stop()
    corrupt(history_node.path, first)
    corrupted = history_node.path.read_bytes()
    with history_node.agent() as agent:
        agent.wait_for_event("history_quarantined", code="corrupt")
        agent.wait_until(lambda: problem_code(agent) == "corrupt")
        history_node.checks_and_responds(agent)
        agent.stop()
    (quarantined,) = history_node.quarantined()
    assert quarantined.read_bytes() == corrupted
    assert history_node.stored("kind")[0] == "started"
    assert history_node.stored()[-2:] == ["Up", "Down"]


def test_a_file_corrupted_while_in_use_is_quarantined(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        with closing(sqlite3.connect(history_node.path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        corrupt(history_node.path, 2 * 4096)
        history_node.make_up(agent)
        history(agent, "transitions=50&resolution=hours")  # reading finds the corruption
        agent.wait_for_event("history_quarantined", code="corrupt")
        assert len(history_node.quarantined()) == 1
        history_node.make_down(agent)
        history_node.checks_and_responds(agent)
        agent.wait_until(lambda: problem_code(agent) == "corrupt")
        agent.stop()
    assert history_node.stored()[-2:] == ["Up", "Down"]


@pytest.mark.parametrize(
    "manipulate",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("another text"),
        lambda path: path.with_name("history.db-wal").unlink(),
        lambda path: path.with_name("history.db-shm").unlink(),
    ],
    ids=["removed", "emptied", "overwritten", "wal removed", "shm removed"],
)
def test_changes_after_a_manipulation_of_the_files_are_written(
    history_node: HistoryNode, manipulate: Callable[[Path], object]
) -> None:
    with history_node.agent() as agent:
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


def test_a_read_only_disk_does_not_stop_the_node(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m,ro"), history_node.agent() as agent:
        agent.wait_for_event("history_failed", code="not_writable")
        history_node.checks_and_responds(agent)


def test_the_database_of_another_program_is_not_changed(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    with closing(sqlite3.connect(history_node.path)) as ledger:
        ledger.execute("CREATE TABLE ledger (entry)")
        ledger.commit()
    before = history_node.path.read_bytes()
    with history_node.agent() as agent:
        agent.wait_for_event("history_failed", code="foreign_database")
        history_node.checks_and_responds(agent)
        agent.stop()
        assert sum(entry["logger"] == "svcnode.history" for entry in agent.log_entries) == 1, "no line at shutdown"
    assert history_node.path.read_bytes() == before
    assert [one.name for one in history_node.path.parent.iterdir()] == ["history.db"]


def test_a_fifo_is_rejected(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    os.mkfifo(history_node.path)
    with history_node.agent() as agent:
        agent.wait_for_event("history_failed", code="not_a_file")
        history_node.checks_and_responds(agent)
        assert agent.stop() == 0
