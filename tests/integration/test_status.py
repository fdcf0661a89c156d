"""`svcnode status` on a real terminal and in a pipe, with one node and with many."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.certificates import make_certificate, make_chain
from tests.support.commands import svcnode
from tests.support.fake_nodes import FakeNode, FakeNodes
from tests.support.http_server import becomes_true, running_server
from tests.support.node_cases import worked_example
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

WAIT_TIMEOUT_S = 60.0


def status(*arguments: str, stdin: str = "", **environ: Any) -> subprocess.CompletedProcess[str]:
    return svcnode("status", *arguments, stdin=stdin, **environ)


def documents(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in status(*arguments, "--json").stdout.splitlines()]


# ---- in a pipe


def test_one_node_in_a_pipe_has_no_symbols() -> None:
    with running_server(worked_example()) as running:
        address = "{}:{}".format(*running.address)
        done = status(address)
    assert done.stdout == (
        f"partial  validator-7  v1.4.2  interface v0.0.1  1/3 up  http://{address}\n"
        "\n"
        "  STATUS        ID       NAME             DESCRIPTION\n"
        "  Up            db       Ledger database  Holds the ledger\n"
        "  Down          indexer  Indexer          Follows the chain\n"
        "  Initializing  storage  Storage daemon   Keeps the blobs\n"
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_without_a_url_the_node_of_the_configuration_is_asked(tmp_path: Path) -> None:
    port = free_port()
    config = f'[server]\nlisten = "127.0.0.1:{port}"\n[[services]]\nid = "db"\nstatus = "Down"\n'
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        (document,) = documents("--config", str(agent.config_file))
    assert (document["url"], document["health"]) == (f"http://127.0.0.1:{port}", 503)


@pytest.mark.parametrize("kind", ["self-signed", "issued"])
def test_without_a_url_a_node_with_tls_is_known_by_its_own_certificate(kind: str, tmp_path: Path) -> None:
    """Also if the system does not trust its authority, and at an address that is not in the certificate."""
    made = make_certificate(tmp_path) if kind == "self-signed" else make_chain(tmp_path)[0]
    port = free_port()
    config = (
        f'[server]\nlisten = "127.0.0.2:{port}"\ntls = {{ certificate = "{made.certificate}", key = "{made.key}" }}\n'
        '[[services]]\nid = "db"\nstatus = "Down"\n'
    )
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        (document,) = documents("--config", str(agent.config_file))
        made_later = make_certificate(tmp_path, "other").certificate
        (untrusted,) = documents("--config", str(agent.config_file), "--ca", str(made_later))
        made.certificate.unlink()
        done = status("--config", str(agent.config_file))
    assert (document["url"], document["health"]) == (f"https://127.0.0.2:{port}", 503)
    assert [error["code"] for error in untrusted["errors"]] == ["tls_untrusted"]
    assert (done.returncode, "--ca" in done.stderr) == (2, True)


def test_a_node_on_a_unix_socket(tmp_path: Path) -> None:
    config = '[server]\nlisten = "unix:node.sock"\n[[services]]\nid = "db"\nstatus = "Initializing"\n'
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        found, missing = documents(f"unix:{tmp_path}/node.sock", f"unix:{tmp_path}/none.sock")
    assert (found["url"], found["overall_health"], found["health"]) == (f"unix:{tmp_path}/node.sock", "partial", 206)
    assert [service["id"] for service in found["services"]] == ["db"]
    (error,) = missing["errors"]
    assert (error["kind"], error["code"]) == ("UnreachableError", "file_not_found")
    assert error["message"].endswith(f": unix:{tmp_path}/none.sock")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["well"], 0),
        (["half"], 1),
        (["ill"], 3),
        (["well", "well"], 0),
        (["half", "well"], 1),
        (["ill", "half", "well"], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_node(names: list[str], code: int, fake_nodes: FakeNodes) -> None:
    assert status(*map(fake_nodes.url, names)).returncode == code


def test_unreachable_is_worse_than_unhealthy(fake_nodes: FakeNodes) -> None:
    with closed_port() as port:
        done = status(fake_nodes.url("ill"), f"127.0.0.1:{port}")
    assert done.returncode == 4
    assert f": http://127.0.0.1:{port}\n" in done.stdout
    assert done.stdout.endswith(": 1 unhealthy, 1 unreachable\n")


def test_a_server_that_answers_200_to_everything_is_not_healthy() -> None:
    with HttpBackend(http_response(200, "<html>Welcome</html>", Content_Type="text/html")) as web:
        done = status(web.address)
    assert done.returncode == 4
    assert done.stdout.startswith("not a node ")
    assert " text/html: <html>Welcome</html>: " in done.stdout
    assert " 200 (healthy)\n" in done.stdout


def test_a_node_that_ignores_the_version_is_of_another_version(fake_nodes: FakeNodes) -> None:
    done = status(fake_nodes.url("well"), "--version", "v9.9.9")
    assert (done.returncode, done.stdout.startswith("other version ")) == (4, True)
    (found,) = documents(fake_nodes.url("well"), "--version", "v9.9.9")
    assert ([error["kind"] for error in found["errors"]], found["health"]) == (["VersionIgnoredError"], None)


def test_a_node_under_the_other_prefix_that_ignores_the_version_is_of_another_version() -> None:
    with FakeNodes({"n": FakeNode(prefix="eigen")}) as nodes:
        assert status(nodes.url("n"), "--version", "v9.9.9").stdout.startswith("other version ")
        assert status(nodes.url("n"), "--version", "v0.0.1").returncode == 0


def test_the_version_of_a_node_without_identity_is_not_known() -> None:
    with FakeNodes({"n": FakeNode(has_identity=False)}) as nodes:
        (found,) = documents(nodes.url("n"), "--version", "v0.0.1")
        done = status(nodes.url("n"), "--version", "v0.0.1")
    assert (found["health"], found["overall_health"]) == (None, "unknown")
    assert done.stdout.startswith("no identity ")


def test_a_node_without_identity_is_reported_as_such() -> None:
    with FakeNodes({"n": FakeNode(has_identity=False)}) as nodes:
        done = status(nodes.url("n"))
        (found,) = documents(nodes.url("n"))
    assert (done.returncode, done.stdout.startswith("no identity ")) == (4, True)
    assert (found["health"], found["identity"], len(found["errors"])) == (200, None, 1)


def test_the_prefix_of_the_public_twin_is_tried_if_nothing_exists_under_svc() -> None:
    with FakeNodes({"n": FakeNode(prefix="eigen")}) as nodes:
        done = status(nodes.url("n"))
        (found,) = documents(nodes.url("n"))
        assert status(nodes.url("n"), "--prefix", "/svc").returncode == 4
    assert (done.returncode, found["overall_health"]) == (0, "healthy")
    (remark,) = found["remarks"]
    assert f"{nodes.url('n')}/eigen" in remark
    assert f"\n    remark: {remark}\n" in done.stdout


def test_nodes_are_shown_in_the_order_given(fake_nodes: FakeNodes) -> None:
    names = ["well", "ill", "half", "well"]
    found = documents(*map(fake_nodes.url, names))
    assert [one["identity"]["node_name"] for one in found] == names


def test_json_has_all_responses_of_a_node(fake_nodes: FakeNodes) -> None:
    (found,) = documents(fake_nodes.url("half"))
    assert found.pop("duration_ms") > 0
    assert found == {
        "url": f"http://{fake_nodes.url('half')}",
        "overall_health": "partial",
        "health": 206,
        "identity": {"node_name": "half", "spec_version": "v0.0.1", "node_version": "v1.4.2"},
        "services": [
            {"id": "db", "name": "Db", "description": "", "status": "Up"},
            {"id": "indexer", "name": "Indexer", "description": "", "status": "Initializing"},
        ],
        "errors": [],
        "interrupted": None,
        "remarks": [],
        "deviations": [],
    }


def test_json_has_kind_and_code_of_an_error() -> None:
    with closed_port() as port:
        (found,) = documents(f"127.0.0.1:{port}")
    assert (found["overall_health"], found["health"], found["identity"], found["services"]) == (
        "unknown",
        None,
        None,
        None,
    )
    (error,) = found["errors"]
    assert error.pop("message").endswith(f": http://127.0.0.1:{port}")
    assert error == {"kind": "UnreachableError", "code": "connection_refused"}


def test_deviations_are_in_json() -> None:
    responses = {
        "/eigen/node": http_response(200, '{"node_name":"n","spec_version":"v1","node_version":"v1"}'),
        "/eigen/node/health": http_response(200, "ok"),
        "/eigen/node/services": http_response(200, "[]", Content_Type="application/json"),
    }
    with HttpBackend(lambda received: responses[received.target]) as node:
        (found,) = documents(node.address, "--prefix", "/eigen")
    assert found["overall_health"] == "healthy"
    for deviation, key in zip(found["deviations"], ["Content-Type", "body", "array"], strict=True):
        assert key in deviation


def test_a_200_beside_a_down_service_is_a_remark_and_exit_code_0(fake_nodes: FakeNodes) -> None:
    fake_nodes.nodes["ill"].health = 200
    (found,) = documents(fake_nodes.url("ill"))
    (remark,) = found["remarks"]
    assert found["overall_health"] == "healthy"
    for urls in ([fake_nodes.url("ill")], fake_nodes.urls[:1] + fake_nodes.urls[-1:]):
        done = status(*urls)
        assert f"\n    remark: {remark}\n" in done.stdout
        assert done.returncode == 0


def test_a_version_can_be_requested() -> None:
    with running_server(worked_example()) as running:
        address = "{}:{}".format(*running.address)
        assert status(address, "--version", "v0.0.1").returncode == 1
        done = status(address, "--version", "v9")
    assert done.returncode == 4
    assert done.stdout.startswith("other version  ")


def test_a_ca_can_be_trusted(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with running_server(worked_example(), tls=server_tls(made)) as running:
        address = "https://{}:{}".format(*running.address)
        assert status(address, "--ca", str(made.certificate)).returncode == 1
        untrusted, plain = documents(address, address.replace("https", "http"))
        assert [error["code"] for error in untrusted["errors"]] == ["tls_untrusted"]
        (error,) = plain["errors"]
        assert error["code"] == "connection_closed"
        assert "https://" in error["message"]


def test_nodes_can_be_read_from_a_file_and_from_stdin(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text(f"# ours\n{fake_nodes.url('well')}\n{fake_nodes.url('half')}  # slow\n")
    assert status("--from", str(file)).stdout.endswith(": 1 healthy, 1 partial\n")
    assert status("--from", "-", stdin=fake_nodes.url("ill")).returncode == 3


def test_a_password_is_never_shown(fake_nodes: FakeNodes) -> None:
    for url in (f"bob:s3cr3t-word@{fake_nodes.url('well')}", "bob:s3cr3t-word@127.0.0.1:1", "bob:s3cr3t-word@h:x"):
        for flags in ([], ["--json"]):
            done = status(url, *flags)
            assert "s3cr3t" not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr


def echoing(received: ReceivedRequest) -> bytes:
    """A node that repeats the login in every text."""
    login = base64.b64decode(received.headers["authorization"].removeprefix("Basic ")).decode()
    body: dict[str, Any]
    match received.target.removeprefix("/svc/node"):
        case "":
            body = {"node_name": login, "spec_version": f"v {login}", "node_version": login, login: login}
        case "/services":
            body = {"services": [{"id": login, "name": login, "description": f"is {login}", "status": login}]}
        case _:
            return http_response(200)
    return http_response(200, json.dumps(body), Content_Type="application/json")


@pytest.mark.parametrize("login", ["bob:s3cr3t-word", "s3cr3t-word", "s3cr3t-word:"])
def test_a_login_that_a_node_echoes_is_redacted(login: str) -> None:
    with HttpBackend(echoing) as node:
        for arguments in (["--json"], [], ["x.invalid", "--all"]):
            done = status(f"{login}@{node.address}", *arguments)
            assert "s3cr3t" not in done.stdout + done.stderr
            assert "***" in done.stdout


@pytest.mark.parametrize("url", ["http://h/?token=s3cr3t-word", "http://h/#s3cr3t-word", "bob:s3cr3t-word?@h"])
def test_a_query_is_an_error_and_is_redacted(url: str) -> None:
    done = status(url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "s3cr3t" not in done.stderr
    assert "URL" in done.stderr


def test_a_closed_pipe_is_not_an_error(fake_nodes: FakeNodes) -> None:
    command = f"{sys.executable} -m svcnode status {' '.join(fake_nodes.urls * 30)} --all --json | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False
    )
    assert json.loads(done.stdout)["overall_health"] == "healthy"
    assert done.stderr == ""


def test_a_pipe_gets_no_colours_even_with_term_set(fake_nodes: FakeNodes) -> None:
    done = status(*fake_nodes.urls, TERM="xterm-256color", COLORTERM="truecolor")
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout.isascii()


# ---- timeouts


def test_a_node_that_hangs_times_out(fake_nodes: FakeNodes) -> None:
    with Backend(unresponsive) as hanging:
        healthy, unknown = documents(fake_nodes.url("well"), hanging.address, "--timeout", "5s")
    assert (healthy["overall_health"], unknown["overall_health"]) == ("healthy", "unknown")
    (error,) = unknown["errors"]
    assert error["code"] == "timeout"
    assert error["message"].endswith(f" 5 s: http://{hanging.address}")


def test_one_slow_endpoint_does_not_hide_the_other_responses() -> None:
    is_over = threading.Event()
    responses = {"/svc/node/health": http_response(200), "/svc/node/services": http_response(200, '{"services":[]}')}

    def respond(received: ReceivedRequest) -> bytes:
        if received.target == "/svc/node":
            is_over.wait(WAIT_TIMEOUT_S)
        return responses.get(received.target, b"")

    with HttpBackend(respond) as node:
        done = status(node.address, "--timeout", "5s")
        is_over.set()
    assert done.returncode == 4
    assert done.stdout.startswith(f"unknown  -  -  0/0 up  http://{node.address}\n")
    assert f" 5 s: http://{node.address}/svc/node\n" in done.stdout
    assert " 200 (healthy)\n" in done.stdout


def test_many_nodes_are_requested_at_the_same_time() -> None:
    """One after another, the 20 nodes that hang would take 200 s."""
    nodes = {f"n{number}": FakeNode(hangs=number % 10 == 9) for number in range(200)}
    with FakeNodes(nodes) as fake_nodes:
        done = status("--from", "-", "--timeout", "10s", stdin="\n".join(fake_nodes.urls))
        assert fake_nodes.connection_count <= 180 + 20 * 3, "one per node; a node that hangs has one per request"
    assert done.stdout.endswith(": 180 healthy, 20 unreachable\n")
    assert done.returncode == 4


# ---- on a terminal


def test_a_terminal_has_symbols_and_colours(tmp_path: Path) -> None:
    node = worked_example()
    node.register("archive", name="Archive", description="Keeps all that ever was, and that is a lot to keep").up()
    with running_server(node) as running, Terminal(tmp_path) as terminal:
        address = "{}:{}".format(*running.address)
        screen, code = terminal.run(f"svcnode status {address}")
        styled = terminal.styled
    assert screen.splitlines() == [
        f"◐ partial  validator-7  v1.4.2  interface v0.0.1  2/4 up  http://{address}",
        "",
        "  STATUS          ID       NAME             DESCRIPTION",
        "  ● Up            db       Ledger database  Holds the ledger",
        "  ✖ Down          indexer  Indexer          Follows the chain",
        "  ◐ Initializing  storage  Storage daemon   Keeps the blobs",
        "  ● Up            archive  Archive          Keeps all that ever was, and that i…",
    ]
    assert code == 1
    for coloured in ("\x1b[33m◐ partial", "\x1b[32m● Up", "\x1b[31m✖ Down"):
        assert coloured in styled


@pytest.mark.parametrize(
    ("encoding", "size"), [("ascii", "gr??e"), pytest.param("latin-1", "gr", marks=pytest.mark.wide)]
)
def test_characters_that_the_terminal_lacks_are_question_marks(encoding: str, size: str, tmp_path: Path) -> None:
    node = worked_example()
    node.register("cold", name="größe ☃", description="Keeps all that ever was, and that is a lot to keep").up()
    with running_server(node) as running, Terminal(tmp_path, environ={"PYTHONIOENCODING": encoding}) as terminal:
        screen, code = terminal.run("svcnode status {}:{}".format(*running.address))
    assert code == 1
    assert screen.splitlines()[0].startswith("~ partial  validator-7 ")
    assert screen.splitlines()[-1].startswith(f"  + Up            cold     {size}")
    assert " ?  " in screen.splitlines()[-1]


def test_a_long_name_does_not_hide_count_and_url(tmp_path: Path) -> None:
    name = f"validator  v9  9/9 up  http://other{' ' * 40}● healthy  other"
    identity = {"node_name": name, "spec_version": "v0.0.1", "node_version": "v1.4.2"}
    responses = {
        "/svc/node": http_response(200, json.dumps(identity), Content_Type="application/json"),
        "/svc/node/health": http_response(200),
        "/svc/node/services": http_response(200, '{"services":[]}', Content_Type="application/json"),
    }
    with HttpBackend(lambda received: responses[received.target]) as node, Terminal(tmp_path) as terminal:
        alone, _ = terminal.run(f"svcnode status {node.address}")
        beside, _ = terminal.run(f"svcnode status {node.address} {node.address}")
    assert alone.splitlines() == [
        "● healthy  validator v9 9/9 up http://othe…  v1.4.2  interface v0.0.1  0/0 up",
        f"    http://{node.address}",
    ]
    for line in beside.splitlines()[:2]:
        assert line.startswith("● healthy  validator v9 9/9 up ht")
        assert line.endswith(f"…  v1.4.2  0/0 up  http://{node.address}")
        assert len(line) <= 80


def test_the_test_terminal_waits_for_the_right_command(tmp_path: Path) -> None:
    """The test terminal runs a typed command after the running one has ended."""
    with Terminal(tmp_path) as terminal:
        assert terminal.run("true") == ("", 0)
        terminal.type("sleep 0.5")
        terminal.press("Enter")
        assert terminal.run("(exit 7)") == ("", 7)


def test_many_nodes_on_a_terminal(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with closed_port() as port, Terminal(tmp_path) as terminal:
        (tmp_path / "nodes").write_text("\n".join([*fake_nodes.urls, f"no-such-host.invalid:{port}"]))
        screen, _ = terminal.run("svcnode status --from nodes")
    address = f"http://127.0.0.1:{fake_nodes.port}"
    assert screen.splitlines()[:6] == [
        f"● healthy      well  v1.4.2  1/1 up  {address}/well",
        f"◐ partial      half  v1.4.2  1/2 up  {address}/half",
        "    ◐ Initializing  indexer  Indexer",
        f"✖ unhealthy    ill   v1.4.2  0/1 up  {address}/ill",
        "    ✖ Down  db  Db",
        f"! unreachable  -     -       -       http://no-such-host.invalid:{port}",
    ]
    assert screen.splitlines()[-1].endswith(": 1 healthy, 1 partial, 1 unhealthy, 1 unreachable")
    assert screen.splitlines()[7].startswith("    "), "a long error is wrapped and indented"


def test_no_color_keeps_the_symbols(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path, environ={"NO_COLOR": "1"}) as terminal:
        screen, _ = terminal.run(f"svcnode status {' '.join(fake_nodes.urls)}")
        styled = terminal.styled
    assert "✖ unhealthy" in screen
    assert not any(f"\x1b[{colour}m" in styled for colour in range(30, 38))


def test_a_progress_bar_appears_after_a_second_and_disappears_at_the_end(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode status {' '.join(fake_nodes.urls)} --timeout 5s")
        waiting = terminal.wait_for_text(r"^\S.* 2/3 0:00:0\d$")
        assert "healthy" not in waiting
        terminal.wait_for_text(r": 1 healthy, 1 partial, 1 unreachable$")
        assert " 2/3 " not in terminal.screen
        assert terminal.tmux_variable("cursor_flag") == "1"


def test_a_short_command_shows_no_progress_bar(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.run(f"svcnode status {fake_nodes.url('well')} 2>errors >/dev/null")
    assert (tmp_path / "errors").read_text() == ""


# ---- Ctrl-C


@contextmanager
def hanging_status(
    fake_nodes: FakeNodes, *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A status command for which all nodes have answered but those that hang."""
    hung = sum(node.hangs for node in fake_nodes.nodes.values())
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "svcnode", "status", "--from", "-", "--timeout", "10m", *arguments],
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdin is not None
            process.stdin.write("\n".join(fake_nodes.urls))
            process.stdin.close()
            process.stdin = None  # communicate() would flush it
            responses = 3 * (len(fake_nodes.nodes) - hung)
            assert becomes_true(
                lambda: fake_nodes.response_count == responses and fake_nodes.open_count == hung, WAIT_TIMEOUT_S
            )
            yield process
        finally:
            process.kill()


def many(*, of_which_hang: int) -> dict[str, FakeNode]:
    return {f"n{number}": FakeNode(hangs=number < of_which_hang) for number in range(200)}


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_shows_the_results_so_far() -> None:
    with FakeNodes(many(of_which_hang=80)) as fake_nodes, hanging_status(fake_nodes) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert (process.returncode, errors) == (130, "")
    lines = output.splitlines()
    assert lines[-1].endswith(": 120 healthy, 80 interrupted")
    assert lines[0] == f"interrupted  -     -       -       http://{fake_nodes.url('n0')}"
    assert re.match(r"    .* \d+\.\d s", lines[1])
    assert lines[160] == f"healthy      n80   v1.4.2  1/1 up  http://{fake_nodes.url('n80')}"


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_marks_interrupted_nodes_in_json() -> None:
    with FakeNodes(many(of_which_hang=80)) as fake_nodes, hanging_status(fake_nodes, "--json") as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert (process.returncode, errors) == (130, "")
    found = [json.loads(line) for line in output.splitlines()]
    assert [one["url"] for one in found] == [f"http://{url}" for url in fake_nodes.urls]
    assert [one["overall_health"] for one in found] == ["unknown"] * 80 + ["healthy"] * 120
    assert all(one["interrupted"] for one in found[:80])
    assert [one["interrupted"] for one in found[80:]] == [None] * 120
    assert [one["errors"] for one in found] == [[]] * 200, "an interrupt is not an error of a node"


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_at_once_even_if_the_output_blocks() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # smaller than the output
    try:
        with (
            FakeNodes(many(of_which_hang=80)) as fake_nodes,
            hanging_status(fake_nodes, "--json", stdout=writing) as process,
        ):
            process.send_signal(signal.SIGINT)
            assert select.select([reading], [], [], WAIT_TIMEOUT_S)[0], "it writes the results so far"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert (process.returncode, errors) == (-signal.SIGINT, ""), "130 in a shell"


def test_a_background_job_of_a_shell_ignores_ctrl_c(fake_nodes: FakeNodes, default_sigint: None) -> None:
    fake_nodes.nodes["ill"].hangs = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture restores it
    with hanging_status(fake_nodes) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_ctrl_c_removes_the_progress_bar(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode status {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_for_text(r"^\S.* 2/3 ")
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
        assert code == 130
        assert terminal.tmux_variable("cursor_flag") == "1"
    address = f"http://127.0.0.1:{fake_nodes.port}"
    *lines, interrupted, _, summary = screen.splitlines()
    assert lines == [
        f"● healthy      well  v1.4.2  1/1 up  {address}/well",
        f"◐ partial      half  v1.4.2  1/2 up  {address}/half",
        "    ◐ Initializing  indexer  Indexer",
        f"○ interrupted  -     -       -       {address}/ill",
    ]
    assert re.match(r"    ○ .* \d+\.\d s", interrupted)
    assert summary.endswith(": 1 healthy, 1 partial, 1 interrupted")


def test_ctrl_c_without_a_progress_bar_starts_a_new_line(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    """The terminal writes ^C where the cursor is."""
    fake_nodes.nodes["ill"].hangs = True
    script = tmp_path / "without_bar.py"
    script.write_text(
        "import sys\n"
        "from svcnode.cli import main\n"
        "from svcnode.terminal import progress\n"
        "progress.SHOW_AFTER_S = 600.0\n"
        "sys.exit(main(['status', *sys.argv[1:]]))\n"
    )
    with Terminal(tmp_path) as terminal:
        terminal.start(f"{sys.executable} {script} {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_until(lambda: fake_nodes.response_count == 6 and fake_nodes.open_count == 1)
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
    assert code == 130
    assert screen.splitlines()[:2] == ["^C", f"● healthy      well  v1.4.2  1/1 up  http://{fake_nodes.url('well')}"]
