"""The control socket of `svcnode serve`: HTTP, both clients, the commands, reloads, restarts, and who may connect."""

from __future__ import annotations

import asyncio
import grp
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.control import AsyncClient, Client
from svcnode.core.errors import ControlError, ControlUnreachableError
from tests.support import commands
from tests.support.disks import MemoryDisk
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
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


class Raw:
    """Requests as any program would send them."""

    def __init__(self, path: Path) -> None:
        self._connection = http.client.HTTPConnection("localhost", timeout=DEADLINE_S)
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.settimeout(DEADLINE_S)
        self._connection.sock.connect(str(path))

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {name.replace("_", "-"): text for name, text in headers.items()})
        response = self._connection.getresponse()
        received = response.read()
        return response.status, json.loads(received) if received else None


def control_agent(folder: Path, control: str = "", services: str = FILE_SERVICES) -> Agent:
    """Ready for requests to its control socket."""
    agent = Agent(folder, config=config(folder, control, services))
    agent.wait_for_log("control socket: ")
    return agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with control_agent(tmp_path) as agent:
        yield agent


@pytest.fixture
def raw(agent: Agent, tmp_path: Path) -> Iterator[Raw]:
    with closing(Raw(tmp_path / "c.sock")) as raw:
        yield raw


def svcnode(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command, which finds the socket in the configuration."""
    return commands.svcnode(*arguments, folder=folder)


# ---- raw HTTP


def test_services_are_registered_replaced_and_deregistered(agent: Agent, raw: Raw) -> None:
    code, service = raw.send("PUT", "/v1/services/indexer", {"ttl": "60s", "name": "Indexer"})
    assert (code, service["status"], service["source"]) == (201, INITIALIZING, "control")
    assert raw.send("PUT", "/v1/services/indexer/status", {"status": "up"}) == (204, None)
    assert agent.statuses()["indexer"] == UP
    code, replaced = raw.send("PUT", "/v1/services/indexer", {"ttl": "90s", "impact": "none"})
    assert (code, replaced["status"], replaced["name"]) == (200, UP, "indexer")
    assert replaced["revision"] > service["revision"]
    assert raw.send("GET", "/v1/services/indexer") == (200, replaced)
    assert raw.send("DELETE", "/v1/services/indexer") == (204, None)
    assert raw.send("DELETE", "/v1/services/indexer") == (204, None)
    assert raw.send("GET", "/v1/services/indexer")[0] == 404
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_a_registered_probe_is_checked(agent: Agent, raw: Raw) -> None:
    raw.send("PUT", "/v1/services/itself", {"probe": f"tcp://127.0.0.1:{agent.port}", "interval": "1s"})
    agent.wait_until(lambda: agent.statuses()["itself"] == UP)
    assert raw.send("PUT", "/v1/services/itself/status", {"status": "up"})[0] == 409
    raw.send("PUT", "/v1/services/itself", {"probe": "tcp://127.0.0.1:1", "fall": 1})
    agent.wait_until(lambda: agent.statuses()["itself"] == DOWN)


def test_services_of_the_file_cannot_be_changed_but_may_report(agent: Agent, raw: Raw) -> None:
    for service_id in ("fixed", "worker"):
        for method, body in (("PUT", {"ttl": "5s"}), ("DELETE", None)):
            code, error = raw.send(method, f"/v1/services/{service_id}", body)
            assert code == 409
            assert "configuration file" in error["message"]
    assert raw.send("PUT", "/v1/services/fixed/status", {"status": "down"})[0] == 409
    assert raw.send("PUT", "/v1/services/worker/status", {"status": "up", "reason": "synced"})[0] == 204
    assert agent.statuses() == {"fixed": UP, "worker": UP}
    assert not any("heartbeat" in line for line in agent.lines)


def test_issues_and_drain_make_the_node_unhealthy(agent: Agent, raw: Raw, tmp_path: Path) -> None:
    raw.send("PUT", "/v1/services/worker/status", {"status": "up"})
    assert agent.health() == 200
    assert raw.send("PUT", "/v1/issues/disk", {"reason": "full"})[0] == 201
    assert agent.health() == 503
    assert raw.send("GET", "/v1/issues")[1]["issues"][0]["name"] == "disk"
    assert raw.send("DELETE", "/v1/issues/disk")[0] == 204
    assert agent.health() == 200
    assert raw.send("PUT", "/v1/drain", {"reason": "upgrade"})[0] == 201
    assert agent.health() == 503
    code, node = raw.send("GET", "/v1")
    assert (code, node["draining"], node["health"]) == (200, True, 503)
    assert "upgrade" in agent.request("/details").json["node"]["health_reason"]
    assert "upgrade" in agent.request("/").body.decode()
    assert "upgrade" in svcnode(tmp_path, "explain", f"http://127.0.0.1:{agent.port}").stdout
    assert raw.send("DELETE", "/v1/drain")[0] == 204
    assert agent.health() == 200


BAD_REQUESTS = [
    ("PUT", "/v1/services/new", b"{", 400, ""),
    ("PUT", "/v1/services/new", b"\xff", 400, ""),
    ("PUT", "/v1/services/new", {}, 400, ""),
    ("PUT", "/v1/services/new", {"ttl": "5s", "probe": "tcp://127.0.0.1:1"}, 400, ""),
    ("PUT", "/v1/services/new", {"ttl": 5}, 400, "/ttl"),
    ("PUT", "/v1/services/new", {"ttl": "soon"}, 400, "/ttl"),
    ("PUT", "/v1/services/new", {"ttl": "367d"}, 400, "/ttl"),
    ("PUT", "/v1/services/new", {"probe": "heartbeat:367d"}, 400, "/probe"),
    ("PUT", "/v1/services/new", {"probe": {"url": "heartbeat:", "ttl": "367d"}}, 400, "/probe/ttl"),
    (
        "PUT",
        "/v1/services/new",
        {"probe": {"url": "heartbeat:", "period": "367d", "grace": "1s"}},
        400,
        "/probe/period",
    ),
    ("PUT", "/v1/services/new", {"probe": {"url": "heartbeat:", "period": "1s", "grace": "367d"}}, 400, "/probe/grace"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "name": "n" * 257}, 400, "/name"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "group": "g" * 257}, 400, "/group"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "description": "d" * 1001}, 400, "/description"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "rise": 2}, 400, "/rise"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "id": "fixed"}, 400, "/id"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "status": "Up"}, 400, "/status"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "impact": "huge"}, 400, "/impact"),
    ("PUT", "/v1/services/new", {"ttl": "5s", "nmae": "x"}, 400, "/nmae"),
    ("PUT", "/v1/services/new", {"probe": "nothing://127.0.0.1"}, 400, "/probe"),
    ("PUT", "/v1/services/new", {"probe": {"url": "http://127.0.0.1", "expcet": 200}}, 400, "/probe/expcet"),
    ("PUT", "/v1/services/new", {"probe": "tcp://127.0.0.1:1", "interval": "-1s"}, 400, "/interval"),
    ("PUT", "/v1/services/worker/status", {}, 400, "/status"),
    ("PUT", "/v1/services/worker/status", {"status": "Up"}, 400, "/status"),
    ("PUT", "/v1/services/worker/status", {"status": "up", "since": 5}, 400, "/since"),
    ("PUT", "/v1/services/new", b"[" * 60_000, 400, ""),
]


def test_bad_input_is_refused_with_a_pointer_to_the_field_and_changes_nothing(agent: Agent, raw: Raw) -> None:
    before = raw.send("GET", "/v1/services")
    for method, path, body, expected_code, pointer in BAD_REQUESTS:
        code, error = raw.send(method, path, body)
        assert (code, error.get("pointer")) == (expected_code, pointer), (path, body, error)
        assert error["message"]
    assert raw.send("GET", "/v1/services") == before
    assert raw.send("GET", "/v1")[1]["issues"] == []


def test_a_body_that_is_too_large_is_refused(agent: Agent, raw: Raw) -> None:
    assert raw.send("PUT", "/v1/services/new", b" " * (1024 * 1024 + 1))[0] == 413


def test_a_report_with_a_very_long_reason_is_accepted(agent: Agent, raw: Raw) -> None:
    raw.send("PUT", "/v1/services/long", b'{"ttl": "1m"}')
    reason = json.dumps({"status": "down", "reason": "x" * 1_000_000}).encode()
    assert raw.send("PUT", "/v1/services/long/status", reason)[0] == 204
    assert agent.statuses()["long"] == "Down"
    raw.send("DELETE", "/v1/services/long")


def test_a_change_with_if_match_needs_that_revision(agent: Agent, raw: Raw) -> None:
    revision = raw.send("PUT", "/v1/services/a", {"ttl": "5s"}, If_None_Match="*")[1]["revision"]
    assert raw.send("PUT", "/v1/services/a", {"ttl": "6s"}, If_None_Match="*")[0] == 412
    assert raw.send("PUT", "/v1/services/a", {"ttl": "6s"}, If_Match=f'"{revision}"')[0] == 200
    assert raw.send("DELETE", "/v1/services/a", If_Match=f'"{revision}"')[0] == 412
    assert raw.send("PUT", "/v1/services/a", {"ttl": "6s"}, If_Match="6")[0] == 400


# ---- what a probe may not read


LOCAL_PROBES: list[object] = [
    "exec:/bin/true",
    "EXEC:/bin/true",
    {"url": "exec:/bin/true"},
    "file:/etc/hostname",
    "sqlite:/var/lib/app.db",
    "disk:/",
    "redis://:${SECRET}@127.0.0.1",
    {"url": "http://127.0.0.1", "headers": {"Authorization": "Bearer ${SECRET}"}},
    {"url": "redis://127.0.0.1", "password": {"file": "/etc/hostname"}},
    {"url": "https://127.0.0.1", "ca": "/etc/hostname"},
    {"url": "https://127.0.0.1", "client_certificate": "/etc/hostname", "client_key": "/etc/hostname"},
    {"url": "nats://127.0.0.1", "credentials_file": "/etc/hostname"},
    "ipfs+http://${SECRET}/",
]


def test_a_probe_may_not_use_what_only_the_node_may_use(agent: Agent, raw: Raw) -> None:
    for probe in LOCAL_PROBES:
        code, error = raw.send("PUT", "/v1/services/new", {"probe": probe})
        assert code == 400, probe
        assert error["pointer"].startswith("/probe"), error
        assert "allow_exec" in error["message"], (probe, error)
    assert raw.send("GET", "/v1/services/new")[0] == 404


def test_allow_exec_allows_it_and_a_reload_takes_it_back(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2hunter2")
    probes: list[object] = [
        "exec:/bin/true",
        f"file:{tmp_path}/password",
        {"url": "redis://127.0.0.1:1", "password": {"file": f"{tmp_path}/password"}},
        "redis://:${PATH}@127.0.0.1:1",
    ]
    with (
        control_agent(tmp_path, "allow_exec = true") as agent,
        closing(Raw(tmp_path / "c.sock")) as raw,
    ):
        for number, probe in enumerate(probes):
            code, answer = raw.send("PUT", f"/v1/services/local-{number}", {"probe": probe})
            assert code == 201, answer
            assert "hunter2" not in json.dumps(answer)
        agent.wait_until(lambda: agent.statuses()["local-0"] == agent.statuses()["local-1"] == UP)
        agent.reload(config(tmp_path))
        agent.wait_until(lambda: agent.statuses()["local-0"] == agent.statuses()["local-1"] == DOWN)


# ---- the clients


def test_the_client_does_all_of_it(agent: Agent, tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/c.sock") as client:
        assert client.register("a/b", ttl="60s")["status"] == INITIALIZING
        revision = client.register("a/b", ttl="90s")["revision"]
        client.beat("a/b", "initializing", "replaying", code="x_replay")
        assert client.service("a/b")["reason"] == "replaying"
        client.beat("a/b")
        client.beat("worker")
        assert {service["id"]: service["status"] for service in client.services()} == agent.statuses()
        with pytest.raises(ControlError) as refused:
            client.deregister("a/b", revision=revision + 100)
        assert refused.value.status == 412
        with pytest.raises(ControlError) as refused:
            client.register("new", ttl="soon")
        assert (refused.value.status, refused.value.pointer) == (400, "/ttl")
        client.set_issue("disk", "full")
        client.drain("upgrade")
        assert client.node()["issues"] == ["disk: full"]
        assert client.node()["draining"]
        client.clear_issue("disk")
        client.undrain()
        assert client.node()["health"] == agent.health() == 200
        assert client.reload() == "no service changed"
        client.deregister("a/b", revision=revision)
        assert "a/b" not in agent.statuses()


class LimitError(BaseException):
    """As of a time limit that a signal handler raises."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the handler may raise between any two instructions
def test_a_client_agrees_with_the_node_after_calls_that_a_signal_has_ended(agent: Agent, tmp_path: Path) -> None:
    def raise_limit(*_: object) -> None:
        raise LimitError

    old, ended = signal.signal(signal.SIGALRM, raise_limit), 0
    try:
        with Client(tmp_path / "c.sock") as client:
            for number in range(80):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + number % 10))
                    client.beat("worker", "up", f"block {number}")
                except LimitError:
                    ended += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                with pytest.raises(ControlError):
                    client.beat("fixed")
                client.beat("worker", "down", f"error {number}")
                service = client.service("worker")
                assert (service["status"], service["reason"]) == ("Down", f"error {number}")
    finally:
        signal.signal(signal.SIGALRM, old)
    assert ended


def test_the_async_client_does_all_of_it(agent: Agent, tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncClient(tmp_path / "c.sock") as client:
            assert (await client.register("a/b", ttl="60s"))["status"] == INITIALIZING
            revision = (await client.register("a/b", ttl="90s"))["revision"]
            await client.beat("a/b", "initializing", "replaying", code="x_replay")
            assert (await client.service("a/b"))["reason"] == "replaying"
            await asyncio.gather(client.beat("a/b"), client.beat("worker"))
            assert {service["id"]: service["status"] for service in await client.services()} == agent.statuses()
            with pytest.raises(ControlError) as refused:
                await client.deregister("a/b", revision=revision + 100)
            assert refused.value.status == 412
            await client.set_issue("disk", "full")
            await client.drain()
            assert (await client.node())["issues"] == ["disk: full"]
            await client.clear_issue("disk")
            await client.undrain()
            assert (await client.node())["health"] == 200
            assert await client.reload() == "no service changed"
            await client.deregister("a/b", revision=revision)

    asyncio.run(use())
    assert "a/b" not in agent.statuses()


def test_a_client_continues_after_a_restart_of_the_node(tmp_path: Path) -> None:
    with control_agent(tmp_path) as agent, Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="60s")
        agent.signal(signal.SIGKILL)
        agent.wait_for_exit()
        with pytest.raises(ControlUnreachableError):
            client.beat("a")
        with control_agent(tmp_path) as again:
            client.beat("a")
            assert again.statuses()["a"] == UP


# ---- the commands


def test_the_commands_change_the_node(agent: Agent, tmp_path: Path) -> None:
    for arguments, text in (
        (["register", "a", "--ttl", "60s", "--name", "A"], "registered a: Initializing"),
        (["register", "b", "--probe", "tcp://127.0.0.1:1", "--set", "interval=5s", "--set", "fall=2"], "registered b"),
        (["beat", "a"], "a: up"),
        (["beat", "worker", "down", "--reason", "no peers"], "worker: down"),
        (["deregister", "b"], "deregistered b"),
        (["issue", "disk", "full"], "node health is 503"),
        (["issue", "disk", "--clear"], "cleared disk"),
        (["drain", "--reason", "upgrade"], "node health is 503"),
        (["drain", "--undo"], "not draining"),
        (["reload"], "reloaded: no service changed"),
    ):
        ended = svcnode(tmp_path, *arguments)
        assert (ended.returncode, ended.stderr) == (0, ""), arguments
        assert text in ended.stdout
    assert agent.statuses() == {"fixed": UP, "worker": DOWN, "a": UP}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["register", "fixed", "--ttl", "5s"], 1),
        (["register", "a", "--ttl", "soon"], 1),
        (["register", "a", "--ttl", "5s", "--set", "interval"], 2),
        (["register", "a"], 2),
        (["deregister", "fixed"], 1),
        (["deregister", "unknown"], 1),
        (["issue", "unknown", "--clear"], 1),
        (["drain", "--undo"], 1),
        (["maintain", "--end"], 1),
        (["maintain", "worker", "--end"], 1),
        (["maintain", "unknown", "--end"], 1),
        (["beat", "unknown"], 1),
        (["beat", "worker", "green"], 2),
        (["beat", "worker", "--socket", "/nowhere/c.sock"], 1),
        (["run", "--service", "a", "--ttl", "never", "--", "true"], 2),
    ],
)
def test_a_command_that_is_refused_says_why(agent: Agent, tmp_path: Path, arguments: list[str], code: int) -> None:
    ended = svcnode(tmp_path, *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_bad_news_is_not_refused_for_its_text(agent: Agent, tmp_path: Path) -> None:
    client = [sys.executable, "-W", "error", "-m", "svcnode"]
    for arguments in (
        ["beat", "worker", "down", "--code", "mine", "--reason"],
        ["issue", "disk"],
        ["drain", "--reason"],
    ):
        for reason in (b"\xff\n\x1b[2J", b"x" * 100_000):
            command = [*map(os.fsencode, client), *map(os.fsencode, arguments), reason]
            assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert (agent.statuses()["worker"], agent.health()) == (DOWN, 503)
    node = agent.request("/details").json["node"]
    assert node["health_reason"].isprintable()


def test_run_reports_the_life_of_a_command(agent: Agent, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "svcnode", "run", "--socket", str(tmp_path / "c.sock"), "--service", "job"]
    with subprocess.Popen([*command, "--ttl", "1s", "--", "sleep", "60"]) as process:
        agent.wait_until(lambda: agent.statuses().get("job") == UP)
        time.sleep(1.5)  # longer than the ttl
        assert agent.statuses()["job"] == UP
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    with Client(tmp_path / "c.sock") as client:
        assert (client.service("job")["status"], client.service("job")["reason"]) == (DOWN, "ended by SIGTERM")
        assert svcnode(tmp_path, "run", "--service", "job", "--", "sh", "-c", "exit 3").returncode == 3
        assert client.service("job")["reason"] == "ended with exit status 3"
        assert svcnode(tmp_path, "run", "--service", "job", "--", "/nowhere/command").returncode == 127
        assert client.service("job")["reason"] == "ended with exit status 127"
        assert svcnode(tmp_path, "run", "--service", "job", "--remove", "--", "true").returncode == 0
    assert "job" not in agent.statuses()


def test_run_reports_a_service_of_the_file_without_registering_it(agent: Agent, tmp_path: Path) -> None:
    ended = svcnode(tmp_path, "run", "--service", "worker", "--", "sh", "-c", "exit 3")
    assert (ended.returncode, ended.stderr) == (3, "")
    assert agent.statuses() == {"fixed": UP, "worker": DOWN}


def test_run_runs_the_command_although_the_node_refuses_its_service(agent: Agent, tmp_path: Path) -> None:
    ended = svcnode(tmp_path, "run", "--service", "fixed", "--", "sh", "-c", f"touch {tmp_path}/done; exit 3")
    assert (ended.returncode, (tmp_path / "done").exists()) == (3, True)
    assert "fixed status" in ended.stderr
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_run_sends_no_heartbeats_that_the_node_will_never_accept(agent: Agent, tmp_path: Path) -> None:
    command = ("--name", "n" * 257, "--", "sh", "-c", "sleep 1; exit 3")
    ended = svcnode(tmp_path, "run", "--service", "job", *command)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 3
    assert "256" in line
    assert "without heartbeats" in line
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_run_starts_the_command_while_the_node_is_away_and_reports_when_it_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "svcnode", "run", "--socket", str(tmp_path / "c.sock"), "--service", "job"]
    started, script = tmp_path / "started", 'touch "$0"; exec sleep 60'
    arguments = [*command, "--ttl", "1h", "--", "sh", "-c", script, str(started)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "no node listens there" in process.stderr.readline()
        wait_until(started.exists, "the command has started")
        with control_agent(tmp_path) as agent:
            agent.wait_until(lambda: agent.statuses().get("job") == UP)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
            with Client(tmp_path / "c.sock") as client:
                assert client.service("job")["reason"] == "ended by SIGTERM"


def test_run_without_any_node_exits_with_the_code_of_the_command(tmp_path: Path) -> None:
    socket = str(tmp_path / "c.sock")  # the default path is too long for a socket below the folder of this test
    ended = svcnode(tmp_path, "run", "--socket", socket, "--service", "job", "--", "sh", "-c", "exit 3")
    assert ended.returncode == 3
    assert "the end is not reported" in ended.stderr


def test_run_registers_the_service_again_if_it_was_deregistered(agent: Agent, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "svcnode", "run", "--socket", str(tmp_path / "c.sock"), "--service", "job"]
    with (
        subprocess.Popen([*command, "--ttl", "1s", "--", "sleep", "60"]) as process,
        Client(tmp_path / "c.sock") as client,
    ):
        agent.wait_until(lambda: agent.statuses().get("job") == UP)
        client.deregister("job")
        agent.wait_until(lambda: agent.statuses().get("job") == UP)
        process.terminate()


def test_a_killed_run_is_down_after_its_ttl(agent: Agent, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "svcnode", "run", "--socket", str(tmp_path / "c.sock"), "--service", "job"]
    with subprocess.Popen([*command, "--ttl", "1s", "--", "sleep", "3"]) as process:
        agent.wait_until(lambda: agent.statuses().get("job") == UP)
        process.kill()
    agent.wait_until(lambda: agent.statuses()["job"] == DOWN)


# ---- reloads


def test_a_reload_that_is_refused_is_an_error_with_all_causes(agent: Agent, raw: Raw, tmp_path: Path) -> None:
    services = '[[services]]\nid = "new"\nprobe = "nothing:x"\n[[services]]\nid = "newer"\n'
    agent.config_file.write_text(config(tmp_path, services=services))
    code, error = raw.send("PUT", "/v1/reload")
    assert code == 422
    assert "services.new.probe" in error["message"]
    assert ["services.newer" in other for other in error["others"]] == [True]
    agent.wait_until(lambda: len(agent.events("reload_failed")) == 2)
    assert [event["key"] for event in agent.events("reload_failed")] == ["services.new.probe", "services.newer"]
    with Client(tmp_path / "c.sock") as client, pytest.raises(ControlError):
        client.reload()
    ended = svcnode(tmp_path, "reload", "--socket", str(tmp_path / "c.sock"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == ["services.new.probe", "services.newer"]
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_a_service_of_the_file_takes_the_place_of_a_registered_one_until_it_is_removed(
    agent: Agent, raw: Raw, tmp_path: Path
) -> None:
    raw.send("PUT", "/v1/services/job", {"ttl": "60s", "name": "of the socket"})
    raw.send("PUT", "/v1/services/job/status", {"status": "down"})
    agent.config_file.write_text(config(tmp_path, services='[[services]]\nid = "job"\nstatus = "Up"\n'))
    assert raw.send("PUT", "/v1/reload")[0] == 200
    assert agent.statuses() == {"job": UP}
    assert raw.send("DELETE", "/v1/services/job")[0] == 409
    agent.config_file.write_text(config(tmp_path))
    assert raw.send("PUT", "/v1/reload")[0] == 200
    assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING, "job": DOWN}


def test_a_reload_changes_nothing_of_registered_services(agent: Agent, raw: Raw) -> None:
    raw.send("PUT", "/v1/services/job", {"ttl": "60s"})
    raw.send("PUT", "/v1/services/job/status", {"status": "up"})
    raw.send("PUT", "/v1/issues/disk")
    before = raw.send("GET", "/v1/services")
    agent.wait_for_event("node_health", node_health=503)
    health_changes = len(agent.events("node_health"))
    for _ in range(3):
        assert raw.send("PUT", "/v1/reload")[0] == 200
    assert raw.send("GET", "/v1/services") == before
    agent.wait_for_event("reloaded", times=3)
    assert len(agent.events("node_health")) == health_changes
    assert agent.health() == 503


def test_a_client_that_disconnects_does_not_end_a_reload(agent: Agent, tmp_path: Path) -> None:
    services = "".join(f'[[services]]\nid = "new-{n}"\nprobe = "tcp://127.0.0.1:1"\n' for n in range(500))
    agent.config_file.write_text(config(tmp_path, services=services))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "c.sock"))
        sock.sendall(b"PUT /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        time.sleep(0.02)
    agent.wait_for_log("reloaded")
    assert len(agent.statuses()) == 500


def test_a_reload_moves_the_socket_only_if_the_new_one_can_be_bound(agent: Agent, tmp_path: Path) -> None:
    def moved(path: str) -> str:
        return config(tmp_path).replace(f"{tmp_path}/c.sock", path)

    agent.reload(moved("/proc/nowhere/c.sock"))
    agent.wait_for_log("reload failed, .*control socket")
    with Client(tmp_path / "c.sock") as client:
        assert client.node()["services"] == 2
    agent.reload(moved(f"{tmp_path}/d.sock"))
    with Client(tmp_path / "d.sock") as client:
        assert client.node()["services"] == 2
    assert not (tmp_path / "c.sock").exists()


def test_what_needs_a_restart_is_refused(agent: Agent, raw: Raw, tmp_path: Path) -> None:
    raw.send("PUT", "/v1/services/job", {"ttl": "60s"})
    for text in (
        config(tmp_path).replace("c.db", "d.db"),
        config(tmp_path, "enabled = false"),
        config(tmp_path, f'group = "{grp.getgrgid(os.getgid()).gr_name}"'),
    ):
        agent.config_file.write_text(text)
        code, error = raw.send("PUT", "/v1/reload")
        assert code == 422
        assert "restart" in error["message"]
    assert "job" in agent.statuses()


# ---- the end and the next start


def test_the_socket_file_is_removed_at_the_end_and_what_is_stored_stays(tmp_path: Path) -> None:
    with control_agent(tmp_path) as agent, Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="60s")
        client.beat("a")
        client.beat("worker")
        client.set_issue("disk")
        assert agent.stop() == 0
        assert not (tmp_path / "c.sock").exists()
    with control_agent(tmp_path) as agent, Client(tmp_path / "c.sock") as client:
        assert agent.statuses() == {"fixed": UP, "worker": UP, "a": UP}
        assert client.node()["issues"] == ["disk"]


def test_the_socket_file_of_a_killed_node_is_replaced(tmp_path: Path) -> None:
    with control_agent(tmp_path):
        pass  # killed
    assert (tmp_path / "c.sock").exists()
    with control_agent(tmp_path), Client(tmp_path / "c.sock") as client:
        assert client.node()["services"] == 2


def test_a_beat_does_not_outlive_its_ttl_by_a_restart(tmp_path: Path) -> None:
    with control_agent(tmp_path), Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="1s")
        client.beat("a")
    time.sleep(1)
    with control_agent(tmp_path) as agent:
        assert agent.statuses()["a"] == DOWN


def test_undrain_does_not_make_a_stopping_node_healthy(tmp_path: Path) -> None:
    text = config(tmp_path, services='[[services]]\nid = "a"\nstatus = "Up"\n').replace('"0s"', '"30s"')
    with Agent(tmp_path, config=text) as agent:
        agent.wait_for_log("control socket: ")
        agent.wait_until(lambda: agent.health() == 200)
        agent.signal(signal.SIGTERM)
        agent.wait_for_log("draining for")
        with Client(tmp_path / "c.sock") as client:
            client.drain()
            client.undrain()
            assert client.node()["health"] == agent.health() == 503


def test_a_second_node_with_the_same_files_does_not_start(agent: Agent, tmp_path: Path) -> None:
    with Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="60s")
        with Agent(tmp_path, config=config(tmp_path)) as second:
            assert second.wait_for_exit() == 1
            assert any("cannot listen on the control socket" in line for line in second.lines)
        client.beat("a")
        assert agent.statuses()["a"] == UP


def test_a_second_node_with_the_same_store_is_unhealthy_until_it_can_read_it(agent: Agent, tmp_path: Path) -> None:
    with Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="60s")
    text = config(tmp_path).replace("c.sock", "d.sock")
    with Agent(tmp_path, config=text) as second, Client(tmp_path / "d.sock") as client:
        second.wait_for_log("control socket: ")
        assert second.health() == 503
        with pytest.raises(ControlError, match="another process uses it") as refused:
            client.register("b", ttl="60s")
        assert refused.value.status == 503
        assert agent.stop() == 0
        client.register("b", ttl="60s")
        assert list(second.statuses()) == ["fixed", "worker", "a", "b"]
        assert client.node()["issues"] == []


def test_without_a_free_path_for_the_default_socket_the_node_serves_what_is_stored(tmp_path: Path) -> None:
    environ = {"STATE_DIRECTORY": str(tmp_path / "s")}
    text = '[node]\nname = "n"\n[server]\nlisten = "127.0.0.1:0"\n[[services]]\nid = "fixed"\nstatus = "Up"\n'
    folder = tmp_path / "s" / "nodes" / "n"
    with Agent(tmp_path, config=text, environ=environ) as agent:
        agent.wait_for_log("control socket: ")
        with Client(folder / "control.sock") as client:
            client.register("a", ttl="1h")
    (folder / "control.sock").unlink()
    (folder / "control.sock").mkdir()
    with Agent(tmp_path, config=text, environ=environ) as agent:
        agent.wait_for_log("the node cannot be controlled")
        agent.wait_for_log("started: node")
        assert agent.statuses() == {"fixed": UP, "a": INITIALIZING}


def test_a_full_disk_refuses_changes_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    with MemoryDisk(tmp_path / "disk") as disk:
        text = config(tmp_path).replace(f"{tmp_path}/c.db", f"{disk.path}/c.db")
        with Agent(tmp_path, config=text) as agent, Client(tmp_path / "c.sock") as client:
            agent.wait_for_log("control socket: ")
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
            agent.signal(signal.SIGKILL)
            agent.wait_for_exit()
        with Agent(tmp_path, config=text) as agent:
            agent.wait_for_log("control socket: ")
            assert list(agent.statuses()) == [*listed, "b"]


def test_a_store_in_a_folder_that_cannot_be_written_refuses_changes(tmp_path: Path) -> None:
    text = config(tmp_path).replace(f"{tmp_path}/c.db", "/proc/nowhere/c.db")
    with Agent(tmp_path, config=text) as agent, Client(tmp_path / "c.sock") as client:
        agent.wait_for_log("control socket: ")
        with pytest.raises(ControlError) as refused:
            client.register("a", ttl="60s")
        assert refused.value.status == 503
        assert agent.statuses() == {"fixed": UP, "worker": INITIALIZING}


def test_a_damaged_store_makes_the_node_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"not a database" * 500)
    with control_agent(tmp_path, services='[[services]]\nid = "a"\nstatus = "Up"\n') as agent:
        assert agent.health() == 503


def test_a_store_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    with control_agent(tmp_path), Client(tmp_path / "c.sock") as client:
        client.register("a", ttl="60s")
    with closing(sqlite3.connect(tmp_path / "c.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with control_agent(tmp_path) as agent, Client(tmp_path / "c.sock") as client:
        assert agent.health() == 503
        with pytest.raises(ControlError, match="newer version"):
            client.register("b", ttl="60s")


# ---- who may connect

OTHER_UID, OTHER_GID = 65_500, 65_500
# Connects as another user, and prints the status of the response, or the error.
CONNECT = """
import os, socket, sys
path, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups]); os.setgid(int(gid)); os.setuid(int(uid))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(30)
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
        [sys.executable, "-c", CONNECT, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return ended.stdout.strip()


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user can enter."""
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if folder.stat().st_uid == os.getuid() and folder.name != "tmp":
            folder.chmod(0o755)
    return tmp_path


@NEEDS_ROOT
def test_another_user_cannot_connect(open_folder: Path) -> None:
    path = open_folder / "c.sock"
    with control_agent(open_folder):
        assert path.stat().st_mode & 0o777 == 0o600
        assert connect_as(path, OTHER_UID, OTHER_GID) == "PermissionError"
        path.chmod(0o666)
        assert connect_as(path, OTHER_UID, OTHER_GID) in {"closed", "ConnectionResetError", "BrokenPipeError"}
        assert connect_as(path, OTHER_UID, 0, 0) in {"closed", "ConnectionResetError", "BrokenPipeError"}
        assert connect_as(path, 0, 0) == "200"


@NEEDS_ROOT
@pytest.mark.parametrize("umask", ["022", "077"])
def test_with_a_group_its_members_can_connect(open_folder: Path, umask: str) -> None:
    path = open_folder / "c.sock"
    group = next(group for group in grp.getgrall() if group.gr_gid not in (0, OTHER_GID))
    text = config(open_folder, f'group = "{group.gr_name}"')
    prefix = ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh"]
    with Agent(open_folder, config=text, prefix=prefix) as agent:
        agent.wait_for_log("control socket: ")
        assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, group.gr_gid)
        assert connect_as(path, OTHER_UID, group.gr_gid) == "200"
        assert connect_as(path, OTHER_UID, OTHER_GID, group.gr_gid) == "200"
        assert connect_as(path, OTHER_UID, OTHER_GID, *range(70_000, 70_200), group.gr_gid) == "200"
        assert connect_as(path, OTHER_UID, OTHER_GID) == "PermissionError"
        path.chmod(0o666)
        assert connect_as(path, OTHER_UID, OTHER_GID, OTHER_GID) in {
            "closed",
            "ConnectionResetError",
            "BrokenPipeError",
        }


# ---- maintenance


def test_commands_and_clients_maintain_and_end_it(agent: Agent, tmp_path: Path) -> None:
    assert svcnode(tmp_path, "maintain", "worker", "--for", "abc").returncode == 2
    done = svcnode(tmp_path, "maintain", "worker", "--for", "2h", "--by", "alice", "--reason", "new disk")
    assert done.returncode == 0
    assert done.stdout.startswith("worker is in maintenance until 20")
    details = agent.request("/details/worker").json["maintenance"]
    assert (details["by"], details["reason"], details["source"]) == ("alice", "new disk", "control")
    assert 'svcnode_service_maintenance{service_id="worker"} 1.0' in agent.request("/metrics").body.decode()
    explained = svcnode(tmp_path, "explain", f"http://127.0.0.1:{agent.port}", "--service", "worker").stdout
    assert "UTC, by alice: new disk.\n  Checks go on." in explained
    assert "Maintenance</span>" in agent.request("/").body.decode()
    ended = svcnode(tmp_path, "maintain", "worker", "--end")
    assert ended.stdout == "worker is not in maintenance\n"
    transitions = agent.request("/history?id=worker&transitions=10").json["transitions"]["worker"]
    assert [one["kind"] for one in transitions][:2] == ["maintenance_ended", "maintenance"]
    assert "by alice: new disk" in transitions[1]["reason"]

    async def maintain_node() -> None:
        async with AsyncClient(tmp_path / "c.sock") as client:
            await client.maintain(None, "1h", reason="kernel update")
            assert (await client.service("worker"))["maintenance"]["reason"] == "kernel update"
            shorter = svcnode(tmp_path, "maintain", "worker", "--for", "1m").stdout
            longer = svcnode(tmp_path, "maintain", "worker", "--for", "2h").stdout
            assert ["with the node" in text for text in (shorter, longer)] == [True, False]
            assert svcnode(tmp_path, "maintain", "worker", "--end").stdout.startswith(
                "worker is still in maintenance with the node, until 20"
            )
            agent.wait_until(lambda: "The node is in maintenance: until " in agent.request("/").body.decode())
            await client.end_maintenance()
            assert (await client.node())["maintenance"] is None

    asyncio.run(maintain_node())


def test_a_schedule_of_the_file_applies_after_a_reload(agent: Agent, tmp_path: Path) -> None:
    schedule = '[[maintenance]]\nservices = ["worker"]\nstart = "{}"\nduration = "23h"\nreason = "backup"\n'
    started = time.strftime("%H:%M", time.gmtime(time.time() - 3600))
    agent.reload(config(tmp_path) + schedule.format(started))
    agent.wait_for_log("service worker is in maintenance until .*: backup")
    assert "by the schedule" in svcnode(tmp_path, "maintain", "worker", "--for", "1m").stdout
    assert svcnode(tmp_path, "maintain", "worker", "--end").stdout.startswith(
        "worker is still in maintenance by the schedule, until 20"
    )
    again = svcnode(tmp_path, "maintain", "worker", "--end")
    assert (again.returncode, again.stdout) == (1, "")
    assert "by the schedule" in again.stderr
    agent.reload(config(tmp_path))
    agent.wait_for_log("maintenance of service worker has ended")
