"""What holds for every command: examples, exit codes, hints for what is misspelled or gone, and the version."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import COMMANDS, build_parser, main
from tests.support.commands import svcnode

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [command.name for command in COMMANDS if command.name != "registry"]
NAMES += ["registry check", "registry show", "registry forget", "registry accept"]
# Arguments with which nothing but the configuration or a value is wrong.
CONFIGURED = (
    "serve",
    "check-config",
    "notify-test",
    "status",
    "watch",
    "ping",
    "explain",
    "history",
    "report",
    "drain",
    "reload",
)
INVALID = {
    **dict.fromkeys((*CONFIGURED, "registry check", "registry show", "registry accept"), "-c bad.toml"),
    "demo": "--listen unix:a.sock",
    "init": "--port redis=0",
    "probe": "nothing",
    "register": "-c bad.toml a --ttl 5s",
    "deregister": "-c bad.toml a",
    "beat": "-c bad.toml a",
    "run": "-c bad.toml --service a -- true",
    "issue": "-c bad.toml a",
    "maintain": "-c bad.toml --end",
    "ack": "-c bad.toml db",
    "note": "-c bad.toml deployed",
    "registry forget": "-c bad.toml a",
    "conform": "ftp://a",
    "completion": "csh",
}
# Nothing listens there.
UNREACHABLE = {
    "status": ("127.0.0.1:1", 4),
    "explain": ("127.0.0.1:1", 4),
    "history": ("--url 127.0.0.1:1", 4),
    "report": ("--url 127.0.0.1:1", 4),
    "conform": ("127.0.0.1:1", 4),
    "probe": ("tcp://127.0.0.1:1", 3),
    "ping": ("127.0.0.1:1", 1),
    "beat": ("a --socket none.sock", 1),
    "reload": ("--socket none.sock", 1),
    "registry show": ("--registry etcd://127.0.0.1:1", 1),
    "status --registry": ("etcd://127.0.0.1:1", 4),
}


def examples(help_text: str) -> list[str]:
    """Without what follows two spaces, which explains them, and without redirections."""
    _, _, lines = help_text.partition("\nexamples:\n")
    return [re.split(r"  | > ", line.strip())[0] for line in lines.splitlines()]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "check-config"])
def test_the_help_of_a_command_gives_examples_that_are_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = examples(capsys.readouterr().out)
    assert shown
    for example in shown:
        program, *words = shlex.split(example)
        assert program == "svcnode"
        assert words[: len(name.split())] == name.split()
        build_parser(words).parse_args(words)  # raises SystemExit if it is invalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bad.toml").write_text("[server")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_invalid_arguments_and_configurations_have_exit_code_2(name: str, folder: Path) -> None:
    for arguments in (["--no-such-option"], INVALID[name].split()):
        ended = svcnode(*name.split(), *arguments, folder=folder)
        assert (ended.returncode, ended.stdout) == (2, ""), arguments
        assert ended.stderr.splitlines()[-1].startswith("svcnode")


def test_an_invalid_service_of_the_command_line_is_one_line(folder: Path) -> None:
    ended = svcnode("serve", "--listen", "127.0.0.1:0", "--service", "a\nb=file:/a", folder=folder)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("svcnode: services.a\\nb.id: ")


@pytest.mark.parametrize("name", UNREACHABLE)
def test_an_unreachable_address_is_not_an_invalid_argument(name: str, folder: Path) -> None:
    arguments, code = UNREACHABLE[name]
    assert svcnode(*name.split(), *arguments.split(), folder=folder).returncode == code


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("version", "did you mean --version?"),
        ("registry shw", "did you mean show?"),
        ("status h --al", "did you mean --all?"),
        ("xyz", "svcnode --help"),
        ("silence db", "did you mean maintain?"),
        ("mute", "did you mean maintain?"),
        ("history db --service db", "--service"),
        ("explain --url http://h ledger", "first argument"),
        ("status --tls", "SVCNODE_SHARING_TLS=true"),
        ("beat a --ca=x.pem", "SVCNODE_SHARING_CA"),
        ("run --service a --client-key k.pem -- true", "SVCNODE_SHARING_CLIENT_KEY"),
    ],
)
def test_what_is_misspelled_or_no_longer_there_gets_a_hint(command: str, hint: str) -> None:
    ended = svcnode(*command.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert hint in ended.stderr.splitlines()[-1]


def test_the_version_has_those_of_the_interface_and_of_python() -> None:
    ended = svcnode("--version")
    assert ended.returncode == 0
    assert re.fullmatch(r"svcnode [0-9.]+ \(interface v0\.0\.1, CPython 3\.[0-9.]+, linux\)\n", ended.stdout)


def test_the_file_is_not_read_for_a_registry_that_the_command_line_names(folder: Path) -> None:
    """It may be that of another node, whose password is not for this registry."""
    ended = svcnode("registry", "show", "-c", "bad.toml", "--registry", "etcd://127.0.0.1:1", folder=folder)
    assert ended.returncode == 1
    in_environment = svcnode(
        "registry", "show", "--registry", "etcd://127.0.0.1:1", folder=folder, SVCNODE_SHARING_CA="ca.pem"
    )
    assert in_environment.returncode == 2, "without TLS, it needs no authority"
