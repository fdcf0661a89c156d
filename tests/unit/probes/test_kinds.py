"""Rules for every kind, so that a new one needs only a file and a row in the table."""

from __future__ import annotations

import ast
from pathlib import Path

from svcnode import probes
from svcnode.probes import KINDS

KIND_MODULES = {target.partition(":")[0] for target in KINDS.values()}


def imported_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


# A Sentinel names a Redis server, which is checked as the other kind does. A subscription needs a client that is ready.
EXTENDED = {"redis_sentinel": {"svcnode.probes.redis"}, "ethereum_ws": {"svcnode.probes.ethereum"}}


def test_no_module_imports_a_kind_that_it_does_not_extend() -> None:
    for path in Path(probes.__file__).parent.glob("*.py"):
        assert imported_by(path) & KIND_MODULES == EXTENDED.get(path.stem, set()), path
