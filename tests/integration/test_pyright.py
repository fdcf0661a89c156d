"""The misspelled calls of the public API as pyright sees them. mypy is part of `make lint`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.servers.provision import python_environment

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests" / "unit" / "misspelled_options.py"


def errors_of(folder: Path, code: str) -> list[str]:
    """With a comment that expects an error where there is none, that is one."""
    (folder / "calls.py").write_text(code)
    settings = {"include": ["calls.py"], "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11"}
    settings |= {"typeCheckingMode": "basic", "reportUnnecessaryTypeIgnoreComment": "error"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = python_environment(ROOT / "requirements" / "pyright.txt") / "bin" / "basedpyright"
    command: list[str | Path] = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", folder]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return [found["rule"] for found in json.loads(ended.stdout)["generalDiagnostics"]]


def test_pyright_finds_every_misspelled_call(tmp_path: Path) -> None:
    calls = CALLS.read_text()
    assert errors_of(tmp_path, calls) == []
    assert errors_of(tmp_path, calls.replace("tll=", "ttl=")) == ["reportUnnecessaryTypeIgnoreComment"] * 3
