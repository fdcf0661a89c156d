"""The operator surface inside other programs, under real ASGI and WSGI servers."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.backends import HttpBackend, http_response
from tests.support.commands import svcnode
from tests.support.embedded_app import (
    PROGRAMS,
    EmbeddingProgram,
    GunicornProgram,
    SyncGunicornProgram,
)
from tests.support.nginx_proxy import nginx_with
from tests.support.servers.base import wait_until
from tests.support.servers.http_request import http_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-some-length"
AUTHORIZATION = f"Bearer {TOKEN}"
PATHS = (
    "/",
    "/details",
    "/details/indexer",
    "/history?id=indexer",
    "/metrics",
    "/badge/node.svg",
    "/page/changes",
    "/page/timeline",
)


SERVERS = [*PROGRAMS, pytest.param(SyncGunicornProgram, marks=pytest.mark.wide)]


class Started(NamedTuple):
    program: EmbeddingProgram
    receiver: HttpBackend  # of its messages
    history: Path


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Without a token, on all addresses."""
    folder = tmp_path_factory.mktemp("program")
    history = tmp_path_factory.mktemp("state") / "history.db"
    with HttpBackend(http_response(200, "ok")) as receiver:
        environ = {"HISTORY": str(history), "WEBHOOK": f"http://127.0.0.1:{receiver.port}/hook"}
        with request.param(folder, host="0.0.0.0", environ=environ) as program:
            yield Started(program, receiver, history)


@pytest.fixture
def program(started: Started) -> EmbeddingProgram:
    return started.program


def foreign_address() -> str:
    """An address of this machine that is not loopback. A connection to it does not leave the machine."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect(("192.0.2.99", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has only loopback addresses")
        address: str = sock.getsockname()[0]
        return address


# ---- what is served


def test_every_path_of_the_operator_surface_is_served_beside_the_program(program: EmbeddingProgram) -> None:
    for path in PATHS:
        code, body = program.request_page(path)
        assert (code, bool(body)) == (200, True)
        assert program.request_page(path, method="HEAD") == (200, "")
    with program.open(program.mount) as response:
        assert response.status == 307
        location = response.headers["Location"]
    assert location == "./status/" or location.endswith(f"{program.mount}/"), "Starlette redirects by itself"
    assert program.request_interface("/svc/node/health")[0] in (200, 206, 503)
    assert program.request_interface("/livez")[0] == 200
    assert program.request("/report/up") == (200, "up")
    assert 'svcnode_service_status{service_id="indexer",status="Up"} 1.0' in program.request_page("/metrics")[1]


# ---- access


def test_without_a_token_only_clients_of_this_machine_have_access(program: EmbeddingProgram, tmp_path: Path) -> None:
    address = foreign_address()
    for path in PATHS:
        assert program.request_page(path, host=address)[0] == 403, path
    assert program.request_page("/details", host=address, Host="localhost")[0] == 403
    assert program.request_page("/details", X_Forwarded_For="127.0.0.1")[0] == 403
    assert program.request_page("/details", Host="node.example")[0] == 403
    assert program.request_interface("/svc/node", host=address)[0] == 200, "the interface is open"
    for directives in ("", "proxy_http_version 1.1; proxy_set_header Host $host;"):
        location = f"location / {{ proxy_pass http://127.0.0.1:{program.port}; {directives} }}"
        with nginx_with(tmp_path, location) as port:
            headers = {"Host": "node.example"}
            assert http_request(port, f"{program.mount}/details", headers=headers)[0] == 403
            assert http_request(port, f"{program.interface_mount}/svc/node", headers=headers)[0] == 200


@pytest.mark.parametrize("server", SERVERS)
def test_a_token_opens_the_surface_also_to_the_commands(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    with server(tmp_path, token=TOKEN, host="0.0.0.0") as program:
        for host in ("127.0.0.1", foreign_address()):
            assert program.request_page("/details", host=host)[0] == 401
            assert program.request_page("/details", host=host, Authorization="Bearer wrong")[0] == 401
            code, body = program.request_page("/details", host=host, Authorization=AUTHORIZATION)
            assert (code, TOKEN in body) == (200, False)
        wait_until(lambda: "Down" in program.request_interface("/svc/node/services")[1], "the dead service is Down")
        explain = ["explain", program.page_url]
        assert svcnode(*explain, "--service", "dead").returncode == 4, "without the token"
        completed = svcnode(*explain, "--token", TOKEN, "--service", "dead")
        assert (completed.returncode, "connection_refused" in completed.stdout) == (3, True)
        assert svcnode(*explain, "--token", TOKEN).returncode == 0
        assert svcnode("status", program.url).returncode == 0
        assert TOKEN not in program.log


# ---- events, history and messages


@pytest.mark.wide
def test_wsgi_streams_stay_open_if_the_program_allows_it(tmp_path: Path) -> None:
    with GunicornProgram(tmp_path, wsgi_streams=1) as program, program.events() as events:
        program.request("/report/down")
        down = next(event for event in events if event["event"] == "end" or '"indexer"' in event["data"])
        assert json.loads(down["data"])["after"] == "Down"
        with program.events() as others:
            assert [event["event"] for event in others][-1] == "end"


def test_a_change_is_an_event_a_message_and_history_also_of_the_next_process(started: Started) -> None:
    program, receiver, file = started
    program.request("/report/up")
    program.request_page("/details")  # starts the checks under WSGI, and waits for the start
    program.request("/report/down")

    def has_change() -> bool:
        with program.events(Last_Event_ID="0") as events:
            changes = (json.loads(event["data"]) for event in events if event["event"] == "transition")
            return any((change["service_id"], change["after"]) == ("indexer", "Down") for change in changes)

    wait_until(has_change, "the change is in the events")
    wait_until(lambda: any(b"indexer" in request.body for request in receiver.requests), "the message arrives")
    wait_until(lambda: "down" in history_of(program), "the change is in the history")
    with program.events() as events:
        assert program.process is not None
        program.process.send_signal(signal.SIGTERM)
        assert [event["event"] for event in events][-1] == "end"
    assert program.process.wait(60) in (0, -signal.SIGTERM)
    assert "Traceback" not in program.log
    program.kill()
    with closing(sqlite3.connect(file)) as database:
        (kind,) = database.execute("SELECT kind FROM transitions ORDER BY id DESC LIMIT 1").fetchone()
    assert kind == "stopped"
    program.start()
    program.wait_until_ready()
    assert "down" in history_of(program)


def history_of(program: EmbeddingProgram) -> list[str]:
    _, body = program.request_page("/history?id=indexer&transitions=20")
    return [str(change["after"]).lower() for change in json.loads(body)["transitions"]["indexer"]]
