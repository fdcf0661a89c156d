"""Finds all mutants of the source: each replaces one expression."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    path: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    start: int  # bytes
    end: int
    at_import: bool
    ordinal: int = 0

    @property
    def package(self) -> str:
        parts = Path(self.path).parts
        return parts[2] if len(parts) > 3 else "(top level)"

    def rank(self, seed: int) -> str:
        key = (seed, self.path, self.function, self.operator, self.before, self.after, self.ordinal)
        return hashlib.sha256(repr(key).encode()).hexdigest()


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.In: ast.NotIn}
COMPARISONS |= {after: before for before, after in COMPARISONS.items()}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Mult: ast.FloorDiv}
ARITHMETIC |= {ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift}
ARITHMETIC |= {after: before for before, after in ARITHMETIC.items()} | {ast.Div: ast.Mult, ast.Mod: ast.Mult}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
TYPE_CALLS = {"TypeVar", "ParamSpec", "NewType", "assert_never", "getLogger"}
Change = tuple[str, ast.expr, str]


def changes(node: ast.AST) -> Iterator[Change]:
    """What can be changed at this node: the operator, the expression, and what replaces it."""
    match node:
        case ast.Constant():
            yield from constant_changes(node)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", value, "None"
        case ast.If() | ast.While() | ast.IfExp() if not (isinstance(node.test, ast.Constant) or is_for_types(node)):
            yield "condition", node.test, "True"
            yield "condition", node.test, "False"
        case ast.comprehension():
            yield from (("condition", test, "True") for test in node.ifs)
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call()) as value):
            yield "call", value, "None"
        case _:
            yield from operator_changes(node)


def operator_changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                ops = [*node.ops[:number], COMPARISONS[type(operator)](), *node.ops[number + 1 :]]
                yield "comparison", node, ast.unparse(ast.Compare(node.left, ops, node.comparators))
        case ast.BoolOp():
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, ast.unparse(ast.BoolOp(swapped, node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, ast.unparse(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            yield "arithmetic", node, ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        case _:
            pass


def constant_changes(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", node, str(not value)
    elif isinstance(value, int | float):
        yield "constant", node, repr(value + 1)
    elif isinstance(value, str):
        yield "constant", node, repr(value + "?")
    elif isinstance(value, bytes):
        yield "constant", node, repr(value + b"?")


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that do something: no annotations, decorators or patterns."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from node.body
        case ast.Lambda():
            yield node.body
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            yield cast("ast.expr", node.value)
        case ast.If() if is_for_types(node):
            yield from node.orelse
        case ast.match_case():
            yield from node.body
            yield from [] if node.guard is None else [node.guard]
        case ast.Call(func=ast.Name(id="cast")):
            yield from node.args[1:]
        case _:
            yield from ast.iter_child_nodes(node)


def is_ignored(node: ast.AST, *, at_import: bool) -> bool:
    """Docstrings, log messages, declarations of types, and f-strings, whose parts Python 3.11 does not locate."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.Expr(value=ast.Call() as call) | (ast.Call() as call):
            name = ast.unparse(call.func)
            method = name.rpartition(".")[2]
            return method in TYPE_CALLS or ("log" in name.lower() and method in LOG_METHODS)
        case ast.AnnAssign():
            return node.value is None or ast.unparse(node.annotation) == "TypeAlias"
        case ast.Assign():
            return at_import and is_declaration(node)
        case _:
            return False


def is_for_types(node: ast.If | ast.While | ast.IfExp) -> bool:
    return ast.unparse(node.test).endswith("TYPE_CHECKING")


def is_declaration(node: ast.Assign) -> bool:
    """`__all__`, `__slots__`, and aliases of types such as `Pair = A | B` and `Names = dict[str, int]`."""
    if ast.unparse(node.targets[0]) in ("__all__", "__slots__", "__version__"):
        return True
    return isinstance(node.value, ast.Subscript) or isinstance(getattr(node.value, "op", None), ast.BitOr)


class Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._ordinals: Counter[tuple[str, ...]] = Counter()
        self.found: list[Mutant] = []
        self._visit(ast.parse(source), (), at_import=True)

    def _visit(self, node: ast.AST, scope: tuple[str, ...], *, at_import: bool) -> None:
        if is_ignored(node, at_import=at_import):
            return
        for change in changes(node):
            self._add(change, scope, at_import=at_import)
        inner = at_import
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self._visit(default, scope, at_import=at_import)
            inner = False
        for child in children(node):
            self._visit(child, scope, at_import=inner)

    def _add(self, change: Change, scope: tuple[str, ...], *, at_import: bool) -> None:
        operator, node, after = change
        before, function = ast.unparse(node), ".".join(scope)
        key = (function, operator, before, after)
        self.found.append(
            Mutant(
                path=self._path,
                line=node.lineno,
                function=function,
                operator=operator,
                before=before,
                after=after,
                start=self._lines[node.lineno - 1] + node.col_offset,
                end=self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
                at_import=at_import,
                ordinal=self._ordinals[key],
            )
        )
        self._ordinals[key] += 1


def find_mutants(tree: Path) -> list[Mutant]:
    files = sorted((tree / "src" / "svcnode").rglob("*.py"))
    return [one for file in files for one in Finder(str(file.relative_to(tree)), file.read_bytes()).found]
