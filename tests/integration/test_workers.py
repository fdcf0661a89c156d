"""Several workers of one program give the same answers, under real servers and with a real backing service."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import svcnode
from tests.support.backends import HttpBackend, http_response
from tests.support.servers.base import RealServer, wait_until
from tests.support.servers.provision import python_environment
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = pytest.mark.wide  # the rules are in tests/unit/test_workers.py

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "frameworks.txt"
SOURCE = Path(svcnode.__file__).parents[1]
MODULE = "tests.support.worker_app"
WORKERS = 3
STALE_AFTER_S = 2.5  # of the app
AGREE_WITHIN_S = 0.3  # a worker may answer while it writes
REQUEST_TIMEOUT_S = 1.0
CLIENTS = 4  # per server: a server gives a connection to a worker that is idle

_GUNICORN = ("gunicorn", "--workers", str(WORKERS), "--bind", "127.0.0.1:{port}", "--no-control-socket")
COMMANDS: dict[str, Sequence[str]] = {
    "gunicorn-sync": (*_GUNICORN, f"{MODULE}:wsgi_app"),
    "gunicorn-uvicorn": (*_GUNICORN, "-k", "uvicorn_worker.UvicornWorker", f"{MODULE}:asgi_app"),
    "uvicorn": ("uvicorn", "--workers", str(WORKERS), "--port", "{port}", f"{MODULE}:asgi_app"),
}


class Answer(NamedTuple):
    started_s: float
    ended_s: float
    code: int
    pid: int
    runs_checks: bool


class WorkerServer(RealServer):
    """A server with workers, and clients that ask it for its health all the time."""

    def __init__(self, folder: Path, command: Sequence[str], backend: int, environ: Mapping[str, str] | None = None):
        super().__init__(folder)
        self._command = command
        self._environ = {"BACKEND": str(backend), "WORKERS": str(folder / "workers"), **(environ or {})}
        self.answers: list[Answer] = []
        self._is_asking = True

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        name, *options = (part.format(port=self.port) for part in self._command)
        return [str(python_environment(PINS) / "bin" / name), *options]

    def environ(self) -> Mapping[str, str]:
        return {"PYTHONPATH": f"{SOURCE}:{ROOT}", "PYTHONUNBUFFERED": "1", **self._environ}

    def is_ready(self) -> bool:
        return self.ask("/svc/node").code == 200

    def ask(self, path: str = "/svc/node/health") -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_TIMEOUT_S)
        started_s = time.monotonic()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
        except http.client.HTTPException as exc:
            raise ConnectionError(str(exc)) from exc
        finally:
            connection.close()
        pid, runs_checks = response.headers["X-Pid"], response.headers["X-Checks"] == "True"
        return Answer(started_s, time.monotonic(), response.status, int(pid), runs_checks)

    @contextmanager
    def asked_all_the_time(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask_until_stopped) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_asking = False
            for thread in threads:
                thread.join()

    def _ask_until_stopped(self) -> None:
        while self._is_asking:
            with suppress(OSError):  # a worker that was killed or stopped
                self.answers.append(self.ask())
            time.sleep(0.01)

    def since(self, at_s: float) -> list[Answer]:
        return [answer for answer in self.answers if answer.started_s >= at_s]

    def wait_for_all_workers(self, code: int, *, workers: int = WORKERS) -> None:
        """Wait until all workers gave this answer, and no other one since the first of them."""

        def is_unanimous() -> bool:
            recent = self.since(time.monotonic() - 1.0)
            first_s = min((answer.ended_s for answer in recent if answer.code == code), default=None)
            later = [] if first_s is None else [one for one in recent if one.started_s >= first_s + AGREE_WITHIN_S]
            return len({one.pid for one in later}) == workers and {one.code for one in later} == {code}

        wait_until(is_unanimous, f"{workers} workers answer {code}", 60)

    def elected(self) -> int:
        """The process id of the worker that runs the checks."""
        found: set[int] = set()

        def is_found() -> bool:
            recent = self.since(time.monotonic() - 0.5)
            found.update({one.pid for one in recent if one.runs_checks})
            return len({one.pid for one in recent}) == WORKERS and bool(found)

        wait_until(is_found, "a worker runs the checks", 60)
        assert len(found) == 1
        return found.pop()


class Running:
    """A backing service and the servers whose workers check it. All are asked at once: a step is mostly a wait."""

    def __init__(self, backend: RedisServer, servers: Mapping[str, WorkerServer]) -> None:
        self.backend = backend
        self.servers = servers

    def wait_for_all(self, code: int, *, workers: int = WORKERS) -> None:
        for server in self.servers.values():
            server.wait_for_all_workers(code, workers=workers)

    def signal_elected(self, number: int) -> dict[str, int]:
        elected = {name: server.elected() for name, server in self.servers.items()}
        for pid in elected.values():
            os.kill(pid, number)
        return elected


@pytest.fixture(scope="module")
def module_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        backend = stack.enter_context(RedisServer(folder / "redis"))
        servers = {name: WorkerServer(folder / name, command, backend.port) for name, command in COMMANDS.items()}
        for server in servers.values():
            stack.callback(server.kill)
            server.start()
        for server in servers.values():
            server.wait_until_ready()
            stack.enter_context(server.asked_all_the_time())
        yield Running(backend, servers)


@pytest.fixture
def running(module_running: Running) -> Running:
    module_running.wait_for_all(200)
    return module_running


def test_all_workers_agree_while_the_backing_service_fails_and_recovers(running: Running) -> None:
    killed_s = time.monotonic()
    running.backend.kill()
    running.wait_for_all(503)
    restarted_s = time.monotonic()
    running.backend.start()
    running.wait_for_all(200)
    for name, server in running.servers.items():
        down = [one for one in server.answers if killed_s <= one.started_s and one.ended_s < restarted_s]
        first_down_s = min(one.ended_s for one in down if one.code == 503)
        assert {one.code for one in down if one.started_s > first_down_s + AGREE_WITHIN_S} == {503}, name


def test_no_worker_answers_200_past_the_evidence_of_a_stopped_one(running: Running) -> None:
    """It keeps the lock, so no other worker checks, and the evidence expires in each of them."""
    elected = running.signal_elected(signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        running.wait_for_all(206, workers=WORKERS - 1)
        continued_s = time.monotonic()
    finally:
        for pid in elected.values():
            os.kill(pid, signal.SIGCONT)
    for name, server in running.servers.items():
        late = [one for one in server.since(stopped_s + STALE_AFTER_S) if one.ended_s < continued_s]
        assert {one.code for one in late} == {206}, name
    running.wait_for_all(200)


def test_another_worker_checks_before_the_evidence_of_a_killed_one_expires(running: Running) -> None:
    """The server starts a new worker, which has the states of the others at its first answer."""
    elected = running.signal_elected(signal.SIGKILL)
    killed_s = time.monotonic()
    time.sleep(STALE_AFTER_S)
    running.wait_for_all(200)
    for name, server in running.servers.items():
        assert {one.code for one in server.since(killed_s)} == {200}, name
        assert server.elected() != elected[name], name


# ---- messages


class Receiver(HttpBackend):
    def __init__(self) -> None:
        super().__init__(http_response(204))

    @property
    def changes(self) -> list[tuple[str, str]]:
        documents = [json.loads(request.body) for request in self.requests]
        return [(one["id"], one["change"]) for document in documents for one in document["services"]]


@contextmanager
def notifying_workers(
    folder: Path, backend: int, command: str, *, has_history: bool
) -> Iterator[tuple[WorkerServer, Receiver]]:
    history = {"HISTORY": str(folder / "history.db")} if has_history else {}
    with Receiver() as receiver:
        environ = {"WEBHOOK": f"http://127.0.0.1:{receiver.port}/", "GROUP_WAIT": "100ms", **history}
        server = WorkerServer(folder / "server", COMMANDS[command], backend, environ)
        with server, server.asked_all_the_time():
            server.wait_for_all_workers(200)
            yield server, receiver


def is_confirmed(server: WorkerServer, folder: Path, *, has_history: bool) -> bool:
    """Whether the next elected worker knows that the message was received."""
    path = folder / "history.db" if has_history else server.folder / "workers" / "states.db"
    where = "WHERE name = 'notify'" if has_history else ""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        (text,) = database.execute(f"SELECT text FROM saved_state {where}").fetchone()
    (target,) = json.loads(text)["targets"]
    return {"db": 503}.items() <= {row["name"]: row["told"] for row in target["told"]}.items()


@pytest.mark.parametrize(("command", "has_history"), [("gunicorn-sync", False), ("gunicorn-uvicorn", True)])
def test_an_outage_is_one_message_also_if_the_worker_that_sent_it_is_killed(
    tmp_path: Path, command: str, has_history: bool
) -> None:
    with (
        RedisServer(tmp_path / "redis") as backend,
        notifying_workers(tmp_path, backend.port, command, has_history=has_history) as (server, receiver),
    ):
        backend.kill()
        wait_until(lambda: bool(receiver.changes), "a message", 60)
        wait_until(lambda: is_confirmed(server, tmp_path, has_history=has_history), "the saved state", 60)
        elected = server.elected()
        os.kill(elected, signal.SIGKILL)
        wait_until(lambda: elected not in {one.pid for one in server.since(time.monotonic() - 1.0)}, "its end", 60)
        assert server.elected() != elected
        server.wait_for_all_workers(503)
        assert receiver.changes == [("db", "worse")]
        backend.start()
        wait_until(lambda: len(receiver.changes) > 1, "the end of the outage is a message", 60)
        server.wait_for_all_workers(200)
        assert receiver.changes == [("db", "worse"), ("db", "recovered")]
