"""The demo: its servers, looked at by real probes, and the whole of it in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from svcnode.core.model import Outcome
from svcnode.demo.scenario import INITIAL_MODES, LOOP_STEPS, STARTUP_STEPS, FaultMode
from svcnode.demo.servers import MAX_REQUEST_BYTES, DemoServer
from svcnode.demo.services import SERVICES, DemoService
from svcnode.probes import make_probe
from tests.support.http_server import LOOPS, becomes_true
from tests.support.processes import is_listening, run_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from svcnode.core.model import Verdict

SERVICES = {role.id: role for role in SERVICES}
SPEED = 8
DEADLINE_S = 40.0
LISTENING = "0A"


# ---- the servers


def run(loop_name: str, story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(story)


@asynccontextmanager
async def running_demo(role: DemoService, mood: FaultMode) -> AsyncIterator[DemoServer]:
    server = role.server_class()
    try:
        await server.set_mode(mood)
        yield server
    finally:
        server.close()
        await asyncio.sleep(0.01)  # uvloop closes in turns of its own


async def observe(role: DemoService, server: DemoServer) -> Verdict:
    return await asyncio.wait_for(make_probe(role.config_table(server.port, 1.0)["probe"]).check(), 0.5)


FAULT_MODES = sorted(
    {(name, mood) for name, mood in INITIAL_MODES.items()}
    | {(act.server, act.mode) for act in (*STARTUP_STEPS, *LOOP_STEPS)},
    key=str,
)
OBSERVED = {
    FaultMode.NONE: Outcome.READY,
    FaultMode.SLOW: Outcome.READY,
    FaultMode.NOT_READY: Outcome.NOT_READY,
    FaultMode.STOPPED: Outcome.FAILED,
}
REASONS = {
    ("chain", FaultMode.NOT_READY): r"syncing, at block \d+ of \d+: ",
    ("indexer", FaultMode.NOT_READY): "answered 200, and says that it is starting: ",
    ("storage", FaultMode.NOT_READY): "0 peers, min_peers is 3: ",
}


@pytest.mark.parametrize(("name", "mood"), FAULT_MODES, ids=lambda value: getattr(value, "name", value))
def test_a_real_probe_sees_each_server_as_the_script_has_it(name: str, mood: FaultMode, loop_name: str) -> None:
    async def story() -> None:
        role = SERVICES[name]
        async with running_demo(role, mood) as server:
            began_s = time.monotonic()
            if mood is FaultMode.UNRESPONSIVE:
                with pytest.raises(TimeoutError):
                    await observe(role, server)
                return
            verdict = await observe(role, server)
            assert verdict.outcome is OBSERVED[mood], verdict
            if mood is FaultMode.STOPPED:
                assert verdict.reason.startswith("connection refused: ")
            assert re.match(REASONS.get((name, mood), ""), verdict.reason)
            assert mood is not FaultMode.SLOW or time.monotonic() - began_s >= 0.3

    run(loop_name, story())


def test_a_server_comes_and_goes_in_one_place(loop_name: str) -> None:
    async def story() -> None:
        role = SERVICES["indexer"]
        async with running_demo(role, FaultMode.NONE) as server:
            for mood in (FaultMode.STOPPED, FaultMode.NOT_READY, FaultMode.STOPPED, FaultMode.NONE, FaultMode.STOPPED):
                await server.set_mode(mood)
                await asyncio.sleep(0.01)
                assert (await observe(role, server)).outcome is OBSERVED[mood]

    run(loop_name, story())


def test_while_a_server_is_gone_nobody_else_gets_its_port(loop_name: str) -> None:
    async def story() -> None:
        async with running_demo(SERVICES["indexer"], FaultMode.STOPPED) as server:
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", server.port))

    run(loop_name, story())


def test_connections_that_are_open_when_a_server_goes_are_cut(loop_name: str) -> None:
    async def story() -> None:
        async with running_demo(SERVICES["indexer"], FaultMode.UNRESPONSIVE) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /status HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.05)
            await server.set_mode(FaultMode.STOPPED)
            assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()

    run(loop_name, story())


@pytest.mark.parametrize("name", list(SERVICES))
@pytest.mark.parametrize(
    "nonsense",
    [b"\r\n\r\n", b"x y z w\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"x" * (MAX_REQUEST_BYTES + 2)],
    ids=["empty", "words", "no text", "too long"],
)
def test_nonsense_does_not_disturb_a_server(name: str, nonsense: bytes, loop_name: str) -> None:
    async def story() -> None:
        async with running_demo(SERVICES[name], FaultMode.NONE) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(nonsense)
            await asyncio.sleep(0.02)
            assert (await observe(SERVICES[name], server)).outcome is Outcome.READY
            writer.close()

    run(loop_name, story())


# ---- the whole


class Demo:
    """`svcnode demo` for as long as its `with` block runs; what it says on either stream is in `lines`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcnode", "demo", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(self._temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for_log(self, pattern: str, within_s: float = DEADLINE_S) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def is_said() -> bool:
            found.extend(match for line in tuple(self.lines) if (match := re.search(pattern, line)))
            return bool(found)

        assert becomes_true(is_said, within_s), "\n".join(self.lines)
        return found[0]

    @property
    def port(self) -> int:
        return int(self.wait_for_log(r"Open  http://.*?:(\d+)/")[1])

    def request(self, path: str) -> tuple[int, bytes]:
        self.wait_for_log("the operator page is at")  # until then, it may be on its way there
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        code, body = answer.status, answer.read()
        connection.close()
        return code, body

    def ports(self) -> set[int]:
        """All on which it listens, as the kernel has it."""
        files = map(_target, Path(f"/proc/{self.process.pid}/fd").iterdir())
        sockets = {file.removeprefix("socket:[").removesuffix("]") for file in files}
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == LISTENING and row[9] in sockets}

    def wait_for_exit(self, within_s: float) -> int:
        code = self.process.wait(within_s)
        self._listener.join()
        return code

    def left_behind(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path != self._temporary]


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # closed meanwhile
        return ""


def test_every_status_comes_and_goes_and_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0", "--speed", str(SPEED)) as demo:
        demo.wait_for_log("started: node demo, services: 5")
        seen: dict[str, list[str]] = {name: [] for name in SERVICES}
        healths: list[int] = []

        def has_shown_all() -> bool:
            code, _ = demo.request("/svc/node/health")
            _, body = demo.request("/svc/node/services")
            _note(healths, code)
            for service in json.loads(body)["services"]:
                _note(seen[service["id"]], service["status"])
            return (
                {*healths} == {200, 206, 503}
                and healths[-1] == 200
                and all(
                    _shows(seen[name], "Initializing", "Up", "Down", "Initializing", "Up")
                    for name in ("chain", "indexer")
                )
                and all(_shows(seen[name], "Up", "Initializing", "Up") for name in ("storage", "cache"))
                and _shows(seen["peer"], "Up", "Down", "Up")
            )

        assert becomes_true(has_shown_all, DEADLINE_S), (seen, healths, demo.lines)
        for act in (*STARTUP_STEPS, *LOOP_STEPS):
            assert re.search(rf"^\d\d:\d\d:\d\d script  {re.escape(act.text)}$", "\n".join(demo.lines), re.MULTILINE)
        used = demo.ports()
        assert len(used) >= 5, "the node and its servers, of which the next may just have gone"
        began_s = time.monotonic()
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait_for_exit(5.0) == 0
        assert time.monotonic() - began_s < 2.0
    assert not any(map(is_listening, used))
    assert demo.left_behind() == []
    assert not any("Traceback" in line or "error" in line for line in demo.lines)


def _note(seen: list[Any], value: object) -> None:
    if not seen or seen[-1] != value:
        seen.append(value)


def _shows(seen: list[str], *wanted: str) -> bool:
    """Whether these came one after the other, whatever was between them."""
    left = iter(seen)
    return all(status in left for status in wanted)


def test_what_it_says_to_try_works(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0", "--speed", "2") as demo:
        code, page = demo.request("/")
        assert code == 200
        assert b"<html" in page
        demo.wait_for_log("service cache is Up")
        assert demo.request("/svc/node/health")[0] in (200, 206)
        (explain,) = (line.split() for line in tuple(demo.lines) if "svcnode explain" in line)
        ended = run_command([sys.executable, "-m", *explain], tmp_path)
        assert ended.returncode in (0, 1, 2), ended.stderr
        assert "indexer" in ended.stdout.lower()


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Demo(tmp_path, "--listen", f"127.0.0.1:{port}") as demo:
            assert demo.wait_for_exit(DEADLINE_S) == 1
            (line,) = demo.lines
            assert f"cannot listen on http://127.0.0.1:{port}: something listens there already" in line


def test_beyond_loopback_it_makes_up_a_token_and_says_it(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "0.0.0.0:0") as demo:
        token = demo.wait_for_log(r"the password is ([0-9a-f]{32})\)")[1]
        demo.wait_for_log("started: node demo")
        assert demo.request("/")[0] == 401
        connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=DEADLINE_S)
        connection.request("GET", "/details", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200
        connection.close()
        assert demo.request("/svc/node/health")[0] in (200, 206)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["told to end", "terminal closed"])
def test_it_ends_with_whoever_started_it(tmp_path: Path, number: signal.Signals) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0") as demo:
        demo.wait_for_log("started: node demo")
        demo.process.send_signal(number)
        assert demo.wait_for_exit(5.0) == 0
        assert demo.left_behind() == []


def test_it_ends_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "svcnode", "demo", "--listen", "127.0.0.1:0", "--speed", "20"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_S) in (0, 1)


def test_what_can_no_longer_be_written_ends_it_and_is_told_in_one_line(tmp_path: Path) -> None:
    # Room for the introduction, and for a few lines of the script.
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); "
        "from svcnode.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with (tmp_path / "said").open("wb") as said:
        ended = subprocess.run(
            [sys.executable, "-B", "-c", script, "demo", "--listen", "127.0.0.1:0", "--speed", "20"],
            stdout=said,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr.endswith("\nsvcnode: cannot write what was seen: file too large\n")
    assert "Traceback" not in ended.stderr
    assert b" script " in (tmp_path / "said").read_bytes()
