"""What holds for every kind, so that a new one is a file of its own and a row in the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from svcnode import probes

FOLDER = Path(probes.__file__).parent
KIND_FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
TOOL_FILES = sorted((FOLDER / "tools").glob("*.py"))
KIND_MODULES = {f"svcnode.probes.{path.stem}" for path in KIND_FILES}


def imported_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", KIND_FILES, ids=lambda path: path.stem)
def test_no_kind_knows_another(path: Path) -> None:
    assert not imported_by(path) & KIND_MODULES


@pytest.mark.parametrize("path", TOOL_FILES, ids=lambda path: path.stem)
def test_what_the_kinds_share_knows_none_of_them(path: Path) -> None:
    assert not imported_by(path) & KIND_MODULES
    assert "svcnode.probes" not in imported_by(path)


@pytest.mark.parametrize("path", [path for path in KIND_FILES if path.stem != "function"], ids=lambda path: path.stem)
def test_every_kind_says_what_maps_to_which_verdict(path: Path) -> None:
    """A heartbeat is never looked for, so nothing of ours can go wrong in it."""
    says = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "\nready " in says
    assert "\nfailed " in says
    assert "\nunknown " in says or path.stem == "heartbeat"
