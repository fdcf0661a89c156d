"""Pushes to `svcnode serve`, sent with curl."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

UP, INITIALIZING, DOWN = "Up", "Initializing", "Down"
TOKEN, OTHER_TOKEN = "backup-0123456789+/=", "other-0123456789abcdef"
SERVICES = """
[[services]]
id = "backup"
probe = { url = "heartbeat:", period = "1h", grace = "2s" }
push_token = "${BACKUP_TOKEN}"

[[services]]
id = "other/worker"
probe = "heartbeat:60s"
push_token = { file = "token" }

[[services]]
id = "silent"
probe = "heartbeat:60s"

[[services]]
id = "fixed"
status = "Up"
"""


def config(folder: Path, services: str = SERVICES) -> str:
    return (
        '[node]\nname = "validator-7"\n[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"\n'
        f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"\n{services}'
    )


def push_agent(folder: Path, services: str = SERVICES) -> Agent:
    (folder / "token").write_text(f"{OTHER_TOKEN}\n")
    agent = Agent(folder, config=config(folder, services), environ={"BACKUP_TOKEN": TOKEN})
    agent.wait_for_log("control socket: ")
    return agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with push_agent(tmp_path) as agent:
        yield agent


def curl(agent: Agent, path: str, *arguments: str, token: str | None = TOKEN, body: bytes = b"") -> tuple[int, str]:
    """The status code and the response, without `Date`."""
    authorization = [] if token is None else ["-H", f"Authorization: Bearer {token}"]
    url = f"http://127.0.0.1:{agent.port}{path}"
    command = ["curl", "-si", "-m", str(DEADLINE_S), "-X", "POST", *authorization, *arguments, url]
    output = subprocess.run(command, input=body, capture_output=True, check=True).stdout.decode()
    lines = [line for line in output.replace("HTTP/1.1 100 Continue\r\n\r\n", "").split("\r\n") if "Date:" not in line]
    return int(lines[0].split(" ")[1]), "\n".join(lines)


def push(agent: Agent, signal_path: str = "", body: bytes = b"", *arguments: str) -> int:
    return curl(agent, f"/push/backup{signal_path}", "--data-binary", "@-", *arguments, body=body)[0]


def details(agent: Agent, service_id: str = "backup") -> dict[str, Any]:
    services = agent.request("/details").json["services"]
    return next(service for service in services if service["id"] == service_id)


def wait_for_reason(agent: Agent, reason: str, code: str = "reported") -> None:
    """The details are at most a second old."""
    agent.wait_until(lambda: (details(agent)["code"], details(agent)["reason"]) == (code, reason))


# ---- what a push means


def test_a_push_is_up_and_a_failure_or_an_exit_status_is_down(agent: Agent) -> None:
    assert agent.statuses()["backup"] == INITIALIZING
    for path, body, status, code, reason in (
        ("", b"", UP, "reported", ""),
        ("/fail", b"disk full", DOWN, "reported", "disk full"),
        ("/0", b"12 GB", UP, "reported", "12 GB"),
        ("/3", b"tar: no\nspace left", DOWN, "exit_status", "exit status 3: tar: no space left"),
        ("/255", b"", DOWN, "exit_status", "exit status 255"),
        ("", b"done", UP, "reported", "done"),
        ("/fail", b"", DOWN, "reported", "the job has failed"),
    ):
        assert push(agent, path, body) == 204
        assert agent.statuses()["backup"] == status
        wait_for_reason(agent, reason, code)


def test_a_start_keeps_the_status_and_a_run_that_does_not_end_is_down(agent: Agent) -> None:
    assert push(agent, "/start") == 204
    assert agent.statuses()["backup"] == INITIALIZING
    push(agent)
    assert push(agent, "/start") == 204
    assert agent.statuses()["backup"] == UP
    agent.wait_until(lambda: agent.statuses()["backup"] == DOWN)
    wait_for_reason(agent, "started, and not ended within the grace of 2 s", "ttl_expired")
    push(agent)
    assert agent.statuses()["backup"] == UP


def test_a_long_body_is_cut_and_a_chunked_one_is_read(agent: Agent) -> None:
    for size in (10 * 1024, 10 * 1024 + 1, 2 * 1024 * 1024):
        assert push(agent, "/fail", b"x" * size) == 204
        wait_for_reason(agent, "x" * 999 + "…")
        push(agent)
    assert push(agent, "/fail", b"in chunks", "-H", "Transfer-Encoding: chunked") == 204
    wait_for_reason(agent, "in chunks")
    assert push(agent, "/fail", b"\xff\x00\x1b[31m red") == 204
    wait_for_reason(agent, r"\xff\x00\x1b[31m red")


def test_the_token_may_be_in_the_query_and_an_id_may_have_a_slash(agent: Agent) -> None:
    assert curl(agent, f"/push/backup?token={TOKEN}", token=None)[0] == 204
    assert curl(agent, "/push/other%2Fworker", token=OTHER_TOKEN)[0] == 204
    assert agent.statuses() == {"backup": UP, "other/worker": UP, "silent": INITIALIZING, "fixed": UP}


# ---- everything else is a path that does not exist


def test_every_other_request_gets_the_same_404(agent: Agent) -> None:
    expected = curl(agent, "/nothing-here", token=None)
    assert expected[0] == 404
    for path, token in (
        ("/push/backup", None),
        ("/push/backup", "wrong"),
        ("/push/backup", OTHER_TOKEN),
        ("/push/unknown", TOKEN),
        ("/push/silent", TOKEN),
        ("/push/fixed", TOKEN),
        ("/push/", TOKEN),
        ("/push", TOKEN),
        ("/push/%ff", TOKEN),
        ("/push/backup/", TOKEN),
        ("/push/backup/256", TOKEN),
        ("/push/backup/-1", TOKEN),
        ("/push/backup/007", TOKEN),
        ("/push/backup/stop", TOKEN),
        ("/push/backup/start/now", TOKEN),
        ("/push/backup?token=", None),
        ("/svc/push/backup", TOKEN),
    ):
        assert curl(agent, path, token=token) == expected, path
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "NONSENSE"):
        here, nowhere = (curl(agent, path, "-X", method) for path in ("/push/backup", "/nothing-here"))
        assert here == nowhere, method
        assert here[0] == 404
    assert agent.statuses() == {
        "backup": INITIALIZING,
        "other/worker": INITIALIZING,
        "silent": INITIALIZING,
        "fixed": UP,
    }


def test_without_any_token_there_is_no_such_path(tmp_path: Path) -> None:
    services = '[[services]]\nid = "silent"\nprobe = "heartbeat:60s"\n'
    with push_agent(tmp_path, services) as agent:
        assert curl(agent, "/push/silent") == curl(agent, "/nothing-here")
        assert not (tmp_path / "c.db").exists()


def test_too_many_pushes_are_refused_after_the_token_is_checked(agent: Agent) -> None:
    many = ["-o", "/dev/null", f"http://127.0.0.1:{agent.port}/push/backup"] * 60
    for token, codes in ((TOKEN, {"204", "429"}), (OTHER_TOKEN, {"404"})):
        command = ["curl", "-sZ", "-X", "POST", "-w", "%{http_code}\n", "-H", f"Authorization: Bearer {token}", *many]
        assert set(subprocess.run(command, capture_output=True, check=True).stdout.decode().split()) == codes
    assert curl(agent, "/push/other%2Fworker", token=OTHER_TOKEN)[0] == 204


# ---- restarts and reloads


def test_acknowledged_pushes_survive_kills(tmp_path: Path) -> None:
    with push_agent(tmp_path) as agent:
        push(agent, "", b"12 GB")
        assert curl(agent, "/push/other%2Fworker/7", token=OTHER_TOKEN)[0] == 204
        os.kill(agent.process.pid, signal.SIGKILL)
    with push_agent(tmp_path) as agent:
        assert (agent.statuses()["backup"], agent.statuses()["other/worker"]) == (UP, DOWN)
        wait_for_reason(agent, "12 GB")
        push(agent, "/start")
        os.kill(agent.process.pid, signal.SIGKILL)
    time.sleep(2)
    with push_agent(tmp_path) as agent:
        assert agent.statuses()["backup"] == DOWN
        wait_for_reason(agent, "started, and not ended within the grace of 2 s", "ttl_expired")


def test_a_reload_turns_pushes_on_and_off_and_changes_the_token(agent: Agent, tmp_path: Path) -> None:
    new_token = "new-0123456789abcdef"
    agent.config_file.write_text(config(tmp_path, SERVICES.replace("${BACKUP_TOKEN}", new_token)))
    agent.reload()
    assert curl(agent, "/push/backup")[0] == 404
    assert curl(agent, "/push/backup", token=new_token)[0] == 204
    agent.config_file.write_text(config(tmp_path, '[[services]]\nid = "backup"\nprobe = "heartbeat:60s"\n'))
    agent.reload()
    assert curl(agent, "/push/backup", token=new_token) == curl(agent, "/nothing-here", token=new_token)


# ---- secrets


def test_no_token_is_shown_anywhere(agent: Agent) -> None:
    push(agent, "/fail", f"the token is {TOKEN}".encode())
    curl(agent, f"/push/backup?token={OTHER_TOKEN}x", token=None)
    wait_for_reason(agent, "the token is ***")
    shown = [str(agent.request(path).body) for path in ("/details", "/history?service=backup", "/metrics")]
    assert not any(TOKEN in text or OTHER_TOKEN in text for text in (*shown, *agent.lines))


# ---- the documentation


@pytest.mark.parametrize(
    ("command", "status", "reason"), [("echo 12 GB", UP, "12 GB"), ("ls /nowhere", DOWN, "exit status 2: ls")]
)
def test_the_crontab_line_of_the_documentation_reports_the_result(
    agent: Agent, tmp_path: Path, command: str, status: str, reason: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    line = page.partition("```crontab\n")[2].partition("```")[0].splitlines()[-1].removeprefix("0 3 * * * ")
    assert line.startswith("backup >log")
    variables = {"URL": f"http://127.0.0.1:{agent.port}/push/backup", "TOKEN": TOKEN, "PATH": os.environ["PATH"]}
    subprocess.run(["sh", "-c", line.replace("backup", command, 1)], check=True, cwd=tmp_path, env=variables)
    assert agent.statuses()["backup"] == status
    assert details(agent)["reason"].startswith(reason)
