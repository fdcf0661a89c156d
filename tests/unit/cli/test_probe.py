from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import main
from svcnode.cli.probe import _format_full, _format_line, _ProbeResult, _toml_value
from svcnode.core.model import Verdict

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Run

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
def configured(tmp_path: Path) -> Path:
    (tmp_path / "svcnode.toml").write_text(SERVICES.replace("FOLDER", str(tmp_path)))
    (tmp_path / "spool").write_text("is good")
    return tmp_path


@pytest.mark.parametrize(("expected", "code"), [("good", 0), ("other", 3)])
def test_a_service_is_checked_with_the_options_and_secrets_of_the_configuration(
    expected: str, code: int, configured: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("EXPECTED", expected)
    here = run("probe", "--service", "spool")
    monkeypatch.chdir("/")
    for ended in (here, run("probe", "--service", "spool", "--config", f"{configured}/svcnode.toml", "--json")):
        assert (ended.code, ended.err) == (code, "")
        assert expected not in ended.out.replace("is good", "")


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


def test_without_services_the_store_of_the_node_is_the_service(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("SVCNODE_STORE_PATH", "none.db")
    ended = run("probe", "--service", "store")
    assert (ended.code, "none.db" in ended.out) == (3, True)
    assert run("probe", "--service", "db").code == 2


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
    ],
)
def test_a_service_that_cannot_be_checked_is_reported_with_exit_code_2(
    arguments: list[str], named: str, configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1f", 31),
        ("true", True),
        ('"5"', "5"),
        ("[1, [2]]", [1, [2]]),
        ('{ a = 1, "/b" = "c" }', {"a": 1, "/b": "c"}),
    ],
)
def test_an_option_value_is_parsed_as_toml(text: str, value: object) -> None:
    assert _toml_value(text) == value
    assert type(_toml_value(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["5s", "True", "a b", "${TOKEN}", "a=b", '"open', "#1", "", "1\nb = 2", "9" * 5000, "[" * 5000]
)
def test_a_value_that_is_not_toml_is_a_string(text: str) -> None:
    assert _toml_value(text) == text


def test_options_are_passed_to_the_probe(run: Run) -> None:
    Path("state").write_text("synced=yes")
    assert run("probe", "file:state", "-o", "contains=synced=yes", "--option", "max_age=1h").code == 0
    ended = run("probe", "file:state", "-o", "contains=synced=no", "--json")
    assert (ended.code, json.loads(ended.out)["code"]) == (3, "unexpected_response")


def test_control_characters_in_a_reason_are_shown_as_escapes() -> None:
    result = _ProbeResult(at_s=0.0, verdict=Verdict.failed("exit 1: \x1b[2Jgone\nready"), duration_s=0.0, steps=[])
    assert _format_full("exec:/a", result).splitlines()[0] == "failed: exit 1: \\x1b[2Jgone\\nready"
    assert _format_line("exec:/a", result).endswith("  exit 1: \\x1b[2Jgone\\nready")


def test_with_allow_exec_a_program_runs(run: Run) -> None:
    ended = run("probe", "exec:", "-o", 'argv=["/bin/sh", "-c", "exit 75"]', "--allow-exec", "--json")
    result: dict[str, Any] = json.loads(ended.out)
    assert (ended.code, result["outcome"], result["code"]) == (1, "not_ready", "exit_status")
    assert [step["name"] for step in result["steps"]] == ["start", "run"]
