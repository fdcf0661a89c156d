"""The servers under measurement: how each is started on the server's core, watched until it answers, and ended.

Each measurement has a process of its own, alone on its core: no server rests beside another that is measured,
and the luck of one memory layout does not stay for all rounds.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.answers import EXTRA_HEADERS, HEALTH, SERVICES, service_words, services_body
from benchmarks.cores import on_server_core
from benchmarks.provision import ROOT, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Given a port and a folder for its files, the command line of a server.
    Command = Callable[[int, Path], list[str | Path]]

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_EVERY_S = 0.0005

_ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

_NGINX_CONF = Template("""
daemon off;
worker_processes 1;
pid $folder/pid;
error_log stderr;
events { worker_connections 1024; }
http {
  client_body_temp_path $folder/body;
  proxy_temp_path $folder/proxy;
  fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi;
  scgi_temp_path $folder/scgi;
  access_log off;
  server_tokens off;
  keepalive_requests 1000000000;
  sendfile on;
  tcp_nopush on;
  open_file_cache max=16;
  default_type application/json;
  server {
    listen 127.0.0.1:$port;
    $extra_headers
    location = $health_path { return 200; }
    location = $services_path { $services_directive }
  }
}
""")
_NGINX_MAX_WORD_BYTES = 4000  # in its configuration; what is longer comes from a file

_NODE_TOML = '[node]\nname = "validator-7"\nversion = "v1.4.2"\n\n[server]\ndrain = "0s"\n'


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs and answers."""

    pid: int
    port: int

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


# ---- the peers


def nginx(service_count: int = 3) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        settings = _NGINX_CONF.substitute(
            port=port,
            folder=folder,
            extra_headers=" ".join(f"add_header {name} {value};" for name, value in EXTRA_HEADERS.items()),
            health_path=HEALTH,
            services_path=SERVICES,
            services_directive=_nginx_services(service_count, folder),
        )
        file = folder / "nginx.conf"
        file.write_text(settings)
        return [tool("nginx"), "-e", "stderr", "-c", file]

    return command


def _nginx_services(service_count: int, folder: Path) -> str:
    body = services_body(service_count)
    if len(body) <= _NGINX_MAX_WORD_BYTES:
        return f"return 200 '{body.decode()}';"
    file = folder / "services.json"
    file.write_bytes(body)
    return f"alias {file};"


def uvicorn(python: Path, app: str, *options: str) -> Command:
    fast = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    return lambda port, _: [python, "-m", "uvicorn", *fast, *options, "--port", str(port), app]


def granian(python: Path, app: str) -> Command:
    fast = ["--interface", "asgi", "--workers", "1", "--loop", "uvloop", "--no-ws", "--log-level", "warning"]
    return lambda port, _: [python, "-m", "granian", *fast, "--port", str(port), app]


def svcnode(python: Path, service_count: int = 3) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        file = folder / "svcnode.toml"
        file.write_text(_NODE_TOML + "".join(map(_service_toml, range(service_count))))
        return [python, "-m", "svcnode", "serve", "--config", file, "--listen", f"127.0.0.1:{port}"]

    return command


def _service_toml(number: int) -> str:
    words = {**service_words(number), "status": "Up"}
    return "\n[[services]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())


def reporting_node(python: Path, service_count: int, reports_per_s: int) -> Command:
    numbers = (str(service_count), str(reports_per_s))
    return lambda port, _: [python, "-m", "benchmarks.node_server", str(port), *numbers]


# ---- their lives


@contextmanager
def running(command: Command) -> Iterator[Server]:
    """The server, from its first answer on; it is ended with the block."""
    with TemporaryDirectory(prefix="svcnode-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # nginx's worker is another user
        port = _free_port()
        process = start(command(port, folder), folder / "errors")
        try:
            server = Server(process.pid, port)
            _wait_for_answer(process, server, folder / "errors")
            yield server
        finally:
            _end(process)


def start(command: list[str | Path], errors: Path) -> subprocess.Popen[bytes]:
    """Start a process on the server's core; what it prints goes to a file."""
    with on_server_core(), errors.open("wb") as file:
        return subprocess.Popen(command, cwd=errors.parent, env=_ENVIRONMENT, stdout=file, stderr=file)


def _wait_for_answer(process: subprocess.Popen[bytes], server: Server, errors: Path) -> None:
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at_s and process.poll() is None:
        try:
            status, _ = server.get(HEALTH)
        except OSError:
            time.sleep(POLL_EVERY_S)
            continue
        if status in (200, 206):
            return
    raise RuntimeError(f"no answer from {process.args!r}:\n{errors.read_text(errors='replace')}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
