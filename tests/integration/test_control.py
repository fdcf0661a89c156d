"""The control socket of `svcnode serve`: both clients, the commands, the disk, reloads, restarts, and who may connect.

What each request answers, and the rules of documents and restarts, are tested in tests/unit/control.
"""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest import mock
from zoneinfo import ZoneInfo

import pytest

from svcnode.cli.run import Heartbeats
from svcnode.control import AsyncControlClient, ControlClient
from svcnode.core.errors import ControlError, ControlUnreachableError
from tests.support import commands
from tests.support.disks import MemoryDisk
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
USER = pwd.getpwuid(os.geteuid()).pw_name
UP, INITIALIZING, DOWN = "Up", "Initializing", "Down"
FILE_SERVICES = """
[[services]]
id = "fixed"
status = "Up"

[[services]]
id = "worker"
probe = "heartbeat:60s"
"""


def config(folder: Path, control: str = "", services: str = FILE_SERVICES) -> str:
    return (
        '[node]\nname = "validator-7"\n[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"\n[history]\nkeep = false\n'
        f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"\n{control}\n{services}'
    )


def control_agent(folder: Path, text: str | None = None, **options: Any) -> Agent:
    """Ready for requests to its control socket."""
    agent = Agent(folder, config=config(folder) if text is None else text, **options)
    agent.wait_for_log("control socket: ")
    return agent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def shared_agent(folder: Path) -> Iterator[Agent]:
    with control_agent(folder) as agent:
        yield agent


@pytest.fixture
def client(shared_agent: Agent, folder: Path) -> Iterator[ControlClient]:
    with ControlClient(folder / "c.sock") as client:
        yield client


@pytest.fixture
def agent(shared_agent: Agent, client: ControlClient) -> Iterator[Agent]:
    """With two services, of which one has reported that it is up; healthy again after each test."""
    client.beat("worker")
    yield shared_agent
    for service in client.services():
        if service["source"] == "control":
            client.deregister(service["id"])
    client.clear_issue("disk")
    client.undrain()


def svcnode(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command, which finds the socket in the configuration."""
    return commands.svcnode(*arguments, folder=folder)


# ---- the clients


class BlockingClient:
    """The calls of an AsyncControlClient, one after another."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncControlClient(path)

    def __enter__(self) -> BlockingClient:
        self._runner.run(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.__aexit__())
        self._runner.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await getattr(self._client, name)(*arguments, **options)

        return lambda *arguments, **options: self._runner.run(call(*arguments, **options))


@pytest.mark.parametrize("kind", [ControlClient, BlockingClient])
def test_a_client_does_all_of_it(agent: Agent, folder: Path, kind: type[Any]) -> None:
    with kind(folder / "c.sock") as client:
        assert client.register("a/b", ttl="60s")["status"] == INITIALIZING
        revision = client.register("a/b", ttl="90s")["revision"]
        client.beat("a/b", "initializing", "replaying", code="x_replay")
        assert client.service("a/b")["reason"] == "replaying"
        client.beat("a/b")
        assert {service["id"]: service["status"] for service in client.services()} == agent.statuses()
        with pytest.raises(ControlError) as refused:
            client.deregister("a/b", revision=revision + 100)
        assert refused.value.status == 412
        with pytest.raises(ControlError) as refused:
            client.register("new", ttl="soon")
        assert (refused.value.status, refused.value.pointer) == (400, "/ttl")
        client.set_issue("disk", "full")
        assert (client.node()["issues"], client.issue("disk")["reason"], agent.health()) == (
            [f"disk: full (by {USER})"],
            "full",
            503,
        )
        client.clear_issue("disk")
        assert agent.health() == 200
        client.drain("upgrade")
        assert client.node()["draining"]
        assert agent.health() == 503
        assert "upgrade" in agent.request("/details").json["node"]["health_reason"]
        assert "upgrade" in agent.request("/").body.decode()
        client.undrain()
        assert client.node()["health"] == agent.health() == 200
        client.maintain(None, "1h", reason="kernel update")
        assert client.service("worker")["maintenance"]["reason"] == "kernel update"
        assert client.maintenance(None)["reason"] == "kernel update"
        client.end_maintenance()
        assert client.node()["maintenance"] is None
        tomorrow = datetime.now().astimezone() + timedelta(days=1)
        client.plan_maintenance("worker", tomorrow, tomorrow + timedelta(hours=1), reason="new disk")
        assert client.planned_maintenance("worker")["reason"] == "new disk"
        client.cancel_maintenance("worker")
        assert client.service("worker")["planned_maintenance"] is None
        assert client.reload() == "no service changed"
        client.deregister("a/b", revision=revision)
        assert "a/b" not in agent.statuses()


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"ttl": "367d"}, "/ttl"),
        ({"probe": "heartbeat:367d"}, "/probe"),
        ({"probe": {"url": "heartbeat:", "ttl": "367d"}}, "/probe/ttl"),
        ({"probe": {"url": "heartbeat:", "period": "367d", "grace": "1s"}}, "/probe/period"),
        ({"probe": {"url": "heartbeat:", "period": "1s", "grace": "367d"}}, "/probe/grace"),
        ({"ttl": "5s", "name": "n" * 257}, "/name"),
        ({"ttl": "5s", "group": "g" * 257}, "/group"),
        ({"ttl": "5s", "description": "d" * 1001}, "/description"),
    ],
)
def test_a_value_beyond_its_limit_is_refused(agent: Agent, client: ControlClient, options: Any, pointer: str) -> None:
    with pytest.raises(ControlError) as refused:
        client.register("new", **options)
    assert (refused.value.status, refused.value.pointer) == (400, pointer)
    at_the_limit: Any = {"name": "n" * 256, "group": "g" * 256, "description": "d" * 1000}
    assert client.register("new", ttl="366d", **at_the_limit)["status"] == INITIALIZING


def test_a_registered_probe_is_checked(agent: Agent, client: ControlClient) -> None:
    client.register("itself", probe=f"tcp://127.0.0.1:{agent.port}", interval="1s")
    agent.wait_until(lambda: agent.statuses()["itself"] == UP)
    client.register("itself", probe="tcp://127.0.0.1:1", fall=1)
    agent.wait_until(lambda: agent.statuses()["itself"] == DOWN)


def test_a_body_may_be_long_but_not_too_large(agent: Agent, folder: Path) -> None:
    def code(path: str, body: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(DEADLINE_S)
            sock.connect(str(folder / "c.sock"))
            head = f"PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            return sock.recv(1000)[9:12]

    assert code("/v1/services/new", b" " * (1024 * 1024 + 1)) == b"413"
    report = json.dumps({"status": "down", "reason": "x" * 1_000_000}).encode()
    assert code("/v1/services/worker/status", report) == b"204"
    assert agent.statuses() == {"fixed": UP, "worker": DOWN}


# ---- the commands


def test_the_commands_change_the_node(agent: Agent, folder: Path) -> None:
    for arguments, text in (
        (["register", "a", "--ttl", "60s", "--name", "A"], "registered a: Initializing"),
        (["register", "b", "--probe", "tcp://127.0.0.1:1", "--set", "interval=5s", "--set", "fall=2"], "registered b"),
        (["register", "b", "--probe", "tcp://127.0.0.1:1", "--depends-on", "a", "--depends-on", "x"], "registered b"),
        (["beat", "a"], "a: up"),
        (["beat", "worker", "down", "--reason", "no peers"], "worker: down"),
        (["deregister", "b"], "deregistered b"),
        (["issue", "disk", "full"], "node health is 503"),
        (["issue", "disk", "--clear"], "cleared disk"),
        (["drain", "--reason", "upgrade"], "node health is 503"),
        (["drain", "--undo"], "not draining"),
        (["reload"], "reloaded: no service changed"),
    ):
        ended = svcnode(folder, *arguments)
        assert (ended.returncode, ended.stderr) == (0, ""), arguments
        assert text in ended.stdout
    assert agent.statuses() == {"fixed": UP, "worker": DOWN, "a": UP}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["register", "fixed", "--ttl", "5s"], 1),
        (["register", "a", "--ttl", "5s", "--set", "interval"], 2),
        (["register", "a"], 2),
        (["deregister", "unknown"], 1),
        (["issue", "unknown", "--clear"], 1),
        (["drain", "--undo"], 1),
        (["maintain", "--end"], 1),
        (["maintain", "unknown", "--end"], 1),
        (["maintain", "worker", "--for", "abc"], 2),
        (["maintain", "worker", "--from", "tomorrow", "--for", "1h"], 2),
        (["maintain", "worker", "--from", "+1h"], 2),
        (["maintain", "worker", "--from", "+1h", "--end"], 2),
        (["maintain", "worker", "--from", "+9999999999d", "--for", "1h"], 2),
        (["maintain", "worker", "--from", "+2h", "--until", "+1h"], 1),
        (["maintain", "worker", "--until", "2020-01-01 22:00"], 1),
        (["maintain", "--cancel"], 1),
        (["beat", "unknown"], 1),
        (["beat", "worker", "green"], 2),
        (["beat", "worker", "--socket", "/nowhere/c.sock"], 1),
        (["run", "--service", "a", "--ttl", "never", "--", "true"], 2),
    ],
)
def test_a_command_that_is_refused_says_why(agent: Agent, folder: Path, arguments: list[str], code: int) -> None:
    ended = svcnode(folder, *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr
    assert agent.statuses() == {"fixed": UP, "worker": UP}


def test_the_log_and_the_node_say_who_drains_it_and_why(agent: Agent, folder: Path) -> None:
    assert svcnode(folder, "drain", "--by", "ann", "--reason", "kernel").returncode == 0
    assert f"kernel (by ann (user {USER}))" in agent.request("/details").json["node"]["health_reason"]
    assert svcnode(folder, "drain", "--undo", "--reason", "done").returncode == 0
    agent.wait_for_event("node_health", reason="no longer draining", by=f"{USER}: done")
    agent.wait_for_event("node_health", reason=f"draining: kernel (by ann (user {USER}))")


def test_bad_news_is_not_refused_for_its_text(agent: Agent, folder: Path) -> None:
    for arguments in (
        ["beat", "worker", "down", "--code", "mine", "--reason"],
        ["issue", "disk"],
        ["drain", "--reason"],
    ):
        for reason in (os.fsdecode(b"\xff\n\x1b[2J"), "x" * 100_000):
            assert svcnode(folder, *arguments, reason).returncode == 0
    assert (agent.statuses()["worker"], agent.health()) == (DOWN, 503)
    assert agent.request("/details").json["node"]["health_reason"].isprintable()


def test_reports_that_wait_for_a_stopped_node_do_not_hide_bad_news(agent: Agent, folder: Path) -> None:
    """Each client has a connection already: the node reads them in any order."""
    with (
        ControlClient(folder / "c.sock") as first,
        ControlClient(folder / "c.sock") as second,
        ThreadPoolExecutor() as pool,
    ):
        for one in (first, second):
            one.beat("worker")
        agent.signal(signal.SIGSTOP)
        try:
            older = pool.submit(first.beat, "worker", "up")
            time.sleep(0.5)
            newer = pool.submit(second.beat, "worker", "down", "disk full")
            time.sleep(2.5)  # the node must have stood still for two ticks
        finally:
            agent.signal(signal.SIGCONT)
        assert newer.result(DEADLINE_S) is None
        refused = older.exception(DEADLINE_S)
        assert refused is None or (isinstance(refused, ControlError) and refused.status == 503)
        assert agent.statuses()["worker"] == DOWN

        def is_taken() -> bool:
            with suppress(ControlError):
                first.beat("worker")
            return agent.statuses()["worker"] == UP

        agent.wait_until(is_taken)


def test_maintain_says_how_long_it_lasts_and_what_else_goes_on(
    agent: Agent, client: ControlClient, folder: Path
) -> None:
    done = svcnode(folder, "maintain", "worker", "--for", "2h", "--by", "alice", "--reason", "new disk")
    assert done.returncode == 0
    assert done.stdout.startswith("worker is in maintenance until 20")
    details = agent.request("/details/worker").json["maintenance"]
    assert (details["by"], details["reason"], details["source"]) == (f"alice (user {USER})", "new disk", "control")
    explained = svcnode(folder, "explain", f"http://127.0.0.1:{agent.port}", "--service", "worker").stdout
    assert f"UTC, by alice (user {USER}): new disk.\n  Checks go on." in explained
    assert svcnode(folder, "maintain", "worker", "--end").stdout == "worker is not in maintenance\n"
    transitions = agent.request("/history?id=worker&transitions=10").json["transitions"]["worker"]
    assert [one["kind"] for one in transitions][:2] == ["maintenance_ended", "maintenance"]
    client.maintain(None, "1h")
    shorter = svcnode(folder, "maintain", "worker", "--for", "1m").stdout
    longer = svcnode(folder, "maintain", "worker", "--for", "2h").stdout
    assert ["with the node" in text for text in (shorter, longer)] == [True, False]
    still = svcnode(folder, "maintain", "worker", "--end").stdout
    assert still.startswith("worker is still in maintenance with the node, until 20")
    client.end_maintenance()


def test_maintenance_is_planned_by_its_times_shown_and_cancelled(
    agent: Agent, client: ControlClient, folder: Path
) -> None:
    later = datetime.now(UTC) + timedelta(days=2)
    shown, zoned = (
        f"{later:%Y-%m-%d %H:%M}",
        (later + timedelta(hours=1)).astimezone(ZoneInfo("Asia/Tokyo")).isoformat(timespec="seconds"),
    )
    done = svcnode(folder, "maintain", "worker", "--from", shown, "--until", zoned, "--by", "alice")
    assert (done.returncode, done.stderr) == (0, "")
    planned = client.planned_maintenance("worker")
    assert datetime.fromisoformat(planned["from"]) == later.replace(second=0, microsecond=0)
    assert datetime.fromisoformat(planned["until"]) == datetime.fromisoformat(zoned)
    for details in (agent.request("/details/worker").json, cast("dict[str, Any]", client.service("worker"))):
        assert details["maintenance"] is None
        assert details["planned_maintenance"]["from"] == planned["from"]
    explained = svcnode(folder, "explain", f"http://127.0.0.1:{agent.port}", "--service", "worker").stdout
    assert f"Planned from {planned['from'][:10]} " in explained
    assert svcnode(folder, "maintain", "worker", "--end").returncode == 1, "it has not begun"
    assert svcnode(folder, "maintain", "worker", "--cancel", "--reason", "no disk").returncode == 0
    agent.wait_for_log("planned maintenance of service worker is cancelled .*no disk")
    assert svcnode(folder, "maintain", "worker", "--cancel").returncode == 1
    assert svcnode(folder, "maintain", "--from", "+0s", "--for", "1h").returncode == 0
    assert agent.request("/details").json["node"]["maintenance"]["source"] == "planned"
    assert svcnode(folder, "maintain", "--end").stdout == "the node is not in maintenance\n"
    assert svcnode(folder, "maintain", "worker", "--until", "+1h").returncode == 0
    agent.wait_until(lambda: agent.request("/details/worker").json["maintenance"] is not None)
    client.cancel_maintenance("worker")
    assert client.service("worker")["maintenance"] is None


# ---- run


def test_run_reports_the_life_of_a_command(tmp_path: Path) -> None:
    started, script = tmp_path / "started", 'touch "$0"; exec sleep 600'
    command = [sys.executable, "-m", "svcnode", "run", "--socket", str(tmp_path / "c.sock"), "--service", "job"]
    arguments = [*command, "--ttl", "5s", "--", "sh", "-c", script, str(started)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "no node listens there" in process.stderr.readline()
        wait_until(started.exists, "the command has started")
        with control_agent(tmp_path) as agent, ControlClient(tmp_path / "c.sock") as client:
            agent.wait_until(lambda: agent.statuses().get("job") == UP)
            client.deregister("job")
            agent.wait_until(lambda: agent.statuses().get("job") == UP)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
            assert (client.service("job")["status"], client.service("job")["reason"]) == (DOWN, "ended by SIGTERM")
        assert "heartbeats are received now" in process.stderr.read()


# Sends the lines of its input as messages, in which a comma is a line break.
TALKER = """
import os, socket, sys
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for line in sys.stdin:
    message = line.strip().replace(",", "\\n").format(**os.environ)
    sender.sendto(message.encode(), os.environ["NOTIFY_SOCKET"])
sys.exit(3)
"""


def test_run_reports_what_the_command_says_of_itself(agent: Agent, client: ControlClient, folder: Path) -> None:
    arguments = ["run", "--socket", str(folder / "c.sock"), "--service", "job", "--notify", "--watchdog", "60s"]
    command = [sys.executable, "-m", "svcnode", *arguments, "--", sys.executable, "-c", TALKER]

    def expect(status: str, reason: str) -> None:
        def is_reported() -> bool:
            found = [(one["status"], one["reason"]) for one in client.services() if one["id"] == "job"]
            return found == [(status, reason)]

        wait_until(is_reported, f"{status} {reason}")

    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        for message, status, reason in (
            ("", INITIALIZING, "starting"),
            ("STATUS=replaying", INITIALIZING, "starting: replaying"),
            ("READY=1,STATUS=watched every {WATCHDOG_USEC} us", UP, "watched every 60000000 us"),
            ("WATCHDOG=trigger,STATUS=", DOWN, "the program reported WATCHDOG=trigger"),
            ("READY=1", UP, ""),
            ("STOPPING=1,ERRNO=28", DOWN, "stopping; errno 28 (no space left on device)"),
        ):
            print(message, file=process.stdin, flush=True)
            expect(status, reason)
        process.stdin.write("STATUS=the disk is full\n")
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 3
    expect(DOWN, "ended with exit status 3; errno 28 (no space left on device): the disk is full")


def test_a_command_that_stops_its_watchdog_is_down(agent: Agent, folder: Path) -> None:
    arguments = ["run", "--socket", str(folder / "c.sock"), "--service", "job", "--watchdog", "1s"]
    command = [sys.executable, "-m", "svcnode", *arguments, "--", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        agent.wait_until(lambda: agent.statuses().get("job") == UP)
        agent.wait_until(lambda: agent.statuses().get("job") == DOWN)
        assert process.poll() is None
        process.communicate()


def test_run_beats_several_times_within_the_ttl(agent: Agent, folder: Path) -> None:
    with mock.patch("svcnode.cli.run.Heartbeats", wraps=Heartbeats) as heartbeats:
        assert svcnode(folder, "run", "--service", "job", "--ttl", "90s", "--", "true").returncode == 0
    *_, interval_s = heartbeats.call_args.args
    assert 20 <= interval_s <= 30


def test_run_reports_the_exit_status(agent: Agent, client: ControlClient, folder: Path) -> None:
    for command, code in ((("sh", "-c", "exit 3"), 3), (("/nowhere/command",), 127), (("/etc/passwd",), 126)):
        assert svcnode(folder, "run", "--service", "job", "--", *command).returncode == code
        assert client.service("job")["reason"] == f"ended with exit status {code}"
    assert svcnode(folder, "run", "--service", "job", "--remove", "--", "true").returncode == 0
    ended = svcnode(folder, "run", "--service", "worker", "--", "sh", "-c", "exit 3")
    assert (ended.returncode, ended.stderr) == (3, ""), "a service of the file is not registered"
    assert agent.statuses() == {"fixed": UP, "worker": DOWN}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--service", "fixed"), "fixed status"),
        (("--service", "job", "--name", "n" * 257), "without heartbeats"),
        (("--service", "job", "--socket", "/nowhere/c.sock"), "cannot report that the command has ended"),
    ],
)
def test_run_runs_the_command_although_nothing_can_be_reported(
    agent: Agent, folder: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    ended = svcnode(folder, "run", *options, "--", "sh", "-c", f"touch {tmp_path}/done; exit 3")
    assert (ended.returncode, (tmp_path / "done").exists()) == (3, True)
    assert message in ended.stderr
    assert agent.statuses() == {"fixed": UP, "worker": UP}


# ---- reloads


@contextmanager
def changed_file(agent: Agent, text: str) -> Iterator[None]:
    before = agent.config_file.read_text()
    agent.config_file.write_text(text)
    try:
        yield
    finally:
        agent.config_file.write_text(before)
        agent.reload()


def test_a_reload_that_is_refused_is_an_error_with_all_causes(
    agent: Agent, client: ControlClient, folder: Path
) -> None:
    services = '[[services]]\nid = "new"\nprobe = "nothing:x"\n[[services]]\nid = "newer"\n'
    with changed_file(agent, config(folder, services=services)):
        with pytest.raises(ControlError, match=r"services\.new\.probe") as refused:
            client.reload()
        assert refused.value.status == 422
        agent.wait_until(lambda: len(agent.events("reload_failed")) == 2)
        assert [event["key"] for event in agent.events("reload_failed")] == ["services.new.probe", "services.newer"]
        ended = svcnode(folder, "reload", "--socket", str(folder / "c.sock"))
        assert (ended.returncode, ended.stdout) == (1, "")
        assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == ["services.new.probe", "services.newer"]
        assert agent.statuses() == {"fixed": UP, "worker": UP}


def test_what_needs_a_restart_is_refused_by_a_reload(agent: Agent, client: ControlClient, folder: Path) -> None:
    for text in (
        config(folder).replace("c.db", "d.db"),
        config(folder, "enabled = false"),
        config(folder, f'group = "{grp.getgrgid(os.getgid()).gr_name}"'),
    ):
        with changed_file(agent, text), pytest.raises(ControlError) as refused:
            client.reload()
        assert refused.value.status == 422


def test_a_reload_changes_nothing_of_registered_services(agent: Agent, client: ControlClient) -> None:
    client.register("job", ttl="60s")
    client.beat("job")
    client.set_issue("disk")
    before = client.services()
    agent.wait_until(lambda: agent.events("node_health")[-1]["node_health"] == 503)  # other tests share the node
    health_changes = len(agent.events("node_health"))
    reloads = len(agent.events("reloaded"))
    client.reload()
    agent.wait_for_event("reloaded", times=reloads + 1)
    assert client.services() == before
    assert len(agent.events("node_health")) == health_changes
    assert agent.health() == 503


def test_a_service_of_the_file_takes_the_place_of_a_registered_one_until_it_is_removed(
    agent: Agent, client: ControlClient, folder: Path
) -> None:
    client.register("job", ttl="60s")
    client.beat("job", "down")
    with changed_file(agent, config(folder, services='[[services]]\nid = "job"\nstatus = "Up"\n')):
        client.reload()
        assert agent.statuses() == {"job": UP}
        with pytest.raises(ControlError) as refused:
            client.deregister("job")
        assert refused.value.status == 409
    assert agent.statuses()["job"] == DOWN


def test_a_client_that_disconnects_does_not_end_a_reload(agent: Agent, folder: Path) -> None:
    services = "".join(f'[[services]]\nid = "new-{n}"\nprobe = "tcp://127.0.0.1:1"\n' for n in range(200))
    reloads = len(agent.events("reloaded"))
    with changed_file(agent, config(folder, services=services)):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(folder / "c.sock"))
            sock.sendall(b"PUT /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        agent.wait_for_event("reloaded", times=reloads + 1)
        assert len(agent.statuses()) == 200


def test_a_schedule_of_the_file_applies_after_a_reload(agent: Agent, folder: Path) -> None:
    schedule = '[[maintenance]]\nservices = ["worker"]\nstart = "{}"\nduration = "23h"\nreason = "backup"\n'
    started = time.strftime("%H:%M", time.gmtime(time.time() - 3600))
    with changed_file(agent, config(folder) + schedule.format(started)):
        agent.reload()
        agent.wait_for_log("service worker is in maintenance until .*: backup")
        assert "by the schedule" in svcnode(folder, "maintain", "worker", "--for", "1m").stdout
        svcnode(folder, "maintain", "worker", "--end")
        again = svcnode(folder, "maintain", "worker", "--end")
        assert (again.returncode, again.stdout) == (1, "")
        assert "by the schedule" in again.stderr
    agent.wait_until(lambda: agent.request("/details/worker").json["maintenance"] is None)


def test_a_reload_takes_back_allow_exec_and_moves_the_socket_if_the_new_one_can_be_bound(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2hunter2")
    probes: list[object] = [
        "exec:/bin/true",
        f"file:{tmp_path}/password",
        {"url": "redis://127.0.0.1:1", "password": {"file": f"{tmp_path}/password"}},
    ]

    def moved(path: str) -> str:
        return config(tmp_path).replace(f"{tmp_path}/c.sock", path)

    with control_agent(tmp_path, config(tmp_path, "allow_exec = true")) as agent:
        with ControlClient(tmp_path / "c.sock") as client:
            for number, probe in enumerate(probes):
                assert "hunter2" not in json.dumps(client.register(f"local-{number}", probe=cast("Any", probe)))
            agent.wait_until(lambda: agent.statuses()["local-0"] == agent.statuses()["local-1"] == UP)
            agent.reload(config(tmp_path))
            agent.wait_until(lambda: agent.statuses()["local-0"] == agent.statuses()["local-1"] == DOWN)
            agent.reload(moved("/proc/nowhere/c.sock"))
            agent.wait_for_log("reload failed, .*control socket")
            assert client.node()["services"] == 5
        agent.reload(moved(f"{tmp_path}/d.sock"))
        with ControlClient(tmp_path / "d.sock") as client:
            assert client.node()["services"] == 5
        assert not (tmp_path / "c.sock").exists()


# ---- the end and the next start


def test_after_a_kill_the_socket_is_replaced_and_what_is_stored_is_there(tmp_path: Path) -> None:
    with ControlClient(tmp_path / "c.sock") as client:
        with control_agent(tmp_path):
            client.register("a", ttl="60s")
            client.beat("a")
            client.beat("worker")
            client.set_issue("disk")
        assert (tmp_path / "c.sock").exists()
        with pytest.raises(ControlUnreachableError):
            client.beat("a")
        with control_agent(tmp_path, config(tmp_path).replace('"0s"', '"60s"')) as agent:
            assert agent.statuses() == {"fixed": UP, "worker": UP, "a": UP}
            assert client.node()["issues"] == [f"disk (by {USER})"]
            client.clear_issue("disk")
            assert agent.health() == 200
            agent.signal(signal.SIGTERM)
            agent.wait_for_log("draining for")
            client.drain()
            client.undrain()
            assert client.node()["health"] == agent.health() == 503, "undrain does not make a stopping node healthy"


def test_a_second_node_does_not_use_the_socket_or_the_store_of_the_first(tmp_path: Path) -> None:
    with control_agent(tmp_path) as first:
        with ControlClient(tmp_path / "c.sock") as client:
            client.register("a", ttl="60s")
            with Agent(tmp_path, config=config(tmp_path)) as second:
                assert second.wait_for_exit() == 1
                assert any("cannot listen on the control socket" in line for line in second.lines)
            client.beat("a")
        text = config(tmp_path).replace("c.sock", "d.sock")
        with control_agent(tmp_path, text) as second, ControlClient(tmp_path / "d.sock") as client:
            assert second.health() == 503
            with pytest.raises(ControlError, match="another process uses it") as refused:
                client.register("b", ttl="60s")
            assert refused.value.status == 503
            assert first.stop() == 0
            assert not (tmp_path / "c.sock").exists()
            client.register("b", ttl="60s")
            assert list(second.statuses()) == ["fixed", "worker", "a", "b"]
            assert client.node()["issues"] == []


# ---- two nodes with the same name


def same_name(drain: str = "0s") -> str:
    server = f'[server]\nlisten = "127.0.0.1:0"\ndrain = "{drain}"'
    return f'[node]\nname = "v7"\n{server}\n[[services]]\nid = "fixed"\nstatus = "Up"\n'


SOCKET_OF_NAME = "s/nodes/v7/control.sock"


@contextmanager
def two_configurations(folder: Path, drain: str = "0s") -> Iterator[tuple[Agent, dict[str, Any]]]:
    """A node that runs with a.toml, and beside it b.toml, which has the same name."""
    for name in ("a.toml", "b.toml"):
        (folder / name).write_text(same_name(drain))
    environ = {"STATE_DIRECTORY": str(folder / "s")}
    with Agent(folder, "--config", "a.toml", environ=environ) as agent:
        agent.wait_for_log("control socket: ")
        yield agent, environ


CHANGES = [
    ["drain"],
    ["drain", "--undo"],
    ["reload"],
    ["maintain", "--for", "1h"],
    ["issue", "disk"],
    ["note", "x"],
    ["ack", "fixed"],
    ["register", "a", "--ttl", "60s"],
    ["deregister", "a"],
    ["beat", "a", "down"],
]


def test_a_command_does_not_act_on_a_node_with_another_configuration(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.toml").symlink_to(tmp_path / "a.toml")
    with two_configurations(tmp_path) as (agent, environ), ControlClient(tmp_path / SOCKET_OF_NAME) as client:
        before = client.node()
        assert before["config_file"] == str(tmp_path / "a.toml")
        assert before["process_id"] == agent.process.pid
        for command in CHANGES:
            ended = commands.svcnode(*command, "--config", "b.toml", folder=tmp_path, **environ)
            assert (ended.returncode, ended.stdout) == (1, ""), command
            assert str(tmp_path / "a.toml") in ended.stderr
        assert client.node() == before
        for same in (["--config", "other/../a.toml"], ["--config", "other/link.toml"], ["--socket", SOCKET_OF_NAME]):
            assert commands.svcnode("drain", *same, folder=tmp_path, **environ).returncode == 0, same
            assert client.node()["draining"]
            assert commands.svcnode("drain", "--undo", *same, folder=tmp_path, **environ).returncode == 0
        variables = {**environ, "SVCNODE_CONFIG": "b.toml"}
        assert commands.svcnode("drain", folder=tmp_path, **variables).returncode == 1


def test_a_second_node_of_a_name_does_not_start_and_leaves_the_first_alone(tmp_path: Path) -> None:
    with two_configurations(tmp_path) as (first, environ):
        with Agent(tmp_path, "--config", "b.toml", environ=environ) as second:
            assert second.wait_for_exit() == 1
            (failed,) = second.events("listen_failed")
        assert all(text in failed["message"] for text in ("v7", str(first.process.pid), "a.toml"))
        assert first.health() == 200
        with (
            Agent(tmp_path, "--config", "b.toml", "--name", "v8", environ=environ) as other,
            ControlClient(tmp_path / SOCKET_OF_NAME.replace("7", "8")) as client,
        ):
            other.wait_for_log("control socket: ")
            assert client.node()["config_file"] == str(tmp_path / "b.toml")


def test_a_node_waits_for_the_one_before_it_that_is_stopping(tmp_path: Path) -> None:
    with two_configurations(tmp_path, drain="2s") as (first, environ):
        first.signal(signal.SIGTERM)
        first.wait_for_log("draining for")
        with Agent(tmp_path, "--config", "b.toml", environ=environ) as second:
            second.wait_for_log("control socket: ")
            assert first.wait_for_exit() == 0
            with ControlClient(tmp_path / SOCKET_OF_NAME) as client:
                assert client.node()["process_id"] == second.process.pid


def test_a_reload_does_not_take_the_name_of_another_node(tmp_path: Path) -> None:
    with two_configurations(tmp_path) as (_, environ):
        text = same_name().replace("v7", "v8")
        with Agent(tmp_path, config=text, environ=environ) as agent:
            agent.wait_for_log("control socket: ")
            agent.reload(same_name())
            agent.wait_for_event("reload_failed")
            with ControlClient(tmp_path / SOCKET_OF_NAME.replace("7", "8")) as client:
                assert client.node()["node_name"] == "v8"


def test_without_a_free_path_for_the_default_socket_the_node_serves_what_is_stored(tmp_path: Path) -> None:
    environ = {"STATE_DIRECTORY": str(tmp_path / "s")}
    text = '[node]\nname = "n"\n[server]\nlisten = "127.0.0.1:0"\n[[services]]\nid = "fixed"\nstatus = "Up"\n'
    path = tmp_path / "s" / "nodes" / "n" / "control.sock"
    with control_agent(tmp_path, text, environ=environ), ControlClient(path) as client:
        client.register("a", ttl="1h")
    path.unlink()
    path.mkdir()
    with Agent(tmp_path, config=text, environ=environ) as agent:
        agent.wait_for_log("the node cannot be controlled")
        agent.wait_for_log("started: node")
        assert agent.statuses() == {"fixed": UP, "a": INITIALIZING}


def test_a_full_disk_refuses_changes_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    with MemoryDisk(tmp_path / "disk") as disk:
        text = config(tmp_path).replace(f"{tmp_path}/c.db", f"{disk.path}/c.db")
        with control_agent(tmp_path, text) as agent, ControlClient(tmp_path / "c.sock") as client:
            client.register("a", ttl="60s")
            refused = []
            with disk.full():
                for number in range(50):
                    try:
                        client.register(f"more-{number}", ttl="60s", description="x" * 1000)
                    except ControlError as exc:
                        refused.append(f"{exc.status} {exc}")
            assert refused
            assert all(text.startswith("503 ") and "nothing has changed" in text for text in refused)
            listed = list(agent.statuses())
            assert len(listed) == 3 + 50 - len(refused)
            assert sum("control_store_failed" in line for line in agent.lines) == 1
            client.register("b", ttl="60s")
        with control_agent(tmp_path, text) as agent:  # the first one was killed
            assert list(agent.statuses()) == [*listed, "b"]


# ---- who may connect

OTHER_UID, OTHER_GID = 65_500, 65_500
REFUSED = {"closed", "ConnectionResetError", "BrokenPipeError"}
# Connects as another user, and prints the status of the response, or the error.
CONNECT = """
import os, socket, sys
path, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups]); os.setgid(int(gid)); os.setuid(int(uid))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
try:
    sock.connect(path)
    sock.sendall(b"GET /v1 HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    print(sock.recv(1000)[9:12].decode() or "closed")
except (PermissionError, ConnectionResetError, BrokenPipeError) as exc:
    print(type(exc).__name__)
"""


def connect_as(path: Path, uid: int, gid: int, *groups: int) -> str:
    arguments = [str(path), str(uid), str(gid), *map(str, groups)]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", CONNECT, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return ended.stdout.strip()


def let_others_enter(folder: Path) -> None:
    for one in (folder, *folder.parents[:-1]):
        if one.stat().st_uid == os.getuid() and one.name != "tmp":
            one.chmod(0o755)


@NEEDS_ROOT
def test_another_user_cannot_connect(agent: Agent, folder: Path) -> None:
    let_others_enter(folder)
    path = folder / "c.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert connect_as(path, OTHER_UID, OTHER_GID) == "PermissionError"
    path.chmod(0o666)
    assert connect_as(path, OTHER_UID, OTHER_GID) in REFUSED
    assert connect_as(path, OTHER_UID, 0, 0) in REFUSED
    assert connect_as(path, 0, 0) == "200"


@NEEDS_ROOT
def test_with_a_group_its_members_can_connect(tmp_path: Path) -> None:
    let_others_enter(tmp_path)
    path = tmp_path / "c.sock"
    group = next(group for group in grp.getgrall() if group.gr_gid not in (0, OTHER_GID))
    prefix = ["/bin/sh", "-c", 'umask 077; exec "$@"', "sh"]
    with control_agent(tmp_path, config(tmp_path, f'group = "{group.gr_name}"'), prefix=prefix):
        assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, group.gr_gid)
        assert connect_as(path, OTHER_UID, group.gr_gid) == "200"
        assert connect_as(path, OTHER_UID, OTHER_GID, *range(70_000, 70_200), group.gr_gid) == "200"
        assert connect_as(path, OTHER_UID, OTHER_GID) == "PermissionError"
        path.chmod(0o666)
        assert connect_as(path, OTHER_UID, OTHER_GID, OTHER_GID) in REFUSED
