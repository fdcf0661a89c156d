"""Drains and maintenance of all replicas. They are in the registry, with the paths and documents of the control socket.

A replica uses this when it is asked at its control socket, and so does a client of the registry on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from svcnode.control.changes import DRAIN, MAINTENANCE, PLANNED_MAINTENANCE
from svcnode.control.document_kind import author_of, with_safe_texts
from svcnode.core.maintenance import parse_time_s
from svcnode.core.units import iso_time, parse_duration_s
from svcnode.sharing.format import KeyKind
from svcnode.sharing.work import WorkName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.sharing.format import WorkDocument
    from svcnode.sharing.work import WorkClient

_KINDS = {
    DRAIN: KeyKind.DRAINS,
    MAINTENANCE: KeyKind.MAINTENANCE,
    PLANNED_MAINTENANCE: KeyKind.PLANNED_MAINTENANCE,
}


class AllReplicas:
    """Reads and changes them. Raises `RegistryError`, or `ControlError` where the control socket would."""

    def __init__(self, client: WorkClient) -> None:
        self._client = client

    async def get(self, path: str) -> dict[str, Any] | None:
        """The public fields; None if there is none."""
        document = await self._client.get(_name(path))
        return None if document is None else _fields(document)

    async def put(self, path: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """`value` is valid, as a request to the control socket has it."""
        name, given = _name(path), with_safe_texts(dict(value))
        by, reason = author_of(given), given.get("reason", "")
        match name.kind:
            case KeyKind.DRAINS:
                document = await self._client.drain(by, reason)
            case KeyKind.MAINTENANCE:
                duration_s = parse_duration_s(given["duration"])
                document = await self._client.maintain(name.service_id, duration_s, by=by, reason=reason)
            case _:
                times = parse_time_s(given["from"]), parse_time_s(given["until"])
                document = await self._client.plan(name.service_id, *times, by=by, reason=reason)
        return _fields(document)

    async def delete(self, path: str) -> None:
        await self._client.end(_name(path))


def _name(path: str) -> WorkName:
    first, *rest = path.split("/")
    return WorkName(_KINDS[rest[1]], unquote(rest[0])) if rest else WorkName(_KINDS[first])


def _fields(document: WorkDocument) -> dict[str, Any]:
    texts = {"by": document.by, "via": document.via, "reason": document.reason}
    times = {"at": document.at_s, "from": document.from_s, "until": document.until_s}
    return {name: text for name, text in texts.items() if text} | {
        name: iso_time(wall_s) for name, wall_s in times.items() if wall_s is not None
    }
