"""On which line a key of a TOML text stands; tomllib, which reads the values, does not say.

The text is known to be valid TOML, so this looks only for table headers and for keys at the start of a line. A key
that stands elsewhere, as in an inline table, is placed on the line of the nearest key around it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.config.tables import KeyPath

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER_FORM = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNMENT_FORM = re.compile(rf"\s*({_DOTTED})\s*=")


class TomlLines:
    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        self._tables_in_array: dict[KeyPath, int] = {}
        self._scan(text)

    def line_of(self, path: KeyPath) -> int | None:
        """The line of the key, or of the nearest one around it."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return None

    def _scan(self, text: str) -> None:
        table: KeyPath = ()
        open_quotes = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if not open_quotes:
                table = self._note(line, number, table)
            open_quotes = _quotes_left_open(line, open_quotes)

    def _note(self, line: str, number: int, table: KeyPath) -> KeyPath:
        """Note what a line declares; returns the table that the following lines belong to."""
        if header := _HEADER_FORM.match(line):
            brackets, dotted = header.groups()
            table = self._table(_keys(dotted), is_array=brackets == "[[")
            self._lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT_FORM.match(line):
            self._lines.setdefault((*table, *_keys(assignment.group(1))), number)
        return table

    def _table(self, keys: list[str], *, is_array: bool) -> KeyPath:
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._inside((*path, key))
        last: KeyPath = (*path, keys[-1])
        if not is_array:
            return self._inside(last)
        self._tables_in_array[last] = self._tables_in_array.get(last, 0) + 1
        return self._inside(last)

    def _inside(self, path: KeyPath) -> KeyPath:
        """An array of tables is spoken of through its newest table."""
        count = self._tables_in_array.get(path, 0)
        return (*path, count - 1) if count else path


def _keys(dotted: str) -> list[str]:
    return [key.strip("\"'") for key in re.findall(_KEY, dotted)]


def _quotes_left_open(line: str, open_quotes: str) -> str:
    """Which kind of multi-line string, if any, goes on after this line."""
    for quotes in re.findall(r'"""|' + "'''", line):
        if not open_quotes:
            open_quotes = quotes
        elif quotes == open_quotes:
            open_quotes = ""
    return open_quotes
