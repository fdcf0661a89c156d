"""What is inspected: the configuration, where its keys are, and the evidence that was gathered before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from svcnode.cli.inspection.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.cli.inspection.finding import Code, Level
    from svcnode.config import ServiceSettings, Settings
    from svcnode.config.keys import KeyPath
    from svcnode.config.sources import Source
    from svcnode.core.codes import ReasonCode
    from svcnode.core.model import Verdict


class OnceChecked(NamedTuple):
    service_id: str
    verdict: Verdict
    duration_s: float


class Lookup(NamedTuple):
    """What the resolver says about a name."""

    addresses: tuple[str, ...]
    duration_s: float
    problem: str = ""  # empty: it resolves


class ClockReading(NamedTuple):
    source: str
    ahead_s: float  # how far the clock of this machine is ahead of that of the source


class TargetProblem(NamedTuple):
    """Why no connection to an alert target can be made."""

    path: KeyPath
    name: str
    text: str
    code: ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the services, the resolver and the alert targets answered."""

    checked: tuple[OnceChecked, ...] = ()
    lookups: Mapping[str, Lookup]
    readings: tuple[ClockReading, ...] = ()
    target_problems: tuple[TargetProblem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    settings: Settings
    source: Source
    evidence: Evidence
    notes: Mapping[str, str]  # by text, the code: of what is valid and may not do what was meant

    def finding(self, code: Code, level: Level, what: str, fix: str, path: KeyPath = ()) -> Finding:
        """A finding about a key of the configuration."""
        key = self.source.display_path(path) if path else ""
        return Finding(code=code, level=level, what=what, fix=fix, key=key, place=self._place(path))

    def _place(self, path: KeyPath) -> str:
        """Empty for a key that is not set."""
        origin = self.source.origin_of(path) if path else None
        return "" if origin is None or (origin.file and origin.line is None) else str(origin)

    def services(self) -> Iterator[tuple[KeyPath, ServiceSettings]]:
        """The services, each with its path in the configuration, which is empty for the store: no key sets it."""
        own = self.settings.uses_store
        for index, service in enumerate(self.settings.services):
            yield (() if own else ("services", index)), service
