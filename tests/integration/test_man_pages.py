"""The manual pages are complete, and the formatters have no warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from svcnode.cli import COMMANDS
from svcnode.config.tables import ServiceTable
from svcnode.probes import KINDS
from tests.support.servers.provision import program

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "man_pages.py"
NAMES = ("svcnode.1", "svcnode.toml.5")

pytestmark = [pytest.mark.wide, pytest.mark.skipif(not SCRIPT.exists(), reason="the script is not part of the wheel")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, capture_output=True, timeout=60)
    return folder


def output_of(*command: str) -> str:
    program(command[0], {"groff": "groff-base"}.get(command[0], command[0]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_formatters_have_no_warnings(name: str, pages: Path) -> None:
    assert output_of("groff", "-K", "utf8", "-man", "-ww", "-z", str(pages / name)) == ""
    assert output_of("mandoc", "-T", "lint", "-W", "warning", str(pages / name)) == ""


def shown(page: Path) -> str:
    text = output_of("groff", "-K", "utf8", "-T", "utf8", "-P-c", "-man", str(page))
    return re.sub(".\b", "", text)


def test_the_page_of_the_command_has_every_command_and_its_exit_codes(pages: Path) -> None:
    text = shown(pages / "svcnode.1")
    for command in COMMANDS:
        assert re.search(rf"^   svcnode {command.name}\b", text, re.MULTILINE), command.name
    assert {"--service", "--check", "--log-format"} <= set(re.findall(r"--[a-z-]+", text))
    assert "EXIT STATUS" in text


def test_the_page_of_the_file_has_every_key_and_every_kind(pages: Path) -> None:
    text = shown(pages / "svcnode.toml.5")
    words = set(re.findall(r"[\w+.]+", text))
    assert ServiceTable.keys.keys() <= words
    assert KINDS.keys() <= words
    assert "[server.tls] certificate" in text
