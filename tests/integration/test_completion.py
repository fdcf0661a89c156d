"""The completion scripts in the real shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from svcnode.cli.completion import complete
from svcnode.control.client import ControlClient
from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.provision import program

CONFIG = '[[services]]\nid = "db 1"\n[[services]]\nid = "cache"\n'
BIN = Path(sys.executable).parent
BASH = """
eval "$(svcnode completion bash)"
COMP_WORDS=(svcnode {words}) COMP_CWORD={count}
_svcnode
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -U compinit; compinit -D
eval "$(svcnode completion zsh)"
_describe() {{ print -rl -- "${{(@P)2}}" }}
words=(svcnode {words}) CURRENT={current}
_svcnode
"""
FISH = """
svcnode completion fish | source
complete -C {line}
"""


def run_shell(shell: str, script: str, folder: Path) -> list[str]:
    program(shell, shell)
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environ = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [shell, *options, "-c", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def completions(shell: str, line: list[str], folder: Path) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in line)
    if shell == "bash":
        return run_shell(shell, BASH.format(words=quoted, count=len(line)), folder)
    if shell == "zsh":
        rows = run_shell(shell, ZSH.format(words=quoted, current=len(line) + 1), folder)
        return [row.replace("\\:", "\0").partition(":")[0].replace("\0", ":") for row in rows]
    text = f'"svcnode {" ".join(line)}"'
    return [row.partition("\t")[0] for row in run_shell(shell, FISH.format(line=text), folder)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "svcnode.toml").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(name, marks=pytest.mark.wide) for name in ("zsh", "fish"))])
def test_a_shell_completes_commands_options_kinds_and_ids(shell: str, folder: Path) -> None:
    assert completions(shell, ["wat"], folder) == ["watch"]
    assert completions(shell, ["probe", "--serv"], folder) == ["--service"]
    assert completions(shell, ["probe", "redis+"], folder) == ["redis+sentinel://"]
    ids = completions(shell, ["beat", ""], folder)
    assert [text.replace("\\", "") for text in ids] == (["cache", "db 1"] if shell == "fish" else ["db 1", "cache"])


def test_ids_of_the_running_node_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listen = f"[server]\nlisten = '127.0.0.1:0'\n[control]\nlisten = 'unix:{tmp_path}/c.sock'\n"
    with Agent(tmp_path, config=f"{listen}path = '{tmp_path}/c.db'\n") as agent:
        agent.wait_for_event("control_socket")
        with ControlClient(tmp_path / "c.sock") as client:
            client.register("registered", ttl="10m")
        # On a busy machine, a node may answer too late for a completion.
        wait_until(lambda: "registered" in [one.value for one in complete(["beat", ""])], "completed")
