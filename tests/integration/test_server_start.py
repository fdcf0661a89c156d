"""Checks start under every server: with its lifespan, at the first request, or the node says that they do not run."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import svcnode
from tests.support.servers.base import RealServer, wait_until
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program, python_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "embed.md").read_text()
PINS = ROOT / "requirements" / "frameworks.txt"
SOURCE = Path(svcnode.__file__).parents[1]
MODULE = "tests.support.served_node"
BIND = "127.0.0.1:{port}"
MAIN, SCHEDULER = "MainThread", "svcnode scheduler"


class Case(NamedTuple):
    command: Sequence[str]  # in the environment of PINS; uWSGI is Debian's, whose threads are off by default
    thread: str | None  # in which the checks run; None: they do not
    environ: Mapping[str, str] = MappingProxyType({})
    app_file: str = ""  # the content of app.py in its folder


def _documented() -> dict[str, Case]:
    """The command lines of the documentation."""
    rows = re.findall(r"^\| \w+ \| (ASGI|WSGI) \| `(.*)` \|$", DOCS, re.MULTILINE)
    return {f"{line.split()[0]}-{app.lower()}": _documented_case(app.lower(), line) for app, line in rows}


def _documented_case(app: str, line: str) -> Case:
    assert line.count("8000") == 1
    command = shlex.split(line.replace("8000", "{port}"))
    thread = MAIN if app == "asgi" else SCHEDULER
    return Case(command, thread, app_file=f"from {MODULE} import {app}_app as app\n")


def _uwsgi(*options: str) -> Sequence[str]:
    return ("uwsgi", "--plugin", "python3", "--http-socket", BIND, "--module", f"{MODULE}:wsgi_app", *options)


def _gunicorn(*options: str) -> Sequence[str]:
    return ("gunicorn", "--bind", BIND, "--no-control-socket", *options, f"{MODULE}:wsgi_app")


CASES = {
    **_documented(),
    "uvicorn-without-lifespan": Case(("uvicorn", "--lifespan", "off", "--port", "{port}", f"{MODULE}:asgi_app"), MAIN),
    "hypercorn-trio": Case(("hypercorn", "-k", "trio", "-b", BIND, f"{MODULE}:asgi_app"), SCHEDULER),
    "granian-without-lifespan": Case(
        ("granian", "--interface", "asginl", "--port", "{port}", f"{MODULE}:asgi_app"), MAIN
    ),
    "granian-wsgi": Case(("granian", "--interface", "wsgi", "--port", "{port}", f"{MODULE}:wsgi_app"), SCHEDULER),
    "litestar-mount": Case(("uvicorn", "--factory", "--port", "{port}", f"{MODULE}:litestar_app"), MAIN),
    "quart-mount": Case(("hypercorn", "-b", BIND, f"{MODULE}:quart_app()"), MAIN),
    "gunicorn-gthread": Case(_gunicorn("--worker-class", "gthread", "--threads", "4"), SCHEDULER),
    "gunicorn-started-before-the-fork": Case(_gunicorn("--preload"), SCHEDULER, {"START_AT_IMPORT": "1"}),
    "uwsgi-started-before-the-fork": Case(_uwsgi("--enable-threads", "--master"), SCHEDULER, {"START_AT_IMPORT": "1"}),
    "uwsgi-lazy-apps": Case(_uwsgi("--enable-threads", "--master", "--lazy-apps"), SCHEDULER),
    "uwsgi-without-threads": Case(_uwsgi("--master"), None),
    "not-started-by-the-program": Case(_gunicorn(), None, {"START": "off"}),
    "started-by-the-program-before-the-fork": Case(
        _gunicorn("--preload"), None, {"START": "off", "START_AT_IMPORT": "1"}
    ),
}


class ServedNode(RealServer):
    def __init__(self, folder: Path, case: Case) -> None:
        super().__init__(folder)
        self._case = case

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        name, *options = (part.format(port=self.port) for part in self._case.command)
        if name == "uwsgi":
            return [program(name, "uwsgi-plugin-python3"), *options]
        return [str(python_environment(PINS) / "bin" / name), *options]

    def start(self) -> None:
        (self.folder / "app.py").write_text(self._case.app_file)
        super().start()

    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{SOURCE}:{ROOT}", "PYTHONUNBUFFERED": "1", **self._case.environ}

    def is_ready(self) -> bool:
        return http_request(self.port, "/svc/node")[0] == 200

    def health(self) -> int:
        return http_request(self.port, "/svc/node/health")[0]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = http_request(self.port, "/state")[1]
        return state

    def stop(self) -> str:
        """SIGTERM; returns the log."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(30)
        return self.log_file.read_text(errors="replace")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedNode]]:
    """All at once: a start is mostly a wait."""
    with ExitStack() as stack:
        running = {}
        for name, case in CASES.items():
            running[name] = server = ServedNode(tmp_path_factory.mktemp(name), case)
            stack.callback(server.kill)
            server.start()
        yield running


@pytest.fixture
def server(servers: dict[str, ServedNode], name: str) -> ServedNode:
    servers[name].wait_until_ready()
    return servers[name]


def test_the_documentation_has_a_command_line_for_every_server() -> None:
    servers = {case.command[0] for case in CASES.values()}
    assert {case.command[0] for case in _documented().values()} == servers
    assert len(servers) == 7


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.thread])
def test_checks_run_under_every_server(server: ServedNode, name: str) -> None:
    wait_until(lambda: server.health() == 200, "checked")
    assert server.state()["threads"] == [CASES[name].thread]


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.thread])
def test_a_node_whose_checks_do_not_run_is_not_healthy_and_says_so(server: ServedNode, name: str) -> None:
    wait_until(lambda: server.health() == 206, "without evidence that is valid")
    state = server.state()
    assert state["code"] in ("not_started", "stale")
    assert "checks are not running" in state["reason"]
    assert state["reason"].rpartition("; ")[2] in server.log_file.read_text()


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["daphne-asgi", "uvicorn-without-lifespan", "granian-without-lifespan", "hypercorn-trio"]
)
def test_checks_that_a_request_started_end_with_the_server_without_an_error(server: ServedNode, name: str) -> None:
    wait_until(lambda: server.health() == 200, "checked")
    log = server.stop()
    assert "Traceback" not in log
    assert "Task was destroyed" not in log
