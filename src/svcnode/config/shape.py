"""Holds what was read against the tables, and words what does not fit.

msgspec checks, and stops at the first fault. Its messages speak of types and JSON paths, such as "Expected `int`, got
`str` - at `$.services[0].fall`"; here they become sentences for whoever wrote the file.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import msgspec

from svcnode.config.tables import DURATION_KEYS, FileTable, KeyPath, choices_in, hint_of, table_at

if TYPE_CHECKING:
    from svcnode.config.sources import Source
    from svcnode.core.errors import ConfigError

_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def shaped(source: Source) -> FileTable:
    try:
        return msgspec.convert(source.data, FileTable)
    except msgspec.ValidationError as exc:
        raise _error_from(str(exc), source) from None


def _error_from(message: str, source: Source) -> ConfigError:
    what, _, where = message.partition(" - at `")
    path = _key_path(where)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        key = unknown.group(1)
        return source.error((*path, key), f"unknown key{_near_key(path, key)}")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return source.error(path, f"{missing.group(1)} is missing")
    if mistyped := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
        expected, got = map(_kinds, mistyped.groups())
        return source.error(path, f"must be {expected}, not {got}{_unit_hint(path, source)}")
    if re.match(r"Invalid enum value", what):
        return source.error(path, _choose(path, str(source.value_at(path))))
    return source.error(path, what)


def _key_path(where: str) -> KeyPath:
    """`$.services[0].fall` as ("services", 0, "fall")."""
    found = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", where)
    return tuple(int(index) if index else key for key, index in found)


def _near_key(path: KeyPath, key: str) -> str:
    known = table_at(path).__struct_fields__
    near = difflib.get_close_matches(key, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else f"; known ones: {', '.join(sorted(known))}"


def _kinds(names: str) -> str:
    kinds = (name.strip() for name in names.split("|"))
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds if kind != "null")


def _unit_hint(path: KeyPath, source: Source) -> str:
    value = source.value_at(path)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'; write "{value}s"' if is_number and path[-1] in (*DURATION_KEYS, "drain") else ""


def _choose(path: KeyPath, given: str) -> str:
    choices = choices_in(hint_of(table_at(path[:-1]), str(path[-1])))
    near = difflib.get_close_matches(given.lower(), [choice.lower() for choice in choices], n=1)
    suggestion = next((f'; did you mean "{choice}"?' for choice in choices if choice.lower() in near), "")
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return f'must be one of {listed}, not "{given}"{suggestion}'
