"""One file for every way in which a configuration can be invalid: each is refused, with the right key and line.

The first line of a file is a comment with the whole error; tests/wording compares the rest of its text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from svcnode.cli import main
from svcnode.config import load
from svcnode.core.errors import ConfigError
from svcnode.core.text import one_line

FOLDER = Path(__file__).parents[2] / "bad_configs"
NAMES = sorted(file.name for file in FOLDER.iterdir())


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    for variable in ("SVCNODE_CONFIG", "STATE_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)


def expected_key(first_line: str) -> str | None:
    """None if the file is not valid TOML, so that no key can be named."""
    match = re.match(r"# ([^ :]+): ", first_line)
    return match[1] if match else None


def expected_line(first_line: str, name: str) -> int | None:
    match = re.search(rf" \({re.escape(name)}:(\d+)\)$", first_line)
    return int(match[1]) if match else None


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_configuration_is_refused_at_its_key_and_line(name: str) -> None:
    first_line = Path(name).read_bytes().split(b"\n")[0].decode()

    with pytest.raises(ConfigError) as caught:
        load(Path(name), {"HOME": "/nowhere"})

    error = caught.value
    assert (None if error.key is None else one_line(error.key)) == expected_key(first_line)
    assert (error.file, error.line) == (Path(name), expected_line(first_line, name))


@pytest.mark.parametrize("name", ["service-probe-scheme.toml", "toml-no-value.toml", "not-utf-8.toml"])
def test_the_command_prints_one_line_and_exits_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check-config", name])

    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
