"""The JSON Schema of the configuration file, from the tables of the parser, for editors.

`svcnode.schema.json` beside this file is the result: `make wording` writes it. It is more lenient than the parser where
JSON Schema cannot express a rule, or where the rule depends on this machine; it never rejects a valid file.
"""

from __future__ import annotations

import dataclasses
import re
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from svcnode.config.reference import MAINTENANCE_ROWS, SERVICE_ROWS, TABLE_ROWS, KeyRow, plain_text
from svcnode.config.schema import (
    DURATION_KEYS,
    NOTIFY_TARGET_KEYS,
    OTHER_DURATION_KEYS,
    THRESHOLD_KEYS,
    TOLERANCE_KEYS,
    FileTable,
)
from svcnode.core.model import MAX_ID_CHARS, MAX_THRESHOLD, TOKEN_PATTERN
from svcnode.core.option_types import DURATION_SCHEMA, SIZE_SCHEMA, find_option_type
from svcnode.probes import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]

FILE = Path(__file__).with_name("svcnode.schema.json")
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_SECRET = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"file": {"type": "string"}},
            "required": ["file"],
            "additionalProperties": False,
        },
    ]
}
_VARIABLE = {"type": "string", "pattern": r"\$\{"}  # a text whose value is known at the start only
_URL = {"anyOf": [{"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:"}, _VARIABLE, {"$ref": "#/$defs/file"}]}
_FILE = _SECRET["anyOf"][1]
_NO_CONTROL_CHARS = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"
_LINE = {"type": "string", "pattern": _NO_CONTROL_CHARS}
_NOT_EMPTY = {**_LINE, "minLength": 1}
_TOKEN = {"anyOf": [{"type": "string", "pattern": f"^{TOKEN_PATTERN.pattern}$"}, _VARIABLE, {"$ref": "#/$defs/file"}]}
_LONGER_THAN_ZERO = {**DURATION_SCHEMA, "not": {"pattern": r"^\s*[0.]+[a-z]"}}


def _one_or_list(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "uniqueItems": True}]}


_COUNT = {"type": "integer", "minimum": 0, "maximum": MAX_THRESHOLD}
_KEYS: dict[str, Schema] = {
    **dict.fromkeys(DURATION_KEYS, _LONGER_THAN_ZERO),
    **dict.fromkeys(("start_period", *OTHER_DURATION_KEYS), DURATION_SCHEMA),
    **{key: {**_COUNT, "minimum": 1} for key in THRESHOLD_KEYS},
    "tolerance": {"type": "string", "pattern": "^(off|[0-9]{1,4}/[0-9]{1,4})$"},
    "max_size": SIZE_SCHEMA,
    "operator_token": _TOKEN,
    "push_token": _TOKEN,
    "probe": {"$ref": "#/$defs/probe"},
    "id": {**_LINE, "minLength": 1, "maxLength": MAX_ID_CHARS, "not": {"enum": [".", ".."]}},
    "description": {"type": "string"},
}
# By the table and the key.
_KEYS_OF_TABLES: dict[str, Schema] = {
    "node.name": {**_LINE, "minLength": 1},
    "node.version": {"type": "string", "pattern": r"^v[0-9]+(\.[0-9]+)*$"},
    "server.listen": _one_or_list(_NOT_EMPTY),
    "server.operator_listen": _one_or_list(_NOT_EMPTY),
    "server.prefix": _one_or_list({"type": "string", "pattern": "^/?$|^/[^?#]|,"}),
    "server.cors": _one_or_list(_NOT_EMPTY),
    "server.tls.certificate": _NOT_EMPTY,
    "server.tls.key": _NOT_EMPTY,
    "store.path": _NOT_EMPTY,
    "history.path": _NOT_EMPTY,
    "control.listen": {"type": "string", "pattern": "^unix:."},
    "control.path": _NOT_EMPTY,
}
# A service is checked, or has a fixed status, or sends heartbeats; only a service that is checked has a schedule.
_HEARTBEAT_URL = {"type": "string", "pattern": "^heartbeat:"}
_SENDS_HEARTBEATS = {
    "properties": {
        "probe": {
            "anyOf": [_HEARTBEAT_URL, {"type": "object", "properties": {"url": _HEARTBEAT_URL}, "required": ["url"]}]
        }
    },
    "required": ["probe"],
}
_SERVICE_RULES = {
    "oneOf": [{"required": ["probe"]}, {"required": ["status"]}],
    "if": {"anyOf": [{"required": ["status"]}, _SENDS_HEARTBEATS]},
    "then": {"properties": dict.fromkeys((*DURATION_KEYS, *THRESHOLD_KEYS, *TOLERANCE_KEYS), False)},
    "dependentSchemas": {"push_token": {"not": {"required": ["status"]}}},
}


def build_schema() -> Schema:
    table_of_the_file = _table_schema(FileTable, _descriptions(TABLE_ROWS))
    table_of_the_file["properties"]["services"]["items"] |= _SERVICE_RULES
    table_of_the_file["properties"]["notify"]["anyOf"] = [{"required": [key]} for key in NOTIFY_TARGET_KEYS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "svcnode.toml",
        "description": "The configuration of a svcnode node",
        **table_of_the_file,
        "$defs": {"file": _FILE, "secret": _SECRET, "probe": _probe_schema()},
    }


# ---- tables


def _descriptions(rows: tuple[KeyRow, ...]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in rows:
        default = f" Default: {plain_text(row.default)}." if row.default not in ("", "required") else ""
        texts |= dict.fromkeys(row.keys, f"{plain_text(row.meaning)}.{default}".removeprefix(".").strip())
    return texts


def _table_schema(table: Any, descriptions: dict[str, str], path: str = "") -> Schema:  # noqa: ANN401  a TypedDict
    properties = {}
    for key, hint in get_type_hints(table).items():
        schema = _key_schema(key, hint, descriptions, f"{path}{key}.")
        text = descriptions.get(f"{path}{key}")
        properties[key] = {**schema, "description": text} if text else schema
    required = sorted(table.__required_keys__)
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _key_schema(key: str, hint: Any, descriptions: dict[str, str], path: str) -> Schema:  # noqa: ANN401  a type hint
    if is_typeddict(hint):
        return _table_schema(hint, _descriptions(SERVICE_ROWS) if key == "defaults" else descriptions, path)
    if schema := _KEYS_OF_TABLES.get(path.removesuffix(".")) or _KEYS.get(key):
        return dict(schema)
    if get_origin(hint) is list and is_typeddict(get_args(hint)[0]):
        rows = {"services": SERVICE_ROWS, "maintenance": MAINTENANCE_ROWS}.get(key, ())
        return {"type": "array", "items": _table_schema(get_args(hint)[0], _descriptions(rows))}
    return _value_schema(hint)


def _value_schema(hint: Any) -> Schema:  # noqa: ANN401  a type hint
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if isinstance(hint, types.UnionType):
        return {"anyOf": [_value_schema(option) for option in get_args(hint)]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _value_schema(get_args(hint)[0])}
    return {"type": _TYPES[get_origin(hint) or hint]}


# ---- probes


def _probe_schema() -> Schema:
    """A URL, a file with the URL, or a table whose options depend on the scheme. Other packages may add schemes."""
    schemes_by_kind: dict[str, list[str]] = {}
    for scheme, target in KINDS.items():
        schemes_by_kind.setdefault(target.partition(" ")[0], []).append(scheme)
    return {
        "if": {"type": "object", "required": ["url"]},
        "then": {
            "properties": {"url": _URL},
            "allOf": [_kind_schema(target, schemes) for target, schemes in schemes_by_kind.items()],
        },
        "else": {"allOf": [_URL, *_needs_a_table(schemes_by_kind)]},
    }


def _needs_a_table(schemes_by_kind: Mapping[str, list[str]]) -> Iterator[Schema]:
    """A kind with a required option cannot be written as a URL alone."""
    for target, schemes in schemes_by_kind.items():
        if "required" in _options_schema(target):
            yield {"not": {"type": "string", "pattern": _scheme_pattern(schemes)}}


def _scheme_pattern(schemes: list[str]) -> str:
    return f"^({'|'.join(map(re.escape, schemes))}):"


def _kind_schema(target: str, schemes: list[str]) -> Schema:
    return {
        "if": {"properties": {"url": {"type": "string", "pattern": _scheme_pattern(schemes)}}},
        "then": _options_schema(target),
    }


def _options_schema(target: str) -> Schema:
    module, _, name = target.partition(":")
    kind = getattr(import_module(module), name)
    hints = get_type_hints(kind, include_extras=True)
    options = {field.name: field for field in dataclasses.fields(kind) if field.init and field.name != "url"}
    required = [name for name, field in options.items() if _is_required(field)]
    return {
        "properties": {"url": True, **{name: _option_schema(hints[name]) for name in options}},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _option_schema(hint: Any) -> Schema:  # noqa: ANN401  a type hint
    """A text may also come from a file or, in part, from a variable."""
    schema = _type_schema(hint)
    if schema.get("type") == "string" and "pattern" not in schema:
        return {"anyOf": [schema, {"$ref": "#/$defs/file"}]}
    is_text = schema.get("type") == "string" or "enum" in schema or "anyOf" in schema
    return {"anyOf": [schema, _VARIABLE, {"$ref": "#/$defs/file"}]} if is_text else schema


def _type_schema(hint: Any) -> Schema:  # noqa: ANN401  a type hint
    if isinstance(hint, types.UnionType) or str(get_origin(hint)) == "typing.Union":
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    if get_origin(hint) is Annotated:
        return dict(find_option_type(get_args(hint)[1]).schema)
    return {"type": _TYPES[hint]}
