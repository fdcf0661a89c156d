"""The operator surface inside other programs, under real ASGI and WSGI servers."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import HttpBackend, http_response
from tests.support.commands import svcnode
from tests.support.embedded_app import (
    PROGRAMS,
    EmbeddingProgram,
    GunicornProgram,
    SyncGunicornProgram,
    UvicornProgram,
)
from tests.support.nginx_proxy import nginx_with
from tests.support.servers.base import wait_until
from tests.support.servers.http_request import http_request
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-some-length"
AUTHORIZATION = f"Bearer {TOKEN}"
PATHS = ("/", "/details", "/details/indexer", "/history?id=indexer", "/metrics", "/badge/node.svg", "/static/page.js")


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.__name__)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingProgram]:
    with request.param(tmp_path_factory.mktemp("program")) as running:
        yield running


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


@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_the_operator_surface_is_served(program: EmbeddingProgram, path: str) -> None:
    code, body = program.request_page(path)
    assert (code, bool(body)) == (200, True)
    assert program.request_page(path, method="HEAD") == (200, "")


def test_links_of_the_page_are_relative_to_its_mount(program: EmbeddingProgram) -> None:
    _, page = program.request_page("/")
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert "static/page.css" in links
    assert not [link for link in links if link.startswith(("/", "http"))]
    assert {program.request_page(f"/{link}")[0] for link in links if link.startswith("static/")} == {200}


def test_without_the_slash_the_page_redirects_to_it(program: EmbeddingProgram) -> None:
    with program.open(program.mount) as response:
        assert response.status == 307
        location = response.headers["Location"]
    assert location == "./status/" or location.endswith(f"{program.mount}/"), "Starlette redirects by itself"


def test_the_interface_and_the_program_are_beside_it(program: EmbeddingProgram) -> None:
    assert program.request_interface("/svc/node/health")[0] in (200, 206, 503)
    assert program.request_interface("/livez")[0] == 200
    assert program.request("/report/up") == (200, "up")


def test_metrics_are_those_of_the_node(program: EmbeddingProgram) -> None:
    _, text = program.request_page("/metrics")
    assert 'svcnode_service_status{service_id="indexer",status="Up"} 1.0' in text


# ---- events


def test_a_change_arrives_in_the_event_stream(tmp_path: Path) -> None:
    with UvicornProgram(tmp_path) as program, program.events() as events:
        program.request("/report/down")
        down = next(event for event in events if event["event"] == "end" or '"indexer"' in event["data"])
        assert json.loads(down["data"])["after"] == "Down"


def test_a_stream_ends_by_itself_and_the_next_one_continues(tmp_path: Path) -> None:
    """The server of the program could not stop while a stream is open."""
    with UvicornProgram(tmp_path) as program:
        with program.events() as events:
            *_, last = events
        assert last["event"] == "end"
        program.request("/report/down")
        with program.events(Last_Event_ID=last["id"]) as events:
            assert json.loads(next(events)["data"])["service_id"] == "indexer"


def test_a_server_stops_while_a_stream_is_open(tmp_path: Path) -> None:
    with UvicornProgram(tmp_path) as program, program.events() as events:
        assert program.process is not None
        program.process.send_signal(signal.SIGTERM)
        assert [event["event"] for event in events][-1] == "end"
        assert program.process.wait(30) in (0, -signal.SIGTERM)
        assert "Traceback" not in program.log


@pytest.mark.parametrize("server", [GunicornProgram, SyncGunicornProgram])
def test_under_wsgi_a_stream_occupies_no_thread(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    with server(tmp_path) as program:
        with program.events(Last_Event_ID="0") as events:
            *_, last = events
        assert last["event"] == "end"
        program.request("/report/down")
        changes: list[Any] = []

        def has_change() -> bool:
            with program.events(Last_Event_ID=last["id"]) as events:
                changes[:] = [json.loads(event["data"]) for event in events if event["event"] == "transition"]
            return "indexer" in [change["service_id"] for change in changes]

        wait_until(has_change, "the change is in the events")


def test_wsgi_streams_stay_open_if_the_program_allows_it(tmp_path: Path) -> None:
    with GunicornProgram(tmp_path, wsgi_streams=1) as program, program.events() as events:
        program.request("/report/down")
        down = next(event for event in events if event["event"] == "end" or '"indexer"' in event["data"])
        assert json.loads(down["data"])["after"] == "Down"
        with program.events() as others:
            assert [event["event"] for event in others][-1] == "end"


# ---- access


@pytest.mark.parametrize("server", PROGRAMS)
def test_without_a_token_only_this_machine_has_access(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    address = foreign_address()
    with server(tmp_path, host="0.0.0.0") as program:
        assert program.request_page("/details")[0] == 200
        for path in PATHS:
            assert program.request_page(path, host=address)[0] == 403, path
        assert program.request_page("/details", host=address, Host="localhost")[0] == 403
        assert program.request_page("/details", X_Forwarded_For="127.0.0.1")[0] == 403
        assert program.request_page("/details", Host="node.example")[0] == 403
        assert program.request_interface("/svc/node", host=address)[0] == 200, "the interface is open"


@pytest.mark.parametrize("server", PROGRAMS)
def test_a_client_without_an_address_has_no_access_without_a_token(
    server: type[EmbeddingProgram], tmp_path: Path
) -> None:
    """A server on a Unix socket is behind a proxy, whose clients are anywhere."""
    with server(tmp_path, on_unix_socket=True) as program:
        assert program.request_page("/details", Host="localhost")[0] == 403
        assert program.request_interface("/svc/node", Host="localhost")[0] == 200


@pytest.mark.parametrize("server", PROGRAMS)
@pytest.mark.parametrize(
    "directives",
    [
        "",
        "proxy_http_version 1.1; proxy_set_header X-Real-IP $remote_addr;",
        "proxy_http_version 1.1; proxy_set_header Host $host;",
    ],
)
def test_clients_of_nginx_have_no_access_without_a_token(
    server: type[EmbeddingProgram], directives: str, tmp_path: Path
) -> None:
    with (
        server(tmp_path / "program") as program,
        nginx_with(tmp_path, f"location / {{ proxy_pass http://127.0.0.1:{program.port}; {directives} }}") as port,
    ):
        headers = {"Host": "node.example"}
        assert http_request(port, f"{program.mount}/details", headers=headers)[0] == 403
        assert http_request(port, f"{program.interface_mount}/svc/node", headers=headers)[0] == 200


@pytest.mark.parametrize("server", PROGRAMS)
def test_a_token_opens_the_surface_and_is_not_logged(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    with server(tmp_path, token=TOKEN, host="0.0.0.0") as program:
        for host in ("127.0.0.1", foreign_address()):
            assert program.request_page("/details", host=host)[0] == 401
            assert program.request_page("/details", host=host, Authorization="Bearer wrong")[0] == 401
            code, body = program.request_page("/details", host=host, Authorization=AUTHORIZATION)
            assert (code, TOKEN in body) == (200, False)
        assert TOKEN not in program.log


def test_a_program_may_restrict_access_itself(tmp_path: Path) -> None:
    with UvicornProgram(tmp_path, unrestricted=True, host="0.0.0.0") as program:
        assert program.request_page("/details", host=foreign_address(), X_Forwarded_For="192.0.2.1")[0] == 200


# ---- commands


@pytest.mark.parametrize("server", PROGRAMS)
def test_explain_and_status_take_the_path_of_the_mount(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    with server(tmp_path, token=TOKEN) as program:
        wait_until(lambda: "Down" in program.request_interface("/svc/node/services")[1], "the dead service is Down")
        explain = ["explain", program.page_url]
        assert svcnode(*explain, "--service", "dead").returncode == 4, "without the token"
        completed = svcnode(*explain, "--token", TOKEN, "--service", "dead")
        assert (completed.returncode, "connection_refused" in completed.stdout) == (3, True)
        assert svcnode(*explain, "--token", TOKEN).returncode == 0
        assert svcnode("status", program.url).returncode == 0


def test_watch_takes_the_path_of_the_mount(program: EmbeddingProgram, tmp_path: Path) -> None:
    program.request("/report/up")
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode watch {program.url}")
        terminal.wait_for_text("validator-7")
        terminal.wait_for_text("Indexer")
        terminal.press("q")
        assert terminal.wait_for_exit()[1] == 0


# ---- history and notifications


@pytest.mark.parametrize("server", PROGRAMS)
def test_the_history_is_on_disk_and_in_the_next_process(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    file = tmp_path / "state" / "history.db"
    file.parent.mkdir()
    program = server(tmp_path, environ={"HISTORY": str(file)})
    with program:
        program.request_page("/details")  # waits for the start
        program.request("/report/down")
        wait_until(lambda: "down" in changes(program), "the change is in the history")
        assert program.process is not None
        program.process.send_signal(signal.SIGTERM)
        program.process.wait(30)
        program.kill()
        with closing(sqlite3.connect(file)) as database:
            (last,) = database.execute("SELECT kind FROM transitions ORDER BY id DESC LIMIT 1").fetchone()
        assert last == "stopped"
        program.start()
        program.wait_until_ready()
        assert "down" in changes(program)


def changes(program: EmbeddingProgram) -> list[str]:
    _, body = program.request_page("/history?id=indexer&transitions=20")
    return [str(change["after"]).lower() for change in json.loads(body)["transitions"]["indexer"]]


@pytest.mark.parametrize("server", PROGRAMS)
def test_a_change_is_notified(server: type[EmbeddingProgram], tmp_path: Path) -> None:
    with (
        HttpBackend(http_response(200, "ok")) as receiver,
        server(tmp_path, environ={"WEBHOOK": f"http://127.0.0.1:{receiver.port}/hook"}) as program,
    ):
        program.request_page("/details")  # starts the checks under WSGI
        program.request("/report/down")
        wait_until(lambda: bool(receiver.requests), "the message arrives")
        assert b"indexer" in receiver.last_request.body
