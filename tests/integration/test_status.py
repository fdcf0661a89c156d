"""`svcnode status` as a person and a script use it: on a real terminal, in a pipe, against one node and many."""

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
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.fake_nodes import FakeNode, FakeNodes
from tests.support.http_server import becomes_true, running_server
from tests.support.node_cases import worked_example
from tests.support.processes import Agent
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

WAIT_TIMEOUT_S = 40.0


def status(*arguments: str, stdin: str = "", environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "svcnode", "status", *arguments],
        env={"PATH": os.environ["PATH"], **(environ or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )


def documents(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in status(*arguments, "--json").stdout.splitlines()]


# ---- in a pipe


def test_one_node_is_shown_in_plain_words() -> None:
    with running_server(worked_example()) as running:
        place = "{}:{}".format(*running.address)
        ended = status(place)
    assert ended.stdout == (
        f"partial  validator-7  v1.4.2  interface v0.0.1  1/3 up  http://{place}\n"
        "\n"
        "  STATUS        ID       NAME             DESCRIPTION\n"
        "  Up            db       Ledger database  Holds the ledger\n"
        "  Down          indexer  Indexer          Follows the chain\n"
        "  Initializing  storage  Storage daemon   Keeps the blobs\n"
    )
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_node_on_a_unix_socket_is_asked_as_any_other(tmp_path: Path) -> None:
    config = '[server]\nlisten = "unix:node.sock"\n[[services]]\nid = "db"\nstatus = "Initializing"\n'
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        told, unheard = documents(f"unix:{tmp_path}/node.sock", f"unix:{tmp_path}/none.sock")
    assert (told["url"], told["overall_health"], told["health"]) == (f"unix:{tmp_path}/node.sock", "partial", 206)
    assert [service["id"] for service in told["services"]] == ["db"]
    (error,) = unheard["errors"]
    assert error["message"] == f"cannot reach unix:{tmp_path}/none.sock: no such file or directory"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["well"], 0),
        (["half"], 1),
        (["ill"], 2),
        (["well", "well"], 0),
        (["half", "well"], 1),
        (["ill", "half", "well"], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst(names: list[str], code: int, fake_nodes: FakeNodes) -> None:
    assert status(*map(fake_nodes.url, names)).returncode == code


def test_unreachable_is_worse_than_unhealthy(fake_nodes: FakeNodes) -> None:
    with closed_port() as port:
        ended = status(fake_nodes.url("ill"), f"127.0.0.1:{port}")
    assert ended.returncode == 3
    assert f"    cannot reach http://127.0.0.1:{port}: connection refused\n" in ended.stdout
    assert ended.stdout.endswith("\n\n2 nodes: 1 unhealthy, 1 unreachable\n")


def test_a_server_that_says_200_to_everything_is_no_healthy_node() -> None:
    with HttpBackend(http_response(200, "<html>Welcome</html>", Content_Type="text/html")) as web:
        ended = status(web.address)
    assert ended.returncode == 3
    assert ended.stdout.startswith("not a node ")
    assert "got 200 with text/html: <html>Welcome</html> at" in ended.stdout
    assert "its health answer is 200 (healthy)" in ended.stdout


def test_nodes_are_shown_in_the_order_given(fake_nodes: FakeNodes) -> None:
    names = ["well", "ill", "half", "well"]
    found = documents(*map(fake_nodes.url, names))
    assert [one["identity"]["node_name"] for one in found] == names


def test_json_has_all_that_a_node_told(fake_nodes: FakeNodes) -> None:
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


def test_json_says_of_what_kind_an_error_is() -> None:
    with closed_port() as port:
        (found,) = documents(f"127.0.0.1:{port}")
    assert (found["overall_health"], found["health"], found["identity"], found["services"]) == (
        "unknown",
        None,
        None,
        None,
    )
    (error,) = found["errors"]
    assert error == {
        "kind": "UnreachableError",
        "message": f"cannot reach http://127.0.0.1:{port}: connection refused",
    }


def test_what_was_tolerated_is_told() -> None:
    answers = {
        "/eigen/node": http_response(200, '{"node_name":"n","spec_version":"v1","node_version":"v1"}'),
        "/eigen/node/health": http_response(200, "ok"),
        "/eigen/node/services": http_response(200, "[]", Content_Type="application/json"),
    }
    with HttpBackend(lambda received: answers[received.target]) as node:
        (found,) = documents(node.address, "--prefix", "/eigen")
    assert (found["overall_health"], found["deviations"]) == (
        "healthy",
        [
            "JSON comes as nothing instead of application/json",
            "a health answer has a body",
            "the list of services is a bare array",
        ],
    )


def test_a_200_beside_a_service_that_is_down_is_remarked_and_changes_no_exit_code(fake_nodes: FakeNodes) -> None:
    fake_nodes.nodes["ill"].health = 200
    remark = "it says 200 although 1 of its services is not Up"
    for urls in ([fake_nodes.url("ill")], fake_nodes.urls[:1] + fake_nodes.urls[-1:]):
        ended = status(*urls)
        assert f"\n    remark: {remark}\n" in ended.stdout
        assert ended.returncode == 0
    (found,) = documents(fake_nodes.url("ill"))
    assert (found["overall_health"], found["remarks"]) == ("healthy", [remark])


def test_a_version_can_be_asked_for() -> None:
    with running_server(worked_example()) as running:
        place = "{}:{}".format(*running.address)
        assert status(place, "--version", "v0.0.1").returncode == 1
        ended = status(place, "--version", "v9")
    assert ended.returncode == 3
    assert ended.stdout.startswith("other version  ")


def test_a_ca_can_be_trusted(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with running_server(worked_example(), tls=server_tls(made)) as running:
        place = "https://{}:{}".format(*running.address)
        assert status(place, "--ca", str(made.certificate)).returncode == 1
        assert "self-signed certificate; name its authority with ca (--ca)\n" in status(place).stdout
        assert "is it https://?" in status(place.replace("https", "http")).stdout


def test_nodes_may_come_from_a_file_and_from_stdin(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text(f"# ours\n{fake_nodes.url('well')}\n{fake_nodes.url('half')}  # slow\n")
    assert status("--from", str(file)).stdout.endswith("2 nodes: 1 healthy, 1 partial\n")
    assert status("--from", "-", stdin=fake_nodes.url("ill")).returncode == 2


def test_a_password_is_never_shown(fake_nodes: FakeNodes) -> None:
    for url in (f"bob:s3cr3t-word@{fake_nodes.url('well')}", "bob:s3cr3t-word@127.0.0.1:1", "bob:s3cr3t-word@h:x"):
        for flags in ([], ["--json"]):
            ended = status(url, *flags)
            assert "s3cr3t" not in ended.stdout + ended.stderr
            assert "Traceback" not in ended.stderr


def echoing(received: ReceivedRequest) -> bytes:
    """A node that says what it was asked with, wherever it says something."""
    said = base64.b64decode(received.headers["authorization"].removeprefix("Basic ")).decode()
    body: dict[str, Any]
    match received.target.removeprefix("/svc/node"):
        case "":
            body = {"node_name": said, "spec_version": f"v {said}", "node_version": said, said: said}
        case "/services":
            body = {"services": [{"id": said, "name": said, "description": f"is {said}", "status": said}]}
        case _:
            return http_response(200)
    return http_response(200, json.dumps(body), Content_Type="application/json")


@pytest.mark.parametrize("login", ["bob:s3cr3t-word", "s3cr3t-word", "s3cr3t-word:"])
def test_what_a_node_echoes_of_a_login_is_not_shown(login: str) -> None:
    with HttpBackend(echoing) as node:
        for arguments in (["--json"], [], ["x.invalid", "--all"]):
            ended = status(f"{login}@{node.address}", *arguments)
            assert "s3cr3t" not in ended.stdout + ended.stderr
            assert "***" in ended.stdout


@pytest.mark.parametrize("url", ["http://h/?token=s3cr3t-word", "http://h/#s3cr3t-word", "bob:s3cr3t-word?@h"])
def test_a_query_is_refused_without_being_repeated(url: str) -> None:
    ended = status(url)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "s3cr3t" not in ended.stderr
    assert "is not the URL of a node" in ended.stderr


def test_a_reader_that_leaves_early_is_no_fault(fake_nodes: FakeNodes) -> None:
    command = f"{sys.executable} -m svcnode status {' '.join(fake_nodes.urls * 30)} --all --json | head -1"
    ended = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False
    )
    assert json.loads(ended.stdout)["overall_health"] == "healthy"
    assert ended.stderr == ""


def test_a_pipe_gets_no_colours_even_when_a_terminal_is_known(fake_nodes: FakeNodes) -> None:
    ended = status(*fake_nodes.urls, environ={"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stdout.isascii()


# ---- many, and some of them hang


def test_a_node_that_hangs_ends_with_its_timeout(fake_nodes: FakeNodes) -> None:
    with Backend(unresponsive) as hung:
        began_s = time.monotonic()
        ended = status(fake_nodes.url("well"), hung.address, "--timeout", "1s")
        assert time.monotonic() - began_s < 5
    assert ended.returncode == 3
    assert f"    no whole answer from http://{hung.address} within 1 s\n" in ended.stdout
    assert ended.stdout.startswith("healthy ")


def test_one_slow_endpoint_does_not_hide_the_others_and_is_named() -> None:
    is_over = threading.Event()
    answers = {"/svc/node/health": http_response(200), "/svc/node/services": http_response(200, '{"services":[]}')}

    def answer(received: ReceivedRequest) -> bytes:
        if received.target == "/svc/node":
            is_over.wait(WAIT_TIMEOUT_S)
        return answers.get(received.target, b"")

    with HttpBackend(answer) as node:
        ended = status(node.address, "--timeout", "2s")
        is_over.set()
    assert ended.returncode == 3
    assert ended.stdout.startswith(f"unknown  -  -  0/0 up  http://{node.address}\n")
    assert f"\n    no whole answer from http://{node.address}/svc/node within 2 s\n" in ended.stdout
    assert "\n    its health answer is 200 (healthy)\n" in ended.stdout


@pytest.mark.serial
def test_five_hundred_nodes_of_which_fifty_hang_take_the_timeout_and_no_more_than_a_second() -> None:
    """From the start of the program to its end. Busy with other things, a machine may need another attempt."""
    timeout_s = 10.0
    nodes = {f"n{number}": FakeNode(hangs=number % 10 == 9) for number in range(500)}
    with FakeNodes(nodes) as fake_nodes:
        for attempt in range(1, 4):
            began_s = time.monotonic()
            ended = status("--from", "-", "--timeout", f"{timeout_s:g}s", stdin="\n".join(fake_nodes.urls))
            took_s = time.monotonic() - began_s
            assert ended.stdout.endswith("\n500 nodes: 450 healthy, 50 unreachable\n")
            assert ended.returncode == 3
            assert fake_nodes.connection_count <= (450 + 50 * 3) * attempt, (
                "one for each; of those that hang, per question"
            )
            if took_s < timeout_s + 1.0:
                break
    assert timeout_s <= took_s < timeout_s + 1.0


# ---- on a terminal


def test_on_a_terminal_there_are_symbols_and_colours_at_80_by_24(tmp_path: Path) -> None:
    node = worked_example()
    node.register("archive", name="Archive", description="Keeps all that ever was, and that is a lot to keep").up()
    with running_server(node) as running, Terminal(tmp_path) as terminal:
        place = "{}:{}".format(*running.address)
        screen, code = terminal.run(f"svcnode status {place}")
        styled = terminal.styled
    assert screen.splitlines() == [
        f"◐ partial  validator-7  v1.4.2  interface v0.0.1  2/4 up  http://{place}",
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


@pytest.mark.parametrize(("encoding", "size"), [("ascii", "gr??e"), ("latin-1", "gr")])
def test_what_a_terminal_cannot_spell_stops_nothing(encoding: str, size: str, tmp_path: Path) -> None:
    node = worked_example()
    node.register("cold", name="größe ☃", description="Keeps all that ever was, and that is a lot to keep").up()
    with running_server(node) as running, Terminal(tmp_path, environ={"PYTHONIOENCODING": encoding}) as terminal:
        screen, code = terminal.run("svcnode status {}:{}".format(*running.address))
    assert code == 1
    assert screen.splitlines()[0].startswith("~ partial  validator-7 ")
    assert screen.splitlines()[-1].startswith(f"  + Up            cold     {size}")
    assert " ?  " in screen.splitlines()[-1]


def test_a_long_name_leaves_the_count_and_the_address_in_sight_at_80_columns(tmp_path: Path) -> None:
    name = f"validator  v9  9/9 up  http://other{' ' * 40}● healthy  other"
    who = {"node_name": name, "spec_version": "v0.0.1", "node_version": "v1.4.2"}
    answers = {
        "/svc/node": http_response(200, json.dumps(who), Content_Type="application/json"),
        "/svc/node/health": http_response(200),
        "/svc/node/services": http_response(200, '{"services":[]}', Content_Type="application/json"),
    }
    with HttpBackend(lambda received: answers[received.target]) as node, Terminal(tmp_path) as terminal:
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


def test_the_end_of_one_command_is_not_taken_for_the_end_of_the_next(tmp_path: Path) -> None:
    """Of the terminal that these tests use: what was typed is heeded when what runs has ended."""
    with Terminal(tmp_path) as terminal:
        assert terminal.run("true") == ("", 0)
        terminal.type("sleep 0.5")
        terminal.press("Enter")
        assert terminal.run("(exit 7)") == ("", 7)


def test_many_nodes_are_one_glance(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with closed_port() as port, Terminal(tmp_path) as terminal:
        (tmp_path / "nodes").write_text("\n".join([*fake_nodes.urls, f"no-such-host.invalid:{port}"]))
        screen, _ = terminal.run("svcnode status --from nodes")
    place = f"http://127.0.0.1:{fake_nodes.port}"
    assert screen.splitlines()[:6] == [
        f"● healthy      well  v1.4.2  1/1 up  {place}/well",
        f"◐ partial      half  v1.4.2  1/2 up  {place}/half",
        "    ◐ Initializing  indexer  Indexer",
        f"✖ unhealthy    ill   v1.4.2  0/1 up  {place}/ill",
        "    ✖ Down  db  Db",
        f"! unreachable  -     -       -       http://no-such-host.invalid:{port}",
    ]
    assert screen.splitlines()[-1] == "4 nodes: 1 healthy, 1 partial, 1 unhealthy, 1 unreachable"
    # What is too long goes on below its own beginning.
    assert screen.splitlines()[7].startswith("    ")


def test_without_colours_the_words_and_symbols_say_it_all(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path, environ={"NO_COLOR": "1"}) as terminal:
        screen, _ = terminal.run(f"svcnode status {' '.join(fake_nodes.urls)}")
        styled = terminal.styled
    assert "✖ unhealthy" in screen
    assert not any(f"\x1b[{colour}m" in styled for colour in range(30, 38))


def test_a_bar_is_shown_past_a_second_and_is_gone_when_it_is_done(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode status {' '.join(fake_nodes.urls)} --timeout 4s")
        waiting = terminal.wait_for_text(r"^asking nodes .* 2/3 0:00:0\d$")
        assert "healthy" not in waiting
        terminal.wait_for_text(r"^3 nodes: 1 healthy, 1 partial, 1 unreachable$")
        assert "asking nodes" not in terminal.screen
        assert terminal.tmux_variable("cursor_flag") == "1"


def test_a_bar_does_not_stand_in_a_pipe_and_is_not_shown_for_a_moment(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.run(f"svcnode status {fake_nodes.url('well')} 2>told >/dev/null")
    assert (tmp_path / "told").read_text() == ""


# ---- ended by Ctrl-C


@contextmanager
def requests_seen(
    fake_nodes: FakeNodes, *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """From when all have answered but those that hang, which would be waited for much longer than a test is."""
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
            answers = 3 * (len(fake_nodes.nodes) - hung)
            assert becomes_true(
                lambda: fake_nodes.response_count == answers and fake_nodes.open_count == hung, WAIT_TIMEOUT_S
            )
            yield process
        finally:
            process.kill()


def many(*, of_which_hang: int) -> dict[str, FakeNode]:
    return {f"n{number}": FakeNode(hangs=number < of_which_hang) for number in range(200)}


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_shows_what_is_known_and_who_was_not_heard() -> None:
    with FakeNodes(many(of_which_hang=80)) as fake_nodes, requests_seen(fake_nodes) as process:
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert (process.returncode, told) == (130, "")
    lines = shown.splitlines()
    assert lines[-1] == "200 nodes: 120 healthy, 80 cut short"
    assert lines[0] == f"cut short  -     -       -       http://{fake_nodes.url('n0')}"
    assert re.fullmatch(r"    stopped after \d+\.\d s, before it had answered", lines[1])
    assert lines[160] == f"healthy    n80   v1.4.2  1/1 up  http://{fake_nodes.url('n80')}"


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_marks_in_json_who_was_not_heard() -> None:
    with FakeNodes(many(of_which_hang=80)) as fake_nodes, requests_seen(fake_nodes, "--json") as process:
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert (process.returncode, told) == (130, "")
    found = [json.loads(line) for line in shown.splitlines()]
    assert [one["url"] for one in found] == [f"http://{url}" for url in fake_nodes.urls]
    assert [one["overall_health"] for one in found] == ["unknown"] * 80 + ["healthy"] * 120
    assert all(re.fullmatch("stopped after .* s, before it had answered", one["interrupted"]) for one in found[:80])
    assert [one["interrupted"] for one in found[80:]] == [None] * 120
    assert [one["errors"] for one in found] == [[]] * 200, "it is no fault of theirs"


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_it_at_once_even_when_nobody_reads_what_it_shows() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # it does not take what there is to show
    try:
        with (
            FakeNodes(many(of_which_hang=80)) as fake_nodes,
            requests_seen(fake_nodes, "--json", stdout=writing) as process,
        ):
            process.send_signal(signal.SIGINT)
            assert select.select([reading], [], [], WAIT_TIMEOUT_S)[0], "it shows what is known"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=WAIT_TIMEOUT_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert (process.returncode, told) == (-signal.SIGINT, ""), "which is 130 in a shell"


def test_in_the_background_of_a_shell_it_is_deaf_to_ctrl_c(fake_nodes: FakeNodes, default_sigint: None) -> None:
    fake_nodes.nodes["ill"].hangs = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture puts it back
    with requests_seen(fake_nodes) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_ctrl_c_takes_the_bar_away_and_leaves_the_terminal_clean(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode status {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_for_text("^asking nodes .* 2/3 ")
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
        assert code == 130
        assert terminal.tmux_variable("cursor_flag") == "1"
    place = f"http://127.0.0.1:{fake_nodes.port}"
    *lines, why, _, summary = screen.splitlines()
    assert lines == [
        f"● healthy    well  v1.4.2  1/1 up  {place}/well",
        f"◐ partial    half  v1.4.2  1/2 up  {place}/half",
        "    ◐ Initializing  indexer  Indexer",
        f"○ cut short  -     -       -       {place}/ill",
    ]
    assert re.fullmatch(r"    ○ stopped after \d+\.\d s, before it had answered", why)
    assert summary == "3 nodes: 1 healthy, 1 partial, 1 cut short"


def test_ctrl_c_before_there_is_a_bar_leaves_the_first_line_as_it_is(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    """The terminal writes ^C where the cursor is."""
    fake_nodes.nodes["ill"].hangs = True
    patient = tmp_path / "patient.py"
    patient.write_text(
        "import sys\n"
        "from svcnode.cli import main\n"
        "from svcnode.terminal import progress\n"
        "progress.SHOW_AFTER_S = 600.0\n"
        "sys.exit(main(['status', *sys.argv[1:]]))\n"
    )
    with Terminal(tmp_path) as terminal:
        terminal.start(f"{sys.executable} {patient} {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_until(lambda: fake_nodes.response_count == 6 and fake_nodes.open_count == 1)
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
    assert code == 130
    assert screen.splitlines()[:2] == ["^C", f"● healthy    well  v1.4.2  1/1 up  http://{fake_nodes.url('well')}"]
