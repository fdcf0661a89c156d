"""The public page of a real node: on its own listener and on a path, and that nothing private is in any answer."""

from __future__ import annotations

import gzip
import json
import re
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode.control import ControlClient
from svcnode.core.codes import ReasonCode
from svcnode.operator.public import DOCUMENTS
from svcnode.version import __version__
from tests.support.backends import HttpBackend, http_response
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = """
[node]
name = "validator-7"
[server]
listen = "127.0.0.1:0"
[defaults]
interval = "1s"
timeout = "900ms"
transition_interval = "50ms"
start_period = "0s"
"""
START = (datetime.now(UTC) + timedelta(hours=6)).strftime("%H:%M")  # of the maintenance of every day
PLANNED_DAY = (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
SERVICES = """
[[services]]
id = "db"
name = "Ledger database"
status = "Up"
[[services]]
id = "web"
name = "Web"
group = "Edge"
status = "Up"
[[services]]
id = "queue"
status = "Down"
"""


def public_port(agent: Agent) -> int:
    """When it listens."""
    return int(agent.wait_for_log(r"public page: http://[^ ]*:(\d+)/").group(1))


def exchange(port: int, request: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
        sock.sendall(request)
        received = b""
        while data := sock.recv(65536):
            received += data
    return received


def summary(agent: Agent, port: int, path: str = "") -> Any:
    return agent.request(f"{path}/api/v2/summary.json", port).json


# ---- where it is served


def test_the_public_listener_serves_the_public_page_and_nothing_else(tmp_path: Path) -> None:
    config = f'{HEAD}{SERVICES}[public]\nservices = ["db"]\nlisten = "127.0.0.1:{free_port()}"\n'
    with Agent(tmp_path, config=config) as agent:
        port = public_port(agent)
        assert port != agent.port
        # The hidden service is Down, and the node unhealthy or partial: that is not public.
        assert summary(agent, port)["status"]["indicator"] == "none"
        request = b"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        for path in (
            b"/svc/node",
            b"/svc/node/health",
            b"/livez",
            b"/readyz",
            b"/openapi.json",
            b"/details",
            b"/events",
        ):
            # The main listener has answered the same bytes before.
            assert not exchange(agent.port, request % path).startswith(b"HTTP/1.1 404")
            assert exchange(port, request % path).startswith(b"HTTP/1.1 404")
        with agent.connect() as client, agent.connect(port) as reader:
            assert [client.request("/svc/node").code, reader.request("/svc/node").code] == [200, 404]
            assert [client.request("/svc/node").code, reader.request("/svc/node").code] == [200, 404]
            assert [client.request("/api/v2/summary.json").code, reader.request("/").code] == [404, 200]
        assert agent.stop() == 0


def test_a_reload_publishes_moves_and_hides(tmp_path: Path) -> None:
    base = f"{HEAD}{SERVICES}"
    with Agent(tmp_path, config=base) as agent:
        assert agent.request("/public/").code == 404
        agent.reload(f'{base}[public]\nservices = ["db"]\npath = "/public"\n')
        assert agent.request("/public").code == 308
        assert [one["id"] for one in summary(agent, agent.port, "/public")["components"]] == ["db"]
        agent.reload(f'{base}[public]\ngroups = ["Edge"]\npath = "/public"\n')
        assert [one["id"] for one in summary(agent, agent.port, "/public")["components"]] == ["group:Edge", "web"]
        port = free_port()
        agent.reload(f'{base}[public]\nservices = ["queue"]\nlisten = "127.0.0.1:{port}"\n')
        assert agent.request("/public/").code == 404
        assert summary(agent, port)["status"]["indicator"] == "critical"
        agent.reload(base)
        with pytest.raises(OSError, match="refused"):
            agent.request("/", port)


def test_outages_of_the_last_process_are_still_there(tmp_path: Path) -> None:
    port = free_port()

    def config(status: str) -> str:
        service = f'[[services]]\nid = "db"\nstatus = "{status}"\n'
        return f'{HEAD}{service}[public]\nservices = ["db"]\nlisten = "127.0.0.1:{port}"\n[history]\npath = "h.db"\n'

    with Agent(tmp_path, config=config("Up")) as agent:
        agent.reload(config("Down"))
        agent.reload(config("Up"))
        agent.wait_until(lambda: len(incidents(agent, port)) == 1)
        (before,) = incidents(agent, port)
        assert agent.stop() == 0
    with Agent(tmp_path, config=config("Up")) as agent:
        public_port(agent)
        agent.wait_until(lambda: incidents(agent, port) == [before])


def incidents(agent: Agent, port: int) -> list[tuple[str, str, str | None]]:
    found = agent.request("/api/v2/incidents.json", port).json["incidents"]
    return [(one["id"], one["started_at"], one["resolved_at"]) for one in found]


# ---- what it never says


class Words:
    """Words that must not be public; each is unique, and found in any case."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, topic: str) -> str:
        word = f"zq{topic}{len(self.all)}qz"
        self.all.append(word)
        return word


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def private_node(words: Words, tmp_path: Path) -> Iterator[tuple[Agent, int, list[str]]]:
    """A node with private words in every field, published services that fail with them, and the ids that are hidden."""
    hidden = [words("id"), words("id") + "/a b"]
    quoted = {name: words(name) for name in ("body", "title", "path", "user", "password")}

    def respond(_: object) -> bytes:
        return http_response(500, f"<title>{quoted['title']}</title>{quoted['body']}".encode())

    with HttpBackend(respond) as backend:
        probe = f"http://{quoted['user']}:{quoted['password']}@{backend.address}/{quoted['path']}"
        socket_path = tmp_path / "c.sock"
        config = f"""
            [node]
            name = "{words("node")}"
            version = "v98.76.54"
            [server]
            listen = "127.0.0.1:0"
            prefix = "/{words("prefix")}"
            [operator]
            url = "https://{words("operator")}.example.com"
            [security]
            operator_token = "{words("token")}-long-enough"
            [control]
            listen = "unix:{socket_path}"
            path = "{tmp_path}/{words("store")}.db"
            [history]
            path = "{tmp_path}/{words("history")}.db"
            [sharing]
            registry = "etcd://127.0.0.1:{free_port()}/{words("registry")}"
            replica = "{words("replica")}"
            [notify]
            webhook = "http://127.0.0.1:{free_port()}/{words("webhook")}"
            [public]
            services = ["db", "later"]
            groups = ["Edge"]
            title = "Status of Example"
            listen = "127.0.0.1:{free_port()}"
            [defaults]
            interval = "1s"
            timeout = "900ms"
            transition_interval = "50ms"
            start_period = "0s"
            [[services]]
            id = "db"
            name = "Ledger database"
            description = "{words("description")}"
            group = "{words("group")}"
            runbook = "https://{words("runbook")}.example.com/"
            depends_on = ["{hidden[0]}"]
            probe = "{probe}"
            impact = "critical"
            [[services]]
            id = "web"
            name = "Web"
            group = "Edge"
            description = "{words("description")}"
            probe = "heartbeat:1h"
            [[services]]
            id = "{hidden[0]}"
            name = "{words("name")}"
            group = "{words("group")}"
            description = "{words("description")}"
            status = "Down"
            [[services]]
            id = "{hidden[1]}"
            name = "{words("name")}"
            group = "{words("group")}"
            probe = "tcp://127.0.0.1:{free_port()}"
            [[maintenance]]
            services = ["web", "{hidden[0]}"]
            start = "{START}"
            duration = "1h"
            reason = "{words("maintenance")}"
        """
        with Agent(tmp_path, config=config) as agent:
            port = public_port(agent)
            agent.wait_for_log("started: node")
            with ControlClient(socket_path, by=words("by"), timeout="30s") as client:
                client.beat("web", "down", words("report"))
                client.set_issue(words("issue"), words("issue"))
                client.ack("web", reason=words("ack"))
                client.maintain(hidden[0], "1h", reason=words("maintenance"))
                client.plan_maintenance(
                    "web", f"{PLANNED_DAY}T00:00:00Z", f"{PLANNED_DAY}T01:00:00Z", reason=words("plan")
                )
                client.plan_maintenance(
                    hidden[1], f"{PLANNED_DAY}T05:00:00Z", f"{PLANNED_DAY}T06:00:00Z", reason=words("plan")
                )
                client.register(words("registered"), name=words("name"), description=words("description"), ttl="1h")
            agent.wait_until(lambda: {one["status"] for one in summary(agent, port)["incidents"]} == {"investigating"})
            agent.wait_until(lambda: len(summary(agent, port)["incidents"]) == 2)
            yield agent, port, hidden


PATHS = ["/", *(f"/{name}" for name in DOCUMENTS if name), "/badge/db.svg", "/badge/web.svg", "/badge/later.svg"]
OTHER_PATHS = ["/none", "/svc/node", "/details", "/history", "/metrics", "/page.css", "/static/page.js", "/.", "/%ff"]


def requests(hidden: list[str]) -> Iterator[bytes]:
    unknown = [f"/badge/{quote(service_id, safe='')}.svg" for service_id in hidden]
    for path in (*PATHS, *OTHER_PATHS, *unknown):
        for method in ("GET", "HEAD", "POST", "OPTIONS", "BREW"):
            for coding in ("identity", "gzip"):
                yield (
                    f"{method} {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\nContent-Length: 0\r\n"
                    "Connection: close\r\n\r\n"
                ).encode()
    yield b"nonsense\r\n\r\n"
    yield b"GET / HTTP/9.9\r\n\r\n"
    yield b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\nConnection: close\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n"


def test_no_public_answer_has_anything_private(private_node: tuple[Agent, int, list[str]], words: Words) -> None:
    _, port, hidden = private_node
    # Also what the operator surface shows of these services: addresses, codes, versions, and words of people.
    codes = [code.value for code in ReasonCode if "_" in code.value]
    private = [*words.all, *codes, "127.0.0.1", "98.76.54", f"svcnode {__version__}", "critical"]
    pattern = re.compile("|".join(map(re.escape, private)).encode(), re.IGNORECASE)
    seen: list[int] = []
    for request in requests(hidden):
        response = exchange(port, request)
        head, _, body = response.partition(b"\r\n\r\n")
        if b"Content-Encoding: gzip" in head and body:
            body = gzip.decompress(body)
        assert pattern.findall(head + body) == [], request[:200]
        seen.append(int(response.split(b" ")[1]))
    assert set(seen) == {200, 304, 400, 404, 405, 414, 501, 505} & set(seen)
    assert {200, 304, 400, 404, 405} <= set(seen)
    assert seen.count(200) == len(PATHS) * 4


def test_the_private_words_are_where_operators_look(private_node: tuple[Agent, int, list[str]], words: Words) -> None:
    """Otherwise the search would prove nothing."""
    agent, _, _ = private_node
    token = next(word for word in words.all if "token" in word)
    head = f"Host: a\r\nAuthorization: Bearer {token}-long-enough\r\nConnection: close\r\n\r\n"
    shown = b"".join(
        exchange(agent.port, f"GET {path} HTTP/1.1\r\n{head}".encode())
        for path in ("/details", "/history?id=web&transitions=9", "/")
    ).decode()
    topics = "path id name group description runbook node replica report issue ack maintenance plan by"
    assert [topic for topic in topics.split() if not re.search(rf"zq{topic}\d+qz", shown)] == []


def test_what_is_public_is_there(private_node: tuple[Agent, int, list[str]]) -> None:
    agent, port, _ = private_node
    found = summary(agent, port)
    assert {one["id"]: one["status"] for one in found["components"]} == {
        "db": "major_outage",
        "later": "degraded_performance",
        "group:Edge": "major_outage",
        "web": "major_outage",
    }
    windows = [
        (one["scheduled_for"], [part["id"] for part in one["components"]]) for one in found["scheduled_maintenances"]
    ]
    assert [(begin[11:16], ids) for begin, ids in windows] == [(START, ["web"]), ("00:00", ["web"])]
    page = agent.request("/", port).body.decode()
    assert "Ledger database" in page
    assert json.dumps(found).count(f"{PLANNED_DAY}T0") >= 2
