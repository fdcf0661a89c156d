"""The looking: one file per kind, and none knows another.

A kind is a frozen dataclass: its fields are its options, and `look()` returns a verdict. The table below is the
only place that names them; a kind is imported when a service first uses it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from svcnode.core.errors import ProbeError

if TYPE_CHECKING:
    from svcnode.core.model import Verdict

KINDS = {
    "sqlite": "svcnode.probes.sqlite:SqliteProbe",
}


class Probe(Protocol):
    async def look(self) -> Verdict:
        """Look once. The caller sets the deadline and cancels; an exception counts as our own fault."""


class ProbeKind(Protocol):
    @classmethod
    def from_url(cls, url: str) -> Probe: ...


def probe_from_url(url: str) -> Probe:
    """The probe that a URL names; its scheme picks the kind."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ProbeError(f'"{url}" is not a probe URL; it starts with one of: {", ".join(sorted(KINDS))}')
    if scheme not in KINDS:
        raise ProbeError(f'unknown scheme "{scheme}"{_suggestion(scheme)}')
    module_name, _, class_name = KINDS[scheme].partition(":")
    kind: ProbeKind = getattr(import_module(module_name), class_name)
    return kind.from_url(url)


def _suggestion(scheme: str) -> str:
    import difflib

    near = difflib.get_close_matches(scheme, KINDS, n=1)
    return f'; did you mean "{near[0]}"?' if near else f"; known ones: {', '.join(sorted(KINDS))}"
