"""The declared keys as rows for docs/reference.md, the manual page and the JSON Schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from svcnode.config.tables import TABLES, DefaultsTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.config.keys import Key, Table

FORMS_OF_SECRETS = 'It is a secret, so you can write `${NAME}` or `{ file = "…" }`'


class KeyRow(NamedTuple):
    """In Markdown; links are relative to docs/."""

    table: str  # such as "server.tls"; "" in a list of tables
    key: str
    default: str
    meaning: str


def plain_text(markdown: str) -> str:
    """The text without the links and marks of Markdown."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", markdown).replace("`", "")


def file_rows() -> Iterator[KeyRow]:
    """The keys of all tables except [defaults], which [fleet] also has, and the lists of tables."""
    for name, table in TABLES.items():
        if table is not DefaultsTable:
            yield from table_rows(table, name)


def table_rows(table: type[Table], name: str = "") -> Iterator[KeyRow]:
    for key_name, key in table.keys.items():
        if key.table is not None:
            yield from table_rows(key.table, f"{name}.{key_name}")
        elif not name or key_name not in DefaultsTable.keys:
            yield KeyRow(name, key_name, _default(key), f"{key.doc}. {FORMS_OF_SECRETS}" if key.is_secret else key.doc)


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    if key.default is None:
        return key.default_text
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
