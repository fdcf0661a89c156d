"""`svcnode explain` with real nodes and faults, and with servers that are not nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli.terminal.explain.explanation import HOW_TO_FIX_IT, NODE, PROBLEMS
from svcnode.version import __version__
from tests.support.backends import Backend, HttpBackend, Peer, close, closed_port, http_response, sending, unresponsive
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-some-length"
SECRET = "a-secret-of-the-node"
QUICK = '[history]\nkeep = false\n[defaults]\ninterval = "6s"\ntimeout = "5s"\nstart_period = "0s"\n'
FIXED = '[[services]]\nid = "db-1"\nstatus = "Up"\n[[services]]\nid = "cache"\nstatus = "Up"\nimpact = "none"\n'


def config(*services: str, listen: str = "127.0.0.1:0", server: str = "", more: str = "") -> str:
    return f'[server]\nlisten = ["{listen}"]\n{server}\n{QUICK}{more}\n' + "\n".join(services)


def probed(service_id: str, probe: str, **options: Any) -> str:
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
    return f"[[services]]\nid = {json.dumps(service_id)}\nprobe = {probe}\n{more}"


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
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with (
        Backend(close) as good,
        Backend(unresponsive) as frozen,
        HttpBackend(http_response(200, b'{"status": "bad"}')) as backend,
        closed_port() as port,
    ):
        api = f'{{ url = "http://{backend.address}/ready", json = {{ "/status" = "ok" }}, bearer = "${{API_TOKEN}}" }}'
        services = [
            probed("stopped", f'"redis://127.0.0.1:{port}"', impact="critical"),
            probed("frozen", f'"http://{frozen.address}/ready"', timeout="500ms"),
            probed("api", api),
            probed("good", f'"tcp://{good.address}"'),
            '[[services]]\nid = "a/b naïve"\nstatus = "Up"\n',
        ]
        environ = {"PATH": os.environ["PATH"], "API_TOKEN": SECRET}
        with Agent(tmp_path_factory.mktemp("agent"), config=config(*services), environ=environ) as running:
            wanted = dict.fromkeys(("stopped", "frozen", "api"), "Down") | {"good": "Up", "a/b naïve": "Up"}
            running.wait_until(lambda: running.statuses() == wanted)
            yield running


def test_a_service_is_explained_with_its_fault_and_the_command_to_check_it(agent: Agent) -> None:
    code, text = explanation_of(agent, "--service", "stopped")
    assert code == 3
    assert re.match(r"stopped has been Down since \d\d:\d\d:\d\d UTC \(", text)
    assert "\n  code    connection_refused: " in text
    assert re.search(r"svcnode probe --service stopped --config /\S+/svcnode.toml\n", text)
    code, text = explanation_of(agent, "--service", "good")
    assert (code, text.startswith("good has been Up since "), HOW_TO_FIX_IT in text) == (0, True, False)
    assert explanation_of(agent, "--service", "a/b naïve")[1].startswith("a/b naïve has been Up ")
    error = error_of(explain(url_of(agent), "--service", "stoped"))
    assert f'"stoped" at {url_of(agent)}' in error
    assert '"stopped"?' in error


def test_the_recommended_command_fails_as_the_node_does(agent: Agent) -> None:
    """Without the options and the secret of the configuration, the same URL would be ready."""
    _, text = explanation_of(agent, "--service", "api")
    command = text.rpartition("on the node's machine: svcnode ")[2].strip()
    done = svcnode(*shlex.split(command), API_TOKEN=SECRET)
    assert done.returncode == 3
    assert SECRET not in done.stdout
    details = json.loads(explanation_of(agent, "--service", "api", "--json")[1])
    assert svcnode("probe", details["probe"]).returncode == 0


def test_without_an_id_the_node_is_explained_and_json_is_its_response(agent: Agent) -> None:
    code, text = explanation_of(agent)
    assert code == 3
    assert " is unhealthy (503): " in text
    assert "\n  2 of 5 services " in text
    *lines, command = text.partition(f"\n{PROBLEMS}\n")[2].splitlines()
    problems = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert problems == ["stopped", "frozen", "api"]
    assert command.endswith(" --service stopped")
    code, text = explanation_of(agent, "--json")
    assert (code, json.loads(text)["node"]["health"]) == (3, 503)
    code, text = explanation_of(agent, "--service", "frozen", "--json")
    details = json.loads(text)
    assert (code, details["id"], details["status"], details["code"]) == (3, "frozen", "Down", "timeout")


# ---- the address and the token


def test_the_configuration_gives_the_address_and_a_failed_reload_is_shown(tmp_path: Path) -> None:
    good = config(FIXED, listen=f"127.0.0.1:{free_port()}")
    with Agent(tmp_path, config=good) as agent:
        agent.reload(good.replace('"none"', '"non"'))
        done = explain(folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\n{NODE}\n" in done.stdout
        assert ": services.cache.impact: " in done.stdout
        agent.reload("[server")
        assert "URL" in error_of(explain(folder=tmp_path), 2)
        assert "TOML" in explanation_of(agent)[1]


def test_the_certificate_in_the_configuration_is_trusted(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    port = free_port()
    server = f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'
    with Agent(tmp_path, config=config(FIXED, listen=f"127.0.0.2:{port}", more=server)) as agent:
        agent.wait_for_event("started")
        assert explain("--service", "db-1", folder=tmp_path).returncode == 0
        url = f"https://127.0.0.2:{port}"
        for arguments in ([url], [url, "--ca", str(made.certificate)], ["--ca", str(other.certificate)]):
            assert "certificate" in error_of(explain(*arguments, folder=tmp_path))


def test_with_a_token_loopback_and_unix_sockets_require_it(tmp_path: Path) -> None:
    server, port = 'operator_listen = ["unix:operator.sock", "127.0.0.1:{}"]', free_port()
    more = f'[security]\noperator_token = "{TOKEN}"\n'
    with Agent(tmp_path, config=config(FIXED, server=server.format(port), more=more)) as agent:
        agent.wait_for_event("started")
        for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path}/operator.sock"):
            assert "SVCNODE_SECURITY_OPERATOR_TOKEN" in error_of(explain(url))
            wrong = error_of(explain(url, "--token", f"{TOKEN}-not"))
            assert " operator_token " in wrong
            assert TOKEN not in wrong
            assert explain(url, "--token", TOKEN).returncode == 0
        assert explain(f"http://me:{TOKEN}@127.0.0.1:{port}").returncode == 0
        assert explain("--service", "db-1", folder=tmp_path).returncode == 0, "the token is in the configuration"


# ---- errors


def shutting_down(peer: Peer) -> None:
    peer.read_until(b"\r\n\r\n")
    peer.shutdown_write()


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (http_response(200, "<h1>welcome</h1>"), ": 200"),
        (http_response(200, '{"id": "db"}'), f"({__version__})"),
        (sending(b"SSH-2.0-Something\r\n"), ": SSH-2.0-Something: http://"),
        (shutting_down, "; if the server uses TLS, use https://"),
    ],
)
def test_another_server_is_an_error(script: Any, shown: str) -> None:
    with HttpBackend(script) if isinstance(script, bytes) else Backend(script) as backend:
        assert shown in error_of(explain(backend.address))
        assert shown in error_of(explain(backend.address, "--service", "db"))


# ---- output


def test_a_terminal_shows_a_colour_and_wraps_long_lines(agent: Agent, tmp_path: Path) -> None:
    with Terminal(tmp_path, columns=60) as terminal:
        screen, code = terminal.run(f"svcnode explain {url_of(agent)} --service good")
        assert code == 0
        assert screen.startswith("● good has been Up since ")
        assert "\x1b[32m● good" in terminal.styled.replace("\x1b[0m", "")
        assert all(len(line) <= 60 for line in screen.splitlines())
        assert re.search(r"^  \S.{40,}\n {4}\S", screen, re.MULTILINE)
