"""The errors of invalid configurations: each file of tests/bad_configs has one, the comment in its first line.

This is the test of the errors: their key, file, line, text and fix, and that no error follows from another one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from svcnode.cli import main
from svcnode.config import load
from svcnode.core.errors import ConfigError
from svcnode.core.text import one_line

FOLDER = Path(__file__).parents[1] / "bad_configs"
NAMES = sorted(file.name for file in FOLDER.iterdir())


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    for variable in ("SVCNODE_CONFIG", "STATE_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)


def errors_of(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Path(name), {"HOME": "/nowhere"})
    assert caught.value.file == Path(name)
    return "\n".join(f"# {one_line(text)}" for text in caught.value.texts)


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_an_invalid_configuration(name: str, request: pytest.FixtureRequest) -> None:
    file = Path(name)
    if request.config.getoption("--update-wording"):
        for _ in range(2):  # twice: an error may contain the position of a byte after the first line
            _, _, rest = file.read_bytes().partition(b"\n")
            file.write_bytes(errors_of(name).encode() + b"\n" + rest)
    assert errors_of(name) == file.read_bytes().split(b"\n")[0].decode()


@pytest.mark.parametrize("name", ["service-probe-scheme.toml", "toml-no-value.toml", "not-utf-8.toml"])
def test_the_command_prints_one_line_and_exits_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check-config", name])

    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
