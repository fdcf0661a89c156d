"""Rules for every kind, so that a new one needs only a file and a row in the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from svcnode import net, probes
from svcnode.probes import KINDS

KIND_MODULES = {target.partition(":")[0] for target in KINDS.values()}
KIND_FILES = sorted(Path(probes.__file__).parent / f"{module.rpartition('.')[2]}.py" for module in KIND_MODULES)
SHARED_FILES = sorted(set(Path(probes.__file__).parent.glob("*.py")) - set(KIND_FILES))
NET_FILES = sorted(Path(net.__file__).parent.glob("*.py"))


def imported_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


# A Sentinel names a Redis server, which is checked as the other kind does.
EXTENDED = {"redis_sentinel": {"svcnode.probes.redis"}}


@pytest.mark.parametrize("path", KIND_FILES, ids=lambda path: path.stem)
def test_no_kind_imports_another(path: Path) -> None:
    assert imported_by(path) & KIND_MODULES == EXTENDED.get(path.stem, set())


@pytest.mark.parametrize("path", SHARED_FILES, ids=lambda path: path.stem)
def test_shared_modules_import_no_kind(path: Path) -> None:
    assert not imported_by(path) & KIND_MODULES


@pytest.mark.parametrize("path", NET_FILES, ids=lambda path: path.stem)
def test_net_imports_no_probes(path: Path) -> None:
    assert not any(name.startswith("svcnode.probes") for name in imported_by(path))


@pytest.mark.parametrize("path", KIND_FILES, ids=lambda path: path.stem)
def test_the_docstring_of_every_kind_lists_its_verdicts(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "\nready " in docstring
    assert "\nfailed " in docstring
    assert "\nunknown " in docstring or path.stem == "heartbeat"
