from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import main
from svcnode.cli.probe import _format_full, _format_line, _ProbeResult, _toml_value
from svcnode.core.model import Verdict
from svcnode.net.trace import Step

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def result_of(verdict: Verdict, duration_s: float = 0.0, *steps: Step) -> _ProbeResult:
    return _ProbeResult(at=NOON, verdict=verdict, duration_s=duration_s, steps=list(steps))


# ---- a service of the configuration

SERVICES = """
[defaults]
timeout = "2s"
[[services]]
id = "spool"
probe = { url = "file:FOLDER/spool", contains = "${EXPECTED}" }
[[services]]
id = "broken"
probe = "nonsense"
[[services]]
id = "set"
status = "Up"
[[services]]
id = "worker"
probe = "heartbeat:30s"
[[services]]
id = "program"
probe = "exec:/bin/true"
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "svcnode.toml").write_text(SERVICES.replace("FOLDER", str(tmp_path)))
    (tmp_path / "spool").write_text("is good")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SVCNODE_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize(("expected", "code"), [("good", 0), ("other", 3)])
def test_a_service_is_checked_with_the_options_and_secrets_of_the_configuration(
    expected: str, code: int, configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPECTED", expected)
    assert main(["probe", "--service", "spool"]) == code
    monkeypatch.chdir("/")
    assert main(["probe", "--service", "spool", "--config", str(configured / "svcnode.toml"), "--json"]) == code
    output = capsys.readouterr()
    assert expected not in output.out.replace("is good", "")
    assert output.err == ""


def test_a_service_is_checked_with_its_own_limits(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPECTED", "good")
    limits = []

    async def record(_: object, timeout_s: float, max_latency_s: float | None) -> tuple[Verdict, None]:
        limits.append((timeout_s, max_latency_s))
        return Verdict.ready(), None

    monkeypatch.setattr("svcnode.cli.probe.run_check", record)
    main(["probe", "--service", "spool"])
    main(["probe", "--service", "spool", "--timeout", "5s", "--max-latency", "1s"])
    main(["probe", "file:/"])
    assert limits == [(2.0, None), (5.0, 1.0), (3.0, None)]


def test_a_program_of_the_configuration_needs_permission(configured: Path) -> None:
    assert main(["probe", "--service", "program"]) == 2
    assert main(["probe", "--service", "program", "--allow-exec"]) == 0


def test_without_services_the_store_of_the_node_is_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SVCNODE_STORE_PATH", str(tmp_path / "none.db"))
    assert main(["probe", "--service", "store"]) == 3
    assert "none.db" in capsys.readouterr().out
    assert main(["probe", "--service", "db"]) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--service", "spol"], '"spool"'),
        (["--service", "spool"], "EXPECTED"),
        (["--service", "broken"], "services.broken.probe"),
        (["--service", "set"], "fixed status"),
        (["--service", "worker"], "heartbeats"),
        (["--service", "spool", "file:/"], "URL"),
        (["--service", "spool", "-o", "contains=x"], "--option"),
        (["--service", "spool", "--config", "/no/such.toml"], "/no/such.toml"),
    ],
)
def test_a_service_that_cannot_be_checked_is_reported_with_exit_code_2(
    arguments: list[str], named: str, configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 2
    assert named in capsys.readouterr().err


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing"], "URL"),
        ([""], "URL"),
        (["htp://127.0.0.1"], '"http"'),
        (["tcp://127.0.0.1"], "tcp://127.0.0.1:"),
        (["tcp://${NOT_SET}:1"], "NOT_SET"),
        (["http://127.0.0.1", "-o", "redirect=1"], "redirect: "),
        (["http://127.0.0.1", "-o", "redirects=true"], "redirects: "),
        (["http://127.0.0.1", "-o", "redirects"], "--option: "),
        (["http://127.0.0.1", "-o", "=1"], "--option: "),
        (["http://127.0.0.1", "-o", "url=tcp:"], "--option: url "),
        (["jsonrpc+http://127.0.0.1"], "method: "),
        (["file:/a", "-o", "max_age=5"], "max_age: "),
        (["tls://127.0.0.1:1", "-o", "ca=/no.pem"], "ca: "),
        (["http://127.0.0.1", "-o", 'bearer={ file = "/no.txt" }'], "bearer: "),
        (["exec:/bin/true"], "--allow-exec"),
        (["file:/", "--timeout", "3"], "--timeout: "),
        (["file:/", "--timeout", "0s"], "--timeout: "),
        (["file:/", "--max-latency", "0ms"], "--max-latency: "),
        (["file:/", "--interval", "soon"], "--interval: "),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--watch"], ["--json"]], ids=["once", "watch", "json"])
def test_an_invalid_argument_is_reported_in_one_line_with_exit_code_2(
    mode: list[str], arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["probe", *arguments, *mode])
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
    assert named in output.err


@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_an_interval_without_watch_is_an_invalid_argument(mode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "file:/", "--interval", "5s", *mode]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "--interval: " in output.err
    assert "--watch" in output.err


# ---- options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("true", True),
        ("false", False),
        ('"5"', "5"),
        ("'5'", "5"),
        ("[1, [2]]", [1, [2]]),
        ('{ a = 1, "/b" = "c" }', {"a": 1, "/b": "c"}),
        ('{ file = "/run/secret" }', {"file": "/run/secret"}),
        ('{ hex = "00 ff" }', {"hex": "00 ff"}),
        ("5 # a comment", 5),
    ],
)
def test_an_option_value_is_parsed_as_toml(text: str, value: object) -> None:
    assert _toml_value(text) == value
    assert type(_toml_value(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "5s",
        "2xx",
        "GET",
        "True",
        "/var/run/app.pid",
        "a b",
        "${TOKEN}",
        "a=b",
        '"open',
        "[1, 2",
        "{ a = 1",
        "#1",
        "",
        "1\nb = 2",
        "1\n[table]",
        "9" * 5000,
        "[" * 5000,
    ],
)
def test_a_value_that_is_not_toml_is_a_string(text: str) -> None:
    assert _toml_value(text) == text


def test_options_are_passed_to_the_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state"
    file.write_text("synced=yes")
    assert main(["probe", f"file:{file}", "-o", "contains=synced=yes", "--option", "max_age=1h"]) == 0
    capsys.readouterr()
    assert main(["probe", f"file:{file}", "-o", "contains=synced=no", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["code"] == "unexpected_response"


# ---- output


def test_the_output_has_the_verdict_the_steps_and_the_total() -> None:
    steps = (
        Step("resolve", "localhost", 0.0123, is_done=True),
        Step("connect", "::1", 0.0001, is_done=False),
        Step("connect", "127.0.0.1", 0.0004, is_done=True),
        Step("handshake", "localhost", 2.5, is_done=True),
        Step("exchange", "", 0.1, is_done=False),
    )
    lines = _format_full("https://localhost", result_of(Verdict.failed("lost"), 2.6129, *steps)).splitlines()
    assert lines[0] == "failed: lost"
    rows = [line.split()[:3] for line in lines[1:]]
    assert rows == [
        ["resolve", "12.3", "ms"],
        ["connect", "0.1", "ms"],
        ["connect", "0.4", "ms"],
        ["handshake", "2500.0", "ms"],
        ["exchange", "100.0", "ms"],
        ["total", "2612.9", "ms"],
    ]
    assert [bool(re.search(r"\(.+\)$", line)) for line in lines[1:]] == [False, True, False, False, True, False]
    assert lines[-1].endswith("https://localhost")


def test_a_verdict_without_reason_and_steps_is_two_lines() -> None:
    lines = _format_full("file:/a", result_of(Verdict.ready(), 0.0012)).splitlines()
    assert [line.split() for line in lines] == [["ready"], ["total", "1.2", "ms", "file:/a"]]


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict.ready(), "ready"),
        (Verdict.not_ready("why"), "not ready"),
        (Verdict.failed("why"), "failed"),
        (Verdict.unknown("why"), "unknown"),
    ],
)
def test_with_watch_a_check_is_one_line(verdict: Verdict, outcome: str) -> None:
    line = _format_line("tcp://127.0.0.1:1", result_of(verdict, 0.0123))
    assert re.fullmatch(rf"12:00:00  {outcome} +12\.3 ms(  why)?", line)
    assert line.endswith("why") is bool(verdict.reason)


def test_control_characters_in_a_reason_are_shown_as_escapes() -> None:
    result = result_of(Verdict.failed("exit 1: \x1b[2Jgone\nready"))
    assert _format_full("exec:/a", result).splitlines()[0] == "failed: exit 1: \\x1b[2Jgone\\nready"
    assert _format_line("exec:/a", result).endswith("  exit 1: \\x1b[2Jgone\\nready")


def test_with_allow_exec_a_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "exec:", "-o", 'argv=["/bin/sh", "-c", "exit 75"]', "--allow-exec", "--json"]) == 1
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["outcome"], result["code"]) == ("not_ready", "exit_status")
    assert [step["name"] for step in result["steps"]] == ["start", "run"]
