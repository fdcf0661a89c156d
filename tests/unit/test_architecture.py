"""The structure that a reader relies on: unique class names, no import circles, one implementation per job."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import svcnode

PACKAGE = Path(svcnode.__file__).parent

# The modules that may use a name: everything else calls them.
USED_ONLY_IN: dict[str, set[str]] = {
    "urlsplit": set(),  # core.url parses URLs
    "urlparse": set(),
    "unicode_escape": {"svcnode.core.text"},  # escapes control characters
    "setrlimit": {"svcnode.net.fd_limit"},
    "wrap_future": {"svcnode.client.resolver_loop", "svcnode.net.threads"},
}
FORMATTER_OF_DURATIONS = re.compile("_?format_(?:[a-z]+_)?(?:duration|latency|seconds|ms)")


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(("svcnode", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of the package that a module imports: at the top, late, or for types only."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            targets = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (targets & known) or {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting.extend(graph[module])
    return seen


def test_no_class_name_is_defined_twice() -> None:
    owners = defaultdict(list)
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(name)
    clients = {"Client", "AsyncClient"}  # of the interface in svcnode, of the control socket in svcnode.control
    assert {name: found for name, found in owners.items() if len(found) > 1 and name not in clients} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    trees = modules()
    graph = {name: imports(tree, set(trees)) - {name} for name, tree in trees.items()}
    assert {name for name in graph if name in reachable(name, graph)} == set()


def used_names(tree: ast.Module) -> set[str]:
    """Names, attributes, imported names and texts."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                found.add(name)
            case _:
                pass
    return found


def test_what_one_module_does_is_not_written_again_in_another() -> None:
    users: dict[str, set[str]] = {name: set() for name in USED_ONLY_IN}
    for module, tree in modules().items():
        for name in used_names(tree) & users.keys():
            users[name].add(module)
    assert users == USED_ONLY_IN


def test_durations_are_formatted_in_one_module() -> None:
    owners = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and FORMATTER_OF_DURATIONS.fullmatch(node.name)
    }
    assert owners == {"svcnode.core.units"}
