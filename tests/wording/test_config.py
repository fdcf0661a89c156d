"""The errors of invalid configurations: the first line of each file in tests/bad_configs."""

from __future__ import annotations

from pathlib import Path

import pytest

from svcnode.config import load
from svcnode.core.errors import ConfigError
from svcnode.core.text import one_line

FOLDER = Path(__file__).parents[1] / "bad_configs"
NAMES = sorted(file.name for file in FOLDER.iterdir())


def first_line_for(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Path(name), {"HOME": "/nowhere"})
    return f"# {one_line(str(caught.value))}"


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_an_invalid_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(FOLDER)
    file = Path(name)
    if request.config.getoption("--update-wording"):
        for _ in range(2):  # twice: an error may contain the position of a byte after the first line
            _, _, rest = file.read_bytes().partition(b"\n")
            file.write_bytes(first_line_for(name).encode() + b"\n" + rest)
    assert file.read_bytes().split(b"\n")[0].decode() == first_line_for(name)
