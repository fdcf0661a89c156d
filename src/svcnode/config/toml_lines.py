"""The line of a key in a TOML text. tomllib, which reads the values, does not report lines.

The text is valid TOML, so the start of a statement identifies it: the brackets of a table header, or a key. The scan
skips the rest of the statement (strings, comments, brackets) up to the line break that ends it. For a key inside an
inline table, the line of the enclosing key is used.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from svcnode.config.keys import KeyPath

_SHORT_STRING = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
# One or two quotes are allowed before the three that end the string.
_LONG_STRING = r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|''' + r"""'''(?:[^']|'{1,2}(?!'))*'{3,5}"""
_KEY = rf"(?:[A-Za-z0-9_-]+|{_SHORT_STRING})"
_STATEMENT_START = re.compile(rf"[ \t]*(\[{{0,2}})[ \t]*({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)")
_TOKEN = re.compile(rf"{_LONG_STRING}|{_SHORT_STRING}|#[^\n]*|[\[\]{{}}\n]", re.DOTALL)


class TomlLines:
    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        self._tables_in_array: dict[KeyPath, int] = {}
        self._scan(text)

    def line_of(self, path: KeyPath) -> int | None:
        """The first line with the key, or with the nearest enclosing key."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return None

    def _scan(self, text: str) -> None:
        table: KeyPath = ()
        line, start, depth = 1, 0, 0
        for token in _TOKEN.finditer(text + "\n"):
            if token[0] in "[{":
                depth += 1
            elif token[0] in "]}":
                depth -= 1
            elif token[0] == "\n" and not depth:
                if match := _STATEMENT_START.match(text, start):
                    table = self._record_statement(match, line, table)
                line += text.count("\n", start, token.end())
                start = token.end()

    def _record_statement(self, match: re.Match[str], line: int, table: KeyPath) -> KeyPath:
        """Records the keys of a statement; returns the table of the statements that follow."""
        brackets, dotted = match.groups()
        keys = _keys(dotted)
        path = self._table_path(keys, is_array=brackets == "[[") if brackets else (*table, *keys)
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)
        return path if brackets else table

    def _table_path(self, keys: list[str], *, is_array: bool) -> KeyPath:
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._current_element((*path, key))
        last: KeyPath = (*path, keys[-1])
        if is_array:
            self._tables_in_array[last] = self._tables_in_array.get(last, 0) + 1
        return self._current_element(last)

    def _current_element(self, path: KeyPath) -> KeyPath:
        """The path of the last table, if the path is an array of tables."""
        count = self._tables_in_array.get(path, 0)
        return (*path, count - 1) if count else path


def first_key(line: str) -> str:
    """The key, or the name of the table, that a line begins with; empty if there is none."""
    match = _STATEMENT_START.match(line)
    try:
        return ".".join(_keys(match[2])) if match else ""
    except tomllib.TOMLDecodeError:  # a wrong escape, such as "\q"
        return ""


def _keys(dotted: str) -> list[str]:
    """The parts of a dotted key, without quotes and escapes."""
    inner: Any = tomllib.loads(f"{dotted} = 0")
    keys = []
    while isinstance(inner, dict):
        ((key, inner),) = inner.items()
        keys.append(key)
    return keys
