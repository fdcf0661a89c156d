"""One small file for every way in which a configuration can be wrong; its first line says what we say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from svcnode.cli import main

FOLDER = Path(__file__).parents[2] / "bad_configs"
NAMES = sorted(file.name for file in FOLDER.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_configuration_is_refused_in_one_line_that_says_where(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    for variable in ("SVCNODE_CONFIG", "STATE_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)
    first_line = Path(name).read_bytes().split(b"\n")[0].decode()

    code = main(["check-config", name])

    said = capsys.readouterr()
    assert said.err == f"svcnode: {first_line.removeprefix('# ')}\n"
    assert said.out == ""
    assert code == 2
