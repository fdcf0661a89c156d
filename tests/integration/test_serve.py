from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import RawClient, request
from tests.support.processes import DEADLINE_S, Agent, Client, Response, connect_unix, has_ipv6, is_listening

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'
# Checks the store often and reports a failure soon.
SOON = {
    "SVCNODE_DEFAULTS_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "SVCNODE_DEFAULTS_STALE_AFTER": "60s",
}


@pytest.fixture
def without_uvloop(tmp_path: Path) -> dict[str, str]:
    """An environment in which uvloop cannot be imported."""
    folder = tmp_path / "without-uvloop"
    folder.mkdir()
    (folder / "uvloop.py").write_text("raise ImportError('hidden')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest, without_uvloop: dict[str, str]) -> dict[str, str]:
    """The environment for either event loop."""
    return without_uvloop if request.param == "asyncio" else {}


def tls_table(made: Certificate) -> str:
    return f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'


def trusting(*made: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for certificate in made:
        context.load_verify_locations(certificate.certificate)
    return context


def certificate_of(client: Client) -> bytes | None:
    assert isinstance(client.sock, ssl.SSLSocket)
    return client.sock.getpeercert(binary_form=True)


def der(made: Certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(made.certificate.read_text())


def run(folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "svcnode", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


# ---- log and options


def test_the_logged_url_answers(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--name", "validator-7", "--node-version", "v1.4.2", config=FIXED) as agent:
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/svc/node)", agent.wait_for_event("listening")["url"])
        assert match is not None
        response = agent.request(match[2], int(match[1]))
        assert response.code == 200
        assert response.json == {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
        assert agent.statuses() == {"db": "Up"}
        assert agent.health() == 200


def test_without_a_terminal_every_line_is_json_with_an_event(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent:
        agent.wait_for_event("started")
        assert agent.stop() == 0
        assert all({"time", "level", "logger", "message", "event"} <= entry.keys() for entry in agent.log_entries)
        assert agent.log_entries[-1]["event"] == "stopped"


def test_on_a_terminal_every_line_is_text_and_there_is_no_drain(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, on_terminal=True) as agent:
        agent.wait_for_log("started: node")
        assert agent.stop() == 0
        assert all(re.match(r"\d\d:\d\d:\d\d (info|warning) ", line) for line in agent.lines), agent.lines
        assert not any("draining" in line for line in agent.lines)


def test_without_a_terminal_the_drain_takes_5_seconds(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining", drain_s=5.0)
        agent.signal(signal.SIGTERM)
        assert agent.wait_for_exit() == 128 + signal.SIGTERM


def test_options_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = '[node]\nname = "file"\nversion = "v1"\n[server]\nprefix = "/file"\n' + FIXED
    environ = {"SVCNODE_NODE_VERSION": "v2", "SVCNODE_SERVER_PREFIX": "/environment", "SVCNODE_SERVER_LISTEN": "x"}
    with Agent(tmp_path, *ANYWHERE, "--prefix", "/flag", config=config, environ=environ) as agent:
        identity = agent.request("/flag/node").json
        assert (identity["node_name"], identity["node_version"]) == ("file", "v2")
        assert agent.request("/environment/node").code == agent.request("/file/node").code == 404


# ---- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_during_the_drain_health_is_503_and_requests_are_answered(number: signal.Signals, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "1s", config=FIXED) as agent:
        agent.wait_for_event("started")
        assert agent.health() == 200
        agent.signal(number)
        agent.wait_for_event("draining", drain_s=1.0)
        codes = {path: agent.request(path).code for path in ("/svc/node/health", "/svc/node", "/svc/node/services")}
        codes |= {path: agent.request(path).code for path in ("/svc/node/services/db/health", "/livez", "/readyz")}
        assert codes == {
            "/svc/node/health": 503,
            "/svc/node": 200,
            "/svc/node/services": 200,
            "/svc/node/services/db/health": 200,
            "/livez": 200,
            "/readyz": 503,
        }
        assert agent.wait_for_exit() == 0
        assert agent.log_entries[-1]["event"] == "stopped"


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_stops_immediately(first: signal.Signals, second: signal.Signals, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=FIXED) as agent, agent.connect() as client:
        agent.wait_for_event("started")
        agent.signal(first)
        agent.wait_for_event("draining", drain_s=60.0)
        assert client.request("/svc/node/health").code == 503  # its connection stays open
        agent.signal(second)
        assert agent.wait_for_exit() == 128 + second
        assert agent.log_entries[-1]["event"] == "forced_stop"


def test_a_request_in_flight_is_answered_before_the_stop(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent, agent.connect() as client:
        assert client.request("/svc/node").code == 200
        client.sock.sendall(b"GET /svc/node HTTP/1.1\r\n")
        agent.wait_until(lambda: agent.health() == 200)  # the half request has arrived by then
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: not is_listening(agent.port))
        client.sock.sendall(b"Host: localhost\r\n\r\n")
        assert client.sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert agent.wait_for_exit() == 0


# ---- reloading


def test_a_reload_adds_removes_and_changes_services(tmp_path: Path) -> None:
    def service(service_id: str, status: str, name: str = "n") -> str:
        return f'[[services]]\nid = "{service_id}"\nname = "{name}"\nstatus = "{status}"\n'

    debug = '[log]\nlevel = "debug"\n'
    before = debug + service("goes", "Up") + service("stays", "Up") + service("changes", "Up", "old")
    after = debug + service("stays", "Up") + service("changes", "Initializing", "new") + service("comes", "Down")
    with Agent(tmp_path, *ANYWHERE, config=before) as agent:
        assert agent.statuses() == {"goes": "Up", "stays": "Up", "changes": "Up"}
        agent.reload(after)
        assert agent.statuses() == {"stays": "Up", "changes": "Initializing", "comes": "Down"}
        names = {service["id"]: service["name"] for service in agent.request("/svc/node/services").json["services"]}
        assert names["changes"] == "new"
        assert agent.request("/svc/node/services/goes/health").code == 404
        assert agent.health() == 206
        changes = [entry for entry in agent.events("service_status") if entry["service"] == "stays"]
        assert [entry["status"] for entry in changes] == ["Up"]


def test_services_with_a_fixed_status_are_logged_in_one_line(tmp_path: Path) -> None:
    def fixed(*statuses: str) -> str:
        return "".join(
            f'[[services]]\nid = "s{number}"\nstatus = "{status}"\n' for number, status in enumerate(statuses)
        )

    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=fixed(*["Up"] * 300, "Down")) as agent:
        agent.wait_for_event("started")
        agent.reload(fixed("Down"))
        agent.reload(fixed("Down"))
        assert agent.stop() == 0
        assert [entry["services"] for entry in agent.events("fixed_status")] == [301, 1]
        assert agent.events("service_status") == []


def test_a_service_can_change_from_fixed_to_probed_and_back(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.execute("CREATE TABLE entries (amount)")
    with Agent(tmp_path, *ANYWHERE, config='[[services]]\nid = "db"\nstatus = "Down"\n') as agent:
        assert agent.statuses() == {"db": "Down"}
        agent.reload('[[services]]\nid = "db"\nprobe = "sqlite:ledger.db"\n')
        agent.wait_until(lambda: agent.statuses() == {"db": "Up"})
        agent.reload('[[services]]\nid = "db"\nstatus = "Initializing"\n')
        assert agent.statuses() == {"db": "Initializing"}


def test_name_version_and_prefix_change_for_open_connections(tmp_path: Path) -> None:
    before = '[node]\nname = "old"\nversion = "v1"\n' + FIXED
    after = '[node]\nname = "new"\nversion = "v2"\n[server]\nprefix = ["/svc", "/eigen"]\n' + FIXED
    with Agent(tmp_path, *ANYWHERE, config=before) as agent, agent.connect() as client:
        assert client.request("/svc/node").json["node_name"] == "old"
        assert client.request("/eigen/node").code == 404
        agent.reload(after)
        for prefix in ("/svc", "/eigen"):
            identity = client.request(f"{prefix}/node").json
            assert (identity["node_name"], identity["node_version"]) == ("new", "v2")


def test_pages_of_the_listed_origins_may_read_the_endpoints_only(tmp_path: Path) -> None:
    page, other = "https://status.example.com", "https://other.example.com"
    config = f'[server]\ncors = ["{page}"]\n' + FIXED

    with (
        Agent(tmp_path, *ANYWHERE, config=config) as agent,
        RawClient(socket.create_connection(("127.0.0.1", agent.port))) as client,
    ):

        def headers(target: str, origin: str) -> dict[str, str]:
            headers = client.request(request(target, f"Origin: {origin}")).headers
            return {name.lower(): value for name, value in headers}

        def allowed(target: str, origin: str) -> str | None:
            return headers(target, origin).get("access-control-allow-origin")

        for _ in range(2):  # the second response is from the cache
            assert allowed("/svc/node/health", page) == page
            assert allowed("/svc/node/health", other) is None
            assert allowed("/svc/node", page) == page
        assert headers("/svc/node", other)["vary"] == "Origin"
        assert allowed("/livez", page) is None
        assert allowed("/details", page) is None
        agent.reload(config.replace(f'["{page}"]', '"*"'))
        assert allowed("/svc/node/health", other) == "*"
        agent.reload(FIXED)
        assert allowed("/svc/node/health", page) is None


def test_the_log_names_every_prefix(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config='[server]\nprefix = ["/svc", "/eigen"]\n' + FIXED) as agent:
        entry = agent.wait_for_event("listening")
        urls = [f"http://127.0.0.1:{agent.port}/{prefix}/node" for prefix in ("svc", "eigen")]
        assert entry["url"] == urls[0]
        assert all(url in entry["message"] for url in urls)


def test_addresses_change_while_connections_stay(loop: dict[str, str], tmp_path: Path) -> None:
    with Agent(tmp_path, config='[server]\nlisten = "127.0.0.1:0"\n' + FIXED, environ=loop) as agent:
        before = agent.port
        with agent.connect(before) as client:
            assert client.request("/svc/node").code == 200
            agent.reload('[server]\nlisten = "localhost:0"\nprefix = "/eigen"\n' + FIXED)
            agent.wait_for_log(r"listening on http://.*/eigen/node", times=1)
            after = agent.port
            assert after != before
            assert agent.request("/eigen/node", after).code == 200
            assert client.request("/eigen/node").code == 200
            agent.wait_until(lambda: not is_listening(before))


def test_a_reload_does_not_change_the_replica_of_a_shared_node(tmp_path: Path) -> None:
    config = f'[node]\nname = "shared"\n[sharing]\nregistry = "etcd://127.0.0.1:1"\nreplica = "a"\n{FIXED}'
    with Agent(tmp_path, *ANYWHERE, config=config) as agent:
        agent.reload(config.replace('"a"', '"b"').replace("Up", "Down"))
        (failure,) = agent.events("reload_failed")
        assert failure["key"] == "sharing.replica"
        assert agent.events("reloaded") == []


def test_a_reload_changes_the_log_level(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text('[node]\nname = "quiet"\n[log]\nlevel = "error"\n' + FIXED)
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: agent.request("/svc/node").json["node_name"] == "quiet")
        agent.reload("broken")
        assert agent.log_entries[-1]["event"] == "reload_failed"
        assert agent.events("reloaded") == []


def test_a_reload_changes_the_log_format(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent:
        agent.reload('[log]\nformat = "text"\n' + FIXED)
        assert re.match(r"\d\d:\d\d:\d\d info    reloaded", agent.lines[-1])
        agent.reload('[log]\nformat = "json"\n' + FIXED)
        assert json.loads(agent.lines[-1])["event"] == "reloaded"


def test_the_log_of_a_reload_counts_the_removed_services(tmp_path: Path) -> None:
    failed = '[[services]]\nid = "ledger"\nstatus = "Down"\nimpact = "critical"\n'
    with Agent(tmp_path, *ANYWHERE, config=FIXED + failed) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        agent.reload(FIXED)
        assert agent.health() == 200
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["removed"], entry["added"], entry["changed"]) == ("reloaded", 1, 0, 0)
        assert "ledger" in entry["message"]


def test_an_invalid_file_changes_nothing_and_is_logged_with_file_and_line(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "-c", "svcnode.toml", config='[node]\nname = "old"\n' + FIXED) as agent:
        assert agent.request("/svc/node").json["node_name"] == "old"
        agent.reload('[node]\nname = "new"\n[[services]]\nid = "other"\nstatus = "up"\n')
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["error"], entry["key"]) == (
            "reload_failed",
            "ConfigError",
            "services.other.status",
        )
        assert entry["message"].endswith(" (svcnode.toml:5)")
        assert agent.request("/svc/node").json["node_name"] == "old"
        assert agent.statuses() == {"db": "Up"}
        agent.config_file.unlink()
        agent.reload()
        assert agent.log_entries[-1]["event"] == "reload_failed"
        assert agent.health() == 200
        agent.reload('[node]\nname = "new"\n' + FIXED)
        assert agent.request("/svc/node").json["node_name"] == "new"


def test_an_emptied_file_does_not_make_an_unhealthy_node_healthy(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config='[[services]]\nid = "db"\nstatus = "Down"\n') as agent:
        agent.reload("")
        assert agent.log_entries[-1]["event"] == "reload_failed"
        assert agent.health() == 503


def test_a_reload_that_replaces_a_failed_service_never_shows_200(tmp_path: Path) -> None:
    failed = '[[services]]\nid = "old"\nimpact = "critical"\nstatus = "Down"\n'
    with Agent(tmp_path, *ANYWHERE, config=failed) as agent:
        agent.reload(failed.replace("old", "new").replace("Down", "Initializing"))
        assert agent.statuses() == {"new": "Initializing"}
        assert 200 not in [entry["node_health"] for entry in agent.events("node_health")]


def test_a_pipe_is_not_read_as_configuration(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.config_file.unlink()
        os.mkfifo(agent.config_file)
        agent.reload()
        assert agent.log_entries[-1]["event"] == "reload_failed"
        assert agent.health() == 200


def test_after_a_reload_with_an_internal_error_the_next_one_applies_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from svcnode.server.server import HttpServer\n"
        "set_routing = HttpServer.set_routing\n"
        "def fail_once(server, prefixes, cors):\n"
        "    HttpServer.set_routing = set_routing\n"
        "    raise OSError('injected')\n"
        "HttpServer.set_routing = fail_once\n"
    )
    after = '[node]\nname = "new"\n[server]\nprefix = "/eigen"\n[[services]]\nid = "other"\nstatus = "Down"\n'
    with Agent(tmp_path, *ANYWHERE, config=FIXED, environ={"PYTHONPATH": str(tmp_path)}) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text(after)
        agent.signal(signal.SIGHUP)
        agent.wait_for_event("reload_failed", error="OSError")
        assert agent.health() == 200
        agent.reload()
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["removed"], entry["added"]) == ("reloaded", 1, 1)
        assert agent.request("/eigen/node").json["node_name"] == "new"
        assert agent.request("/eigen/node/services").json["services"][0]["id"] == "other"
        assert agent.request("/eigen/node/health").code == 503


def test_a_file_created_after_the_start_is_found_by_a_reload(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE) as agent:
        agent.reload(FIXED)
        assert agent.statuses() == {"db": "Up"}


def test_a_sighup_during_the_start_is_ignored(tmp_path: Path) -> None:
    """Before the command runs, SIGHUP would end Python itself; the signal is sent when the agent is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'svcnode.agent': os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, Early())\n"
    )
    with Agent(tmp_path, *ANYWHERE, config=FIXED, environ={"PYTHONPATH": str(tmp_path)}) as agent:
        assert agent.health() == 200


def test_a_check_that_fails_at_the_start_is_logged_before_it_counts(tmp_path: Path) -> None:
    config = '[[services]]\nid = "ledger"\nprobe = "sqlite:/nowhere/ledger.db"\n'
    with Agent(tmp_path, *ANYWHERE, config=config) as agent:
        agent.wait_for_log("service ledger .*: /nowhere/ledger.db")
        assert agent.statuses() == {"ledger": "Initializing"}


def test_an_address_in_use_makes_the_reload_fail_and_changes_nothing(tmp_path: Path) -> None:
    old, new = make_certificate(tmp_path, "old"), make_certificate(tmp_path, "new")
    before = '[server]\nlisten = ["127.0.0.1:0"]\n' + tls_table(old) + FIXED
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Agent(tmp_path, config=before) as agent,
        agent.connect(tls=trusting(old)) as client,
    ):
        port, in_use = agent.port, other.getsockname()[1]
        listen = f'listen = ["unix:a.sock", "127.0.0.1:0", "127.0.0.1:{in_use}"]'
        agent.reload(f'[node]\nname = "new"\n[server]\n{listen}\n{tls_table(new)}{FIXED}')
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["error"]) == ("reload_failed", "ListenError")
        assert f"https://127.0.0.1:{in_use}: " in entry["message"]
        assert entry["message"].endswith("listen in [server]")
        assert not (tmp_path / "a.sock").exists()
        assert client.request("/svc/node").json["node_name"] != "new"
        with agent.connect(port, tls=trusting(old)) as new_client:
            assert certificate_of(new_client) == der(old)
            assert new_client.request("/svc/node/services").json["services"][0]["id"] == "db"
        agent.reload(before)
        assert agent.log_entries[-1]["event"] == "reloaded"


def test_a_reload_that_renames_the_node_says_so(tmp_path: Path) -> None:
    services = '[[services]]\nid = "db"\nstatus = "Up"\n'
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with Agent(tmp_path, *ANYWHERE, config=f'[node]\nname = "one"\n{services}', environ=environ) as agent:
        agent.reload(f'[node]\nname = "two"\n{services}')
        entry = agent.wait_for_event("reloaded")
        assert '"one" to "two"' in entry["message"]
        agent.reload()
        assert '"two"' not in agent.log_entries[-1]["message"]


def test_many_reloads_leave_no_open_descriptors(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    config = '[server]\nlisten = ["127.0.0.1:0", "http://127.0.0.1:0", "unix:a.sock"]\n' + tls_table(made) + FIXED
    with Agent(tmp_path, config=config) as agent:
        agent.reload()
        before = _descriptors(agent)
        for _ in range(10):
            agent.reload()
        agent.wait_until(lambda: _descriptors(agent) <= before)
        with connect_unix(tmp_path / "a.sock") as client:
            assert client.request("/svc/node").code == 200


def _descriptors(agent: Agent) -> int:
    return len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))


# ---- TLS


def test_with_a_certificate_the_node_serves_https(loop: dict[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Agent(tmp_path, *ANYWHERE, config=tls_table(made) + FIXED, environ=loop) as agent:
        assert agent.wait_for_event("listening")["url"].startswith("https://127.0.0.1:")
        with agent.connect(tls=trusting(made)) as client:
            assert client.request("/svc/node/health").code == 200
            assert client.request("/svc/node/services").json["services"][0]["id"] == "db"
        with agent.connect() as plain, pytest.raises(ConnectionError):
            plain.request("/svc/node/health")


@pytest.mark.parametrize("becomes_rsa", [False, True])
def test_a_new_certificate_is_used_for_new_connections_and_old_ones_stay(
    becomes_rsa: bool, loop: dict[str, str], tmp_path: Path
) -> None:
    made = make_certificate(tmp_path)
    config = '[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED
    with Agent(tmp_path, config=config, environ=loop) as agent:
        port = agent.port
        with agent.connect(tls=trusting(made)) as before:
            first = certificate_of(before)
            assert before.request("/svc/node").code == 200
            make_certificate(tmp_path, is_rsa=becomes_rsa)
            agent.reload()
            with agent.connect(port, tls=trusting(made)) as after:
                assert certificate_of(after) == der(made) != first
                assert after.request("/svc/node").code == 200
            assert before.request("/svc/node").code == 200


def test_an_invalid_certificate_makes_the_reload_fail_and_changes_nothing(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    config = '[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED
    with Agent(tmp_path, config=config) as agent:
        trust, expected = trusting(made), der(made)
        port = agent.port
        made.certificate.write_text("hello")
        agent.reload()
        entry = agent.log_entries[-1]
        assert entry["event"] == "reload_failed"
        assert "node.pem" in entry["message"]
        with agent.connect(port, tls=trust) as client:
            assert certificate_of(client) == expected


def test_a_reload_can_change_a_port_to_tls(loop: dict[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Agent(tmp_path, config='[server]\nlisten = "127.0.0.1:0"\n' + FIXED, environ=loop) as agent:
        port = agent.port
        with agent.connect() as plain:
            assert plain.request("/svc/node").code == 200
            agent.reload('[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED)
            with agent.connect(port, tls=trusting(made)) as client:
                assert client.request("/svc/node").code == 200
            assert plain.request("/svc/node").code == 200


# ---- the node's own store


def test_without_a_configuration_the_node_probes_a_real_sqlite_store(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        assert agent.request("/svc/node/services").json == {
            "services": [
                {
                    "id": "store",
                    "name": "Embedded store",
                    "description": "SQLite store of this node",
                    "status": "Up",
                }
            ]
        }
        store = tmp_path / ".local" / "state" / "svcnode" / "store.db"
        assert store.read_bytes().startswith(b"SQLite format 3\0")
        with closing(sqlite3.connect(store)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def delete(store: Path) -> None:
    store.unlink()


def corrupt(store: Path) -> None:
    store.write_bytes(b"x" * 4096)


def tear(store: Path) -> None:
    """Damage all but the header, so that only reading the tables finds it."""
    whole = store.read_bytes()
    store.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))


@pytest.mark.parametrize("damage", [delete, corrupt, tear])
def test_a_lost_store_makes_the_node_unhealthy_until_it_is_restored(damage: object, tmp_path: Path) -> None:
    assert callable(damage)
    store = tmp_path / "store.db"
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        shutil.copy(store, tmp_path / "aside.db")
        damage(store)
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        assert agent.health() == 503
        assert agent.request("/svc/node/services/store/health").code == 503
        assert agent.wait_for_event("service_status", service="store", status="Down", previous="Up")["reason"]
        assert damage is not delete or not store.exists(), "a check created the file again"
        (tmp_path / "aside.db").replace(store)
        agent.wait_until(lambda: agent.statuses() == {"store": "Up"})
        assert agent.health() == 200


def test_a_reload_does_not_create_a_lost_store_again(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with Agent(tmp_path, *ANYWHERE, config="", environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        store.unlink()
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        agent.reload()
        assert agent.log_entries[-1]["event"] == "reloaded"
        assert not store.exists()
        assert agent.health() == 503


def test_the_database_of_another_program_is_not_used_as_store(tmp_path: Path) -> None:
    store = tmp_path / "theirs.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE theirs (id INTEGER)")
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        assert agent.health() == 503


def test_a_store_that_cannot_be_created_is_logged_and_the_node_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {**SOON, "SVCNODE_STORE_PATH": "file/store.db"}
    with Agent(tmp_path, *ANYWHERE, environ=environ) as agent:
        assert agent.health() != 200
        assert "file/store.db" in agent.wait_for_event("store_failed")["message"]
        agent.wait_until(lambda: agent.health() == 503)
        assert agent.statuses() == {"store": "Down"}
        assert agent.request("/svc/node").code == 200


@pytest.mark.parametrize("variable", ["SVCNODE_STORE_PATH", "XDG_STATE_HOME"])
def test_a_store_with_an_invalid_path_is_logged_and_the_node_serves(variable: str, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, variable: f"{'x' * 300}/store.db"}) as agent:
        agent.wait_for_event("store_failed")
        agent.wait_until(lambda: agent.health() == 503)
        assert agent.statuses() == {"store": "Down"}
        assert not any("Traceback" in line for line in agent.lines)


def test_one_failed_check_does_not_make_the_store_down(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    environ = {**SOON, "SVCNODE_DEFAULTS_INTERVAL": "60s", "SVCNODE_DEFAULTS_STALE_AFTER": "1h"}
    with Agent(tmp_path, *ANYWHERE, environ={**environ, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"store": "Up"})
        store.unlink()
        assert agent.statuses() == {"store": "Up"}


# ---- addresses


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    with Agent(tmp_path, "--listen", "[::1]:0", config=FIXED) as agent:
        url = urlsplit(agent.wait_for_event("listening")["url"])
        port = url.port
        with agent.connect(port, host=str(url.hostname)) as client:
            assert client.request("/svc/node").code == 200


def test_a_unix_socket_is_removed_at_the_end(loop: dict[str, str], tmp_path: Path) -> None:
    with Agent(tmp_path, "--listen", "unix:a.sock", "--drain", "0s", config=FIXED, environ=loop) as agent:
        assert agent.wait_for_event("listening")["url"].startswith("unix:a.sock ")
        with connect_unix(tmp_path / "a.sock") as client:
            assert client.request("/svc/node").code == 200
        assert agent.stop() == 0
    assert not (tmp_path / "a.sock").exists()


def test_a_socket_of_a_crashed_process_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as crashing:
        crashing.wait_for_event("listening")
    assert path.is_socket()
    with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as alive:
        alive.wait_for_event("listening")
        with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as late:
            assert late.wait_for_exit() == 1
            assert [entry["event"] for entry in late.log_entries] == ["listen_failed"]
        with connect_unix(path) as client:
            assert client.request("/svc/node").code == 200


def test_several_addresses_and_prefixes(tmp_path: Path) -> None:
    arguments = ("--listen", "unix:a.sock", *ANYWHERE, "--prefix", "/svc", "--prefix", "/eigen")
    with Agent(tmp_path, *arguments, config=FIXED) as agent, agent.connect() as tcp:
        agent.wait_for_event("started")
        with connect_unix(tmp_path / "a.sock") as unix:
            responses = {client.request(f"{prefix}/node") for client in (tcp, unix) for prefix in ("/svc", "/eigen")}
        assert len(responses) == 1
        assert tcp.request("/other/node") == Response(404, b'{"message":"Not found"}')


def test_an_address_in_use_is_logged_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        in_use = other.getsockname()[1]
        with Agent(tmp_path, "--listen", "unix:a.sock", "--listen", f"127.0.0.1:{in_use}", config=FIXED) as agent:
            assert agent.wait_for_exit() == 1
            (entry,) = agent.log_entries
            assert entry["event"] == "listen_failed"
            assert f"http://127.0.0.1:{in_use}: " in entry["message"]
            assert entry["message"].endswith("--listen")
    assert not (tmp_path / "a.sock").exists()


# ---- without uvloop, without a reader of the log


def test_it_serves_without_uvloop(without_uvloop: dict[str, str], tmp_path: Path) -> None:
    arguments = (*ANYWHERE, "--drain", "0s", "--log-level", "debug")
    with Agent(tmp_path, *arguments, config=FIXED, environ=without_uvloop) as agent:
        agent.wait_for_log("Using selector: ")  # logged by asyncio's own loop
        assert agent.health() == 200
        agent.reload()
        assert agent.stop() == 0


def test_the_node_serves_when_the_reader_of_its_log_is_gone(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent:
        port = agent.port
        agent.wait_for_event("started")
        agent.close_stderr()
        for _ in range(3):
            agent.signal(signal.SIGHUP)
            assert agent.request("/svc/node/health", port).code == 200
        agent.config_file.write_text('[node]\nname = "new"\n' + FIXED)
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: agent.request("/svc/node", port).json["node_name"] == "new")
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_stdout_causes_no_traceback(unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(FIXED)
    read_end, write_end = os.pipe()
    os.close(read_end)
    checked = subprocess.run(
        [sys.executable, "-m", "svcnode", "check-config"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": unbuffered},
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(write_end)
    assert (checked.returncode, checked.stderr) == (1, b"")


# ---- invalid configurations


@pytest.mark.parametrize("command", ["serve", "check-config"])
@pytest.mark.parametrize(
    ("file", "named"),
    [("no.toml", "(no.toml)"), (".", "(.)"), ("bad.toml", "(bad.toml:2)"), ("tls.toml", "server.tls.certificate: ")],
)
def test_an_invalid_configuration_gives_one_line_and_exit_code_2(
    command: str, file: str, named: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.toml").write_text("[node]\nnam = 1\n")
    (tmp_path / "tls.toml").write_text('[server.tls]\ncertificate = "tls.toml"\nkey = "tls.toml"\n')
    ended = run(tmp_path, command, "-c", file)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("svcnode: ")
    assert named in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_environment_may_name_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[node]\nname = "a"\nversion = "v1"\n' + FIXED)
    checked = run(tmp_path, "check-config", environ={"SVCNODE_CONFIG": "a.toml"})
    assert "(a.toml): a v1 on http://127.0.0.1:8420\n" in checked.stdout
    assert checked.returncode == 0


def test_a_heartbeat_service_without_a_control_socket_causes_a_warning(tmp_path: Path) -> None:
    config = f'[control]\nenabled = false\n{FIXED}[[services]]\nid = "indexer"\nprobe = "heartbeat:30s"\n'
    (tmp_path / "svcnode.toml").write_text(config)
    checked = run(tmp_path, "check-config")
    assert checked.returncode == 0
    assert re.search(r'^Note: .*"indexer"', checked.stdout, re.MULTILINE)
    assert '"db"' not in checked.stdout
    with Agent(tmp_path, *ANYWHERE, config=config) as agent:
        assert "indexer" in agent.wait_for_event("heartbeat_unsupported")["message"]


def test_an_empty_variable_names_no_configuration(tmp_path: Path) -> None:
    checked = run(tmp_path, "check-config", environ={"SVCNODE_CONFIG": "", "SVCNODE_NODE_NAME": "a"})
    assert re.search("^  store: ", checked.stdout, re.MULTILINE)
    assert checked.returncode == 0


# ---- what clients send

INVALID_INPUT = [
    b"BREW / HTTP/1.1\r\n\r\n",
    b"BREW /details HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160),
    bytes(range(256)),
    b"\r\n" * 100,
    b"",
]


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_nothing_that_a_client_sends_is_a_warning_or_an_error_of_the_node(
    tmp_path: Path, loop: dict[str, str], has_tls: bool
) -> None:
    tls = tls_table(make_certificate(tmp_path)) if has_tls else ""
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=tls + FIXED, environ=loop) as agent:
        agent.wait_for_event("started")
        (port,) = {urlsplit(entry["url"]).port for entry in agent.events("listening")}
        for data in INVALID_INPUT:
            for is_reset in (False, True):
                with closing(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) as sock:
                    with suppress(ConnectionError):
                        sock.sendall(data)
                    if is_reset:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                    else:
                        with suppress(ConnectionError):  # the node may have closed already
                            sock.shutdown(socket.SHUT_WR)
                            sock.recv(65536)
        assert agent.stop() == 0
        levels = {json.loads(line)["level"] for line in agent.lines if line.startswith("{")}
        assert levels == {"info"}
        assert all(line.startswith("{") for line in agent.lines)
