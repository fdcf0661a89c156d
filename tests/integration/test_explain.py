"""`svcnode explain` as a newcomer uses it: against real servers with real faults, and against whatever else answers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import Backend, HttpBackend, Peer, close, closed_port, http_response, sending, unresponsive
from tests.support.certificates import make_certificate
from tests.support.processes import Agent
from tests.support.servers.base import free_port
from tests.support.servers.postgresql import PostgresServer
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_TIMEOUT_S = 40.0
TOKEN = "a-token-of-some-length"
QUICK = '[history]\nkeep = false\n[defaults]\ninterval = "500ms"\nstart_period = "0s"\n'


def config(*services: str, listen: str = "127.0.0.1:0", server: str = "", more: str = "") -> str:
    return f'[server]\nlisten = ["{listen}"]\n{server}\n{QUICK}{more}\n' + "\n".join(services)


def probed(service_id: str, probe: str, **words: Any) -> str:
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())
    return f"[[services]]\nid = {json.dumps(service_id)}\nprobe = {json.dumps(probe)}\n{more}"


FIXED = '[[services]]\nid = "db-1"\nstatus = "Up"\n[[services]]\nid = "cache"\nstatus = "Up"\nimpact = "none"\n'


def explain(
    *arguments: str, folder: Path | None = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "svcnode", "explain", *arguments],
        env={"PATH": os.environ["PATH"], "TZ": "UTC", **(environ or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )


def url_of(agent: Agent) -> str:
    return f"http://127.0.0.1:{agent.port}"


def explained(agent: Agent, *arguments: str) -> tuple[int, str]:
    done = explain(*arguments, "--url", url_of(agent))
    assert done.stderr == ""
    return done.returncode, done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that comes instead."""
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("svcnode: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# ---- real faults


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    postgres = PostgresServer(tmp_path_factory.mktemp("postgresql"))
    with postgres, Backend(close) as good, Backend(unresponsive) as frozen, closed_port() as port:
        services = [
            probed("ledger", postgres.bad_credentials_url, name="Ledger database", impact="critical", timeout="400ms"),
            probed("stopped", f"redis://127.0.0.1:{port}"),
            probed("frozen", f"http://{frozen.address}/ready", timeout="100ms"),
            probed("lost", "tcp://no-such-host.invalid:5432"),
            probed("good", f"tcp://{good.address}"),
        ]
        with Agent(tmp_path_factory.mktemp("faulty"), config=config(*services)) as agent:
            wanted = dict.fromkeys(("ledger", "stopped", "frozen", "lost"), "Down") | {"good": "Up"}
            agent.wait_until(lambda: agent.statuses() == wanted)
            yield agent


def test_a_server_that_is_stopped(faulty: Agent) -> None:
    code, text = explained(faulty, "stopped")
    assert code == 2
    assert re.match(r"stopped is Down, since \d\d:\d\d:\d\d \(", text)
    assert re.search(r"  The last \d+ looks, from \S+ to \S+, failed after .* ms: connection refused\.\n", text)
    assert "is Down after 3 failures in a row (fall = 3)" in text
    assert "  2 looks in a row that pass make it Up (rise = 2).\n  The next look is " in text
    assert re.search(r"Nothing listens at 127\.0\.0\.1:\d+\. Is the server running\?", text)
    assert re.search(r"svcnode probe redis://127\.0\.0\.1:\d+ --timeout 0\.25s", text)


def test_a_wrong_password(faulty: Agent) -> None:
    code, text = explained(faulty, "ledger")
    assert code == 2
    assert 'password authentication failed for user "svcnode".\n' in text
    assert "The server is there, and refuses the login. Check the user name and the password" in text
    assert "not-the-password" not in text
    assert "impact  critical: while it is Down, the node is unhealthy (503)" in text


def test_a_server_that_is_frozen(faulty: Agent) -> None:
    code, text = explained(faulty, "frozen")
    assert code == 2
    assert "no answer within 0.1 s, in its step exchange.\n" in text
    assert "It takes the connection, but does not answer within 0.1 s: it may be frozen, overloaded" in text


def test_a_host_that_is_misspelled(faulty: Agent) -> None:
    code, text = explained(faulty, "lost")
    if "the resolver failed" in text:
        pytest.skip("this machine cannot resolve names")
    assert code == 2
    assert "knows no host of the name no-such-host.invalid. Is it spelled right in the URL of the probe?" in text


def test_a_server_that_is_well(faulty: Agent) -> None:
    code, text = explained(faulty, "good")
    assert code == 0
    assert text.startswith("good is Up, since ")
    assert "How to fix it" not in text


def test_without_an_id_the_node_is_explained(faulty: Agent) -> None:
    code, text = explained(faulty)
    assert code == 2
    assert " is unhealthy (503): ledger is Down, and critical\n  1 of 5 services is Up; svcnode " in text
    lines = text.partition("\nNot Up\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == ["ledger", "stopped", "frozen", "lost", "More"]
    assert lines[-1] == "  More about one of them: svcnode explain ledger"


def test_as_json_it_is_what_the_node_tells(faulty: Agent) -> None:
    code, text = explained(faulty, "frozen", "--json")
    details = json.loads(text)
    assert (code, details["id"], details["status"]) == (2, "frozen", "Down")
    assert len(details["attempts"]) >= 3
    code, text = explained(faulty, "--json")
    assert (code, json.loads(text)["node"]["health"]) == (2, 503)


def test_one_that_has_come_back_says_so(tmp_path: Path) -> None:
    port = free_port()
    with Agent(tmp_path, config=config(probed("db", f"tcp://127.0.0.1:{port}", rise=100))) as agent:
        agent.wait_until(lambda: agent.statuses() == {"db": "Down"})
        with Backend(close, port=port):
            agent.wait_until(lambda: agent.request("/details/db").json["counters"]["ready_in_a_row"] > 1)
            code, text = explained(agent, "db")
    assert code == 2
    assert "It is still Down, since it takes 100 successes in a row (rise = 100) to be Up again, and it has " in text
    assert "Nothing, as it seems: it answers again." in text


# ---- where it asks


def test_in_the_folder_of_a_configuration_nothing_need_be_named(tmp_path: Path) -> None:
    port = free_port()
    with Agent(tmp_path, config=config(FIXED, listen=f"127.0.0.1:{port}")) as agent:
        agent.wait_for_event("started")
        done = explain("db-1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("db-1 is Up, since ")


def test_a_reload_that_was_refused_is_told_where_the_fault_lies(tmp_path: Path) -> None:
    good = config(FIXED, listen=f"127.0.0.1:{free_port()}")
    with Agent(tmp_path, config=good) as agent:
        agent.reload(good.replace('"none"', '"non"'))
        done = explain(folder=tmp_path)
        told = "Its configuration was not reloaded, the old one is in force: services.cache.impact: must be one of"
        assert (done.returncode, done.stderr) == (0, "")
        assert told in done.stdout
        agent.reload("[server")
        assert "; --url names the node to ask without a configuration" in refused(explain(folder=tmp_path))
        assert "not valid TOML" in explained(agent)[1]


def test_a_unix_socket(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED, server='operator_listen = ["unix:operator.sock"]')) as agent:
        agent.wait_for_event("started")
        assert explain("db-1", folder=tmp_path).returncode == 0
        assert explain("--url", f"unix:{tmp_path}/operator.sock").returncode == 0
        assert "has no /details: it is no svcnode, or it shows them elsewhere (operator_listen)" in refused(
            explain("--url", url_of(agent))
        )


def test_a_node_that_speaks_tls_is_known_by_its_own_certificate(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    other = make_certificate(tmp_path, "other")
    port = free_port()
    server = f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'
    with Agent(tmp_path, config=config(FIXED, listen=f"127.0.0.2:{port}", more_findings=server)) as agent:
        agent.wait_for_event("started")
        assert explain("db-1", folder=tmp_path).returncode == 0
        url = f"https://127.0.0.2:{port}"
        assert "its certificate is not trusted" in refused(explain("--url", url))
        assert "its certificate is not trusted" in refused(explain("--url", url, "--ca", str(made.certificate)))
        assert "its certificate is not trusted" in refused(explain("--ca", str(other.certificate), folder=tmp_path))


def test_beyond_loopback_the_token_is_asked_for(tmp_path: Path) -> None:
    more = f'[security]\noperator_token = "{TOKEN}"\n'
    with Agent(tmp_path, config=config(FIXED, listen="0.0.0.0:0", more_findings=more)) as agent:
        url = url_of(agent)
        assert (
            refused(explain("--url", url))
            == f"svcnode: {url} asks for its operator token: give --token, or set SVCNODE_SECURITY_OPERATOR_TOKEN\n"
        )
        wrong = refused(explain("--url", url, "--token", "another-token-of-some-length"))
        assert "does not take this token" in wrong
        assert "another-token" not in wrong
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert explain("--url", url, "--token", f"@{tmp_path}/token").returncode == 0
        assert explain("--url", url, environ={"SVCNODE_SECURITY_OPERATOR_TOKEN": TOKEN}).returncode == 0
        assert explain("--url", url.replace("//", f"//me:{TOKEN}@")).returncode == 0


def test_where_loopback_is_not_trusted_the_token_is_asked_for_there_too(tmp_path: Path) -> None:
    server, port = 'operator_listen = ["unix:operator.sock", "127.0.0.1:{}"]', free_port()
    more = f'[security]\noperator_token = "{TOKEN}"\ntrust_loopback = false\n'
    with Agent(tmp_path, config=config(FIXED, server=server.format(port), more_findings=more)) as agent:
        agent.wait_for_event("started")
        for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path}/operator.sock"):
            asked = (
                f"svcnode: {url} asks for its operator token: give --token, or set SVCNODE_SECURITY_OPERATOR_TOKEN\n"
            )
            assert refused(explain("--url", url)) == asked
            assert "does not take this token" in refused(explain("--url", url, "--token", f"{TOKEN}-not"))
            assert explain("--url", url, "--token", TOKEN).returncode == 0
        assert explain("db-1", folder=tmp_path).returncode == 0, "the token is in the configuration"


def test_beyond_loopback_a_node_without_a_token_tells_nothing(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED, listen="0.0.0.0:0")) as agent:
        said = refused(explain("--url", url_of(agent)))
    assert "tells nobody beyond its own machine: ask there, or set operator_token in [security]" in said


# ---- who else may be there


def test_nobody_is_there() -> None:
    with closed_port() as port:
        said = refused(explain("--url", f"127.0.0.1:{port}"))
    assert f"cannot reach http://127.0.0.1:{port}: connection refused; is svcnode serve running there?" in said


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    said = refused(explain("--url", f"unix:{tmp_path}/none.sock"))
    assert f"cannot reach unix:{tmp_path}/none.sock: no such file or directory" in said


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http_response(404, "<h1>no</h1>"), "answers, but has no /details: it is no svcnode"),
        (http_response(200, "<h1>welcome</h1>"), "expected what svcnode tells at /details, got 200"),
        (http_response(200, "[]"), "expected what svcnode tells at /details, got 200"),
        (http_response(200, '{"id": "db"}'), "is not what this svcnode ("),
        (http_response(500, '{"message": "Internal server error"}'), "got 500: Internal server error"),
        (http_response(302, "", Location="/login"), "got 302"),
        (b"SSH-2.0-whatever\r\n", "expected HTTP, got something else: SSH-2.0-whatever at http://"),
    ],
)
@pytest.mark.parametrize("words", [(), ("db",)])
def test_something_else_is_there(answer: bytes, why: str, words: tuple[str, ...]) -> None:
    with HttpBackend(answer) as backend:
        assert why in refused(explain(*words, "--url", backend.address))


def test_something_else_speaks_before_it_is_asked() -> None:
    with Backend(sending(b"hello\n")) as backend:
        assert "expected HTTP, got something else: hello at http://" in refused(explain("--url", backend.address))


def test_something_else_is_at_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def greet() -> None:
            with listener.accept()[0] as greeted:
                greeted.sendall(b"hello\n")
                greeted.recv(65536)

        greeter = threading.Thread(target=greet)
        greeter.start()
        said = refused(explain("--url", f"unix:{path}"))
        greeter.join()
    assert said == f"svcnode: expected HTTP, got something else: hello at unix:{path}\n"


def test_one_who_only_hangs_up_is_told_of_in_whole_sentences() -> None:
    with Backend(hanging_up) as backend:
        said = refused(explain("--url", backend.address))
    assert said == (
        f"svcnode: cannot reach http://{backend.address}: the connection was closed without an answer; is it https://? "
        "Is svcnode serve running there? --url names another address\n"
    )


def hanging_up(peer: Peer) -> None:
    peer.read_until(b"\r\n\r\n")
    peer.shutdown_write()


def test_an_unknown_id_comes_with_those_that_are_known(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent:
        said = refused(explain("db1", "--url", url_of(agent)))
        assert f'no service has the id "db1" at {url_of(agent)}; did you mean "db-1"? It has: db-1, cache\n' in said
        said = refused(explain("xyz", "--url", url_of(agent)))
        assert said == f'svcnode: no service has the id "xyz" at {url_of(agent)}. It has: db-1, cache\n'


@pytest.mark.parametrize("service_id", ["a/b", "...", "%2F", "<script>", "naïve db"])
def test_an_id_may_hold_any_character(tmp_path: Path, service_id: str) -> None:
    services = f'[[services]]\nid = {json.dumps(service_id, ensure_ascii=False)}\nstatus = "Down"\n'
    with Agent(tmp_path, config=config(services)) as agent:
        code, text = explained(agent, service_id)
    assert (code, text.partition(" is Down")[0]) == (2, service_id)


# ---- who reads it


def test_on_a_terminal_the_first_line_has_a_colour_and_long_ones_are_folded(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent, Terminal(tmp_path, columns=60) as terminal:
        screen, code = terminal.run(f"svcnode explain db-1 --url {url_of(agent)}")
        assert code == 0
        assert screen.startswith("● db-1 is Up, since ")
        assert "\x1b[32m● db-1" in terminal.styled.replace("\x1b[0m", "")
        assert all(len(line) <= 60 for line in screen.splitlines())
        assert re.search(r"^  Another status in the configuration.*\n {2,}\S", screen, re.MULTILINE)
        screen, _ = terminal.run(f"NO_COLOR=1 svcnode explain db-1 --url {url_of(agent)}")
        assert "\x1b[32m" not in terminal.styled


def test_one_who_stops_reading_sees_no_traceback(tmp_path: Path) -> None:
    with Agent(tmp_path, config=config(FIXED)) as agent:
        command = f"{sys.executable} -W error -m svcnode explain db-1 --url {url_of(agent)} | true"
        done = subprocess.run(
            ["/bin/bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT_S,
            check=False,
        )
    assert done.stderr == ""
