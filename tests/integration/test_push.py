"""Pushes to `svcnode serve`, sent with curl. What they mean, also over restarts, is tested in tests/unit/control."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from svcnode.control import ControlClient
from svcnode.node.definition import MAX_PUSH_BYTES
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

UP, DOWN = "Up", "Down"
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
id = "by-get"
probe = { url = "heartbeat:", schedule = "0 3 * * *", timezone = "Europe/Berlin", grace = "1h" }
push_token = { file = "token" }
push_get = true

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


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with push_agent(tmp_path_factory.mktemp("push")) as agent:
        yield agent


def curl(agent: Agent, path: str, *arguments: str, token: str | None = TOKEN, body: bytes = b"") -> tuple[int, str]:
    """The status code and the response, without `Date`."""
    authorization = [] if token is None else ["-H", f"Authorization: Bearer {token}"]
    url = f"http://127.0.0.1:{agent.port}{path}"
    command = ["curl", "-si", "-m", str(DEADLINE_S), "-X", "POST", *authorization, *arguments, url]
    output = subprocess.run(command, input=body, capture_output=True, check=True).stdout.decode()
    lines = [line for line in output.replace("HTTP/1.1 100 Continue\r\n\r\n", "").split("\r\n") if "Date:" not in line]
    return int(lines[0].split(" ")[1]), "\n".join(lines)


def push(agent: Agent, signal_path: str, body: bytes) -> int:
    return curl(agent, f"/push/backup{signal_path}", "--data-binary", "@-", body=body)[0]


def wait_for_reason(agent: Agent, reason: str) -> None:
    """The details are at most a second old."""
    agent.wait_until(lambda: agent.request("/details/backup").json["reason"].startswith(reason))


def test_the_token_may_be_in_the_query_and_an_id_may_have_a_slash_and_no_token_is_shown(agent: Agent) -> None:
    assert curl(agent, f"/push/backup?token={quote(TOKEN)}", token=None)[0] == 204
    assert curl(agent, "/push/other%2Fworker", token=OTHER_TOKEN)[0] == 204
    assert (agent.statuses()["backup"], agent.statuses()["other/worker"]) == (UP, UP)
    assert push(agent, "/fail", b"x" * 2 * 1024 * 1024) == 204, "bad news is not too large"
    assert agent.statuses()["backup"] == DOWN
    push(agent, "/fail", f"the token is {TOKEN}".encode())
    curl(agent, f"/push/backup?token={OTHER_TOKEN}x", token=None)
    wait_for_reason(agent, "the token is ***")
    shown = [str(agent.request(path).body) for path in ("/details", "/history?service=backup", "/metrics")]
    assert not any(TOKEN in text or OTHER_TOKEN in text for text in (*shown, *agent.lines))


def test_every_other_request_gets_the_same_404(agent: Agent) -> None:
    before = agent.statuses()
    expected = curl(agent, "/nothing-here", token=None)
    assert expected[0] == 404
    for path, token in (
        ("/push/backup", None),
        ("/push/backup", OTHER_TOKEN),
        ("/push/unknown", TOKEN),
        ("/push/silent", TOKEN),
        ("/push", TOKEN),
        ("/push/backup/stop", TOKEN),
        ("/svc/push/backup", TOKEN),
    ):
        assert curl(agent, path, token=token) == expected, path
    for method in ("GET", "NONSENSE"):
        here, nowhere = (curl(agent, path, "-X", method) for path in ("/push/backup", "/nothing-here"))
        assert here == nowhere, method
        assert here[0] == 404
    assert agent.statuses() == before


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
    wait_for_reason(agent, reason)


HEALTHCHECKS_EXAMPLES = {
    # The shell examples of the documentation of healthchecks.io. Only the URL differs: it has the token as password.
    "curl -fsS -m 10 --retry 5 -o /dev/null $URL": (UP, ""),
    "curl -fsS -m 10 --retry 5 -o /dev/null $URL/fail": (DOWN, "the job has failed"),
    'm=$(echo 12 GB 2>&1); curl -fsS -m 10 --retry 5 --data-raw "$m" $URL/$?': (UP, "12 GB"),
    'm=$(ls /nowhere 2>&1); curl -fsS -m 10 --retry 5 --data-raw "$m" $URL/$?': (DOWN, "exit status 2: ls"),
    "RID=`uuidgen`; curl -fsS -m 10 --retry 5 $URL/start?rid=$RID; sleep 0.1; curl -fsS -m 10 $URL?rid=$RID": (UP, ""),
    "wget $URL_WITH_TOKEN -T 10 -t 5 -O /dev/null -q": (UP, ""),
    # As runitor does it.
    "RID=`uuidgen`; curl -fsS -X POST $URL/start?rid=$RID; curl -fsS -d 'disk full' $URL/3?rid=$RID": (
        DOWN,
        "exit status 3: disk full",
    ),
}


@pytest.mark.parametrize("script", HEALTHCHECKS_EXAMPLES)
def test_scripts_for_healthchecks_io_work_with_another_url(agent: Agent, tmp_path: Path, script: str) -> None:
    status, reason = HEALTHCHECKS_EXAMPLES[script]
    (tmp_path / "uuidgen").write_text("#!/bin/sh\ncat /proc/sys/kernel/random/uuid\n")
    (tmp_path / "uuidgen").chmod(0o755)
    host = f"127.0.0.1:{agent.port}/push/by-get"
    variables = {
        "URL": f"http://me:{OTHER_TOKEN}@{host}",
        "URL_WITH_TOKEN": f"http://{host}?token={OTHER_TOKEN}",
        "PATH": f"{os.environ['PATH']}:{tmp_path}",
    }
    # From the other status, so that the script has changed it.
    curl(agent, f"/push/by-get/{'fail' if status == UP else '0'}", token=OTHER_TOKEN)
    subprocess.run(["sh", "-c", script], check=True, cwd=tmp_path, env=variables)
    assert agent.statuses()["by-get"] == status
    agent.wait_until(lambda: agent.request("/details/by-get").json["reason"].startswith(reason))
    if "RID" in script:
        agent.wait_until(lambda: agent.request("/details/by-get").json["recent_checks"][0]["duration_ms"] > 0)


PAGES = ["report", "probes/host", "coming-from/gatus", "coming-from/uptime-kuma"]


@pytest.mark.parametrize("page", PAGES)
def test_the_first_push_of_a_page_makes_a_new_service_up(tmp_path: Path, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    [command] = re.findall(r"right after you have added [^`]*(?:`[^`]*`[^`]*)*?`(curl [^`]*)`", text)
    with push_agent(tmp_path, SERVICES) as agent:
        url = f"http://127.0.0.1:{agent.port}/push/by-get"
        command = re.sub(r"https?://[^/]*/push/backup", url, command)
        variables = {"URL": url, "TOKEN": OTHER_TOKEN, "BACKUP_TOKEN": OTHER_TOKEN, "PATH": os.environ["PATH"]}
        assert agent.statuses()["by-get"] == "Initializing"
        subprocess.run(["sh", "-c", command], check=True, env=variables)
        assert agent.statuses()["by-get"] == UP


def test_requests_of_uptime_kuma_and_gatus_and_json_mean_what_they_say(agent: Agent) -> None:
    def sent(*arguments: str, query: str = "") -> tuple[int, str]:
        code, _ = curl(agent, f"/push/by-get{query}", *arguments, token=OTHER_TOKEN)
        return code, agent.statuses()["by-get"]

    assert sent("-X", "GET", query="?status=up&msg=OK&ping=") == (204, UP)
    assert sent("-X", "GET", query="?status=down&msg=disk+full&ping=") == (204, DOWN)
    assert sent("-d", "status=up") == (204, UP)
    assert sent(query="?success=false&error=x&duration=10s") == (204, DOWN)
    assert sent(query="?success=true") == (204, UP)
    assert sent("--json", '{"status": "down"}') == (204, DOWN)
    assert sent(query="?status=ok") == (400, DOWN)
    assert sent("--json", json.dumps({"reason": "x" * MAX_PUSH_BYTES, "status": "up"})) == (400, DOWN)


def test_a_reload_changes_the_token_and_without_any_token_there_is_no_such_path(tmp_path: Path) -> None:
    new_token = "new-0123456789abcdef"
    without_token = '[[services]]\nid = "backup"\nprobe = "heartbeat:60s"\n'
    with push_agent(tmp_path, without_token) as agent:
        assert curl(agent, "/push/backup") == curl(agent, "/nothing-here")
        assert not (tmp_path / "c.db").exists()
        agent.reload(config(tmp_path))
        assert curl(agent, "/push/backup")[0] == 204
        agent.reload(config(tmp_path, SERVICES.replace("${BACKUP_TOKEN}", new_token)))
        assert curl(agent, "/push/backup")[0] == 404
        assert curl(agent, "/push/backup", token=new_token)[0] == 204
        agent.reload(config(tmp_path, without_token))
        assert curl(agent, "/push/backup", token=new_token) == curl(agent, "/nothing-here", token=new_token)


def test_a_registered_service_is_pushed_also_if_the_file_has_no_token_and_after_a_restart(tmp_path: Path) -> None:
    services = '[[services]]\nid = "fixed"\nstatus = "Up"\n'
    token = "batch-0123456789"
    with push_agent(tmp_path, services) as agent, ControlClient(tmp_path / "c.sock") as client:
        assert curl(agent, "/push/batch", token=token)[0] == 404
        client.register("batch", ttl="1h", push_token=token, push_get=True)
        assert curl(agent, "/push/batch", token=token)[0] == 204
        assert agent.statuses()["batch"] == UP
        assert not any(token in line for line in agent.lines)
    with push_agent(tmp_path, services) as agent, ControlClient(tmp_path / "c.sock") as client:
        assert curl(agent, "/push/batch/fail", "-X", "GET", token=token)[0] == 204
        assert agent.statuses()["batch"] == DOWN
        client.deregister("batch")
        assert curl(agent, "/push/batch", token=token)[0] == 404
