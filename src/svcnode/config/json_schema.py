"""The JSON Schema of the configuration file, from the declared keys and the options of probes, for editors.

`svcnode.schema.json` beside this file is the result: `make wording` writes it. It is more lenient than the parser where
JSON Schema cannot express a rule, or where the rule depends on this machine; it never rejects a valid file.
"""

from __future__ import annotations

import dataclasses
import re
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from svcnode.config.reference import plain_text, table_rows
from svcnode.config.routes import RouteOptions
from svcnode.config.tables import (
    LISTS,
    OBSERVER_KEYS,
    TABLES,
    TIMING_KEYS,
    ServiceTable,
)
from svcnode.core.option_types import schema_of
from svcnode.net.http1 import Http1Client
from svcnode.net.tls import TlsOptions
from svcnode.notify.targets import PROBE_ONLY_OPTIONS
from svcnode.probes import KINDS
from svcnode.probes.options import is_required
from svcnode.probes.session import LoginProbe
from svcnode.probes.svc import SvcProbe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.config.keys import Key, Table
    from svcnode.core.option_types import Schema

ID = "urn:svcnode:configuration"
FILE = Path(__file__).with_name("svcnode.schema.json")
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_FILE = {
    "type": "object",
    "properties": {"file": {"type": "string", "minLength": 1}},
    "required": ["file"],
    "additionalProperties": False,
}
_FROM_FILE = {"$ref": "#/$defs/file"}
_VARIABLE = {"type": "string", "pattern": r"\$\{[^}]*\}"}  # a text whose value is known at the start only
_UNCLOSED_VARIABLE = r"(^|[^$])\$\{[^}]*$"
_TLS_OPTIONS = ("ca", "server_name", "client_certificate", "client_key", "min_cert_days")

# ---- rules about several keys

# A service is checked, or has a fixed status, or sends heartbeats; only a service that is checked has a schedule.
_HEARTBEAT_URL = {"type": "string", "pattern": "^heartbeat:"}
_OTHER_URL = {"type": "string", "pattern": "^(?!heartbeat:)[a-z][a-z0-9+.-]*:"}


def _has_probe(url: Schema) -> Schema:
    as_table = {"type": "object", "properties": {"url": url}, "required": ["url"]}
    return {"properties": {"probe": {"anyOf": [url, as_table]}}, "required": ["probe"]}


_SERVICE_RULES = {
    "oneOf": [{"required": ["probe"]}, {"required": ["status"]}],
    "if": {"anyOf": [{"required": ["status"]}, _has_probe(_HEARTBEAT_URL)]},
    "then": {"properties": dict.fromkeys((*TIMING_KEYS, *OBSERVER_KEYS), False)},
    "dependentSchemas": {"push_token": {"not": {"anyOf": [{"required": ["status"]}, _has_probe(_OTHER_URL)]}}},
}
_FILE_RULES = {
    "allOf": [
        {
            "if": {"required": ["sharing"]},
            "then": {"properties": {"node": {"required": ["name"]}, "fleet": False}, "required": ["node"]},
            "else": {"properties": {"services": {"items": {"properties": dict.fromkeys(OBSERVER_KEYS, False)}}}},
        },
        {  # without a token, loopback is trusted, or there is no operator surface
            "not": {
                "properties": {
                    "security": {
                        "properties": {"trust_loopback": {"const": False}, "operator_token": False},
                        "required": ["trust_loopback"],
                    },
                    "server": {"properties": {"operator": {"const": True}}},
                },
                "required": ["security"],
            }
        },
        {
            "if": {"required": ["fleet"]},
            "then": {"properties": {"services": {"items": {"properties": {"id": {"not": {"const": "fleet"}}}}}}},
        },
    ]
}


def build_schema() -> Schema:
    properties = {
        **{name: _table_schema(table) for name, table in TABLES.items()},
        **{name: {"type": "array", "items": _table_schema(table)} for name, table in LISTS.items()},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "svcnode.toml",
        "description": "The configuration of a svcnode node",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **_FILE_RULES,
        "$defs": {
            "file": _FILE,
            "probe": _probe_schema(),
            "fleet_probe": _without(_options_schema(SvcProbe), "url", "service"),
            "http_target": _http_target_schema(),
            "http_route": _http_target_schema(_route_schema()),
            "apprise_target": _apprise_target_schema(),
        },
    }


# ---- tables


def _table_schema(table: type[Table]) -> Schema:
    descriptions = {row.key: row for row in table_rows(table)}
    properties: Schema = {}
    for name, key in table.keys.items():
        properties[name] = _table_schema(key.table) if key.table is not None else _key_schema(key)
        if name in descriptions:
            row = descriptions[name]
            default = f" Default: {plain_text(row.default)}." if row.default not in ("", "required") else ""
            properties[name]["description"] = f"{plain_text(row.meaning)}.{default}"
    required = [name for name, key in table.keys.items() if key.is_required]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **table.rules,
        **(_SERVICE_RULES if table is ServiceTable else {}),
    }


def _key_schema(key: Key) -> Schema:
    schema = schema_of(key.parse)
    if key.is_secret:
        schema = {**_text_or_file(schema), "writeOnly": True}
    return schema if key.default is None else {**schema, "default": key.default}


def _text_or_file(schema: Schema) -> Schema:
    """A text that may also come from a file or, in part, from a variable."""
    return {"anyOf": [schema, _VARIABLE, _FROM_FILE], "not": {"type": "string", "pattern": _UNCLOSED_VARIABLE}}


# ---- probes


def _probe_schema() -> Schema:
    """A URL, a file with the URL, or a table whose options depend on the scheme. Other packages may add schemes."""
    url = _text_or_file({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:[^\\x00-\\x1f\\x7f]*$"})
    kinds = list(_kinds())
    return {
        "if": {"type": "object", "required": ["url"]},
        "then": {
            "properties": {"url": url},
            "allOf": [
                {"if": {"properties": {"url": _scheme(schemes)}}, "then": _table_of_kind(kind, schemes)}
                for kind, schemes in kinds
            ],
        },
        "else": {
            "allOf": [
                url,
                *({"if": _scheme(schemes), "then": _url_of_kind(kind)} for kind, schemes in kinds),
            ]
        },
    }


def _kinds() -> Iterator[tuple[type, list[str]]]:
    """Each kind with its schemes. Schemes with TLS are separate from those without."""
    schemes_by_kind: dict[tuple[str, bool], list[str]] = {}
    for scheme, target in KINDS.items():
        path = target.partition(" ")[0]
        schemes_by_kind.setdefault((path, _uses_tls(_load(path), scheme)), []).append(scheme)
    for (path, _), schemes in schemes_by_kind.items():
        yield _load(path), schemes


def _load(path: str) -> type:
    module, _, name = path.partition(":")
    kind: type = getattr(import_module(module), name)
    return kind


def _scheme(schemes: list[str]) -> Schema:
    """A URL with one of these schemes, and without a variable."""
    return {"type": "string", "pattern": rf"^({'|'.join(map(re.escape, schemes))}):(?!.*\$\{{)"}


def _url_of_kind(kind: Any) -> Schema:  # noqa: ANN401  a kind of probes
    """A probe that is only a URL."""
    if any(is_required(field) for field in _options(kind).values()):
        return {"type": "object"}  # its required option needs a table
    return {"pattern": f"^[^:]+:{kind.url_form.pattern(is_alone=True)}$"}


def _table_of_kind(kind: Any, schemes: list[str]) -> Schema:  # noqa: ANN401  a kind of probes
    schema = _options_schema(kind)
    schema["properties"]["url"] = {"pattern": f"^[^:]+:{kind.url_form.pattern()}$"}
    rules = list(_rules_of_kind(kind, schemes))
    return {**schema, **({"allOf": rules} if rules else {})}


def _rules_of_kind(kind: Any, schemes: list[str]) -> Iterator[Schema]:  # noqa: ANN401  a kind of probes
    options = _options(kind)
    if issubclass(kind, TlsOptions) and not _uses_tls(kind, schemes[0]):
        without_tls: Schema = {"properties": dict.fromkeys((name for name in _TLS_OPTIONS if name in options), False)}
        if "tls" in options:
            yield {"if": {"not": {"properties": {"tls": {"const": True}}, "required": ["tls"]}}, "then": without_tls}
        elif "sslmode" not in options:
            yield without_tls
    if "client_key" in options:
        yield {"dependentRequired": {"client_key": ["client_certificate"]}}
    if issubclass(kind, LoginProbe) or {"username", "password"} <= options.keys():
        yield _not_twice("username", r"//[^/?#@:]+(:[^/?#]*)?@")
        yield _not_twice("password", r"//[^/?#@:]*:[^/?#]+@")
    if {"query", "require"} <= options.keys():
        for option in ("require", "starting"):
            is_set = {"properties": {option: {"minItems": 1}}, "required": [option]}
            yield {"if": is_set, "then": {"required": ["query"]}}
    if "bearer" in options:
        yield _not_twice("bearer", r"//[^/?#]+@")


def _not_twice(option: str, in_url: str) -> Schema:
    """Forbids options for what is already in the URL."""
    in_both = {"properties": {"url": {"pattern": in_url}, option: {"not": {"const": ""}}}, "required": ["url", option]}
    return {"not": in_both}


def _uses_tls(kind: Any, scheme: str) -> bool:  # noqa: ANN401  a kind of probes
    return scheme in getattr(kind, "tls_schemes", ()) or scheme.endswith("https")


def _options(kind: Any) -> Mapping[str, dataclasses.Field[Any]]:  # noqa: ANN401  a kind of probes
    return {field.name: field for field in dataclasses.fields(kind) if field.init and field.name != "url"}


def _options_schema(kind: Any) -> Schema:  # noqa: ANN401  a kind of probes
    hints, options = get_type_hints(kind, include_extras=True), _options(kind)
    required = [name for name, field in options.items() if is_required(field)]
    return {
        "properties": {"url": True, **{name: _option_schema(hints[name]) for name in options}},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _option_schema(hint: Any) -> Schema:  # noqa: ANN401  a type hint
    schema = _type_schema(hint)
    is_text = schema.get("type") == "string" or "enum" in schema or "anyOf" in schema
    return _text_or_file(schema) if is_text else schema


def _type_schema(hint: Any) -> Schema:  # noqa: ANN401  a type hint
    if isinstance(hint, types.UnionType) or str(get_origin(hint)) == "typing.Union":
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    if get_origin(hint) is Annotated:
        return schema_of(get_args(hint)[1])
    return {"type": _TYPES[hint]}


# ---- notification targets


def _route_schema() -> Schema:
    hints = get_type_hints(RouteOptions, include_extras=True)
    return {name: _type_schema(hint) for name, hint in hints.items()}


def _http_target_schema(more: Schema | None = None) -> Schema:
    """`more` are further options of the table."""
    url = _text_or_file({"type": "string", "pattern": "^https?://[^/?#]"})
    table = _without(_options_schema(Http1Client), *PROBE_ONLY_OPTIONS)
    table["properties"] |= {"url": url, **(more or {})}
    table["required"] = ["url"]
    return {"if": {"type": "object", "not": _FROM_FILE}, "then": table, "else": url}


def _apprise_target_schema() -> Schema:
    url = _text_or_file({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*://"})
    table = {"properties": {"url": url, **_route_schema()}, "required": ["url"], "additionalProperties": False}
    return {"if": {"type": "object", "not": _FROM_FILE}, "then": table, "else": url}


def _without(schema: Schema, *names: str) -> Schema:
    properties = {name: inner for name, inner in schema["properties"].items() if name not in names}
    return {"type": "object", **schema, "properties": properties}
