"""The output of every command on a full disk and on an ASCII terminal."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import build_parser
from tests.support.backends import HttpBackend, http_response
from tests.support.commands import svcnode
from tests.support.processes import Agent

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

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
    "ack": ["ack", "höhe"],
    "beat": ["beat", "höhe"],
    "check-config": ["check-config"],
    "check-config --json": ["check-config", "--check", "--json"],
    "completion": ["completion", "bash"],
    "conform": ["conform", "127.0.0.1:1", "--json"],
    "conform --junit": ["conform", "127.0.0.1:1", "--junit", "-"],
    "demo": ["demo", "--listen", "127.0.0.1:0"],
    "deregister": ["deregister", "zähler"],
    "drain": ["drain", "--undo"],
    "explain": ["explain", "{url}"],
    "explain --json": ["explain", "{url}", "--json"],
    "init": ["init", "prüfer.toml"],
    "init --stdout": ["init", "--stdout"],
    "issue": ["issue", "plätze", "--clear"],
    "history": ["history", "--config", "with-port.toml"],
    "maintain": ["maintain", "blocks", "--for", "1m", "--reason", "Zähler"],
    "note": ["note", "höhe erreicht"],
    "notify-test": ["notify-test"],
    "ping": ["ping", "--config", "with-port.toml"],
    "probe": ["probe", "svc+{url}", "-o", r'service="n\u00f6"'],
    "probe --watch": ["probe", "svc+{url}", "-o", r'service="n\u00f6"', "--watch"],
    "report": ["report", "--config", "with-port.toml"],
    "report --html": ["report", "--config", "with-port.toml", "--html"],
    "register": ["register", "zähler", "--ttl", "1h"],
    "reload": ["reload"],
    "status": ["status", "{url}"],
    "status --json": ["status", "{url}", "--json"],
}
PREPARED_BY = {
    "ack": ["beat", "höhe", "down"],
    "deregister": ["register", "zähler", "--ttl", "1h"],
    "drain": ["drain"],
    "issue": ["issue", "plätze"],
}
ENDLESS = ("demo", "probe --watch")
PRINT_BYTES = ("conform --junit", "init --stdout")  # as in a file
# run runs another program, serve only logs, watch requires a terminal, and registry requires etcd
PRINT_NOTHING = {"registry", "run", "serve", "watch"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("node")
    with (
        HttpBackend(lambda _: http_response(204)) as hook,
        Agent(folder, config=CONFIG.format(hook=f"http://{hook.address}/")) as agent,
    ):
        agent.wait_for_event("control_socket")
        (folder / "with-port.toml").write_text(f'[server]\nlisten = "127.0.0.1:{agent.port}"\n')
        yield folder, f"http://127.0.0.1:{agent.port}"


def run(node: tuple[Path, str], name: str, **options: Any) -> subprocess.CompletedProcess[str]:
    folder, url = node
    (folder / "prüfer.toml").unlink(missing_ok=True)
    if name in PREPARED_BY:
        assert svcnode(*PREPARED_BY[name], folder=folder).returncode == 0
    return svcnode(*(argument.format(url=url) for argument in COMMANDS[name]), folder=folder, **options)


def test_the_list_above_has_every_command_that_prints() -> None:
    (commands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {arguments[0] for arguments in COMMANDS.values()} == set(commands.choices) - PRINT_NOTHING


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("name", COMMANDS)
def test_output_that_cannot_be_written_is_reported_in_one_line(name: str, node: tuple[Path, str]) -> None:
    with FULL.open("w", encoding="utf-8") as full:
        ended = run(node, name, stdout=full)
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("svcnode: ")]
    assert error.endswith(f": {os.strerror(errno.ENOSPC).lower()}")
    assert ended.returncode in (1, 4)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ENDLESS])
def test_characters_outside_the_encoding_are_shown_as_escapes(name: str, node: tuple[Path, str]) -> None:
    ended = run(node, name, encoding="ascii" if name not in PRINT_BYTES else "utf-8")
    assert "svcnode: " not in ended.stderr
    assert ended.stdout
