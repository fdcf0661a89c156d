"""Access to the operator endpoints of a running node, and how a reload changes it."""

from __future__ import annotations

import json
import re
import socket
import ssl
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.operator import ROUTES
from svcnode.operator.page import STATIC_FILES
from tests.support.certificates import make_certificate
from tests.support.http_server import RawClient, RawResponse, becomes_true, request
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import DEADLINE_S, Agent, has_ipv6

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
FILE_PATHS = [f"/static/{name}" for name in STATIC_FILES]
UNKNOWN = [
    "/details/none",
    "/details/db/more",
    "/static/none.js",
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
        return client.request(request(path, *headers, host=host, **options), is_head=_is_head(path, options))


def _is_head(path: str, options: dict[str, Any]) -> bool:
    return path == "/events" or options.get("method") == "HEAD"  # a stream does not end


def codes(port: int, paths: list[str], *headers: str, **options: Any) -> dict[str, int]:
    return {path: get(port, path, *headers, **options).code for path in paths}


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node on loopback, which it trusts, on all addresses and on a Unix socket."""
    folder = tmp_path_factory.mktemp("with-token")
    listen = f"{LOOPBACK}, {EVERYWHERE}, unix:{folder}/a.sock"
    with Agent(folder, config=config(listen, token=TOKEN, trust=True)) as agent:
        yield agent


@pytest.fixture(scope="module")
def without_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("without-token")
    with Agent(folder, config=config(f"{LOOPBACK}, {EVERYWHERE}")) as agent:
        yield agent


# ---- on loopback


def test_on_loopback_every_path_is_open(with_token: Agent) -> None:
    here, _ = ports(with_token)
    for path in ("/", "/details", "/details/db", "/events", "/history?id=db", "/metrics", *FILE_PATHS):
        assert get(here, path).code == 200, path
    assert set(codes(here, UNKNOWN).values()) == {404}


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_ipv6_loopback_is_open(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config("[::1]:0")) as agent:
        (port,) = ports(agent)
        assert get(port, "/details", to="::1", host=f"[::1]:{port}").code == 200


def test_a_unix_socket_has_the_rules_of_loopback(with_token: Agent, tmp_path: Path) -> None:
    with_token.wait_for_event("started")
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(with_token.config_file.with_name("a.sock")))
    with RawClient(sock) as client:
        assert client.request(request("/details", host="localhost")).code == 200
        assert client.request(request("/details", host="")).code == 200
        assert client.request(request("/details", host="attacker.example")).code == 401
        assert client.request(request("/details", "X-Forwarded-For: 10.0.0.1", host="localhost")).code == 401


def test_on_loopback_another_host_header_needs_the_token(with_token: Agent, without_token: Agent) -> None:
    here, _ = ports(with_token)
    assert get(here, "/details", host="attacker.example").code == 401
    assert get(here, "/details", BEARER, host="attacker.example").code == 200
    assert get(ports(without_token)[0], "/details", host="attacker.example:8420").code == 403


@pytest.mark.parametrize("target", ["http://attacker.example/details", "http://localhost@attacker.example/details"])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_on_loopback_the_host_in_an_absolute_target_decides(with_token: Agent, target: str, method: str) -> None:
    here, _ = ports(with_token)
    assert get(here, target, method=method).code == 401
    assert get(here, target.replace("attacker.example", f"127.0.0.1:{here}"), method=method).code == (
        401 if "@" in target else 200 if method == "GET" else 405
    )


def test_on_loopback_a_local_absolute_target_overrides_the_host_header(with_token: Agent) -> None:
    here, _ = ports(with_token)
    assert get(here, "http://localhost/details", host="node.example").code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_on_loopback_a_cross_site_request_is_rejected(with_token: Agent, without_token: Agent, site: str) -> None:
    for agent, code in ((with_token, 401), (without_token, 403)):
        here, _ = ports(agent)
        image = (f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
        assert set(codes(here, [*PATHS, *FILE_PATHS, *UNKNOWN], *image).values()) == {code}
        link = (f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
        assert get(here, "/", *link).code == 200
        assert get(here, "/svc/node/health", *image).code == 200


def test_every_response_forbids_embedding_by_other_sites(with_token: Agent) -> None:
    for port in ports(with_token):
        for headers in ((), (BEARER,), (WRONG,)):
            for path in (*PATHS, *FILE_PATHS, *UNKNOWN):
                response = get(port, path, *headers)
                assert response.header("Cross-Origin-Resource-Policy") == "same-origin", path


def test_the_interface_may_be_embedded(with_token: Agent) -> None:
    assert get(ports(with_token)[0], "/svc/node/health").header("Cross-Origin-Resource-Policy") is None


@pytest.mark.parametrize("header", ["X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "Via: 1.1 proxy"])
def test_on_loopback_a_proxied_request_needs_the_token(with_token: Agent, header: str) -> None:
    here, _ = ports(with_token)
    assert get(here, "/", header).code == 401
    assert get(here, "/", header, BASIC).code == 200


def test_on_loopback_http_1_0_needs_no_host(with_token: Agent) -> None:
    here, _ = ports(with_token)
    with connect(here) as client:
        assert client.request(b"GET /details HTTP/1.0\r\n\r\n").code == 200


# ---- elsewhere


def test_elsewhere_every_path_is_rejected_without_the_token(with_token: Agent) -> None:
    _, everywhere = ports(with_token)
    for headers in ((), (WRONG,), ("Authorization: Basic b3BlcmF0b3I6",), ("Authorization: Negotiate x",)):
        for path in (*PATHS, *FILE_PATHS, *UNKNOWN):
            response = get(everywhere, path, *headers)
            assert response.code == 401, path
            assert [scheme.split()[0] for scheme in response.get_all("WWW-Authenticate")] == ["Basic", "Bearer"]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_elsewhere_other_methods_need_the_token_too(with_token: Agent, method: str) -> None:
    _, everywhere = ports(with_token)
    for path in (*PATHS, "/static/page.js", "/details/none"):
        with connect(everywhere) as client:
            response = client.request(request(path, method=method), is_head=method == "HEAD")
        assert response.code == 401, path
    wanted = 200 if method == "HEAD" else 405
    assert get(everywhere, "/details", BEARER, method=method).code == wanted


def test_elsewhere_a_method_that_http_does_not_know_is_answered_by_the_request_line(with_token: Agent) -> None:
    _, everywhere = ports(with_token)
    for headers in ((), (BEARER,)):
        assert set(codes(everywhere, [*PATHS, "/details/none"], *headers, method="BREW").values()) == {405}


@pytest.mark.parametrize("headers", [(BEARER, WRONG), (WRONG, BEARER), (BASIC, BEARER), (BEARER, BEARER)])
def test_elsewhere_two_authorization_headers_are_rejected(with_token: Agent, headers: tuple[str, ...]) -> None:
    _, everywhere = ports(with_token)
    assert get(everywhere, "/details", *headers).code == 401
    assert get(everywhere, "/svc/node/health", *headers).code == 200


@pytest.mark.parametrize("header", [BEARER, BASIC])
def test_elsewhere_every_path_is_open_with_the_token(with_token: Agent, header: str) -> None:
    here, everywhere = ports(with_token)
    paths = [*PATHS, *FILE_PATHS, *UNKNOWN]
    assert codes(everywhere, paths, header) == codes(here, paths)


def test_elsewhere_every_path_is_forbidden_if_no_token_is_configured(without_token: Agent) -> None:
    _, everywhere = ports(without_token)
    for headers in ((), (BEARER,)):
        for path in (*PATHS, *FILE_PATHS, *UNKNOWN):
            response = get(everywhere, path, *headers)
            assert (response.code, response.get_all("WWW-Authenticate")) == (403, []), path
            assert path == "/events" or "operator_token" in json.loads(response.body)["message"]


def test_the_interface_is_open_everywhere(with_token: Agent, without_token: Agent) -> None:
    for agent in (with_token, without_token):
        for port in ports(agent):
            for headers in ((), (WRONG,), ("X-Forwarded-For: 10.0.0.1",)):
                assert set(codes(port, [*INTERFACE, *OUTSIDE_PREFIX], *headers, host="node.example").values()) == {200}


def test_other_paths_are_not_found_with_or_without_a_token(with_token: Agent) -> None:
    for port in ports(with_token):
        assert set(codes(port, ["/favicon.ico", "/Details", "/none", "/svc/details"]).values()) == {404}


@pytest.mark.parametrize("path", ["//", "//svc/node/health", "//details", "///", "//static/page.js"])
def test_a_path_with_two_slashes_at_its_start_is_not_found_for_every_client(
    with_token: Agent, without_token: Agent, path: str
) -> None:
    for agent in (with_token, without_token):
        for port in ports(agent):
            for headers in ((), (BEARER,), (WRONG,), ("Via: 1.1 proxy",)):
                for host in ("localhost", "attacker.example"):
                    response = get(port, path, *headers, host=host)
                    assert (response.code, response.body) == (404, b'{"message":"Not found"}')


def test_the_log_names_the_pages_but_not_the_token(with_token: Agent, without_token: Agent) -> None:
    here, everywhere = ports(with_token)
    with_token.wait_for_event("operator_page", url=f"http://127.0.0.1:{here}/")
    with_token.wait_for_event("operator_page", url=f"http://0.0.0.0:{everywhere}/")
    _, everywhere = ports(without_token)
    without_token.wait_for_event("operator_page", url=f"http://0.0.0.0:{everywhere}/")
    assert not any(TOKEN in line for line in with_token.lines)


# ---- listeners


def test_operator_false_leaves_only_the_interface(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(server="operator = false", token=TOKEN)) as agent:
        (port,) = ports(agent)
        for headers in ((), (BEARER,)):
            responses = [get(port, path, *headers) for path in (*PATHS, *FILE_PATHS, *UNKNOWN)]
            assert {response.code for response in responses} == {404}
        assert get(port, "/details").body == b'{"message":"Not found"}'
        assert set(codes(port, [*INTERFACE, *OUTSIDE_PREFIX]).values()) == {200}
        assert not any("operator_page" in line for line in agent.lines)


def test_operator_listen_moves_the_endpoints_to_their_own_listener(tmp_path: Path) -> None:
    own = f'operator_listen = ["{EVERYWHERE}", "unix:own.sock"]'
    with Agent(tmp_path, "--drain", "0s", config=config(server=own, token=TOKEN)) as agent:
        interface, operator = ports(agent)
        for path in (*PATHS, *FILE_PATHS):
            assert get(interface, path).code == 404
            assert get(interface, path, BEARER).code == 404
            assert get(operator, path).code == 401
        assert get(operator, "/details", BEARER).code == 200
        assert set(codes(operator, [*INTERFACE, *OUTSIDE_PREFIX]).values()) == {200}
        assert (tmp_path / "own.sock").is_socket()
        assert agent.stop() == 0
        assert not (tmp_path / "own.sock").exists()


@pytest.mark.parametrize("trust", [None, False])
def test_with_a_token_everything_but_the_interface_needs_it(tmp_path: Path, trust: bool | None) -> None:
    listen = f"{LOOPBACK}, unix:{tmp_path}/a.sock"
    with Agent(tmp_path, config=config(listen, token=TOKEN, trust=trust)) as agent:
        (port,) = ports(agent)
        assert set(codes(port, [*PATHS, *FILE_PATHS, *UNKNOWN]).values()) == {401}
        assert get(port, "/details", WRONG).code == 401
        assert get(port, "/", BASIC).code == get(port, "/details", BEARER).code == 200
        assert set(codes(port, [*INTERFACE, *OUTSIDE_PREFIX]).values()) == {200}
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"{tmp_path}/a.sock")
        with RawClient(sock) as client:
            assert client.request(request("/details", host="localhost")).code == 401
            assert client.request(request("/details", BEARER, host="localhost")).code == 200
        agent.wait_for_event("operator_page", url=f"http://127.0.0.1:{port}/")


# ---- a reload


def test_a_reload_changes_the_trust_in_loopback(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent:
        (port,) = ports(agent)
        with connect(port) as client, connect(port) as reader:

            def code(*headers: str) -> int:
                return client.request(request("/details", *headers, host="localhost")).code

            reader.send(request("/events", host="localhost"))
            assert reader.read(is_head=True).code == 200
            assert (code(), code(BEARER)) == (200, 200)
            agent.reload(config(token=TOKEN))
            assert (code(), code(BEARER), code(WRONG)) == (401, 200, 401)
            assert reader.read_to_end().startswith(b"retry: ")
            agent.reload(config(token=TOKEN, trust=True))
            assert (code(), code(BEARER)) == (200, 200)


def test_a_reload_changes_the_token_for_open_connections(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(EVERYWHERE)) as agent:
        (port,) = ports(agent)
        with connect(port) as client:

            def code(*headers: str) -> int:
                return client.request(request("/details", *headers)).code

            assert (code(), code(BEARER)) == (403, 403)
            agent.reload(config(EVERYWHERE, token=TOKEN))
            assert (code(), code(BEARER), code(WRONG)) == (401, 200, 401)
            agent.reload(config(EVERYWHERE, token=OTHER_TOKEN))
            assert (code(), code(BEARER), code(WRONG)) == (401, 401, 200)
            agent.reload(config(EVERYWHERE))
            assert (code(), code(BEARER)) == (403, 403)
            assert client.request(request("/svc/node/health")).code == 200


def test_a_reload_removes_and_restores_the_endpoints_for_open_connections(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent:
        (port,) = ports(agent)
        with connect(port) as client:
            for server, code in (("", 200), ("operator = false", 404), ("", 200)):
                agent.reload(config(server=server))
                assert [client.request(request("/details", host="localhost")).code for _ in range(3)] == [code] * 3


def test_a_reload_moves_the_endpoints_to_their_own_listener(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent:
        (port,) = ports(agent)
        with connect(port) as client:
            agent.reload(config(server='operator_listen = "127.0.0.2:0"'))
            *_, own = ports(agent)
            assert client.request(request("/details", host="localhost")).code == 404
            with connect(own, "127.0.0.2") as operator_client:
                assert operator_client.request(request("/details", host="localhost")).code == 200
                agent.reload(config())
                assert operator_client.request(request("/details", host="localhost")).code == 404
            assert client.request(request("/details", host="localhost")).code == 200


@pytest.mark.parametrize(
    "after",
    [config(EVERYWHERE, token=OTHER_TOKEN), config(EVERYWHERE, server="operator = false", token=TOKEN)],
    ids=["token", "off"],
)
def test_a_reload_closes_streams_whose_token_is_no_longer_valid(tmp_path: Path, after: str) -> None:
    with Agent(tmp_path, config=config(EVERYWHERE, token=TOKEN)) as agent:
        (port,) = ports(agent)
        with connect(port) as reader:
            reader.send(request("/events", BEARER))
            assert reader.read(is_head=True).code == 200
            agent.reload(after)
            assert reader.read_to_end().startswith(b"retry: ")


def test_a_reload_without_changes_of_access_keeps_streams_open(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent:
        (port,) = ports(agent)
        with connect(port) as reader:
            reader.send(request("/events", host="localhost"))
            assert reader.read(is_head=True).code == 200
            assert becomes_true(lambda: b"retry" in reader.unread or not reader.receives_nothing())
            agent.reload(config() + '[[services]]\nid = "new"\nstatus = "Up"\n')
            assert becomes_true(lambda: not reader.receives_nothing() and b'"new"' in reader.unread)


def test_a_reload_changes_the_rules_for_open_tls_connections(tmp_path: Path) -> None:
    """A reload opens a new TLS listener, for its certificate; connections to the old one stay open."""
    pair = make_certificate(tmp_path)
    tls = f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}" }}'
    context = ssl.create_default_context(cafile=str(pair.certificate))
    with Agent(tmp_path, config=config(EVERYWHERE, server=tls, token=TOKEN)) as agent:
        (port, *_) = ports(agent)

        def connected() -> RawClient:
            sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
            return RawClient(context.wrap_socket(sock, server_hostname="localhost"))

        with connected() as client, connected() as reader:
            assert client.request(request("/details", BEARER)).code == 200
            reader.send(request("/events", BEARER))
            assert reader.read(is_head=True).code == 200
            agent.reload(config(EVERYWHERE, server=tls, token=OTHER_TOKEN))
            assert client.request(request("/details", BEARER)).code == 401
            assert client.request(request("/details", WRONG)).code == 200
            assert reader.read_to_end().startswith(b"retry: ")


# ---- behind a proxy


OPERATE = Path(__file__).parents[2] / "docs" / "operate.md"
PUBLIC_PATHS, OPERATOR_PATHS = re.findall(r"^```nginx\n(.*?)^```$", OPERATE.read_text(), re.DOTALL | re.MULTILINE)


def test_a_proxy_can_forward_only_the_interface(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent, nginx_in_front_of(agent, PUBLIC_PATHS) as port:
        assert get(port, "/svc/node/health", host="node.example").code == 200
        assert set(codes(port, ["/details", "/metrics", "/"], host="node.example").values()) <= {403, 404}  # from nginx


def test_through_a_proxy_with_a_header_the_token_is_required(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(token=TOKEN)) as agent, nginx_in_front_of(agent, OPERATOR_PATHS) as port:
        for host in ("node.example", "127.0.0.1"):
            assert set(codes(port, ["/", "/details", "/static/page.js"], host=host).values()) == {401}
            assert get(port, "/", BASIC, host=host).code == 200
            assert get(port, "/svc/node/health", host=host).code == 200
        with connect(port) as reader:
            reader.send(request("/events", BEARER))
            assert reader.read(is_head=True).code == 200
            assert becomes_true(lambda: b"retry" in reader.unread or not reader.receives_nothing())


OWN_HOST = "location / { proxy_pass http://127.0.0.1:8420; }"
PASSED_HOST = "location / { proxy_pass http://127.0.0.1:8420; proxy_set_header Host $host; }"


def test_without_a_token_a_proxy_without_a_header_looks_like_a_local_client(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent, nginx_in_front_of(agent, OWN_HOST) as port:
        assert get(port, "/details", host="node.example").code == 200


@pytest.mark.parametrize("location", [OWN_HOST, PASSED_HOST], ids=["own host", "passed host"])
def test_with_a_token_no_client_of_a_proxy_needs_no_token(tmp_path: Path, location: str) -> None:
    with Agent(tmp_path, config=config(token=TOKEN)) as agent, nginx_in_front_of(agent, location) as port:
        for host in ("node.example", "localhost", "127.0.0.1", f"localhost:{agent.port}"):
            assert set(codes(port, ["/", "/details", "/metrics", "/events"], host=host).values()) == {401}
            assert get(port, "/details", BEARER, host=host).code == 200
            assert get(port, "/svc/node/health", host=host).code == 200


def test_a_proxy_that_passes_the_host_on_is_logged_once_on_a_trusted_listener(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config()) as agent, nginx_in_front_of(agent, PASSED_HOST) as port:
        assert get(agent.port, "/details", host=f"localhost:{agent.port}").code == 200
        assert get(port, "/svc/node/health", host="node.example").code == 200
        assert not any("proxy_on_trusted_listener" in line for line in agent.lines)
        assert get(port, "/details", host="node.example").code == 403
        assert get(port, "/details", host="localhost").code == 200
        agent.wait_for_event("proxy_on_trusted_listener")
        assert agent.stop() == 0
        assert sum("proxy_on_trusted_listener" in line for line in agent.lines) == 1


def test_a_proxy_can_serve_the_page_below_another_path(tmp_path: Path) -> None:
    below = "location /node-7/ { proxy_pass http://127.0.0.1:8420/; }"
    with Agent(tmp_path, config=config()) as agent, nginx_in_front_of(agent, below) as port:
        page = get(port, "/node-7/").body.decode()
        files = re.findall(r'(?:src|href)="([^"]+\.(?:js|css|svg))"', page)
        assert files
        assert set(codes(port, [f"/node-7/{file}" for file in files]).values()) == {200}


# ---- shutdown


def test_open_pages_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    with Agent(tmp_path, "--drain", "0s", config=config()) as agent:
        (port,) = ports(agent)
        readers = [connect(port) for _ in range(20)]
        for reader in readers:
            reader.send(request("/events", host="localhost"))
            assert reader.read(is_head=True).code == 200
        assert agent.stop() == 0
        assert not any("connections_aborted" in line for line in agent.lines)
        for reader in readers:
            reader.read_to_end()
            reader.sock.close()


def test_the_details_of_a_draining_node_say_so(tmp_path: Path) -> None:
    with Agent(tmp_path, "--drain", "5s", config=config()) as agent:
        (port,) = ports(agent)
        agent.process.terminate()
        agent.wait_for_log("draining")
        details = get(port, "/details").body
        assert json.loads(details)["node"]["draining"] is True


def test_the_log_has_no_errors_after_all_these_requests(with_token: Agent, without_token: Agent) -> None:
    for agent in (with_token, without_token):
        assert [line for line in agent.lines if '"level": "error"' in line] == []
