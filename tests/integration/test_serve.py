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
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.certificates import Certificate, make_certificate
from tests.support.processes import DEADLINE_S, Agent, Client, Response, connect_unix, has_ipv6, is_listening

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'
# A node that notices soon, whatever it is that happens to its store.
SOON = {
    "SVCNODE_DEFAULTS_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
    "SVCNODE_DEFAULTS_STALE_AFTER": "60s",
}


@pytest.fixture
def without_uvloop(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine on which uvloop is not installed."""
    folder = tmp_path / "without-uvloop"
    folder.mkdir()
    (folder / "uvloop.py").write_text("raise ImportError('not here')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest, without_uvloop: dict[str, str]) -> dict[str, str]:
    """The environment for either event loop."""
    return without_uvloop if request.param == "asyncio" else {}


def tls_table(made: Certificate) -> str:
    return f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'


def trusting(*made: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for one in made:
        context.load_verify_locations(one.certificate)
    return context


def certificate_seen_by(client: Client) -> bytes | None:
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


# ---- what it says


def test_it_says_what_it_listens_on_and_answers_there(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--name", "validator-7", "--node-version", "v1.4.2", config=FIXED) as agent:
        told = agent.wait_for_log(r"listening on http://127\.0\.0\.1:(\d+)(/svc/node)\b")
        answer = agent.request(told.group(2), int(told.group(1)))
        assert answer.code == 200
        assert answer.json == {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
        assert agent.statuses() == {"db": "Up"}
        assert agent.health() == 200


def test_elsewhere_than_on_a_terminal_every_line_is_json(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent:
        agent.wait_for_event("started")
        assert agent.stop() == 0
        entries = [json.loads(line) for line in agent.lines]
        assert all({"time", "level", "logger", "message"} == entry.keys() for entry in entries)
        assert entries[-1]["message"] == "stopped"


def test_on_a_terminal_every_line_is_text_and_the_end_comes_at_once(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, on_terminal=True) as agent:
        agent.wait_for_log("started: node")
        assert agent.stop() == 0
        assert all(re.match(r"\d\d:\d\d:\d\d (info|warning) ", line) for line in agent.lines), agent.lines
        assert not any("draining" in line for line in agent.lines)


def test_elsewhere_than_on_a_terminal_the_end_comes_after_5_seconds(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.signal(signal.SIGTERM)
        agent.wait_for_log("draining for 5 s: health answers 503; a second signal stops at once")
        agent.signal(signal.SIGTERM)
        assert agent.wait_for_exit() == 128 + signal.SIGTERM


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    config = '[node]\nname = "file"\nversion = "v1"\n[server]\nprefix = "/file"\n' + FIXED
    environ = {"SVCNODE_NODE_VERSION": "v2", "SVCNODE_SERVER_PREFIX": "/environment", "SVCNODE_SERVER_LISTEN": "x"}
    with Agent(tmp_path, *ANYWHERE, "--prefix", "/flag", config=config, environ=environ) as agent:
        who = agent.request("/flag/node").json
        assert (who["node_name"], who["node_version"]) == ("file", "v2")
        assert agent.request("/environment/node").code == agent.request("/file/node").code == 404


# ---- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_told_to_stop_is_unhealthy_for_a_while_and_answers_to_the_end(
    number: signal.Signals, tmp_path: Path
) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "1s", config=FIXED) as agent:
        agent.wait_for_event("started")
        assert agent.health() == 200
        agent.signal(number)
        agent.wait_for_log("draining for 1 s")
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
        assert agent.messages[-1] == "stopped"


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.signal(first)
        agent.wait_for_log("draining for 60 s")
        agent.signal(second)
        assert agent.wait_for_exit() == 128 + second
        assert agent.messages[-1] == "stopped at once by a second signal"


def test_a_request_in_flight_is_answered_before_the_end(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent, agent.connect() as client:
        assert client.request("/svc/node").code == 200
        client.sock.sendall(b"GET /svc/node HTTP/1.1\r\n")
        agent.wait_until(lambda: agent.health() == 200)  # so that the half request has arrived
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: not is_listening(agent.port))
        client.sock.sendall(b"Host: localhost\r\n\r\n")
        assert client.sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert agent.wait_for_exit() == 0


# ---- reloading


def test_services_come_go_and_change_without_a_restart(tmp_path: Path) -> None:
    def service(service_id: str, status: str, name: str = "n") -> str:
        return f'[[services]]\nid = "{service_id}"\nname = "{name}"\nstatus = "{status}"\n'

    debug = '[log]\nlevel = "debug"\n'
    before = debug + service("goes", "Up") + service("stays", "Up") + service("changes", "Up", "old")
    after = debug + service("stays", "Up") + service("changes", "Initializing", "new") + service("comes", "Down")
    with Agent(tmp_path, *ANYWHERE, config=before) as agent:
        assert agent.statuses() == {"goes": "Up", "stays": "Up", "changes": "Up"}
        agent.reload(after)
        assert agent.statuses() == {"stays": "Up", "changes": "Initializing", "comes": "Down"}
        names = {one["id"]: one["name"] for one in agent.request("/svc/node/services").json["services"]}
        assert names["changes"] == "new"
        assert agent.request("/svc/node/services/goes/health").code == 404
        assert agent.health() == 206
        assert sum("service stays " in message for message in agent.messages) == 1  # it has not left Up


def test_services_of_fixed_status_are_told_in_one_line_however_many_they_are(tmp_path: Path) -> None:
    def fixed(*statuses: str) -> str:
        return "".join(
            f'[[services]]\nid = "s{number}"\nstatus = "{status}"\n' for number, status in enumerate(statuses)
        )

    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=fixed(*["Up"] * 300, "Down")) as agent:
        agent.wait_for_event("started")
        agent.reload(fixed("Down"))
        agent.reload(fixed("Down"))
        assert agent.stop() == 0
        assert [message for message in agent.messages if "service" in message and "answers for" not in message] == [
            "301 services have a status that is set in the configuration: 300 Up, 1 Down",
            "1 service has a status that is set in the configuration: 1 Down",
            "reloaded: no service changed",
        ]


def test_a_service_can_change_from_fixed_to_probed_and_back(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.execute("CREATE TABLE entries (amount)")
    with Agent(tmp_path, *ANYWHERE, config='[[services]]\nid = "db"\nstatus = "Down"\n') as agent:
        assert agent.statuses() == {"db": "Down"}
        agent.reload('[[services]]\nid = "db"\nprobe = "sqlite:ledger.db"\n')
        agent.wait_until(lambda: agent.statuses() == {"db": "Up"})
        agent.reload('[[services]]\nid = "db"\nstatus = "Initializing"\n')
        assert agent.statuses() == {"db": "Initializing"}


def test_name_version_and_prefix_change_under_a_connection_that_stays_open(tmp_path: Path) -> None:
    before = '[node]\nname = "old"\nversion = "v1"\n' + FIXED
    after = '[node]\nname = "new"\nversion = "v2"\n[server]\nprefix = ["/svc", "/eigen"]\n' + FIXED
    with Agent(tmp_path, *ANYWHERE, config=before) as agent, agent.connect() as client:
        assert client.request("/svc/node").json["node_name"] == "old"
        assert client.request("/eigen/node").code == 404
        agent.reload(after)
        for prefix in ("/svc", "/eigen"):
            who = client.request(f"{prefix}/node").json
            assert (who["node_name"], who["node_version"]) == ("new", "v2")


def test_addresses_come_and_go_while_connections_stay(loop: dict[str, str], tmp_path: Path) -> None:
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


def test_the_level_of_the_log_can_be_changed(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text('[node]\nname = "quiet"\n[log]\nlevel = "error"\n' + FIXED)
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: agent.request("/svc/node").json["node_name"] == "quiet")
        agent.reload("broken")
        assert agent.messages[-1].startswith("not reloaded")
        assert not any(message.startswith("reloaded") for message in agent.messages)


def test_the_form_of_the_log_can_be_changed(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=FIXED) as agent:
        agent.reload('[log]\nformat = "text"\n' + FIXED)
        assert re.fullmatch(r"\d\d:\d\d:\d\d info    reloaded: no service changed", agent.lines[-1])
        agent.reload('[log]\nformat = "json"\n' + FIXED)
        assert json.loads(agent.lines[-1])["message"] == "reloaded: no service changed"


def test_a_reload_that_turns_the_node_green_says_which_services_it_took_away(tmp_path: Path) -> None:
    sick = '[[services]]\nid = "ledger"\nstatus = "Down"\nimpact = "critical"\n'
    with Agent(tmp_path, *ANYWHERE, config=FIXED + sick) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        agent.reload(FIXED)
        assert agent.health() == 200
        told = json.loads(agent.lines[-1])
        assert told["message"] == "reloaded: removed ledger"
        assert (told["removed"], told["added"], told["changed"]) == (1, 0, 0)


def test_a_bad_file_changes_nothing_and_is_told_with_file_and_line(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "-c", "svcnode.toml", config='[node]\nname = "old"\n' + FIXED) as agent:
        assert agent.request("/svc/node").json["node_name"] == "old"
        agent.reload('[node]\nname = "new"\n[[services]]\nid = "other"\nstatus = "up"\n')
        assert agent.messages[-1] == (
            "not reloaded, the old configuration stays in force: "
            'services.other.status: must be one of "Up", "Down", "Initializing", not "up"; did you mean "Up"? '
            "(svcnode.toml:5)"
        )
        assert agent.request("/svc/node").json["node_name"] == "old"
        assert agent.statuses() == {"db": "Up"}
        agent.config_file.unlink()
        agent.reload()
        assert agent.messages[-1].endswith("cannot read the configuration: no such file or directory (svcnode.toml)")
        assert agent.health() == 200
        agent.reload('[node]\nname = "new"\n' + FIXED)
        assert agent.request("/svc/node").json["node_name"] == "new"


def test_a_file_that_was_emptied_does_not_turn_a_sick_node_green(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config='[[services]]\nid = "db"\nstatus = "Down"\n') as agent:
        agent.reload("")
        assert agent.messages[-1].endswith("no service is named any more; if that is meant, start the node anew")
        assert agent.health() == 503


def test_a_sick_service_that_leaves_does_not_make_the_node_look_well_for_a_moment(tmp_path: Path) -> None:
    sick = '[[services]]\nid = "old"\nimpact = "critical"\nstatus = "Down"\n'
    with Agent(tmp_path, *ANYWHERE, config=sick) as agent:
        agent.reload(sick.replace("old", "new").replace("Down", "Initializing"))
        assert agent.statuses() == {"new": "Initializing"}
        assert not any("node health is 200" in message for message in agent.messages)


def test_a_configuration_that_would_never_end_is_not_read(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED) as agent:
        agent.wait_for_event("started")
        agent.config_file.unlink()
        os.mkfifo(agent.config_file)
        agent.reload()
        assert "not a file of at most 4096 KiB" in agent.messages[-1]
        assert agent.health() == 200


def test_what_a_reload_that_failed_half_way_left_undone_is_done_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from svcnode.server.server import HttpServer\n"
        "set_prefixes = HttpServer.set_prefixes\n"
        "def fail_once(server, prefixes):\n"
        "    HttpServer.set_prefixes = set_prefixes\n"
        "    raise OSError('out of luck')\n"
        "HttpServer.set_prefixes = fail_once\n"
    )
    after = '[node]\nname = "new"\n[server]\nprefix = "/eigen"\n[[services]]\nid = "other"\nstatus = "Down"\n'
    with Agent(tmp_path, *ANYWHERE, config=FIXED, environ={"PYTHONPATH": str(tmp_path)}) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text(after)
        agent.signal(signal.SIGHUP)
        agent.wait_for_log("reloading failed half-way")
        assert agent.health() == 200
        agent.reload()
        assert agent.messages[-1] == "reloaded: removed db; added other"
        assert agent.request("/eigen/node").json["node_name"] == "new"
        assert agent.request("/eigen/node/services").json["services"][0]["id"] == "other"
        assert agent.request("/eigen/node/health").code == 503


def test_a_file_written_while_the_node_runs_is_found_by_the_next_reload(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE) as agent:
        agent.reload(FIXED)
        assert agent.statuses() == {"db": "Up"}


def test_a_reload_that_comes_too_early_ends_nothing(tmp_path: Path) -> None:
    """Python itself would end at the signal until the command has begun; hence the wait for the first import of it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'svcnode.agent': os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, Early())\n"
    )
    with Agent(tmp_path, *ANYWHERE, config=FIXED, environ={"PYTHONPATH": str(tmp_path)}) as agent:
        assert agent.health() == 200


def test_a_probe_that_fails_at_the_start_is_told_before_it_counts(tmp_path: Path) -> None:
    config = '[[services]]\nid = "ledger"\nprobe = "sqlite:/nowhere/ledger.db"\n'
    with Agent(tmp_path, *ANYWHERE, config=config) as agent:
        agent.wait_for_log("service ledger failed a look: no such file or directory: /nowhere/ledger.db")
        assert agent.statuses() == {"ledger": "Initializing"}


def test_an_address_that_cannot_be_had_changes_nothing(tmp_path: Path) -> None:
    old, new = make_certificate(tmp_path, "old"), make_certificate(tmp_path, "new")
    before = '[server]\nlisten = ["127.0.0.1:0"]\n' + tls_table(old) + FIXED
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Agent(tmp_path, config=before) as agent,
        agent.connect(tls=trusting(old)) as client,
    ):
        port, taken = agent.port, other.getsockname()[1]
        listen = f'listen = ["unix:a.sock", "127.0.0.1:0", "127.0.0.1:{taken}"]'
        agent.reload(f'[node]\nname = "new"\n[server]\n{listen}\n{tls_table(new)}{FIXED}')
        assert agent.messages[-1] == (
            "not reloaded, the old configuration stays in force: "
            f"cannot listen on https://127.0.0.1:{taken}: "
            "something listens there already; stop it, or choose another place with listen in [server]"
        )
        assert not (tmp_path / "a.sock").exists()
        assert client.request("/svc/node").json["node_name"] != "new"
        with agent.connect(port, tls=trusting(old)) as newcomer:
            assert certificate_seen_by(newcomer) == der(old)
            assert newcomer.request("/svc/node/services").json["services"][0]["id"] == "db"
        agent.reload(before)
        assert agent.messages[-1] == "reloaded: no service changed"


def test_many_reloads_leave_nothing_behind(tmp_path: Path) -> None:
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


def test_https_is_spoken_where_there_is_a_certificate(loop: dict[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Agent(tmp_path, *ANYWHERE, config=tls_table(made) + FIXED, environ=loop) as agent:
        agent.wait_for_log(r"listening on https://127\.0\.0\.1:\d+/svc/node")
        with agent.connect(tls=trusting(made)) as client:
            assert client.request("/svc/node/health").code == 200
            assert client.request("/svc/node/services").json["services"][0]["id"] == "db"
        with agent.connect() as in_clear, pytest.raises(ConnectionError):
            in_clear.request("/svc/node/health")


@pytest.mark.parametrize("becomes_rsa", [False, True])
def test_a_new_certificate_is_seen_by_new_connections_while_old_ones_live_on(
    becomes_rsa: bool, loop: dict[str, str], tmp_path: Path
) -> None:
    made = make_certificate(tmp_path)
    config = '[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED
    with Agent(tmp_path, config=config, environ=loop) as agent:
        port = agent.port
        with agent.connect(tls=trusting(made)) as before:
            first = certificate_seen_by(before)
            assert before.request("/svc/node").code == 200
            make_certificate(tmp_path, is_rsa=becomes_rsa)
            agent.reload()
            with agent.connect(port, tls=trusting(made)) as after:
                assert certificate_seen_by(after) == der(made) != first
                assert after.request("/svc/node").code == 200
            assert before.request("/svc/node").code == 200


def test_a_broken_certificate_changes_nothing(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    config = '[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED
    with Agent(tmp_path, config=config) as agent:
        trust, seen = trusting(made), der(made)
        port = agent.port
        made.certificate.write_text("hello")
        agent.reload()
        assert "node.pem holds no certificate in PEM form" in agent.messages[-1]
        with agent.connect(port, tls=trust) as client:
            assert certificate_seen_by(client) == seen


def test_a_port_can_begin_to_speak_tls(loop: dict[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Agent(tmp_path, config='[server]\nlisten = "127.0.0.1:0"\n' + FIXED, environ=loop) as agent:
        port = agent.port
        with agent.connect() as in_clear:
            assert in_clear.request("/svc/node").code == 200
            agent.reload('[server]\nlisten = "127.0.0.1:0"\n' + tls_table(made) + FIXED)
            with agent.connect(port, tls=trusting(made)) as client:
                assert client.request("/svc/node").code == 200
            assert in_clear.request("/svc/node").code == 200


# ---- the embedded store


def test_with_nothing_configured_the_node_answers_for_a_real_sqlite_store(tmp_path: Path) -> None:
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
    """Leave the header as it is, so that only a look inside can tell."""
    whole = store.read_bytes()
    store.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))


@pytest.mark.parametrize("harm", [delete, corrupt, tear])
def test_a_store_that_is_lost_takes_the_node_down_and_back_up_when_it_returns(harm: object, tmp_path: Path) -> None:
    assert callable(harm)
    store = tmp_path / "store.db"
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        shutil.copy(store, tmp_path / "aside.db")
        harm(store)
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        assert agent.health() == 503
        assert agent.request("/svc/node/services/store/health").code == 503
        agent.wait_for_log("service store is Down, was Up: .+")
        assert harm is not delete or not store.exists(), "looking has brought it back to life"
        (tmp_path / "aside.db").replace(store)
        agent.wait_until(lambda: agent.statuses() == {"store": "Up"})
        assert agent.health() == 200


def test_a_lost_store_does_not_come_back_empty_with_a_reload(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with Agent(tmp_path, *ANYWHERE, config="", environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        store.unlink()
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        agent.reload()
        assert agent.messages[-1] == "reloaded: no service changed"
        assert not store.exists()
        assert agent.health() == 503


def test_the_database_of_another_program_is_no_store(tmp_path: Path) -> None:
    store = tmp_path / "theirs.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE theirs (id INTEGER)")
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"store": "Down"})
        assert agent.health() == 503


def test_a_store_that_cannot_be_made_is_told_and_the_node_serves_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {**SOON, "SVCNODE_STORE_PATH": "file/store.db"}
    with Agent(tmp_path, *ANYWHERE, environ=environ) as agent:
        assert agent.health() != 200
        agent.wait_for_log("cannot open the store file/store.db: ")
        agent.wait_until(lambda: agent.health() == 503)
        assert agent.statuses() == {"store": "Down"}
        assert agent.request("/svc/node").code == 200


@pytest.mark.parametrize("variable", ["SVCNODE_STORE_PATH", "XDG_STATE_HOME"])
def test_a_store_that_cannot_even_be_looked_for_is_told_and_the_node_serves_on(variable: str, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, environ={**SOON, variable: f"{'x' * 300}/store.db"}) as agent:
        agent.wait_for_log("cannot open the store x+/.*: file name too long; mend that, or name another file in ")
        agent.wait_until(lambda: agent.health() == 503)
        assert agent.statuses() == {"store": "Down"}
        assert not any("Traceback" in line for line in agent.lines)


def test_one_bad_check_does_not_take_the_store_down(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    environ = {**SOON, "SVCNODE_DEFAULTS_INTERVAL": "60s", "SVCNODE_DEFAULTS_STALE_AFTER": "1h"}
    with Agent(tmp_path, *ANYWHERE, environ={**environ, "SVCNODE_STORE_PATH": str(store)}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"store": "Up"})
        store.unlink()
        assert agent.statuses() == {"store": "Up"}


# ---- where it listens


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    with Agent(tmp_path, "--listen", "[::1]:0", config=FIXED) as agent:
        port = int(agent.wait_for_log(r"listening on http://\[::1\]:(\d+)/svc/node").group(1))
        with agent.connect(port, host="::1") as client:
            assert client.request("/svc/node").code == 200


def test_it_listens_on_a_unix_socket_and_takes_it_away_in_the_end(loop: dict[str, str], tmp_path: Path) -> None:
    with Agent(tmp_path, "--listen", "unix:a.sock", "--drain", "0s", config=FIXED, environ=loop) as agent:
        agent.wait_for_log("listening on unix:a.sock \\(path /svc/node\\)")
        with connect_unix(tmp_path / "a.sock") as client:
            assert client.request("/svc/node").code == 200
        assert agent.stop() == 0
    assert not (tmp_path / "a.sock").exists()


def test_a_socket_left_over_by_a_crash_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as crashing:
        crashing.wait_for_log("listening on")
    assert path.is_socket()
    with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as alive:
        alive.wait_for_log("listening on")
        with Agent(tmp_path, "--listen", "unix:a.sock", config=FIXED) as late:
            assert late.wait_for_exit() == 1
            assert "something listens there already" in late.lines[0]
        with connect_unix(path) as client:
            assert client.request("/svc/node").code == 200


def test_it_listens_in_several_places_under_several_prefixes(tmp_path: Path) -> None:
    arguments = ("--listen", "unix:a.sock", *ANYWHERE, "--prefix", "/svc", "--prefix", "/eigen")
    with Agent(tmp_path, *arguments, config=FIXED) as agent, agent.connect() as tcp:
        agent.wait_for_event("started")
        with connect_unix(tmp_path / "a.sock") as unix:
            answers = {client.request(f"{prefix}/node") for client in (tcp, unix) for prefix in ("/svc", "/eigen")}
        assert len(answers) == 1
        assert tcp.request("/other/node") == Response(404, b'{"message":"Not found"}')


def test_an_address_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with Agent(tmp_path, "--listen", "unix:a.sock", "--listen", f"127.0.0.1:{taken}", config=FIXED) as agent:
            assert agent.wait_for_exit() == 1
            (only_line,) = agent.messages
            assert only_line == (
                f"cannot listen on http://127.0.0.1:{taken}: "
                "something listens there already; stop it, or choose another place with --listen"
            )
    assert not (tmp_path / "a.sock").exists()


# ---- without some comfort


def test_it_serves_without_uvloop(without_uvloop: dict[str, str], tmp_path: Path) -> None:
    arguments = (*ANYWHERE, "--drain", "0s", "--log-level", "debug")
    with Agent(tmp_path, *arguments, config=FIXED, environ=without_uvloop) as agent:
        agent.wait_for_log("Using selector: ")  # asyncio's own loop says so
        assert agent.health() == 200
        agent.reload()
        assert agent.stop() == 0


def test_it_serves_on_when_nobody_reads_its_log(tmp_path: Path) -> None:
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
def test_a_reader_that_leaves_gets_no_traceback(unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(FIXED)
    ours, theirs = os.pipe()
    os.close(ours)
    checked = subprocess.run(
        [sys.executable, "-m", "svcnode", "check-config"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": unbuffered},
        stdout=theirs,
        stderr=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(theirs)
    assert (checked.returncode, checked.stderr) == (1, b"")


# ---- what cannot be served


@pytest.mark.parametrize("command", ["serve", "check-config"])
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("no.toml", "cannot read the configuration: no such file or directory (no.toml)"),
        (".", "cannot read the configuration: is a directory (.)"),
        ("bad.toml", 'node.nam: unknown key; did you mean "name"? (bad.toml:2)'),
        ("tls.toml", "server.tls.certificate: tls.toml holds no certificate in PEM form"),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_with_one_line_and_code_2(
    command: str, file: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.toml").write_text("[node]\nnam = 1\n")
    (tmp_path / "tls.toml").write_text('[server.tls]\ncertificate = "tls.toml"\nkey = "tls.toml"\n')
    ended = run(tmp_path, command, "-c", file)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"svcnode: {reason}")
    assert ended.stderr.count("\n") == 1


def test_the_configuration_can_be_named_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[node]\nname = "a"\nversion = "v1"\n' + FIXED)
    checked = run(tmp_path, "check-config", environ={"SVCNODE_CONFIG": "a.toml"})
    assert checked.stdout == (
        "The configuration is fine (a.toml): a v1 on http://127.0.0.1:8420\n  db: db (fixed at Up, impact partial)\n"
        "Note: every service that counts has a fixed status, so the health of the node will never change; give a probe "
        "to those that can be looked at\n"
    )
    assert checked.returncode == 0


def test_a_service_whose_beats_nobody_can_hear_is_named(tmp_path: Path) -> None:
    config = f'{FIXED}[[services]]\nid = "indexer"\nprobe = "heartbeat:30s"\n'
    (tmp_path / "svcnode.toml").write_text(config)
    words = 'svcnode serve cannot hear the beats of "indexer", so it will be Down; give it a probe that looks'
    checked = run(tmp_path, "check-config")
    assert checked.returncode == 0
    assert f"\nNote: {words}" in checked.stdout
    assert '"db"' not in checked.stdout
    with Agent(tmp_path, *ANYWHERE, config=config) as agent:
        agent.wait_for_log(r"svcnode serve cannot hear the beats of .*indexer")


def test_an_empty_name_in_the_environment_names_no_configuration(tmp_path: Path) -> None:
    checked = run(tmp_path, "check-config", environ={"SVCNODE_CONFIG": "", "SVCNODE_NODE_NAME": "a"})
    assert checked.stdout.endswith("  store: Embedded store (looked at every 10 s, impact partial)\n")
    assert checked.returncode == 0
