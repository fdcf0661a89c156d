"""Where a key belongs that stands in the wrong table, by the declarations of all tables; used only for errors."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from svcnode.config.tables import LISTS, TABLES, NotifyTable, RegisteredServiceTable
from svcnode.probes import option_names, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.config.keys import Table


def unknown_key_text(name: str, otherwise: str, read: Table | None = None) -> str:
    """Of a key that `read`, or the file outside all tables, does not have; `otherwise` if no other table has it."""
    if places := tuple(_places(name, read)):
        first, last = ", ".join(places[:-1]), places[-1]
        return f"unknown key; it belongs in {f'{first} or {last}' if first else last}"
    return f"unknown key{otherwise}"


def _places(name: str, read: Table | None) -> Iterator[str]:
    probe = None if read is None else read.given.get("probe")
    if name in option_names(scheme_of(probe)):
        yield f'the table of the probe, as in probe = {{ url = "…", {name} = … }}'
        return
    if isinstance(read, RegisteredServiceTable):  # not in a file, where the other tables are
        return
    if isinstance(read, NotifyTable) and name in _target_options():
        yield f'the table of one target, as in webhook = {{ url = "…", {name} = … }}'
        return
    yield from (place for path, table in TABLES.items() for place in _tables_with(name, table, path))
    yield from (f"[[{path}]]" for path, table in LISTS.items() if name in table.keys)
    if name in _route_options():
        yield "the table of one target in [notify]"


def _tables_with(name: str, table: type[Table], path: str) -> Iterator[str]:
    if name in table.keys:
        yield f"[{path}]"
    for inner, key in table.keys.items():
        if key.table is not None:
            yield from _tables_with(name, key.table, f"{path}.{inner}")


def _route_options() -> list[str]:
    from svcnode.config.routes import RouteOptions  # few commands read the targets

    return [field.name for field in fields(RouteOptions)]


def _target_options() -> list[str]:
    from svcnode.notify.targets import HTTP_OPTIONS, PROBE_ONLY_OPTIONS

    return [*_route_options(), *(name for name in HTTP_OPTIONS if name not in PROBE_ONLY_OPTIONS)]
