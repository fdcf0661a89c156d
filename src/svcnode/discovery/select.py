"""For each service that was found, the probe to write: the deepest one that works here as it is.

A deep probe that needs a password nobody has given, or a driver that is not installed, would say that a service is
down which may be well. In its place stands one that is true, if shallow, and beside it what is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.errors import ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.probes.run import run_check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.discovery.scan import FoundService
    from svcnode.probes.base import Probe

CHECK_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedProbe:
    found: FoundService
    probe: str
    verdict: Verdict | None = None  # what the deep probe said, where one could be made
    unavailable_reason: str = ""  # why none could be made
    preferred_probe: str = ""  # the deep probe, where another one had to be taken


async def select_probes(found: Iterable[FoundService]) -> list[SelectedProbe]:
    # All are made before the first one looks: loading a driver takes its time, which no look has to spare.
    made = [(one, _make_probe(one)) for one in found]
    return list(await asyncio.gather(*(_check_and_select(one, probe) for one, probe in made)))


def _make_probe(found: FoundService) -> Probe | ProbeError:
    try:
        return make_probe(found.entry.probe_at(found.endpoint), environ={})
    except ProbeError as exc:
        return exc


async def _check_and_select(found: FoundService, probe: Probe | ProbeError) -> SelectedProbe:
    if isinstance(probe, ProbeError):
        return _tcp_fallback(found, unavailable_reason=str(probe))
    verdict, _ = await run_check(probe, CHECK_TIMEOUT_S)
    return select_probe(found, verdict)


def select_probe(found: FoundService, verdict: Verdict) -> SelectedProbe:
    """By what the deep probe said. One that needs no password is right whatever it said."""
    if verdict.outcome in (Outcome.READY, Outcome.NOT_READY) or not found.entry.login_url:
        return SelectedProbe(found=found, probe=found.entry.probe_at(found.endpoint), verdict=verdict)
    return _tcp_fallback(found, verdict=verdict)


def _tcp_fallback(
    found: FoundService, *, verdict: Verdict | None = None, unavailable_reason: str = ""
) -> SelectedProbe:
    known, endpoint = found.entry, found.endpoint
    better = known.login_probe_at(endpoint) or known.probe_at(endpoint)
    return SelectedProbe(
        found=found,
        probe=f"tcp://{endpoint}",
        verdict=verdict,
        unavailable_reason=unavailable_reason,
        preferred_probe=better,
    )
