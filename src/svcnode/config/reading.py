"""Reads the declared tables of a source; every error is reported, and reading goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from svcnode.config.tables import TABLES
from svcnode.core.text import closest_match, suggestion, type_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from svcnode.config.keys import AnyTable, KeyPath, Table
    from svcnode.config.sources import Source


class Tables:
    """The tables of a source. Each is read when it is first needed, and its errors are reported."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._read: dict[str, Table] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.source.data

    def get(self, table: type[AnyTable]) -> AnyTable:
        """The table; an empty one if it is not given."""
        name = _NAMES[table]
        if name not in self._read:
            self._read[name] = read_table(table, self.source.data.get(name, {}), (name,), self.source)
        return cast("AnyTable", self._read[name])


_NAMES = {table: name for name, table in TABLES.items()}


def read_table(
    table: type[AnyTable], given: object, path: KeyPath, source: Source, only: Collection[str] | None = None
) -> AnyTable:
    """Reports every error to the source. With `only`, other keys are not read, and their errors are ignored."""
    if not isinstance(given, dict):
        source.report(path, f"must be a table, not {type_name(given)}")
        read = table({})
        read.wrong.update(table.keys)
        return read
    read = table(given)
    for name, written in given.items():
        if name not in table.keys:
            _report_unknown(read, name, path, source, only)
        elif only is None or name in only:
            _read_key(read, name, written, path, source)
    for name, key in table.keys.items():
        if key.is_required and name not in given and name not in read.wrong:
            source.report(path, f'missing key "{name}"')
            read.wrong.add(name)
    return read


def _read_key(read: Table, name: str, written: object, path: KeyPath, source: Source) -> None:
    key, path = read.keys[name], (*path, name)
    if key.table is not None:
        inner = read_table(key.table, written, path, source)
        setattr(read, name, inner)
        if inner.wrong:
            read.wrong.add(name)
        return
    is_right = False
    with source.reporting(*path):
        setattr(read, name, key.value_from(written, source.environ))
        is_right = True
    if not is_right:
        read.wrong.add(name)


def _report_unknown(read: Table, name: str, path: KeyPath, source: Source, only: Collection[str] | None) -> None:
    meant = closest_match(name, read.keys)
    if only is not None and meant not in only:
        return
    from svcnode.config.places import unknown_key_text  # needed only for errors

    text = read.retired.get(name) or unknown_key_text(name, suggestion(name, read.keys), read)
    source.report((*path, name), text)
    read.wrong.add(meant or name)


def read_tables(table: type[AnyTable], given: object, path: KeyPath, source: Source) -> list[AnyTable]:
    """A list of tables, such as [[services]]."""
    if not isinstance(given, list):
        source.report(path, f"must be a list, not {type_name(given)}")
        return []
    return [read_table(table, written, (*path, index), source) for index, written in enumerate(given)]
