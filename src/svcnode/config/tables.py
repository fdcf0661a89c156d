"""The shape of the file. Field names are the keys, docstrings are for whoever adds one."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_type_hints

import msgspec

from svcnode.spec import PREFIX

KeyPath = tuple[str | int, ...]  # ("services", 0, "probe")

DEFAULT_LISTEN = "127.0.0.1:8420"


class Table(msgspec.Struct, forbid_unknown_fields=True):
    pass


class NodeTable(Table):
    name: str | None = None
    version: str | None = None


class TlsTable(Table):
    certificate: str
    key: str


class ServerTable(Table):
    listen: str | list[str] = DEFAULT_LISTEN
    prefix: str | list[str] = PREFIX
    drain: str | None = None
    tls: TlsTable | None = None


class StoreTable(Table):
    path: str | None = None


class LogTable(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class DefaultsTable(Table):
    """What may be said once for all services; None leaves it to the program."""

    interval: str | None = None
    timeout: str | None = None
    rise: int | None = None
    fall: int | None = None
    start_period: str | None = None
    stale_after: str | None = None


class ServiceTable(DefaultsTable, kw_only=True):
    id: str
    name: str | None = None
    description: str | None = None
    impact: Literal["critical", "partial", "none"] | None = None
    probe: str | None = None
    status: Literal["Up", "Down", "Initializing"] | None = None


class FileTable(Table):
    node: NodeTable = msgspec.field(default_factory=NodeTable)
    server: ServerTable = msgspec.field(default_factory=ServerTable)
    store: StoreTable = msgspec.field(default_factory=StoreTable)
    log: LogTable = msgspec.field(default_factory=LogTable)
    defaults: DefaultsTable = msgspec.field(default_factory=DefaultsTable)
    services: list[ServiceTable] = msgspec.field(default_factory=list)


DURATION_KEYS = ("interval", "timeout", "start_period", "stale_after")


def table_at(path: KeyPath) -> type[Table]:
    """The table that a path leads to."""
    table: type[Table] = FileTable
    for key in path:
        if isinstance(key, str):
            inner = table_in(hint_of(table, key))
            assert inner is not None, f"{path} leads to no table"
            table = inner
    return table


def hint_of(table: type[Table], key: str) -> Any:  # noqa: ANN401  a type hint may be anything
    return get_type_hints(table)[key]


def table_in(hint: Any) -> type[Table] | None:  # noqa: ANN401
    """The table within a type hint such as `list[ServiceTable]` or `TlsTable | None`."""
    candidates = (hint, *get_args(hint))
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, Table)), None)


def choices_in(hint: Any) -> list[str]:  # noqa: ANN401
    """The texts within a `Literal[…]` or a `Literal[…] | None`."""
    return [one for kind in (hint, *get_args(hint)) for one in get_args(kind) if isinstance(one, str)]
