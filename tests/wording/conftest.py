"""Snapshots of texts. `make wording` writes them again; the diff is what a reviewer reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from svcnode.core import redaction

SNAPSHOTS = Path(__file__).parent / "snapshots"
Snapshot = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that one test registers must not be redacted in another."""
    monkeypatch.setattr(redaction, "_secrets", {})
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """Compares a text with `snapshots/<test module>/<name>.txt`."""
    folder = SNAPSHOTS / Path(request.node.path).stem.removeprefix("test_")

    def compare(name: str, text: str) -> None:
        file = folder / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-wording"):
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"no snapshot {file}; run `make wording` to write it"
        assert text == file.read_text(encoding="utf-8"), f"{file} differs; run `make wording` if the new text is meant"

    return compare
