"""Checks the keys and types of a configuration against the schema; raises the first error.

No validation library: importing one takes longer than the rest of the start, and its messages lack line and fix.
"""

from __future__ import annotations

import math
import types
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints, is_typeddict

from svcnode.config.schema import DURATION_KEYS, OTHER_DURATION_KEYS, FileTable, KeyPath
from svcnode.core.model import RETIRED_KEYS
from svcnode.core.text import TYPE_NAMES, closest_match, suggestion, type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from svcnode.config.sources import Source


def validate_file(source: Source) -> FileTable:
    validate_value(source.data, FileTable, (), source)
    return cast("FileTable", source.data)


def validate_keys(source: Source, keys_by_table: Mapping[str, Collection[str] | None]) -> FileTable:
    """Validates and returns only these keys (None: all keys of the table); errors elsewhere are ignored."""
    hints = get_type_hints(FileTable)
    tables = [table for table in keys_by_table if table in source.data]
    return cast(
        "FileTable", {table: _validate_part(hints[table], keys_by_table[table], table, source) for table in tables}
    )


def _validate_part(table: Any, keys: Collection[str] | None, name: str, source: Source) -> dict[str, Any]:  # noqa: ANN401  a TypedDict
    values, known = source.data[name], get_type_hints(table)
    if keys is None:
        _check_table(values, table, (name,), source)
        return cast("dict[str, Any]", values)
    _check_type(values, (dict,), (name,), source)
    for key in values.keys() - known.keys():
        if closest_match(key, known) in keys:  # probably a misspelt key that is needed
            raise source.error((name, key), f"unknown key{suggestion(key, known)}")
    part = {key: values[key] for key in keys if key in values}
    for key, value in part.items():
        validate_value(value, known[key], (name, key), source)
    return part


def validate_value(value: object, hint: Any, path: KeyPath, source: Source) -> None:  # noqa: ANN401  a type hint
    if is_typeddict(hint):
        _check_table(value, hint, path, source)
    elif get_origin(hint) is Literal:
        _check_choice(value, get_args(hint), path, source)
    elif isinstance(hint, types.UnionType):
        matching = [option for option in get_args(hint) if type(value) is (get_origin(option) or option)]
        _check_type(value, get_args(hint), path, source)
        validate_value(value, matching[0], path, source)
    else:
        _check_type(value, (hint,), path, source)
        if isinstance(value, list):
            for index, item in enumerate(value):
                validate_value(item, get_args(hint)[0], (*path, index), source)


def _check_table(value: object, table: Any, path: KeyPath, source: Source) -> None:  # noqa: ANN401  a TypedDict
    _check_type(value, (dict,), path, source)
    assert isinstance(value, dict), "just checked"
    known = get_type_hints(table)
    for key, inner in value.items():
        if key not in known:
            is_retired = key in RETIRED_KEYS and "tolerance" in known
            text = RETIRED_KEYS[key] if is_retired else f"unknown key{suggestion(key, known)}"
            raise source.error((*path, key), text)
        validate_value(inner, known[key], (*path, key), source)
    for key in sorted(table.__required_keys__ - value.keys()):
        raise source.error(path, f'missing key "{key}"')


def _check_choice(value: object, choices: tuple[str, ...], path: KeyPath, source: Source) -> None:
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        by_lower_case = {choice.lower(): choice for choice in choices}
        near = closest_match(str(value).lower(), by_lower_case)
        hint = f'; did you mean "{by_lower_case[near]}"?' if near else ""
        raise source.error(path, f'must be one of {listed}, not "{value}"{hint}')


def _check_type(value: object, hints: tuple[Any, ...], path: KeyPath, source: Source) -> None:
    allowed = [get_origin(hint) or hint for hint in hints]
    if type(value) not in allowed:
        names = " or ".join(TYPE_NAMES[allowed_type] for allowed_type in allowed)
        raise source.error(path, f"must be {names}, not {type_name(value)}{_unit_hint(value, path)}")


def _unit_hint(value: object, path: KeyPath) -> str:
    is_bare_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    unit = {**dict.fromkeys(DURATION_KEYS, "s"), **OTHER_DURATION_KEYS}.get(str(path[-1])) if is_bare_number else None
    return f'; write "{value}{unit}"' if unit else ""
