"""Access to the operator endpoints of a running node, and how a reload changes it."""

from __future__ import annotations

import json
import re
import socket
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.operator import ROUTES
from svcnode.operator.static_files import STATIC_FILES, static_name
from tests.support.backends import closed_port
from tests.support.http_server import RawClient, RawResponse, becomes_true, request
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-of-some-length"
OTHER_TOKEN = "another-token-of-some-length"
BEARER = f"Authorization: Bearer {TOKEN}"
BASIC = f"Authorization: Basic {b64encode(f'operator:{TOKEN}'.encode()).decode()}"
WRONG = f"Authorization: Bearer {OTHER_TOKEN}"
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'
LOOPBACK = "127.0.0.1:0"
EVERYWHERE = "0.0.0.0:0"

INTERFACE = ["/svc/node", "/svc/node/health", "/svc/node/services", "/svc/node/services/db/health"]
OUTSIDE_PREFIX = ["/livez", "/readyz", "/openapi.json"]
PATHS = [path.replace("{name}", "db") for path in ROUTES]
FILE_PATHS = [f"/static/{static_name(name)}" for name in STATIC_FILES]
STREAMS = ("/events", "/page/events")
UNKNOWN = [
    "/details/none",
    "/details/db/more",
    "/static/none.js",
    "/static/page.js",
    "/static/..%2Fpage.py",
    "/badge/none.svg",
    "/events/x",
]


def config(listen: str = LOOPBACK, *, server: str = "", token: str | None = None, trust: bool | None = None) -> str:
    security = "" if token is None else f'operator_token = "{token}"\n'
    security += "" if trust is None else f"trust_loopback = {str(trust).lower()}\n"
    return f'[server]\nlisten = "{listen}"\n{server}\n[security]\n{security}{FIXED}'


def ports(agent: Agent) -> list[int]:
    """The ports of its listeners, in the order of their start."""
    agent.wait_for_event("started")
    return [int(port) for line in agent.lines for port in re.findall(r"listening on https?://.*?:(\d+)/", line)]


def connect(port: int, host: str = "127.0.0.1") -> RawClient:
    return RawClient(socket.create_connection((host, port), DEADLINE_S))


def get(
    port: int, path: str, *headers: str, host: str = "localhost", to: str = "127.0.0.1", **options: Any
) -> RawResponse:
    with connect(port, to) as client:
        is_stream = path in STREAMS  # it does not end
        return client.request(request(path, *headers, host=host, **options), is_head=is_stream)


def codes(port: int, paths: list[str], *headers: str, **options: Any) -> dict[str, int]:
    return {path: get(port, path, *headers, **options).code for path in paths}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node with a token on loopback, which it trusts, on all addresses and on a Unix socket."""
    folder = tmp_path_factory.mktemp("trusting")
    listen = f"{LOOPBACK}, {EVERYWHERE}, unix:{folder}/a.sock"
    with Agent(folder, config=config(listen, token=TOKEN, trust=True)) as agent:
        yield agent


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node that trusts nobody, and has a listener for its operator."""
    folder = tmp_path_factory.mktemp("with-token")
    own = f'operator_listen = ["{LOOPBACK}", "unix:own.sock"]'
    with Agent(folder, "--drain", "0s", config=config(EVERYWHERE, server=own, token=TOKEN)) as agent:
        yield agent


@pytest.fixture(scope="module")
def without_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("without-token")
    with Agent(folder, config=config(f"{EVERYWHERE}, {LOOPBACK}")) as agent:
        yield agent


def connect_unix(path: Path) -> RawClient:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return RawClient(sock)


# ---- listeners


def test_on_trusted_loopback_every_path_is_open_unless_the_request_is_not_local(
    trusting: Agent, without_token: Agent
) -> None:
    here, _ = ports(trusting)
    for path in ("/", "/details", "/details/db", "/events", "/history?id=db", "/metrics", *FILE_PATHS):
        assert get(here, path).code == 200, path
    assert set(codes(here, UNKNOWN).values()) == {404}
    assert get(here, "http://localhost/details", host="node.example").code == 200
    for port, code in ((here, 401), (ports(without_token)[1], 403)):
        assert get(port, "/details", host="attacker.example").code == code
        assert get(port, "http://attacker.example/details", method="PATCH").code == code
        assert get(port, "/", "X-Forwarded-For: 10.0.0.1").code == code
        assert get(port, "/metrics", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: image").code == code
    assert get(here, "/", "Via: 1.1 proxy", BASIC).code == 200
    with connect(here) as client:
        assert client.request(b"GET /details HTTP/1.0\r\n\r\n").code == 200
    with connect_unix(trusting.config_file.with_name("a.sock")) as client:
        assert client.request(request("/details", host="localhost")).code == 200
        assert client.request(request("/details", host="attacker.example")).code == 401


def test_elsewhere_every_path_needs_the_token(trusting: Agent) -> None:
    here, everywhere = ports(trusting)
    paths = [*PATHS, *FILE_PATHS, *UNKNOWN]
    for headers in ((), (WRONG,), (BEARER, WRONG), (BASIC, BEARER)):
        for path in paths:
            response = get(everywhere, path, *headers)
            assert response.code == 401, path
            assert [scheme.split()[0] for scheme in response.get_all("WWW-Authenticate")] == ["Basic", "Bearer"]
            assert response.header("Cross-Origin-Resource-Policy") == "same-origin"
    for header in (BEARER, BASIC):
        assert codes(everywhere, paths, header) == codes(here, paths)
    assert get(everywhere, "/details", method="POST").code == 401
    assert get(everywhere, "/details", BEARER, method="POST").code == 405
    for headers in ((), (BEARER,)):
        assert get(everywhere, "/details", *headers, method="BREW").code == 405


def test_elsewhere_every_path_is_forbidden_if_no_token_is_configured(without_token: Agent) -> None:
    everywhere, _ = ports(without_token)
    for headers in ((), (BEARER,)):
        for path in (*PATHS, *FILE_PATHS, *UNKNOWN):
            response = get(everywhere, path, *headers)
            assert (response.code, response.get_all("WWW-Authenticate")) == (403, []), path
            assert path in STREAMS or "operator_token" in json.loads(response.body)["message"]


def test_the_interface_is_open_everywhere(trusting: Agent, without_token: Agent) -> None:
    for port in (*ports(trusting), *ports(without_token)):
        for headers in ((), (WRONG,), ("X-Forwarded-For: 10.0.0.1", "Sec-Fetch-Site: cross-site")):
            assert set(codes(port, [*INTERFACE, *OUTSIDE_PREFIX], *headers, host="node.example").values()) == {200}
            assert set(codes(port, ["/favicon.ico", "/none", "//details", "//"], *headers).values()) == {404}
    assert get(ports(trusting)[0], "/svc/node/health").header("Cross-Origin-Resource-Policy") is None


def test_operator_listen_moves_the_endpoints_to_their_own_listener(tmp_path: Path, with_token: Agent) -> None:
    interface, operator = ports(with_token)
    for path in (*PATHS, *FILE_PATHS):
        assert get(interface, path, BEARER).code == 404
        assert get(operator, path).code == 401
    assert get(operator, "/details", BEARER).code == 200
    assert set(codes(operator, [*INTERFACE, *OUTSIDE_PREFIX]).values()) == {200}
    with connect_unix(with_token.config_file.with_name("own.sock")) as client:
        assert client.request(request("/details", host="localhost")).code == 401
        assert client.request(request("/details", BEARER, host="localhost")).code == 200


# ---- a reload


def open_stream(port: int, *headers: str) -> RawClient:
    reader = connect(port)
    reader.send(request("/events", *headers, host="localhost"))
    assert reader.read(is_head=True).code == 200
    return reader


def test_a_reload_changes_token_trust_and_place_of_the_endpoints_for_open_connections_and_closes_streams(
    tmp_path: Path,
) -> None:
    with Agent(tmp_path, "--drain", "0s", config=config()) as agent:
        (port,) = ports(agent)
        with connect(port) as client:

            def code(*headers: str) -> int:
                return client.request(request("/details", *headers, host="localhost")).code

            with open_stream(port) as reader:
                agent.reload(config() + '[[services]]\nid = "new"\nstatus = "Up"\n')
                assert becomes_true(lambda: not reader.receives_nothing() and b'"new"' in reader.unread), "still open"
                agent.reload(config(token=TOKEN))
                reader.read_to_end()
            assert (code(), code(BEARER), code(WRONG)) == (401, 200, 401)
            agent.reload(config(token=OTHER_TOKEN))
            assert (code(BEARER), code(WRONG)) == (401, 200)
            agent.reload(config(token=TOKEN, trust=True))
            assert (code(), code(BEARER)) == (200, 200)
            with open_stream(port) as reader:
                agent.reload(config(server="operator = false", token=TOKEN))
                assert reader.read_to_end().startswith(b"retry: ")
            assert [code(BEARER) for _ in range(3)] == [404] * 3
            assert set(codes(port, [*INTERFACE, *OUTSIDE_PREFIX]).values()) == {200}
            agent.reload(config(server='operator_listen = "127.0.0.2:0"'))
            *_, own = ports(agent)
            assert code() == 404
            with connect(own, "127.0.0.2") as operator_client:
                assert operator_client.request(request("/details", host="localhost")).code == 200
                agent.reload(config())
                assert operator_client.request(request("/details", host="localhost")).code == 404
            assert code() == 200
        readers = [open_stream(port) for _ in range(5)]
        assert agent.stop() == 0, "open pages do not delay the shutdown"
        assert not any("connections_aborted" in line for line in agent.lines)
        for reader in readers:
            reader.read_to_end()
            reader.sock.close()


# ---- behind a proxy


OPERATE = Path(__file__).parents[2] / "docs" / "operate.md"
PUBLIC_PATHS, OPERATOR_PATHS = re.findall(r"^```nginx\n(.*?)^```$", OPERATE.read_text(), re.DOTALL | re.MULTILINE)


OWN_HOST = "location / { proxy_pass http://127.0.0.1:8420; }"
PASSED_HOST = "location / { proxy_pass http://127.0.0.1:8420; proxy_set_header Host $host; }"


def test_a_proxy_can_forward_only_the_interface_or_everything_for_clients_with_the_token(with_token: Agent) -> None:
    with nginx_in_front_of(with_token, PUBLIC_PATHS) as port:
        assert get(port, "/svc/node/health", host="node.example").code == 200
        assert set(codes(port, ["/details", "/metrics", "/"], host="node.example").values()) <= {403, 404}  # from nginx
    for location in (OPERATOR_PATHS, OWN_HOST, PASSED_HOST):
        with nginx_in_front_of(with_token, location) as port:
            for host in ("node.example", "127.0.0.1", "localhost"):
                assert set(codes(port, ["/", "/details", "/static/page.js"], host=host).values()) == {401}
                assert get(port, "/", BASIC, host=host).code == 200
                assert get(port, "/svc/node/health", host=host).code == 200
            with open_stream(port, BEARER) as reader:
                assert becomes_true(lambda: b"retry" in reader.unread or not reader.receives_nothing())


def test_a_proxy_that_passes_the_host_on_is_logged_once_on_a_trusted_listener(without_token: Agent) -> None:
    _, here = ports(without_token)
    with nginx_in_front_of(without_token, OWN_HOST) as port:
        assert get(port, "/details", host="node.example").code == 200, "it looks like a local client"
    with nginx_in_front_of(without_token, PASSED_HOST) as port:
        assert get(here, "/details", host=f"localhost:{here}").code == 200
        assert get(port, "/svc/node/health", host="node.example").code == 200
        assert get(port, "/details", host="node.example").code == 403
        assert get(port, "/details", host="localhost").code == 200
        without_token.wait_for_event("proxy_on_trusted_listener")
        assert sum("proxy_on_trusted_listener" in line for line in without_token.lines) == 1


# ---- at the end


def test_a_proxy_can_add_the_token_for_badges_and_nothing_else(tmp_path: Path) -> None:
    """The example of docs/see.md."""
    page = OPERATE.with_name("see.md").read_text()
    (location,) = re.findall(r"^```nginx\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    config = CHECKED.format(listen="0.0.0.0:0") + '[security]\noperator_token = "the-token-of-the-node"\n'
    with Agent(tmp_path, config=config) as agent:
        assert agent.request("/badge/ledger%2F1.svg").code == 401
        with nginx_in_front_of(agent, location, "10.0.0.7:8420") as port:
            assert agent.request("/badge/ledger%2F1.svg", port).code == 200
            assert agent.request("/details", port).code in (403, 404)  # from nginx


def test_the_log_names_the_pages_and_has_neither_errors_nor_the_token(trusting: Agent, with_token: Agent) -> None:
    here, everywhere = ports(trusting)
    trusting.wait_for_event("operator_page", url=f"http://127.0.0.1:{here}/")
    trusting.wait_for_event("operator_page", url=f"http://0.0.0.0:{everywhere}/")
    for agent in (trusting, with_token):
        assert not any(TOKEN in line or '"level": "error"' in line for line in agent.lines)
    assert with_token.stop() == 0
    assert not with_token.config_file.with_name("own.sock").exists()


# ---- the details


CHECKED = """
[server]
listen = ["{listen}"]
drain = "0s"
[history]
keep = false
[defaults]
interval = "10s"
transition_interval = "100ms"
timeout = "5s"
start_period = "0s"
[[services]]
id = "ledger/1"
status = "Up"
"""


def test_a_checked_service_has_all_fields_which_agree_with_the_interface(tmp_path: Path) -> None:
    with closed_port() as port:
        config = f'{CHECKED.format(listen="127.0.0.1:0")}[[services]]\nid = "down"\nprobe = "tcp://127.0.0.1:{port}"\n'
        with Agent(tmp_path, config=config) as agent:
            agent.wait_until(lambda: agent.statuses()["down"] == "Down")
            details = agent.request("/details/down").json
            document = agent.request("/details").json
            assert {one["id"]: one["status"] for one in document["services"]} == agent.statuses()
            assert document["node"]["health"] == agent.health() == 206
            assert b">Down</text>" in agent.request("/badge/down.svg").body
    assert "down" in document["node"]["health_reason"]
    assert (details["status"], details["health"]) == ("Down", 503)
    assert (details["code"], details["probe"]) == ("connection_refused", f"tcp://127.0.0.1:{port}")
    assert details["counters"]["failures_in_a_row"] >= 3
    assert 0 <= details["next_check_in_s"] <= 10 * 1.05, "with jitter"
    assert details["evidence"] == {key: details["recent_checks"][0][key] for key in details["evidence"]}
    assert 3 <= len(details["recent_checks"]) <= 20
    assert {(one["outcome"], one["code"]) for one in details["recent_checks"]} == {("failed", "connection_refused")}
    ages = [one["age_s"] for one in details["recent_checks"]]
    assert ages == sorted(ages)
