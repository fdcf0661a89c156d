"""Turns the services of a message into lines: services with the same cause share a line. There is no I/O.

1. A service that depends on another one of the message (`depends_on`) is folded into the line of its cause.
2. Of the others, three or more with the same host and code, or with the same code and reason, are one line.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.notify.rule import OPEN, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from svcnode.notify.routes import Entry

MIN_ALIKE = 3  # services that are one line; two are told with all that is known of each

OVER = (Kind.RECOVERED, Kind.TRANSIENT)


class Line(NamedTuple):
    """What one line of a message is about."""

    entries: tuple[Entry, ...]  # one, or services that are alike
    host: str = ""  # of services that are alike by it
    effects: tuple[Entry, ...] = ()  # that are folded into this one


def fold(entries: Sequence[Entry]) -> list[Line]:
    """In the order of their first entries."""
    effects = _effects(entries)
    folded = {effect.service.id for found in effects.values() for effect in found}
    alone = [entry for entry in entries if entry.service.id not in folded and _is_plain(entry)]
    lines = {}  # by the id of the first service
    for members in _alike(alone):
        line = Line(tuple(members), members[0].host if len({entry.host for entry in members}) == 1 else "")
        lines[members[0].service.id] = line
        folded |= {entry.service.id for entry in members[1:]}
    return [
        lines.get(entry.service.id) or Line((entry,), effects=tuple(effects.get(entry.service.id, ())))
        for entry in entries
        if entry.service.id not in folded
    ]


def _effects(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """By the cause in the same message, if both are problems, or both are over."""
    effects: dict[str, list[Entry]] = {}
    for kinds in (OPEN, OVER):
        told = {entry.service.id: entry for entry in entries if entry.kind in kinds}
        dependents = {cause: {one.service.id for one in entry.effects} & told.keys() for cause, entry in told.items()}
        waiting = set().union(*dependents.values())
        for cause in [name for name in told if name not in waiting]:
            effects[cause] = [told[name] for name in told if name in dependents[cause] & waiting]
            waiting -= dependents[cause]
    return effects


def _is_plain(entry: Entry) -> bool:
    """Whether a line about several services can say all about this one."""
    return not entry.effects and entry.acknowledgement is None


def _alike(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: list[list[Entry]] = []
    for key_of in (_host_and_code, _code_and_reason):
        alike: defaultdict[Hashable, list[Entry]] = defaultdict(list)
        for entry in entries:
            if (key := key_of(entry)) is not None:
                alike[key].append(entry)
        found += (members for members in alike.values() if len(members) >= MIN_ALIKE)
        done = {entry.service.id for members in found for entry in members}
        entries = [entry for entry in entries if entry.service.id not in done]
    return found


def _host_and_code(entry: Entry) -> Hashable:
    is_of_its_host = entry.host and entry.code != ReasonCode.CANNOT_CHECK  # that is a fault of this one
    return (_fact(entry), entry.host) if is_of_its_host else None


def _code_and_reason(entry: Entry) -> Hashable:
    return (_fact(entry), short_reason(entry))


def _fact(entry: Entry) -> Hashable:
    now = entry.kind, entry.health, entry.before, entry.worst, entry.code
    return (*now, entry.duration_is_upper_bound, tuple(cause.service.id for cause in entry.causes))


def short_reason(entry: Entry) -> str:
    """Without the URL of the probe, which ends most reasons."""
    return entry.reason.partition(": ")[0]
