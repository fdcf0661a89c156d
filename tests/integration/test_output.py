"""The output of every command on a full disk and on an ASCII terminal."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import build_parser
from tests.support.backends import HttpBackend, http_response
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_TIMEOUT_S = 40.0
FULL = Path("/dev/full")
CONFIG = """\
[node]
name = "Prüfer"
[server]
listen = ["127.0.0.1:0"]
[notify]
webhook = "{hook}"
[[services]]
id = "blocks"
name = "Zähler für Blöcke"
description = "zählt"
status = "Up"
[[services]]
id = "höhe"
probe = "heartbeat:1h"
[control]
listen = "unix:control.sock"
"""
# Arguments in a folder with a configuration, whose node runs at {url}.
COMMANDS = {
    "beat": ["beat", "höhe"],
    "check-config": ["check-config"],
    "check-config FILE": ["check-config", "svcnode.toml"],
    "completion": ["completion", "bash"],
    "conform": ["conform", "{url}", "--verbose"],
    "conform --json": ["conform", "{url}", "--json"],
    "conform --junit": ["conform", "{url}", "--junit", "-"],
    "demo": ["demo", "--listen", "127.0.0.1:0"],
    "deregister": ["deregister", "zähler"],
    "drain": ["drain", "--undo"],
    "explain": ["explain", "--url", "{url}"],
    "explain ID": ["explain", "blocks", "--url", "{url}"],
    "explain --json": ["explain", "--json", "--url", "{url}"],
    "init": ["init", "prüfer.toml"],
    "init --stdout": ["init", "--stdout"],
    "issue": ["issue", "plätze", "--clear"],
    "maintain": ["maintain", "blocks", "--for", "1m", "--reason", "Zähler"],
    "notify-test": ["notify-test"],
    "ping": ["ping", "--config", "with-port.toml"],
    "probe": ["probe", "svc+{url}", "-o", r'service="n\u00f6"'],
    "probe --json": ["probe", "svc+{url}", "-o", r'service="n\u00f6"', "--json"],
    "probe --watch": ["probe", "svc+{url}", "-o", r'service="n\u00f6"', "--watch"],
    "register": ["register", "zähler", "--ttl", "1h"],
    "reload": ["reload"],
    "status": ["status", "{url}"],
    "status of many": ["status", "{url}", "{url}", "--all"],
    "status --json": ["status", "{url}", "--json"],
    "version": ["version"],
}
ENDLESS = ("demo", "probe --watch")
# run runs another program, serve only logs, watch requires a terminal, and registry requires etcd
PRINT_NOTHING = {"registry", "run", "serve", "watch"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("node")
    with (
        HttpBackend(lambda _: http_response(204)) as hook,
        Agent(folder, config=CONFIG.format(hook=f"http://{hook.address}/")) as agent,
    ):
        (folder / "with-port.toml").write_text(f'[server]\nlisten = "127.0.0.1:{agent.port}"\n')
        yield folder, f"http://127.0.0.1:{agent.port}"


def run(node: tuple[Path, str], arguments: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    folder, url = node
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "svcnode", *(argument.format(url=url) for argument in arguments)],
        cwd=folder,
        stderr=subprocess.PIPE,
        timeout=WAIT_TIMEOUT_S,
        check=False,
        **options,
    )


def environment(**extra: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **extra}


def test_the_list_above_has_every_command_that_prints() -> None:
    (commands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {arguments[0] for arguments in COMMANDS.values()} == set(commands.choices) - PRINT_NOTHING


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("name", COMMANDS)
def test_output_that_cannot_be_written_is_reported_in_one_line(name: str, node: tuple[Path, str]) -> None:
    (node[0] / "prüfer.toml").unlink(missing_ok=True)
    with FULL.open("wb") as full:
        ended = run(node, COMMANDS[name], stdout=full, env=environment(PYTHONUTF8="1"))
    (error,) = [line for line in ended.stderr.decode().splitlines() if line.startswith("svcnode: ")]
    assert error.endswith(f": {os.strerror(errno.ENOSPC).lower()}")
    assert b"Traceback" not in ended.stderr
    assert ended.returncode in (2, 3)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ENDLESS])
def test_characters_outside_the_encoding_are_shown_as_escapes(name: str, node: tuple[Path, str]) -> None:
    (node[0] / "prüfer.toml").unlink(missing_ok=True)
    ascii_only = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    ended = run(node, COMMANDS[name], stdout=subprocess.PIPE, env=ascii_only)
    assert b"Traceback" not in ended.stderr
    assert b"svcnode: " not in ended.stderr
    assert ended.stdout
    if name not in ("conform --junit", "init --stdout"):  # these print bytes as in a file
        assert ended.stdout.isascii()
