"""`svcnode serve` in its own process: its log, signals, reloads, addresses, TLS and store."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support import commands
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import RawClient, request
from tests.support.processes import DEADLINE_S, Agent, Client, Response, connect_unix, has_ipv6, is_listening

if TYPE_CHECKING:
    from collections.abc import Iterator

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'
# Checks the store often and reports a failure soon.
SOON = {
    "SVCNODE_DEFAULTS_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "SVCNODE_DEFAULTS_STALE_AFTER": "60s",
}


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


# ---- log and end


def test_without_a_terminal_each_line_is_json_the_logged_url_answers_and_the_drain_takes_5_seconds(
    tmp_path: Path,
) -> None:
    environ = {"SVCNODE_NODE_VERSION": "v1.4.2", "SVCNODE_NODE_NAME": "of the environment"}
    with Agent(tmp_path, *ANYWHERE, "--name", "validator-7", config=FIXED, environ=environ) as agent:
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/svc/node)", agent.wait_for_event("listening")["url"])
        assert match is not None
        response = agent.request(match[2], int(match[1]))
        assert response.code == 200
        assert response.json == {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
        agent.wait_for_event("started")
        started_s = time.monotonic()
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining", drain_s=5.0)
        assert agent.wait_for_exit() == 0
        assert time.monotonic() - started_s >= 5.0
        assert all({"time", "level", "logger", "message", "event"} <= entry.keys() for entry in agent.log_entries)
        assert agent.log_entries[-1]["event"] == "stopped"


def test_on_a_terminal_every_line_is_text_and_there_is_no_drain(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, on_terminal=True) as agent:
        agent.wait_for_log("started: node")
        assert agent.stop() == 0
        assert all(re.match(r"\d\d:\d\d:\d\d UTC (info|warning) ", line) for line in agent.lines), agent.lines
        assert not any("draining for" in line for line in agent.lines)


def test_during_the_drain_requests_are_answered_and_a_second_signal_stops_immediately(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=FIXED) as agent, agent.connect() as client:
        agent.wait_for_event("started")
        assert client.request("/svc/node/health").code == 200
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining", drain_s=60.0)
        paths = ("/svc/node/health", "/svc/node", "/svc/node/services/db/health", "/livez", "/readyz")
        assert [agent.request(path).code for path in paths] == [503, 200, 200, 200, 503]
        assert client.request("/svc/node/health").code == 503  # its connection stays open
        agent.signal(signal.SIGINT)
        assert agent.wait_for_exit() == 128 + signal.SIGINT
        assert agent.log_entries[-1]["event"] == "forced_stop"


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


def test_it_serves_without_uvloop_and_warns_of_heartbeats_that_cannot_arrive(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('hidden')\n")
    heartbeat = '[[services]]\nid = "indexer"\nprobe = "heartbeat:30s"\n'
    config = f"[control]\nenabled = false\n{tls_table(make_certificate(tmp_path))}{FIXED}{heartbeat}"
    arguments = (*ANYWHERE, "--drain", "0s", "--log-level", "debug")
    with Agent(tmp_path, *arguments, config=config, environ={"PYTHONPATH": str(tmp_path)}) as agent:
        agent.wait_for_log("Using selector: ")  # logged by asyncio's own loop
        assert "indexer" in agent.wait_for_event("heartbeat_unsupported")["message"]
        with agent.connect(tls=trusting(Certificate(tmp_path / "node.pem", tmp_path / "node.key"))) as client:
            assert client.request("/svc/node/health").code == 206
        agent.reload()
        assert agent.stop() == 0
    checked = commands.svcnode("check-config", folder=tmp_path)
    assert checked.returncode == 0
    assert re.search(r'^Note: .*"indexer"', checked.stdout, re.MULTILINE)
    assert '"db"' not in checked.stdout


def test_a_secret_in_a_file_that_others_can_read_is_reported_once_at_the_start(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # unlike the folders of pytest, others can be let into it
        folder = Path(name)
        folder.chmod(0o755)
        file = folder / "svcnode.toml"
        file.write_text(f'{FIXED}[security]\noperator_token = "token-0123456789-abc"\n')
        for mode, count in ((0o640, 0), (0o644, 1)):  # 0640: as the Debian package installs it
            file.chmod(mode)
            with Agent(tmp_path, *ANYWHERE, "-c", str(file)) as agent:
                agent.wait_for_event("started")
                agent.reload()
                found = agent.events("config_readable")
                assert (len(found), "token-0123456789-abc" in "\n".join(agent.lines)) == (count, False)
                assert all(f"{file}:" in entry["message"] for entry in found)


# ---- reloading


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    arguments, environ = (*ANYWHERE, "-c", "svcnode.toml"), {"SVCNODE_HISTORY_KEEP": "false"}  # it is renamed often
    with Agent(tmp_path_factory.mktemp("serve"), *arguments, config=FIXED, environ=environ) as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent) -> Agent:
    shared_agent.reload(FIXED)
    return shared_agent


def last_event(agent: Agent) -> str:
    return str(agent.log_entries[-1]["event"])


def test_a_reload_adds_removes_and_changes_services(agent: Agent) -> None:
    def service(service_id: str, status: str, name: str = "n") -> str:
        return f'[[services]]\nid = "{service_id}"\nname = "{name}"\nstatus = "{status}"\n'

    agent.reload(service("goes", "Up") + service("stays", "Up") + service("changes", "Up", "old"))
    assert agent.statuses() == {"goes": "Up", "stays": "Up", "changes": "Up"}
    agent.reload(service("stays", "Up") + service("changes", "Initializing", "new") + service("comes", "Down"))
    entry = agent.log_entries[-1]
    assert (entry["event"], entry["removed"], entry["added"], entry["changed"]) == ("reloaded", 1, 1, 1)
    assert "goes" in entry["message"]
    assert agent.statuses() == {"stays": "Up", "changes": "Initializing", "comes": "Down"}
    names = {service["id"]: service["name"] for service in agent.request("/svc/node/services").json["services"]}
    assert names["changes"] == "new"
    assert agent.request("/svc/node/services/goes/health").code == 404
    assert agent.health() == 206


def test_name_version_and_prefix_change_for_open_connections(agent: Agent) -> None:
    agent.reload('[node]\nname = "old"\nversion = "v1"\n' + FIXED)
    with agent.connect() as client:
        assert client.request("/svc/node").json["node_name"] == "old"
        assert client.request("/eigen/node").code == 404
        agent.reload('[node]\nname = "new"\nversion = "v2"\n[server]\nprefix = ["/svc", "/eigen"]\n' + FIXED)
        assert '"old" to "new"' in agent.log_entries[-1]["message"]
        for prefix in ("/svc", "/eigen"):
            identity = client.request(f"{prefix}/node").json
            assert (identity["node_name"], identity["node_version"]) == ("new", "v2")
    agent.reload()
    assert '"new"' not in agent.log_entries[-1]["message"]


def test_pages_of_the_listed_origins_may_read_the_endpoints_only(agent: Agent) -> None:
    page, other = "https://status.example.com", "https://other.example.com"
    config = f'[server]\ncors = ["{page}"]\n' + FIXED
    agent.reload(config)
    with RawClient(socket.create_connection(("127.0.0.1", agent.port))) as client:

        def allowed(target: str, origin: str) -> str | None:
            headers = client.request(request(target, f"Origin: {origin}")).headers
            return {name.lower(): value for name, value in headers}.get("access-control-allow-origin")

        for _ in range(2):  # the second response is from the cache
            assert allowed("/svc/node/health", page) == page
            assert allowed("/svc/node/health", other) is None
        assert [allowed(path, page) for path in ("/livez", "/details")] == [None, None]
        agent.reload(config.replace(f'["{page}"]', '"*"'))
        assert allowed("/svc/node/health", other) == "*"
        agent.reload(FIXED)
        assert allowed("/svc/node/health", page) is None


def test_an_invalid_file_changes_nothing_and_is_logged_with_file_and_line(agent: Agent) -> None:
    agent.reload('[node]\nname = "old"\n[[services]]\nid = "db"\nstatus = "Down"\n')
    agent.reload('[node]\nname = "new"\n[[services]]\nid = "other"\nstatus = "up"\n')
    entry = agent.log_entries[-1]
    assert (entry["event"], entry["error"], entry["key"]) == ("reload_failed", "ConfigError", "services.other.status")
    assert entry["message"].endswith(" (svcnode.toml:5)")
    agent.reload("")
    assert last_event(agent) == "reload_failed", "an emptied file does not make an unhealthy node healthy"
    agent.reload(f'[sharing]\nregistry = "etcd://127.0.0.1:1"\nreplica = "a"\n[node]\nname = "old"\n{FIXED}')
    assert last_event(agent) == "reload_failed", "it needs a restart"
    agent.config_file.unlink()
    agent.reload()
    assert last_event(agent) == "reload_failed"
    os.mkfifo(agent.config_file)
    agent.reload()
    assert last_event(agent) == "reload_failed", "a pipe is not read as configuration"
    assert agent.request("/svc/node").json["node_name"] == "old"
    assert (agent.statuses(), agent.health()) == ({"db": "Down"}, 503)
    agent.config_file.unlink()
    agent.reload(FIXED)
    assert last_event(agent) == "reloaded"


def test_a_reload_that_replaces_a_failed_service_never_shows_200(agent: Agent) -> None:
    failed = '[[services]]\nid = "old"\nimpact = "critical"\nstatus = "Down"\n'
    agent.reload(failed)
    before = len(agent.events("node_health"))
    agent.reload(failed.replace("old", "new").replace("Down", "Initializing"))
    assert agent.statuses() == {"new": "Initializing"}
    assert 200 not in [entry["node_health"] for entry in agent.events("node_health")[before:]]


def test_sigusr1_logs_the_state_and_sigusr2_means_nothing(agent: Agent) -> None:
    agent.reload(
        FIXED + '[[services]]\nid = "ledger"\nstatus = "Down"\n[[services]]\nid = "chain"\nstatus = "Initializing"\n'
    )
    agent.signal(signal.SIGUSR2)
    agent.signal(signal.SIGUSR1)
    agent.wait_for_event("state", service="chain")
    state = agent.events("state")
    assert [(one.get("service"), one.get("status"), one.get("node_health")) for one in state] == [
        (None, None, 206),
        ("ledger", "Down", None),
        ("chain", "Initializing", None),
    ]
    agent.reload(FIXED)
    assert last_event(agent) == "reloaded"


def test_a_reload_changes_the_log(agent: Agent) -> None:
    agent.config_file.write_text('[node]\nversion = "v0.0.9"\n[log]\nlevel = "error"\n' + FIXED)
    before = len(agent.events("reloaded"))
    agent.signal(signal.SIGHUP)
    agent.wait_until(lambda: agent.request("/svc/node").json["node_version"] == "v0.0.9")
    agent.reload("broken")
    assert last_event(agent) == "reload_failed"
    assert len(agent.events("reloaded")) == before
    agent.reload('[log]\nformat = "text"\n' + FIXED)
    assert re.match(r"\d\d:\d\d:\d\d UTC info    reloaded", agent.lines[-1])
    agent.reload('[log]\nformat = "json"\n' + FIXED)
    assert json.loads(agent.lines.pop())["event"] == "reloaded"
    agent.lines[:] = [line for line in agent.lines if line.startswith("{")]  # for other tests


def test_a_sighup_during_the_start_is_ignored_and_after_an_internal_error_the_next_reload_applies_the_rest(
    tmp_path: Path,
) -> None:
    """Before the command runs, SIGHUP would end Python itself; the signal is sent when the agent is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'svcnode.agent.agent': os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, Early())\n"
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
        assert agent.health() == 200
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


# ---- addresses and TLS


def test_reloads_change_certificates_and_addresses_while_connections_stay(tmp_path: Path) -> None:
    old, new = make_certificate(tmp_path, "old"), make_certificate(tmp_path, "new")
    made = make_certificate(tmp_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Agent(tmp_path, config='[server]\nlisten = "127.0.0.1:0"\n' + FIXED) as agent,
        agent.connect() as plain,
    ):
        plain_port, in_use = agent.port, other.getsockname()[1]
        assert plain.request("/svc/node").code == 200

        agent.reload('[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED)  # the same port, with TLS
        with agent.connect(plain_port, tls=trusting(made)) as client:
            first = certificate_of(client)
            make_certificate(tmp_path, is_rsa=True)
            agent.reload()
            with agent.connect(plain_port, tls=trusting(made)) as after:
                assert certificate_of(after) == der(made) != first
                assert after.request("/svc/node").code == 200
            assert client.request("/svc/node").code == 200
        with agent.connect(plain_port) as wrong, pytest.raises(ConnectionError):
            wrong.request("/svc/node/health")

        before = f'[server]\nlisten = "localhost:0"\n{tls_table(old)}{FIXED}'
        agent.reload(before)
        agent.wait_until(lambda: agent.port != plain_port)
        port = agent.port
        agent.wait_until(lambda: not is_listening(plain_port))
        assert plain.request("/svc/node").code == 200

        listen = f'listen = ["unix:a.sock", "localhost:0", "127.0.0.1:{in_use}"]'
        agent.reload(f'[node]\nname = "new"\n[server]\n{listen}\n{tls_table(new)}{FIXED}')
        entry = agent.log_entries[-1]
        assert (entry["event"], entry["error"]) == ("reload_failed", "ListenError")
        assert f"https://127.0.0.1:{in_use}: " in entry["message"]
        assert entry["message"].endswith("listen in [server]")
        assert not (tmp_path / "a.sock").exists()
        trust, expected = trusting(old), der(old)
        old.certificate.write_text("hello")
        agent.reload(before)
        assert agent.log_entries[-1]["event"] == "reload_failed"
        assert "old.pem" in agent.log_entries[-1]["message"]
        with agent.connect(port, tls=trust) as client:
            assert certificate_of(client) == expected
            assert client.request("/svc/node").json["node_name"] != "new"

        every = f'[server]\nlisten = ["localhost:0", "http://127.0.0.1:0", "unix:a.sock"]\n{tls_table(new)}{FIXED}'
        agent.reload(every)
        agent.reload()
        descriptors = Path(f"/proc/{agent.process.pid}/fd")
        count = len(list(descriptors.iterdir()))
        for _ in range(5):
            agent.reload()
        agent.wait_until(lambda: len(list(descriptors.iterdir())) <= count)
        with connect_unix(tmp_path / "a.sock") as client:
            assert client.request("/svc/node").code == 200


def started(agent: Agent) -> Agent:
    """Its port is the last one that it listens on."""
    agent.wait_for_event("started")
    return agent


def test_several_addresses_and_prefixes_are_served_and_a_request_in_flight_is_answered_before_the_stop(
    tmp_path: Path,
) -> None:
    ipv6 = ("--listen", "[::1]:0") if has_ipv6() else ()
    prefixes = ("--prefix", "/svc", "--prefix", "/eigen")
    arguments = ("--listen", "unix:a.sock", *ipv6, *ANYWHERE, *prefixes, "--drain", "0s")
    with Agent(tmp_path, *arguments, config=FIXED) as agent, started(agent).connect() as tcp:
        unix_entry, *others = agent.events("listening")
        assert unix_entry["url"].startswith("unix:a.sock ")
        assert all(f"/{prefix}/node" in others[-1]["message"] for prefix in ("svc", "eigen"))
        with connect_unix(tmp_path / "a.sock") as unix:
            responses = {client.request(f"{prefix}/node") for client in (tcp, unix) for prefix in ("/svc", "/eigen")}
        if ipv6:
            url = urlsplit(others[0]["url"])
            with agent.connect(url.port, host=str(url.hostname)) as client:
                responses.add(client.request("/svc/node"))
        assert len(responses) == 1
        assert tcp.request("/other/node") == Response(404, b'{"message":"Not found"}')

        tcp.sock.sendall(b"GET /svc/node HTTP/1.1\r\n")
        agent.wait_until(lambda: agent.health() == 200)  # the half request has arrived by then
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: not is_listening(agent.port))
        tcp.sock.sendall(b"Host: localhost\r\n\r\n")
        assert tcp.sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert agent.wait_for_exit() == 0
    assert not (tmp_path / "a.sock").exists()


def test_a_socket_of_a_crashed_process_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as alive:
        alive.wait_for_event("listening")
        with Agent(tmp_path, "--listen", "unix:b.sock", "--listen", "unix:a.sock", config=FIXED) as late:
            assert late.wait_for_exit() == 1
            (entry,) = late.log_entries
            assert entry["event"] == "listen_failed"
            assert "a.sock" in entry["message"]
            assert entry["message"].endswith("--listen")
        assert not (tmp_path / "b.sock").exists()
        with connect_unix(path) as client:
            assert client.request("/svc/node").code == 200


# ---- the node's own store


def test_without_a_configuration_the_node_probes_a_real_sqlite_store(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        store = {"id": "store", "name": "Embedded store", "description": "SQLite store of this node", "status": "Up"}
        assert agent.request("/svc/node/services").json == {"services": [store]}
        path = tmp_path / ".local" / "state" / "svcnode" / "store.db"
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        agent.reload(FIXED)
        assert agent.statuses() == {"db": "Up"}, "a file that is created after the start is found by a reload"


def test_a_lost_store_makes_the_node_unhealthy_until_it_is_restored(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with Agent(tmp_path, *ANYWHERE, config="", environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        shutil.copy(store, tmp_path / "aside.db")
        store.unlink()
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        assert agent.health() == 503
        assert agent.wait_for_event("service_status", service="store", status="Down", previous="Up")["reason"]
        agent.reload()
        assert last_event(agent) == "reloaded"
        assert not store.exists(), "neither a check nor a reload creates it again"
        assert agent.health() == 503
        shutil.copy(tmp_path / "aside.db", store)
        agent.wait_until(lambda: agent.statuses() == {"store": "Up"})
        whole = store.read_bytes()
        store.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))  # only reading the tables finds it
        agent.wait_until(lambda: agent.health() == 503)


@pytest.mark.parametrize("variable", ["SVCNODE_STORE_PATH", "XDG_STATE_HOME"])
def test_a_store_that_cannot_be_created_is_logged_and_the_node_serves(variable: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = "file/store.db" if variable == "SVCNODE_STORE_PATH" else f"{'x' * 300}/state"
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, variable: path}) as agent:
        assert agent.health() != 200
        assert path in agent.wait_for_event("store_failed")["message"]
        agent.wait_until(lambda: agent.health() == 503)
        assert agent.statuses() == {"store": "Down"}
        assert agent.request("/svc/node").code == 200
        assert not any("Traceback" in line for line in agent.lines)


# ---- commands that read the configuration


def test_the_environment_may_name_the_configuration_and_a_certificate_that_cannot_be_used_ends_the_start(
    tmp_path: Path,
) -> None:
    checked = commands.svcnode("check-config", folder=tmp_path, SVCNODE_CONFIG="", SVCNODE_NODE_NAME="a")
    assert re.search("^  store: ", checked.stdout, re.MULTILINE), "an empty variable names no configuration"
    (tmp_path / "tls.toml").write_text('[server.tls]\ncertificate = "tls.toml"\nkey = "tls.toml"\n')
    for command in ("serve", "check-config"):
        ended = commands.svcnode(command, folder=tmp_path, SVCNODE_CONFIG="tls.toml")
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert ended.stderr.startswith("svcnode: server.tls.certificate: ")
