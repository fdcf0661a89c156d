"""The examples as a reader runs them: each in its own process, under its real server."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 60.0
CONSECUTIVE = 4  # equal responses, because a server with two workers has two nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    file: str
    command: tuple[str, ...]  # the arguments of `python`
    slash_id: str  # the service id with a slash
    prefixes: tuple[str, ...] = ("/svc",)
    own_paths: tuple[str, ...] = ()  # routes of the application
    has_own_404: bool = False
    workers: int = 1

    def __str__(self) -> str:
        return "-".join((self.file.removesuffix(".py"), *self.command[1:2]))


def _uvicorn(app: str) -> tuple[str, ...]:
    return ("-m", "uvicorn", "--app-dir", ".", "--port", "{port}", app)


def _gunicorn(app: str, *, config: str | None = None) -> tuple[str, ...]:
    options = ("--preload", "--workers", "2") if config is None else ("--config", config)
    log = ("--access-logfile", "-", "--access-logformat", "%(p)s sent %(s)s for %(U)s")
    return ("-m", "gunicorn", *options, "--bind", "127.0.0.1:{port}", "--no-control-socket", *log, app)


ALL_EXAMPLES = (
    Example(
        file="fastapi_app.py",
        command=_uvicorn("fastapi_app:app"),
        slash_id="indexer/main",
        own_paths=("/docs", "/openapi.json"),
    ),
    Example(
        file="starlette_app.py",
        command=_uvicorn("starlette_app:app"),
        slash_id="indexer/main",
        prefixes=("/node-api/svc",),
        own_paths=("/balance",),
        has_own_404=True,
    ),
    Example(
        file="flask_app.py",
        command=_gunicorn("flask_app:app"),
        slash_id="ledger/main",
        own_paths=("/entries",),
        has_own_404=True,
        workers=2,
    ),
    Example(
        file="flask_gunicorn.py",
        command=_gunicorn("flask_app:app", config="flask_gunicorn.py"),
        slash_id="ledger/main",
        own_paths=("/entries",),
        has_own_404=True,
        workers=2,
    ),
    Example(
        file="django_app.py",
        command=_gunicorn("django_app:wsgi_application"),
        slash_id="ledger/main",
        own_paths=("/entries",),
        has_own_404=True,
        workers=2,
    ),
    Example(
        file="django_app.py",
        command=_uvicorn("django_app:asgi_application"),
        slash_id="ledger/main",
        own_paths=("/entries",),
        has_own_404=True,
    ),
    Example(
        file="plain_asgi.py",
        command=_uvicorn("plain_asgi:app"),
        slash_id="indexer/main",
        prefixes=("/svc", "/eigen"),
    ),
    Example(
        file="status_page.py",
        command=_uvicorn("status_page:app"),
        slash_id="indexer/main",
        prefixes=("/status/svc",),
        own_paths=("/metrics", "/status/", "/status/metrics", "/status/details/indexer%2Fmain"),
        has_own_404=True,
    ),
    Example(file="worker.py", command=("worker.py",), slash_id="replay/main"),
)


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    headers: http.client.HTTPMessage
    body: bytes


class BackingServices:
    """The services that an example probes: a ledger file and an indexer port. Both can be stopped."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.db"
        self.indexer_port = free_port()
        self._indexer: socketserver.TCPServer | None = None
        self._start_indexer()

    def stop(self) -> None:
        self.ledger.rename(self._ledger_backup)
        self.close()

    def restore(self) -> None:
        self._ledger_backup.rename(self.ledger)
        self._start_indexer()

    def close(self) -> None:
        if self._indexer is not None:
            self._indexer.shutdown()
            self._indexer.server_close()
            self._indexer = None

    @property
    def _ledger_backup(self) -> Path:
        return self.ledger.with_suffix(".backup")

    def _start_indexer(self) -> None:
        indexer = self._indexer = _Indexer(("127.0.0.1", self.indexer_port), socketserver.BaseRequestHandler)
        threading.Thread(target=lambda: indexer.serve_forever(poll_interval=0.05), daemon=True).start()


class _Indexer(socketserver.TCPServer):
    allow_reuse_address = True


class RunningExample:
    """An example in its process, inside the `with` block."""

    def __init__(self, example: Example, folder: Path) -> None:
        self.example = example
        self.backing = BackingServices(folder)
        self.port = free_port()
        self._log_file = folder / "log"

    def __enter__(self) -> Self:
        command = [part.format(port=self.port) for part in self.example.command]
        environment = os.environ | {
            "LEDGER": str(self.backing.ledger),
            "INDEXER_PORT": str(self.backing.indexer_port),
            "PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
        }
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command], cwd=EXAMPLES, env=environment, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process.poll() is None:
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self.backing.close()

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    @property
    def workers_that_returned_200(self) -> set[str]:
        """Process ids from the access log of a server that forks."""
        return set(re.findall(r"(\S+) sent 200 for \S+/node/health$", self.log, re.MULTILINE))

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE_S)

    def request(self, path: str, *, method: str = "GET") -> Response:
        """Send one request on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())
        finally:
            connection.close()

    def request_node(self, endpoint: str) -> Response:
        return self.request(self.example.prefixes[0] + endpoint)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true several times in a row."""
        deadline_s = time.monotonic() + DEADLINE_S
        in_a_row = 0
        while in_a_row < CONSECUTIVE:
            assert self._process.poll() is None, f"the example ended:\n{self.log[-3000:]}"
            assert time.monotonic() < deadline_s, f"timeout after {DEADLINE_S:g} s:\n{self.log[-3000:]}"
            try:
                in_a_row = in_a_row + 1 if condition() else 0
            except ConnectionError:  # not listening yet
                in_a_row = 0
            if not in_a_row:
                time.sleep(0.02)
