"""Chooses the probe to write for each service found: the most thorough one that works without more configuration.

A probe that lacks a password or a driver would report a healthy service as Down. In that case a tcp: probe is written,
with a comment that says what it does not notice, and has the preferred probe and the missing part.
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

    from svcnode.cli.init.catalog import ProbeConfig
    from svcnode.cli.init.scan import FoundService
    from svcnode.probes.base import Probe

CHECK_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedProbe:
    found: FoundService
    probe: ProbeConfig
    verdict: Verdict | None = None  # of the preferred probe, if it could be created
    unavailable_reason: str = ""  # why the preferred probe could not be created
    preferred_probe: ProbeConfig = ""  # set if `probe` is only the tcp: fallback


async def select_probes(found: Iterable[FoundService]) -> list[SelectedProbe]:
    # All are created before the first check: loading a driver takes time, which would count against the timeout.
    probes = [(service, _make_probe(service)) for service in found]
    return list(await asyncio.gather(*(_check_and_select(service, probe) for service, probe in probes)))


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
    """The probe to write for a verdict of the preferred probe. A kind without a login keeps it with any verdict."""
    if verdict.outcome in (Outcome.READY, Outcome.NOT_READY) or not found.entry.login_url:
        return SelectedProbe(found=found, probe=found.entry.probe_at(found.endpoint), verdict=verdict)
    return _tcp_fallback(found, verdict=verdict)


def _tcp_fallback(
    found: FoundService, *, verdict: Verdict | None = None, unavailable_reason: str = ""
) -> SelectedProbe:
    entry, endpoint = found.entry, found.endpoint
    return SelectedProbe(
        found=found,
        probe=f"tcp://{endpoint}",
        verdict=verdict,
        unavailable_reason=unavailable_reason,
        preferred_probe=entry.login_probe_at(endpoint) or entry.probe_at(endpoint),
    )
