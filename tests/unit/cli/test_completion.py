from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.cli import COMMANDS
from svcnode.cli.completion import SCRIPTS, complete
from svcnode.probes import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db 1"\n[[services]]\nid = "cache"\nprobe = 5\n')
    (tmp_path / "other.toml").write_text('[[services]]\nid = "other"\n')
    (tmp_path / "bad.toml").write_text("services = [1, {}]\n[")
    (tmp_path / "folder").mkdir()


def values(*words: str) -> list[str]:
    return [candidate.value for candidate in complete(words)]


def test_commands_and_their_options_are_completed() -> None:
    assert values("") == values() == [command.name for command in COMMANDS]
    assert values("de") == ["demo", "deregister"]
    assert values("no-such-command", "") == []
    assert {"--service", "--config", "-c", "--json"} <= set(values("probe", "-"))
    assert values("probe", "--serv") == ["--service"]
    assert values("probe", "http://h", "--wat") == ["--watch"]


@pytest.mark.parametrize(
    "words",
    [("probe", "--service"), ("explain", "--service"), ("beat",), ("deregister",), ("run", "--service")],
    ids=" ".join,
)
def test_ids_are_those_of_the_configuration(words: tuple[str, ...]) -> None:
    assert values(*words, "") == ["db 1", "cache"]
    assert values(*words, "c") == ["cache"]


def test_the_configuration_may_be_named_on_the_command_line() -> None:
    assert values("explain", "--config", "other.toml", "--service", "") == ["other"]
    for name in ("bad.toml", "none.toml"):
        assert values("explain", "-c", name, "--service", "") == []


def test_kinds_values_of_a_list_and_files_are_completed_and_an_argument_only_once() -> None:
    assert len(values("probe", "")) == len(KINDS)
    assert values("probe", "postgres") == ["postgres://", "postgresql://"]
    assert values("register", "a", "--probe", "fil") == ["file:/"]
    assert values("register", "a", "--impact", "") == ["critical", "partial", "none"]
    assert values("completion", "") == list(SCRIPTS)
    assert values("check-config", "") == ["bad.toml", "folder/", "other.toml", "svcnode.toml"]
    assert values("serve", "--config", "./o") == ["./other.toml"]
    assert values("serve", "--config", "/no/such/") == []
    assert values("beat", "cache", "c") == []
    assert values("beat", "--code", "x_a", "") == ["db 1", "cache"]
    assert values("run", "--service", "a", "--", "") == []


def test_the_words_of_a_shell_are_completed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("_SVCNODE_WORDS", "pin\n.")
    ping = next(command for command in COMMANDS if command.name == "ping")
    assert run("completion", "fish") == (0, f"ping\t{ping.help}\n", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_printed(shell: str, run: Run) -> None:
    assert run("completion", shell) == (0, SCRIPTS[shell], "")
