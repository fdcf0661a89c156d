"""`svcnode run`: signals of the process that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.cli import main
from svcnode.cli._notifications import Notified
from svcnode.cli.run import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def run(folder: Path, *command: str) -> int:
    """No node is there."""
    return main(["run", "--socket", str(folder / "c.sock"), "--service", "job", "--", *command])


@pytest.fixture(autouse=True)
def hangup_handler() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, handler)


def test_a_signal_that_arrives_while_the_command_starts_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SignalledPopen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", SignalledPopen)
    assert run(tmp_path, "sleep", "60") == 128 + signal.SIGTERM


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_signal_that_is_ignored_as_with_nohup_is_ignored_by_the_command_too(
    tmp_path: Path, *, is_ignored: bool
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    assert run(tmp_path, sys.executable, "-c", script) == is_ignored


def test_the_handlers_of_the_program_are_restored(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert run(tmp_path, "true") == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_command_runs_although_the_registry_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    registry = ["--registry", "etcd://127.0.0.1:1", "--node", "n"]
    assert main(["run", *registry, "--service", "job", "--", "sh", "-c", "exit 3"]) == 3
    assert "cannot report that the command has ended" in capsys.readouterr().err


def test_the_end_by_a_signal_without_a_name_is_reported() -> None:
    reported: list[tuple[object, ...]] = []

    class Client:
        def register(self, service_id: str, **_: object) -> None: ...
        def beat(self, *arguments: object, code: object) -> None:
            reported.append(arguments)

    Reporter(cast("Any", Client()), "job", {}).report_end(-(signal.SIGRTMIN + 1), Notified())
    assert [arguments[:2] for arguments in reported] == [("job", "down")]
