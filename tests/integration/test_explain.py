"""`svcnode explain` with real servers and faults, and with servers that are not nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.terminal.explain.explanation import HOW_TO_FIX_IT, NOT_UP, PROBLEMS
from svcnode.terminal.explain.remedies import REMEDIES
from svcnode.version import __version__
from tests.support.backends import Backend, HttpBackend, Peer, close, closed_port, http_response, sending, unresponsive
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.servers.postgresql import PostgresServer
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_TIMEOUT_S = 60.0
TOKEN = "a-token-of-some-length"
QUICK = '[history]\nkeep = false\n[defaults]\ninterval = "6s"\ntimeout = "5s"\nstart_period = "0s"\n'


def config(*services: str, listen: str = "127.0.0.1:0", server: str = "", more: str = "") -> str:
    return f'[server]\nlisten = ["{listen}"]\n{server}\n{QUICK}{more}\n' + "\n".join(services)


def probed(service_id: str, probe: str, **options: Any) -> str:
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
    return f"[[services]]\nid = {json.dumps(service_id)}\nprobe = {json.dumps(probe)}\n{more}"


FIXED = '[[services]]\nid = "db-1"\nstatus = "Up"\n[[services]]\nid = "cache"\nstatus = "Up"\nimpact = "none"\n'


def explain(*arguments: str, folder: Path | None = None, **environ: Any) -> subprocess.CompletedProcess[str]:
    return svcnode("explain", *arguments, folder=folder, **environ)


def url_of(agent: Agent) -> str:
    return f"http://127.0.0.1:{agent.port}"


def explanation_of(agent: Agent, *arguments: str) -> tuple[int, str]:
    done = explain(url_of(agent), *arguments)
    assert done.stderr == ""
    return done.returncode, done.stdout


def error_of(done: subprocess.CompletedProcess[str], code: int = 4) -> str:
    """The error, which is one line."""
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("svcnode: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# ---- real faults


@pytest.fixture(scope="module")
def agent_with_faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    postgres = PostgresServer(tmp_path_factory.mktemp("postgresql"))
    with postgres, Backend(close) as good, Backend(unresponsive) as frozen, closed_port() as port:
        services = [
            probed("ledger", postgres.bad_credentials_url, name="Ledger database", impact="critical"),
            probed("stopped", f"redis://127.0.0.1:{port}"),
            probed("frozen", f"http://{frozen.address}/ready", timeout="500ms"),
            probed("lost", "tcp://no-such-host.invalid:5432"),
            probed("good", f"tcp://{good.address}"),
        ]
        with Agent(tmp_path_factory.mktemp("agent"), config=config(*services)) as agent:
            wanted = dict.fromkeys(("ledger", "stopped", "frozen", "lost"), "Down") | {"good": "Up"}
            agent.wait_until(lambda: agent.statuses() == wanted)
            yield agent


def test_a_stopped_server(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "stopped")
    assert code == 3
    assert re.match(r"stopped is Down since \d\d:\d\d:\d\d \(", text)
    assert "\n  code    connection_refused: " in text
    assert "(fall = 3)" in text
    assert "(rise = 2)" in text
    assert re.search(r" 127\.0\.0\.1:\d+\. ", text)
    assert re.search(r"svcnode probe --service stopped --config /\S+/svcnode.toml\n", text)


def test_the_recommended_command_fails_as_the_node_does(tmp_path: Path) -> None:
    """Without the options and the secret of the configuration, the same URL would be ready."""
    options = 'json = { "/status" = "ok" }, bearer = "${API_TOKEN}"'
    environ = {"PATH": os.environ["PATH"], "API_TOKEN": "a-secret-of-the-node"}
    with HttpBackend(http_response(200, b'{"status": "bad"}')) as backend:
        service = f'[[services]]\nid = "api"\nprobe = {{ url = "http://{backend.address}/ready", {options} }}\n'
        with Agent(tmp_path, config=config(service), environ=environ) as agent:
            agent.wait_until(lambda: agent.statuses() == {"api": "Down"})
            _, text = explanation_of(agent, "--service", "api")
        command = text.rpartition("on the node's machine: svcnode ")[2].strip()
        done = svcnode(*shlex.split(command), API_TOKEN="a-secret-of-the-node")
        assert done.returncode == 3
        assert "a-secret-of-the-node" not in done.stdout
        assert "a-secret-of-the-node" in str(backend.last_request)
        assert svcnode("probe", f"http://{backend.address}/ready").returncode == 0


def test_a_wrong_password(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "ledger")
    assert code == 3
    assert "\n  code    auth_failed: " in text
    assert REMEDIES[ReasonCode.AUTH_FAILED].advice in text
    assert "not-the-password" not in text
    assert "\n  impact  critical: " in text


def test_a_server_that_does_not_respond(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "frozen")
    assert code == 3
    assert "\n  code    timeout: " in text
    assert " 0.5 s: " in text


def test_an_unknown_host(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "lost")
    if "\n  code    resolver_failed: " in text:
        pytest.skip("this machine cannot resolve names")
    assert code == 3
    assert "\n  code    host_not_found: " in text
    assert " no-such-host.invalid." in text


def test_a_healthy_server(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "good")
    assert code == 0
    assert text.startswith("good is Up since ")
    assert HOW_TO_FIX_IT not in text


def test_without_an_id_the_node_is_explained(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults)
    assert code == 3
    assert " is unhealthy (503): " in text
    assert "\n  1 of 5 services " in text
    *lines, command = text.partition(f"\n{NOT_UP}\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == ["ledger", "stopped", "frozen", "lost"]
    assert command.endswith(": svcnode explain --service ledger")


def test_json_is_the_response_of_the_node(agent_with_faults: Agent) -> None:
    code, text = explanation_of(agent_with_faults, "--service", "frozen", "--json")
    details = json.loads(text)
    assert (code, details["id"], details["status"], details["code"]) == (3, "frozen", "Down", "timeout")
    assert [check["code"] for check in details["recent_checks"][:3]] == ["timeout"] * 3
    code, text = explanation_of(agent_with_faults, "--json")
    assert (code, json.loads(text)["node"]["health"]) == (3, 503)


def test_a_service_that_recovers_needs_no_fix(tmp_path: Path) -> None:
    port = free_port()
    with Agent(tmp_path, config=config(probed("db", f"tcp://127.0.0.1:{port}", rise=100))) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Down"})
        with Backend(close, port=port):
            agent.wait_until(lambda: agent.request("/details/db").json["counters"]["ready_in_a_row"] > 1)
            code, text = explanation_of(agent, "--service", "db")
    assert code == 3
    assert "(rise = 100)" in text
    assert HOW_TO_FIX_IT in text
    assert "svcnode probe" not in text


# ---- the address and the token


def test_the_configuration_in_the_working_directory_gives_the_address(tmp_path: Path) -> None:
    port = free_port()
    with Agent(tmp_path, config=config(FIXED, listen=f"127.0.0.1:{port}")) as agent:
        agent.wait_for_event("started")
        done = explain("--service", "db-1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("db-1 is Up since ")


def test_a_failed_reload_is_shown(tmp_path: Path) -> None:
    good = config(FIXED, listen=f"127.0.0.1:{free_port()}")
    with Agent(tmp_path, config=good) as agent:
        agent.reload(good.replace('"none"', '"non"'))
        done = explain(folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\n{PROBLEMS}\n" in done.stdout
        assert ": services.cache.impact: " in done.stdout
        agent.reload("[server")
        assert "URL" in error_of(explain(folder=tmp_path), 2)
        assert "TOML" in explanation_of(agent)[1]


def test_a_unix_socket(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED, server='operator_listen = ["unix:operator.sock"]')) as agent:
        agent.wait_for_event("started")
        assert explain("--service", "db-1", folder=tmp_path).returncode == 0
        assert explain(f"unix:{tmp_path}/operator.sock").returncode == 0
        assert "(operator_listen)" in error_of(explain(url_of(agent)))


def test_the_certificate_in_the_configuration_is_trusted(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    other = make_certificate(tmp_path, "other")
    port = free_port()
    server = f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'
    with Agent(tmp_path, config=config(FIXED, listen=f"127.0.0.2:{port}", more=server)) as agent:
        agent.wait_for_event("started")
        assert explain("--service", "db-1", folder=tmp_path).returncode == 0
        url = f"https://127.0.0.2:{port}"
        for arguments in (
            [url],
            [url, "--ca", str(made.certificate)],
            ["--ca", str(other.certificate)],
        ):
            assert "certificate" in error_of(explain(*arguments, folder=tmp_path))


def test_another_address_than_loopback_requires_the_token(tmp_path: Path) -> None:
    more = f'[security]\noperator_token = "{TOKEN}"\n'
    with Agent(tmp_path, config=config(FIXED, listen="0.0.0.0:0", more=more)) as agent:
        url = url_of(agent)
        missing = error_of(explain(url))
        assert "--token" in missing
        assert "SVCNODE_SECURITY_OPERATOR_TOKEN" in missing
        wrong = error_of(explain(url, "--token", "another-token-of-some-length"))
        assert " operator_token " in wrong
        assert "another-token" not in wrong
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert explain(url, "--token", f"@{tmp_path}/token").returncode == 0
        assert explain(url, SVCNODE_SECURITY_OPERATOR_TOKEN=TOKEN).returncode == 0
        assert explain(url.replace("//", f"//me:{TOKEN}@")).returncode == 0


def test_with_a_token_loopback_requires_it(tmp_path: Path) -> None:
    server, port = 'operator_listen = ["unix:operator.sock", "127.0.0.1:{}"]', free_port()
    more = f'[security]\noperator_token = "{TOKEN}"\n'
    with Agent(tmp_path, config=config(FIXED, server=server.format(port), more=more)) as agent:
        agent.wait_for_event("started")
        for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path}/operator.sock"):
            assert "SVCNODE_SECURITY_OPERATOR_TOKEN" in error_of(explain(url))
            assert " operator_token " in error_of(explain(url, "--token", f"{TOKEN}-not"))
            assert explain(url, "--token", TOKEN).returncode == 0
        assert explain("--service", "db-1", folder=tmp_path).returncode == 0, "the token is in the configuration"


def test_without_a_token_other_machines_get_no_details(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED, listen="0.0.0.0:0")) as agent:
        error = error_of(explain(url_of(agent)))
    assert "operator_token in [security]" in error


# ---- errors


def test_a_closed_port_is_an_error() -> None:
    with closed_port() as port:
        error = error_of(explain(f"127.0.0.1:{port}"))
    assert f" refused: http://127.0.0.1:{port}; " in error
    assert " URL" in error


def test_a_missing_socket_is_an_error(tmp_path: Path) -> None:
    error = error_of(explain(f"unix:{tmp_path}/none.sock"))
    assert f": unix:{tmp_path}/none.sock; " in error


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (http_response(404, "<h1>no</h1>"), "(operator_listen)"),
        (http_response(200, "<h1>welcome</h1>"), ": 200"),
        (http_response(200, "[]"), ": 200"),
        (http_response(200, '{"id": "db"}'), f"({__version__})"),
        (http_response(500, '{"message": "Internal server error"}'), ": 500: Internal server error"),
        (http_response(302, "", Location="/login"), ": 302"),
        (b"SSH-2.0-Something\r\n", ": SSH-2.0-Something: http://"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--service", "db")])
def test_another_server_is_an_error(response: bytes, shown: str, options: tuple[str, ...]) -> None:
    with HttpBackend(response) as backend:
        assert shown in error_of(explain(backend.address, *options))


def test_a_server_of_another_protocol_is_an_error() -> None:
    with Backend(sending(b"hello\n")) as backend:
        assert f": hello: http://{backend.address}" in error_of(explain(backend.address))


def test_another_protocol_on_a_unix_socket_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"hello\n")
                connection.recv(65536)

        server = threading.Thread(target=greet)
        server.start()
        error = error_of(explain(f"unix:{path}"))
        server.join()
    assert f": hello: unix:{path}" in error


def test_a_server_that_closes_the_connection_is_an_error() -> None:
    with Backend(shutting_down) as backend:
        error = error_of(explain(backend.address))
    assert f": http://{backend.address}; if the server uses TLS, use https://" in error
    assert " URL" in error


def shutting_down(peer: Peer) -> None:
    peer.read_until(b"\r\n\r\n")
    peer.shutdown_write()


def test_an_unknown_id_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent:
        error = error_of(explain(url_of(agent), "--service", "db1"))
        assert f'"db1" at {url_of(agent)}' in error
        assert '"db-1"?' in error
        assert error.endswith(": db-1, cache\n")
        error = error_of(explain(url_of(agent), "--service", "xyz"))
        assert '"xyz"' in error
        assert "?" not in error
        assert error.endswith(": db-1, cache\n")


def test_an_id_may_hold_any_character(tmp_path: Path) -> None:
    ids = ["a/b", "...", "%2F", "<script>", "naïve db"]
    services = [f'[[services]]\nid = {json.dumps(one, ensure_ascii=False)}\nstatus = "Down"\n' for one in ids]
    with Agent(tmp_path, config=config(*services)) as agent:
        explained = [explanation_of(agent, "--service", one) for one in ids]
    assert [(code, text.partition(" is Down")[0]) for code, text in explained] == [(3, one) for one in ids]


# ---- output


def test_a_terminal_shows_a_colour_and_wraps_long_lines(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent, Terminal(tmp_path, columns=60) as terminal:
        screen, code = terminal.run(f"svcnode explain {url_of(agent)} --service db-1")
        assert code == 0
        assert screen.startswith("● db-1 is Up since ")
        assert "\x1b[32m● db-1" in terminal.styled.replace("\x1b[0m", "")
        assert all(len(line) <= 60 for line in screen.splitlines())
        assert re.search(r"^  \S.{50,}\n {4}\S", screen, re.MULTILINE)
        screen, _ = terminal.run(f"NO_COLOR=1 svcnode explain {url_of(agent)} --service db-1")
        assert "\x1b[32m" not in terminal.styled


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent:
        command = f"{sys.executable} -W error -m svcnode explain {url_of(agent)} --service db-1 | true"
        done = subprocess.run(
            ["/bin/bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT_S,
            check=False,
        )
    assert done.stderr == ""
