"""`svcnode serve` and its history, with real faults of real files: it goes on looking and answering in all of them."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[2] / "docs" / "history.md"

CONFIG = """
[server]
listen = "127.0.0.1:0"
drain = "0s"

[history]
path = "{path}"

[defaults]
interval = "200ms"
timeout = "100ms"
rise = 1
fall = 1
start_period = "0s"

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
    """A node that checks at a file; when that comes and goes, its one service goes up and down."""

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
        """Whatever is the matter with the file."""
        self.make_up(agent)
        assert agent.health() == 200
        self.make_down(agent)
        assert agent.health() == 503
        agent.wait_until(lambda: self.notified(agent)[-2:] == ["Up", "Down"])

    def notified(self, agent: Agent) -> list[str]:
        """What the service became, the oldest first, as anybody who asks is told."""
        return [one["after"] for one in history(agent, "transitions=50")["transitions"]["<job>"]][::-1]

    def stored(self, column: str = "after") -> list[Any]:
        of_interest = "WHERE kind = 'status'" if column == "after" else ""
        with closing(sqlite3.connect(self.path)) as database:
            rows = database.execute(f"SELECT {column} FROM transitions {of_interest} ORDER BY id")
            return [value for (value,) in rows]


@pytest.fixture
def history_node(tmp_path: Path) -> HistoryNode:
    return HistoryNode(tmp_path)


def history(agent: Agent, more: str = "resolution=minutes") -> Any:
    answer = agent.request(f"/history?id=%3Cjob%3E&{more}")
    assert answer.code == 200, answer.body
    return answer.json


def problem(agent: Agent) -> str | None:
    found: str | None = agent.request("/details").json["node"]["history_problem"]
    return found


def test_every_change_is_kept_and_told(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        history_node.make_down(agent)
        history_node.make_up(agent)
        assert agent.stop() == 0
    assert history_node.stored()[-3:] == ["Up", "Down", "Up"]
    assert history_node.stored("kind")[0] == "started"
    assert history_node.stored("kind")[-2:] == ["node", "stopped"]
    assert not [line for line in agent.lines if "svcnode.history" in line]


def test_the_minute_that_is_running_is_shown_with_its_checks(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history(agent)["services"]["<job>"][-1][1] > 0.5)
        document = history(agent)
        bars = document["services"]["<job>"]
        assert (document["length_s"], len(bars)) == (60, 90)
        begin_s, up_s, initializing_s, down_s, checks, failures, mean_ms, max_ms = bars[-1]
        assert begin_s % 60 == 0
        assert 0 < up_s + initializing_s + down_s <= 60
        assert checks > failures
        assert 0 < mean_ms <= max_ms < 1000
        assert [bar[0] for bar in bars] == list(range(begin_s - 89 * 60, begin_s + 60, 60))


def test_bad_questions_are_answered_with_how_to_ask(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        for query in (
            "",
            "?id=x&resolution=weeks",
            "?id=x&transitions=all",
            "?" + "&".join(f"id={n}" for n in range(101)),
        ):
            answer = agent.request(f"/history{query}")
            assert (answer.code, list(answer.json)) == (400, ["message"])


def test_a_second_signal_still_finds_the_last_of_it_written(history_node: HistoryNode) -> None:
    with Agent(
        history_node.folder, "--drain", "60s", config=CONFIG.format(path=history_node.path, flag=history_node.flag)
    ) as agent:
        history_node.make_up(agent)
        agent.signal(signal.SIGTERM)
        agent.wait_for_log("draining")
        agent.signal(signal.SIGTERM)
        assert agent.wait_for_exit() == 128 + signal.SIGTERM
    assert history_node.stored("kind")[-1] == "stopped"


def test_after_a_kill_all_that_was_told_is_there_and_the_next_one_says_what_happened(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        history_node.make_down(agent)
        agent.wait_until(lambda: history_node.notified(agent)[-2:] == ["Up", "Down"])
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
    with history_node.agent() as agent:
        agent.wait_until(
            lambda: (
                history_node.notified(agent)[:2] == ["Up", "Down"]
                or history_node.notified(agent)[1:3] == ["Up", "Down"]
            )
        )
        agent.stop()
    reasons = history_node.stored("reason")
    assert sum("the one before it ended without a word" in reason for reason in reasons) == 1


def test_with_history_switched_off_memory_answers_and_no_file_is_made(history_node: HistoryNode) -> None:
    config = CONFIG.format(path=history_node.path, flag=history_node.flag).replace(
        "[history]", "[history]\nkeep = false"
    )
    with Agent(history_node.folder, config=config) as agent:
        history_node.checks_and_responds(agent)
        assert problem(agent) is None
        agent.stop()
    assert not history_node.path.parent.exists()


def test_a_reload_takes_other_limits_over(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.stored("kind")[:1] == ["started"])
        with closing(sqlite3.connect(history_node.path)) as database, database:
            database.execute("UPDATE transitions SET at_us = at_us - 7200 * 1000000 WHERE kind = 'started'")
        text = agent.config_file.read_text()
        agent.reload(text.replace("[history]", '[history]\nmax_age = "1h"'))
        agent.wait_until(lambda: "started" not in history_node.stored("kind"))
        assert problem(agent) is None


def test_a_reload_says_what_of_the_history_takes_a_restart(history_node: HistoryNode) -> None:
    elsewhere = history_node.folder / "elsewhere.db"
    with history_node.agent() as agent:
        text = agent.config_file.read_text()
        agent.reload(text.replace(str(history_node.path), str(elsewhere)))
        agent.wait_for_log(
            f"warning.*history: it is kept in {history_node.path}.* wants it to be kept in {elsewhere}: restart"
        )
        agent.wait_until(lambda: "restart the node for that" in (problem(agent) or ""))
        agent.reload(text)
        agent.wait_until(lambda: problem(agent) is None)
    assert not elsewhere.exists()


def test_the_questions_of_the_page_about_history_can_be_asked_while_it_is_written(history_node: HistoryNode) -> None:
    questions = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(questions) == 3
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        with closing(sqlite3.connect(f"file:{history_node.path}?mode=ro", uri=True)) as reader:
            changes, *others = [reader.execute(question).fetchall() for question in questions]
        assert [after for _, service_id, _, after, _ in changes if service_id == "<job>"][:2] == ["Down", "Up"]
        assert others == [[], []], "no minute is over yet"
        agent.stop()
    with closing(sqlite3.connect(history_node.path)) as reader:
        _, ((_, percent),), (hour,) = [reader.execute(question).fetchall() for question in questions]
    assert 0 < percent < 100
    assert hour[1] == "<job>"


# ---- faults


def in_process(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small disk in memory, where we may have one."""
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"no disk can be mounted here: {mounting.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_stops_nothing_and_all_is_written_when_there_is_room(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m"):
        filler = history_node.path.parent / "filler"
        with history_node.agent() as agent:
            history_node.make_up(agent)
            subprocess.run([sys.executable, "-c", FILL, filler], check=True)
            history_node.make_down(agent)
            history_node.make_up(agent)
            agent.wait_until(lambda: "no room left on the disk of" in (problem(agent) or ""))
            history_node.checks_and_responds(agent)
            agent.wait_for_log(
                r"history: there is no room left on the disk of .*history\.db; what comes is kept in memory"
            )
            filler.unlink()
            agent.wait_until(lambda: history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"])
            assert agent.stop() == 0
        assert history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"]


def test_a_disk_that_is_full_from_the_start_is_waited_for(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m"):
        filler = history_node.path.parent / "filler"
        subprocess.run([sys.executable, "-c", FILL, filler], check=True)
        with history_node.agent() as agent:
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: "no room" in (problem(agent) or ""))
            filler.unlink()
            agent.wait_for_log("history is written again")
            agent.stop()
        assert history_node.stored("kind")[0] == "started"
        assert history_node.stored()[-2:] == ["Up", "Down"]


def test_files_that_may_not_grow_are_as_good_as_a_full_disk(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.notified(agent)[-1:] == ["Up"])
        _, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        history_node.make_down(agent)
        agent.wait_until(lambda: problem(agent) is not None)
        history_node.checks_and_responds(agent)
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        agent.wait_for_log("history is written again")
        agent.stop()
    assert history_node.stored()[-1] == "Down"


def test_a_file_that_another_program_holds_locked_stops_nothing(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.notified(agent)[-1:] == ["Up"])
        with in_process(LOCK_CODE, str(history_node.path)) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            history_node.make_down(agent)
            agent.wait_for_log(r"history: another program holds .*history\.db locked; what comes is kept in memory")
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: "another program holds" in (problem(agent) or ""))
            holder.kill()
        agent.wait_for_log("history is written again")
        agent.stop()
    assert history_node.stored()[-4:] == ["Up", "Down", "Up", "Down"]


def test_a_second_node_with_the_same_file_keeps_no_history_and_says_how_to_fix_that(
    history_node: HistoryNode, tmp_path: Path
) -> None:
    with history_node.agent() as first:
        history_node.make_up(first)
        (tmp_path / "second").mkdir()
        with Agent(tmp_path / "second", config=CONFIG.format(path=history_node.path, flag=history_node.flag)) as second:
            told = second.wait_for_log(r"history\.db belongs to another svcnode \(process (\d+)\), .*\[history\] path")
            assert int(told.group(1)) == first.process.pid
            history_node.checks_and_responds(second)
            history_node.checks_and_responds(first)
            assert problem(first) is None
            second.stop()
        first.stop()
    assert history_node.stored("kind").count("started") == 1


def test_a_second_node_that_took_the_file_since_its_lock_was_removed_is_the_only_one_to_write(
    history_node: HistoryNode, tmp_path: Path
) -> None:
    with history_node.agent() as first:
        history_node.make_up(first)
        first.wait_until(lambda: history_node.notified(first)[-1:] == ["Up"])
        history_node.path.with_name("history.db-lock").unlink()
        (tmp_path / "second").mkdir()
        with Agent(tmp_path / "second", config=CONFIG.format(path=history_node.path, flag=history_node.flag)) as second:
            second.wait_until(lambda: second.statuses() == {"<job>": "Up"})
            history_node.make_down(first)
            keeps_nothing = r"history\.db belongs to another svcnode \(process (\d+)\)"
            loser, winner = (first, second) if problem(second) is None else (second, first)
            assert int(loser.wait_for_log(keeps_nothing).group(1)) == winner.process.pid
            assert problem(winner) is None
            second.stop()
        first.stop()


def test_what_is_kept_is_for_nobody_else_to_read(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.wait_until(lambda: history_node.notified(agent)[-1:] == ["Up"])
        assert history_node.path.parent.stat().st_mode & 0o777 == 0o700
        modes = {one.name: one.stat().st_mode & 0o777 for one in history_node.path.parent.iterdir()}
        assert modes == {f"history.db{suffix}": 0o600 for suffix in ("", "-wal", "-shm", "-lock")}


def test_a_service_that_never_was_is_told_to_be_unknown(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        answer = agent.request("/history?id=%3Cjob%3E&id=zzz").json
        assert (list(answer["services"]), answer["unknown"]) == (["<job>"], ["zzz"])
        assert agent.request("/history?id=%ff").code == 400


def damage(path: Path, first: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(first)
        file.write(os.urandom(size - first))


@pytest.mark.parametrize("first", [0, 2 * 4096], ids=["all of it", "all but its beginning"])
def test_a_damaged_file_is_set_aside_at_the_start(history_node: HistoryNode, first: int) -> None:
    with history_node.agent() as agent:
        history_node.make_up(agent)
        agent.stop()
    damage(history_node.path, first)
    damaged = history_node.path.read_bytes()
    with history_node.agent() as agent:
        aside = agent.wait_for_log(r"set aside as (history\.db\.corrupt-\d{8}T\d{6}Z), and a new one begun").group(1)
        agent.wait_until(lambda: f"set aside as {aside}" in (problem(agent) or ""))
        history_node.checks_and_responds(agent)
        agent.stop()
    assert history_node.path.with_name(aside).read_bytes() == damaged
    assert history_node.stored("kind")[0] == "started"
    assert history_node.stored()[-2:] == ["Up", "Down"]


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside(history_node: HistoryNode) -> None:
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        with closing(sqlite3.connect(history_node.path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(history_node.path, 2 * 4096)
        history_node.make_up(agent)
        history(agent, "transitions=50&resolution=hours")  # whoever reads finds out
        agent.wait_for_log(r"set aside as history\.db\.corrupt-\d{8}T\d{6}Z, and a new one begun")
        history_node.make_down(agent)
        history_node.checks_and_responds(agent)
        agent.wait_until(lambda: "set aside as" in (problem(agent) or ""))
        agent.stop()
    assert history_node.stored()[-2:] == ["Up", "Down"]


@pytest.mark.parametrize(
    "hurt",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("somebody has mistaken it for another file"),
        lambda path: path.with_name("history.db-wal").unlink(),
        lambda path: path.with_name("history.db-shm").unlink(),
    ],
    ids=["removed", "emptied", "overwritten", "its log removed", "its index removed"],
)
def test_whatever_is_done_to_the_files_all_that_comes_after_it_is_kept(
    history_node: HistoryNode, hurt: Callable[[Path], object]
) -> None:
    with history_node.agent() as agent:
        history_node.checks_and_responds(agent)
        hurt(history_node.path)
        history_node.make_up(agent)
        history(agent, "transitions=50")
        history_node.make_down(agent)
        history(agent, "transitions=50")
        history_node.checks_and_responds(agent)
        assert agent.stop() == 0
    assert history_node.stored()[-2:] == ["Up", "Down"]


def refuse_writing(folder: Path) -> Callable[[], object]:
    """Even to root; returns what ends that."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return lambda: folder.chmod(0o755)
    if subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be made immutable here")
    return lambda: subprocess.run(["chattr", "-i", folder], check=True)


def test_a_folder_that_cannot_be_written_stops_nothing(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    allow = refuse_writing(history_node.path.parent)
    try:
        with history_node.agent() as agent:
            agent.wait_for_log(
                r"history\.db cannot be written: .*; mend its permissions, or name another file in \[history\]"
            )
            history_node.checks_and_responds(agent)
            agent.wait_until(lambda: "cannot be written" in (problem(agent) or ""))
            allow()
            agent.wait_for_log("history is written again")
            agent.stop()
    finally:
        allow()
    assert history_node.stored()[-2:] == ["Up", "Down"]


def test_a_read_only_disk_stops_nothing(history_node: HistoryNode) -> None:
    with mounted(history_node.path.parent, "size=1m,ro"), history_node.agent() as agent:
        agent.wait_for_log(r"history\.db cannot be written: read-only file system")
        history_node.checks_and_responds(agent)


def test_the_database_of_another_program_is_not_touched(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    with closing(sqlite3.connect(history_node.path)) as ledger:
        ledger.execute("CREATE TABLE ledger (entry)")
        ledger.commit()
    before = history_node.path.read_bytes()
    with history_node.agent() as agent:
        agent.wait_for_log(r"history\.db is a database of another program; name another file in \[history\] path")
        history_node.checks_and_responds(agent)
        agent.stop()
        assert sum("history" in message for message in agent.messages) == 1  # nothing new at the end
    assert history_node.path.read_bytes() == before
    assert [one.name for one in history_node.path.parent.iterdir()] == ["history.db"]


def test_a_path_that_would_wait_for_ever_is_refused(history_node: HistoryNode) -> None:
    history_node.path.parent.mkdir()
    os.mkfifo(history_node.path)
    with history_node.agent() as agent:
        agent.wait_for_log(r"history\.db is not a file")
        history_node.checks_and_responds(agent)
        assert agent.stop() == 0
