"""`[public]`: what is published, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.config.sources import Source
    from svcnode.config.tables import PublicTable
    from svcnode.core.address import Address

SELECTIONS = ("services", "groups", "tags")
# The first segments of paths that every node may have.
OWN_SEGMENTS = ("livez", "readyz", "openapi.json", "push")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSettings:
    """A service is published if it is named, or in a group or with a tag that is."""

    services: tuple[str, ...]
    groups: tuple[str, ...]
    tags: tuple[str, ...]
    title: str
    listen: tuple[Address, ...]  # empty: it has a path
    path: str  # "": it has its own addresses
    url: str  # where people reach it; "": not known


def public_from(
    public: PublicTable, listen: tuple[Address, ...], source: Source, prefixes: Sequence[str], reserved: Sequence[str]
) -> PublicSettings:
    """`listen`: its addresses. `reserved`: the first segments of the operator surface."""
    if public.is_right(*SELECTIONS) and not any(key in public for key in SELECTIONS):
        source.report(("public",), 'publishes nothing; set services = ["…"], groups = ["…"] or tags = ["…"]')
    if public.is_right("listen", "path") and ("listen" in public) is ("path" in public):
        source.report(
            ("public",), 'needs one place to be served at; set either listen = "host:port" or path = "/public"'
        )
    path = public.path or ""
    if path and (other := _other_owner(path, prefixes, reserved)):
        source.report(("public", "path"), f'"{path}" clashes with {other}; choose another path')
    return PublicSettings(
        services=public.services or (),
        groups=public.groups or (),
        tags=public.tags or (),
        title=public.title,
        listen=listen,
        path=path,
        url=(public.url or "").rstrip("/"),
    )


def _other_owner(path: str, prefixes: Sequence[str], reserved: Sequence[str]) -> str | None:
    """The part of the node that already answers at this path; None if there is none."""
    first_segment = path.split("/")[1]
    for prefix in prefixes:
        is_inside = f"{path}/".startswith(f"{prefix}/") if prefix else first_segment == "node"
        if is_inside or prefix.startswith(f"{path}/"):
            return f'the interface, whose prefix is "{prefix}"'
    return "another path of the node" if first_segment in (*reserved, *OWN_SEGMENTS) else None
